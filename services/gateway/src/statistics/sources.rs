//! The counts of every process by its last report, and their sum. Pure.
//!
//! Invariant: a sum never gets smaller. The last report of a process counts for ever. A process that comes back under its name has
//! another start time and is another source.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use trireme_inference::{Counters, ModelKey, UnixMicros};
use trireme_runtime::{QueueLoad, Snapshot};

/// Processes that are gone whose reports are kept apart. Of more, those that were silent for longest are added up: live processes
/// would have reported.
const MAX_GONE: usize = 256;

/// Processes whose reports are taken in at all: more than any deployment has, so that made-up reports do not use up the memory.
const MAX_SOURCES: usize = 10_000;

/// The reports of all processes.
#[derive(Debug, Default)]
pub struct Sources {
    sources: HashMap<(String, UnixMicros), Source>,
    /// The sum of the processes that are no longer kept apart.
    retired: BTreeMap<ModelKey, Counters>,
}

#[derive(Debug)]
struct Source {
    snapshot: Snapshot,
    heard: Instant,
}

/// Everything, by model version.
pub type Totals = BTreeMap<ModelKey, Total>;

/// The counts of all processes for a model version, and their load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Total {
    /// The counts.
    pub counters: Counters,
    /// The load of the processes that exist.
    pub load: QueueLoad,
    /// The processes that have the model out of memory until its next request, and how long already.
    pub asleep: Vec<(String, Duration)>,
    /// The longest time that a process took to load the model.
    pub load_duration: Duration,
}

// === impl Sources ===

impl Sources {
    /// Takes in a report. Reports may overtake each other on their way; older ones change nothing.
    pub fn hear(&mut self, snapshot: Snapshot, now: Instant) {
        let id = (snapshot.process.clone(), snapshot.started);
        let has_room = self.sources.len() < MAX_SOURCES;
        match self.sources.get_mut(&id) {
            Some(source) if source.snapshot.number > snapshot.number => {}
            Some(source) => *source = Source { snapshot, heard: now },
            None if has_room => drop(self.sources.insert(id, Source { snapshot, heard: now })),
            None => {}
        }
    }

    /// Adds up the oldest processes that are gone. Processes that are `there` count on and stay apart.
    pub fn retire(&mut self, there: &HashSet<String>) {
        let gone = self.sources.iter().filter(|((process, _), _)| !there.contains(process));
        let mut gone: Vec<_> = gone.map(|(id, source)| (source.heard, id.clone())).collect();
        gone.sort();
        for (_, id) in gone.iter().take(gone.len().saturating_sub(MAX_GONE)) {
            let models = self.sources.remove(id).map(|source| source.snapshot.models).unwrap_or_default();
            for model in models {
                self.retired.entry(model.model).or_default().add(&model.counters);
            }
        }
    }

    /// The sum of all processes. Only those that are `there` have a load.
    pub fn totals(&self, there: &HashSet<String>) -> Totals {
        let retired = self.retired.iter();
        let mut totals: Totals = retired
            .map(|(key, counters)| (key.clone(), Total { counters: counters.clone(), ..Total::default() }))
            .collect();
        for source in self.sources.values() {
            let there = there.contains(&source.snapshot.process);
            for model in &source.snapshot.models {
                let total = totals.entry(model.model.clone()).or_default();
                total.counters.add(&model.counters);
                if there {
                    total.load.waiting += model.load.waiting;
                    total.load.in_hand += model.load.in_hand;
                    let tokens = total.load.waiting_tokens.iter_mut().zip(model.load.waiting_tokens);
                    tokens.for_each(|(sum, more)| *sum += more);
                    total.load_duration = total.load_duration.max(model.load_duration);
                    total.asleep.extend(model.load.asleep.map(|asleep| (source.snapshot.process.clone(), asleep)));
                }
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_runtime::ModelSnapshot;

    fn key() -> ModelKey {
        ModelKey { name: "m".into(), version: 1 }
    }

    fn snapshot(process: &str, started: u64, number: u64, inferences: u64) -> Snapshot {
        let model = ModelSnapshot {
            model: key(),
            counters: Counters { inferences, ..Counters::default() },
            load: QueueLoad {
                waiting: 1,
                in_hand: 2,
                waiting_tokens: [7, 0],
                asleep: Some(Duration::from_secs(number)),
            },
            load_duration: Duration::from_secs(1),
            stage: "model".to_owned(),
        };
        Snapshot { process: process.to_owned(), started: UnixMicros(started), number, models: vec![model] }
    }

    fn inferences(sources: &Sources) -> u64 {
        sources.totals(&HashSet::new())[&key()].counters.inferences
    }

    #[test]
    fn what_was_counted_stays_when_a_process_dies_and_when_it_comes_back() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        sources.hear(snapshot("a", 1, 0, 5), start);
        sources.hear(snapshot("b", 1, 0, 7), start);
        assert_eq!(inferences(&sources), 12);
        sources.hear(snapshot("a", 1, 2, 6), start);
        sources.hear(snapshot("a", 1, 1, 5), start);
        assert_eq!(inferences(&sources), 13, "an older word that comes late changes nothing");
        sources.hear(snapshot("a", 2, 0, 1), start);
        assert_eq!(inferences(&sources), 14, "a process that starts again begins at 0");
    }

    #[test]
    fn who_is_gone_is_not_busy() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        sources.hear(snapshot("a", 1, 0, 5), start);
        sources.hear(snapshot("b", 1, 0, 7), start);
        let totals = sources.totals(&HashSet::from(["b".to_owned()]));
        assert_eq!(totals[&key()].load, QueueLoad { waiting: 1, in_hand: 2, waiting_tokens: [7, 0], asleep: None });
        assert_eq!(totals[&key()].asleep, [("b".to_owned(), Duration::ZERO)]);
        assert_eq!(totals[&key()].counters.inferences, 12);
    }

    #[test]
    fn memory_is_bounded_and_sums_are_kept() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        let there: HashSet<String> = (0..300u64).map(|n| n.to_string()).collect();
        for n in 0..3 * MAX_GONE as u64 {
            sources.hear(snapshot(&n.to_string(), n, 0, 1), start + Duration::from_secs(n));
            sources.retire(&there);
            assert_eq!(inferences(&sources), n + 1);
        }
        assert_eq!(sources.sources.len(), MAX_GONE + there.len());
        for n in 0..300 {
            sources.hear(snapshot(&n.to_string(), n, 1, 2), start);
        }
        assert_eq!(
            inferences(&sources),
            3 * MAX_GONE as u64 + 300,
            "who is there is counted once, however many there are"
        );
    }
}
