//! What the clients noticed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::tally::{Answered, Moved, Tally};

/// A fault that happened, or two at once, in time since the start of the load.
#[derive(Debug)]
pub(super) struct Struck {
    /// What happened, and to what sort of process.
    pub kind: String,
    /// How many faults that were.
    pub count: usize,
    pub begun: Duration,
    /// When it was put right again.
    pub ended: Duration,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Report {
    pub(super) tally: Tally,
    pub(super) struck: Vec<Struck>,
    pub(super) elapsed: Duration,
    /// Where queues were kept.
    pub(super) storage: &'static str,
    /// The longest that a worker took to execute something again, and those that did not.
    pub(super) healing: (Duration, Vec<String>),
}

/// Times of one kind of fault.
#[derive(Default)]
struct Times {
    /// From its beginning to the first answer to a request that was sent later.
    from_begin: Vec<Duration>,
    /// The same from its end.
    from_end: Vec<Duration>,
    /// The slowest request that was under way meanwhile.
    slowest: Vec<Duration>,
}

// === impl Report ===

impl Report {
    /// Requests that were sent.
    pub fn requests(&self) -> usize {
        self.tally.requests()
    }

    /// Requests that were not answered by their deadline.
    pub fn lost(&self) -> usize {
        self.tally.lost.len()
    }

    /// Whether every request was answered once, in time and as it should be, and every worker works again.
    pub fn is_clean(&self) -> bool {
        self.tally.complaints().all(|(_, list)| list.is_empty()) && self.healing.1.is_empty()
    }

    /// Adds what [`super::healing::check`] found.
    pub(super) fn heal(healing: &mut (Duration, Vec<String>), (longest, stuck): (Duration, Vec<String>)) {
        healing.0 = healing.0.max(longest);
        healing.1.extend(stuck);
    }

    /// The longest time without any answer, start and end included.
    fn longest_gap(&self) -> Duration {
        let mut times: Vec<Duration> = self.tally.right.iter().map(|one| one.answered).collect();
        times.extend([Duration::ZERO, self.elapsed]);
        times.sort_unstable();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    fn slowest(&self) -> Duration {
        self.tally.right.iter().map(|one| one.answered - one.sent).max().unwrap_or_default()
    }

    /// How quickly answers came, by kind of fault.
    fn times(&self) -> BTreeMap<&str, Times> {
        let mut sent: Vec<Answered> = self.tally.right.clone();
        sent.sort_unstable_by_key(|one| one.sent);
        // The first answer to any request that was sent at this place in the order or later.
        let mut first = vec![self.elapsed; sent.len() + 1];
        for index in (0..sent.len()).rev() {
            first[index] = first[index + 1].min(sent[index].answered);
        }
        let wait = |from: Duration| first[sent.partition_point(|one| one.sent < from)].saturating_sub(from);
        let mut kinds: BTreeMap<&str, Times> = BTreeMap::new();
        for Struck { kind, begun, ended, .. } in &self.struck {
            let times = kinds.entry(kind).or_default();
            times.from_begin.push(wait(*begun));
            times.from_end.push(wait(*ended));
            let overlaps = |one: &&Answered| one.sent < *ended && one.answered > *begun;
            let slowest = sent.iter().filter(overlaps).map(|one| one.answered - one.sent).max();
            times.slowest.push(slowest.unwrap_or_default());
        }
        kinds
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { right, expired, left, moved: Moved { killed, killed_after, refused, reset }, .. } = &self.tally;
        let seconds = self.elapsed.as_secs_f64();
        let faults: usize = self.struck.iter().map(|struck| struck.count).sum();
        writeln!(f, "queues in {}: {} requests in {seconds:.0} s, {faults} faults", self.storage, self.requests())?;
        let mut line = |what: &str, count: usize| writeln!(f, "  {what:<44}{count:>8}");
        line("right", right.len())?;
        line("  of them: their own timeout had passed", *expired)?;
        line("left by their callers", *left)?;
        if faults > 0 {
            line("sent again: their gateway was killed", *killed)?;
            line("sent again: it stopped, and refused them", *refused)?;
            line("sent again: it stopped before it took them", *reset)?;
        }
        let healing = ("workers that did not work again", &self.healing.1);
        for (what, list) in self.tally.complaints().chain((faults > 0).then_some(healing)) {
            writeln!(f, "  {what:<44}{:>8}", list.len())?;
            list.iter().take(3).try_for_each(|one| writeln!(f, "      {one}"))?;
        }
        let mut millis = |what: &str, time: Duration| writeln!(f, "  {what:<44}{:>8.0} ms", time.as_secs_f64() * 1e3);
        millis("longest without an answer", self.longest_gap())?;
        millis("slowest request", self.slowest())?;
        if faults == 0 {
            return Ok(());
        }
        millis("longest wait for one that was killed then", *killed_after)?;
        millis("longest until every worker worked again", self.healing.0)?;
        let faulty: Duration = self.struck.iter().map(|struck| struck.ended - struck.begun).sum();
        writeln!(f, "  {:<44}{:>8.0} %", "time under some fault", 100.0 * faulty.as_secs_f64() / seconds)?;
        let [sent, meanwhile] = ["first answer to a request sent", "slowest request"];
        writeln!(f, "\n  {:<34}{sent:>34}{meanwhile:>20}", "ms (median / longest)")?;
        let [begun, ended] = ["after its beginning", "after its end"];
        writeln!(f, "  {:<28}{:>6}{begun:>20}{ended:>17}{:>17}", "fault", "count", "meanwhile")?;
        for (kind, times) in self.times() {
            let Times { from_begin, from_end, slowest } = &times;
            let count = from_begin.len();
            let [begin, end, slowest] = [from_begin, from_end, slowest].map(|times| median_and_longest(times));
            writeln!(f, "  {kind:<28}{count:>6}{begin:>20}{end:>17}{slowest:>17}")?;
        }
        Ok(())
    }
}

fn median_and_longest(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort_unstable();
    let millis = |time: Option<&Duration>| time.copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("{:.0} / {:.0}", millis(times.get(times.len().saturating_sub(1) / 2)), millis(times.last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(right: &[(u64, u64)], struck: (u64, u64), elapsed: u64) -> Report {
        let seconds = Duration::from_secs;
        let answered = |&(sent, answered): &(u64, u64)| Answered { sent: seconds(sent), answered: seconds(answered) };
        Report {
            tally: Tally { right: right.iter().map(answered).collect(), ..Tally::default() },
            struck: vec![Struck {
                kind: "kill model".to_owned(),
                count: 1,
                begun: seconds(struck.0),
                ended: seconds(struck.1),
            }],
            elapsed: seconds(elapsed),
            storage: "memory",
            healing: (Duration::ZERO, Vec::new()),
        }
    }

    #[test]
    fn only_answers_to_what_was_sent_after_a_fault_count_as_first() {
        let seconds = Duration::from_secs;
        let report = report(&[(1, 12), (9, 11), (10, 19), (12, 15), (21, 22)], (10, 20), 30);
        let times = &report.times()["kill model"];
        assert_eq!((times.from_begin[0], times.from_end[0], times.slowest[0]), (seconds(5), seconds(2), seconds(11)));
        assert_eq!(report.longest_gap(), seconds(11), "from the start to the first answer");
    }

    #[test]
    fn silence_at_the_end_is_a_gap_and_no_answer() {
        let report = report(&[(1, 2)], (3, 4), 30);
        let times = &report.times()["kill model"];
        assert_eq!(times.from_end[0], Duration::from_secs(26));
        assert_eq!(report.longest_gap(), Duration::from_secs(28));
    }

    #[test]
    fn a_worker_that_does_not_work_again_and_a_late_answer_are_not_clean() {
        let mut late = report(&[], (0, 1), 2);
        assert!(late.is_clean());
        late.tally.late.push("1".to_owned());
        assert!(!late.is_clean());
        let mut stuck = report(&[], (0, 1), 2);
        stuck.healing.1.push("model-4".to_owned());
        assert!(!stuck.is_clean());
    }
}
