//! Who has counted what: the last word of every process, and the sum of all. Pure.
//!
//! Invariant: a sum never gets smaller. What a process said last counts for ever; one that comes back under its name has
//! started at another time and is another source.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use trireme_inference::{Counters, ModelKey, UnixMicros};
use trireme_runtime::statistics::report::GONE_AFTER;
use trireme_runtime::{QueueLoad, Snapshot};

/// Processes whose last words are kept apart. Of more, those that were silent for longest are added up: they are dead, or
/// they would have spoken.
const MAX_SOURCES: usize = 256;

/// What was heard, from whom.
#[derive(Debug, Default)]
pub struct Sources {
    sources: HashMap<(String, UnixMicros), Source>,
    /// The sum of those that are no longer kept apart.
    retired: BTreeMap<ModelKey, Counters>,
}

#[derive(Debug)]
struct Source {
    snapshot: Snapshot,
    heard: Instant,
}

/// A process that has spoken lately.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its name.
    pub name: String,
    /// When it started.
    pub started: UnixMicros,
    /// Requests in flight, where it is a gateway.
    pub in_flight: Option<u64>,
}

/// Everything, by model version.
pub type Totals = BTreeMap<ModelKey, Total>;

/// What all processes together have done with a model version, and how busy they are with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Total {
    /// What was done.
    pub counters: Counters,
    /// How busy those are that are there.
    pub load: QueueLoad,
    /// The longest that one of them took to load it.
    pub load_duration: Duration,
}

// === impl Sources ===

impl Sources {
    /// Takes in what a process says. Words may overtake each other on their way; older ones change nothing.
    pub fn hear(&mut self, snapshot: Snapshot, now: Instant) {
        let id = (snapshot.process.clone(), snapshot.started);
        match self.sources.get_mut(&id) {
            Some(source) if source.snapshot.number > snapshot.number => {}
            Some(source) => *source = Source { snapshot, heard: now },
            None => {
                self.sources.insert(id, Source { snapshot, heard: now });
                self.retire();
            }
        }
    }

    fn retire(&mut self) {
        while self.sources.len() > MAX_SOURCES {
            let longest_silent = self.sources.iter().min_by_key(|(_, source)| source.heard).map(|(id, _)| id.clone());
            let Some(source) = longest_silent.and_then(|id| self.sources.remove(&id)) else { return };
            for model in source.snapshot.models {
                self.retired.entry(model.model).or_default().add(&model.counters);
            }
        }
    }

    /// The processes that have spoken lately.
    pub fn speaking(&self, now: Instant) -> impl Iterator<Item = &str> {
        let lately = move |source: &&Source| now.saturating_duration_since(source.heard) < GONE_AFTER;
        self.sources.values().filter(lately).map(|source| source.snapshot.process.as_str())
    }

    /// When each process that has spoken lately started, and the requests in flight of those that are gateways.
    pub fn processes(&self, now: Instant) -> Vec<Process> {
        let there = self.sources.values().filter(|source| now.saturating_duration_since(source.heard) < GONE_AFTER);
        there
            .map(|Source { snapshot, .. }| Process {
                name: snapshot.process.clone(),
                started: snapshot.started,
                in_flight: snapshot.in_flight,
            })
            .collect()
    }

    /// The sum of all.
    pub fn totals(&self, now: Instant) -> Totals {
        let retired = self.retired.iter();
        let mut totals: Totals = retired
            .map(|(key, counters)| (key.clone(), Total { counters: counters.clone(), ..Total::default() }))
            .collect();
        for source in self.sources.values() {
            let there = now.saturating_duration_since(source.heard) < GONE_AFTER;
            for model in &source.snapshot.models {
                let total = totals.entry(model.model.clone()).or_default();
                total.counters.add(&model.counters);
                if there {
                    total.load.waiting += model.load.waiting;
                    total.load.in_hand += model.load.in_hand;
                    total.load_duration = total.load_duration.max(model.load_duration);
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
        ModelKey { name: "m".to_owned(), version: 1 }
    }

    fn snapshot(process: &str, started: u64, number: u64, inferences: u64) -> Snapshot {
        let model = ModelSnapshot {
            model: key(),
            counters: Counters { inferences, ..Counters::default() },
            load: QueueLoad { waiting: 1, in_hand: 2 },
            load_duration: Duration::from_secs(1),
            stage: "model".to_owned(),
        };
        Snapshot {
            process: process.to_owned(),
            started: UnixMicros(started),
            number,
            models: vec![model],
            in_flight: None,
        }
    }

    fn inferences(sources: &Sources, now: Instant) -> u64 {
        sources.totals(now)[&key()].counters.inferences
    }

    #[test]
    fn what_was_counted_stays_when_a_process_dies_and_when_it_comes_back() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        sources.hear(snapshot("a", 1, 0, 5), start);
        sources.hear(snapshot("b", 1, 0, 7), start);
        assert_eq!(inferences(&sources, start), 12);
        sources.hear(snapshot("a", 1, 2, 6), start);
        sources.hear(snapshot("a", 1, 1, 5), start);
        assert_eq!(inferences(&sources, start), 13, "an older word that comes late changes nothing");
        sources.hear(snapshot("a", 2, 0, 1), start);
        assert_eq!(inferences(&sources, start), 14, "a process that starts again begins at 0");
    }

    #[test]
    fn who_is_gone_is_not_busy() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        sources.hear(snapshot("a", 1, 0, 5), start);
        sources.hear(snapshot("b", 1, 0, 7), start + GONE_AFTER);
        let now = start + GONE_AFTER;
        assert_eq!(sources.totals(now)[&key()].load, QueueLoad { waiting: 1, in_hand: 2 });
        assert_eq!(sources.speaking(now).collect::<Vec<_>>(), ["b"]);
        assert_eq!(inferences(&sources, now), 12);
    }

    #[test]
    fn memory_is_bounded_and_sums_are_kept() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        for n in 0..3 * MAX_SOURCES as u64 {
            sources.hear(snapshot(&n.to_string(), n, 0, 1), start + Duration::from_secs(n));
            assert_eq!(inferences(&sources, start), n + 1);
        }
        assert_eq!(sources.sources.len(), MAX_SOURCES);
    }
}
