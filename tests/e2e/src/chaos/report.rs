//! The report: how the clients were affected.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::effects::{Effect, effects, tardy};
use super::jobs::JobTally;
use super::struck::Struck;
use super::tally::{Answered, Moved, Tally, What};

/// The outcome of a run.
#[derive(Debug)]
pub struct Report {
    pub(super) tally: Tally,
    /// The outcome of durable work, if there was any.
    pub(super) jobs: Option<JobTally>,
    pub(super) struck: Vec<Struck>,
    pub(super) elapsed: Duration,
    /// Where queues were stored.
    pub(super) storage: String,
    /// The longest time that a worker took to execute each of its models again, and the workers that did not.
    pub(super) healing: (Duration, Vec<String>),
    /// How long after a fault requests may take; with a cluster of brokers only.
    pub(super) prompt: Option<Duration>,
    /// Why the run ended early, if it did.
    pub(super) broken_off: Option<String>,
}

/// Times of all faults of one kind.
#[derive(Default)]
struct Times {
    /// From the beginning of the fault to the first answer to a request that was sent later.
    from_begin: Vec<Duration>,
    /// The same from its end.
    from_end: Vec<Duration>,
    /// The slowest request that was under way during the fault.
    slowest: Vec<Duration>,
}

// === impl Report ===

impl Report {
    /// Number of requests that were sent.
    pub fn requests(&self) -> usize {
        self.tally.requests()
    }

    /// The faults of durable work.
    pub fn job_complaints(&self) -> &[String] {
        self.jobs.as_ref().map_or(&[], |jobs| &jobs.complaints)
    }

    /// Durable requests that were accepted and answered rightly, and lines of batches that were.
    pub fn job_answers(&self) -> (usize, usize) {
        self.jobs.as_ref().map_or((0, 0), |jobs| (jobs.answered, jobs.lines))
    }

    /// Number of requests that were not answered by their deadline.
    pub fn lost(&self) -> usize {
        self.tally.count(What::Lost)
    }

    /// Whether every request was answered once, in time and rightly, and every worker works again.
    pub fn is_clean(&self) -> bool {
        self.tally.complaints.is_empty()
            && self.jobs.as_ref().is_none_or(|jobs| jobs.complaints.is_empty())
            && self.healing.1.is_empty()
            && self.tardy().is_empty()
            && self.broken_off.is_none()
    }

    /// Requests that were answered rightly, but too long after the last fault that they met.
    fn tardy(&self) -> Vec<String> {
        self.prompt.map(|prompt| tardy(&self.tally, &self.struck, prompt)).unwrap_or_default()
    }

    /// Adds the results of [`super::healing::check`].
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
        // For each position: the first answer to a request that was sent at this position or later.
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

impl Report {
    /// Writes how many requests each kind of fault met, and how long they took to recover.
    fn write_effects(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<&str, Vec<Effect>> = BTreeMap::new();
        for (struck, effect) in self.struck.iter().zip(effects(&self.tally, &self.struck)) {
            kinds.entry(&struck.kind).or_default().push(effect);
        }
        writeln!(
            f,
            "\n  {:<40}{:>9}{:>9}{:>9}{:>12}{:>20}{:>20}",
            "", "", "", "", "slowest", "recovered", "brokers whole"
        )?;
        write!(f, "  {:<34}{:>6}{:>9}{:>9}{:>9}", "fault", "count", "requests", "refused", "failed")?;
        writeln!(f, "{:>12}{:>20}{:>20}", "request, s", "after its end, s", "after its end, s")?;
        for (kind, effects) in kinds {
            let sum = |count: fn(&Effect) -> usize| effects.iter().map(count).sum::<usize>();
            let [requests, refused, failed] = [sum(|one| one.requests), sum(|one| one.refused), sum(|one| one.failed)];
            let slowest = effects.iter().map(|one| one.slowest).max().unwrap_or_default().as_secs_f64();
            let recovered = in_seconds(effects.iter().map(|one| one.recovered));
            let whole = in_seconds(effects.iter().filter_map(|one| one.whole));
            let never = effects.iter().filter(|one| one.whole.is_none()).count();
            let whole = if never > 0 { format!("{whole}, {never} never") } else { whole };
            write!(f, "  {kind:<34}{:>6}{requests:>9}{refused:>9}{failed:>9}", effects.len())?;
            writeln!(f, "{slowest:>12.1}{recovered:>20}{whole:>20}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { right, expired, left, moved: Moved { killed, killed_after, refused, reset }, .. } = &self.tally;
        let seconds = self.elapsed.as_secs_f64();
        let faults: usize = self.struck.iter().map(|struck| struck.count).sum();
        writeln!(f, "queues in {}: {} requests in {seconds:.0} s, {faults} faults", self.storage, self.requests())?;
        if let Some(why) = &self.broken_off {
            writeln!(f, "  BROKEN OFF: {why}")?;
        }
        let mut line = |what: &str, count: usize| writeln!(f, "  {what:<44}{count:>8}");
        line("right", right.len())?;
        line("  of them: their own timeout had passed", *expired)?;
        line("left by their callers", *left)?;
        if faults > 0 {
            line("sent again: their gateway was killed", *killed)?;
            line("sent again: it stopped, and refused them", *refused)?;
            line("sent again: it stopped before it took them", *reset)?;
        }
        let tardy = self.tardy();
        let tardy = self.prompt.map(|_| ("answered too long after a fault", tardy.iter().collect()));
        let healing = (faults > 0).then(|| ("workers that did not work again", self.healing.1.iter().collect()));
        for (what, list) in self.tally.by_kind().chain(tardy).chain(healing) {
            writeln!(f, "  {what:<44}{:>8}", list.len())?;
            list.iter().take(3).try_for_each(|one| writeln!(f, "      {one}"))?;
        }
        if let Some(jobs) = &self.jobs {
            let mut line = |what: &str, count: usize| writeln!(f, "  {what:<44}{count:>8}");
            line("durable requests accepted", jobs.accepted)?;
            line("  of them answered once and rightly", jobs.answered)?;
            line("batches that were whole and right", jobs.batches)?;
            line("  lines of them", jobs.lines)?;
            line("durable work that went wrong", jobs.complaints.len())?;
            jobs.complaints.iter().take(3).try_for_each(|one| writeln!(f, "      {one}"))?;
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
        writeln!(f, "\n  {:<40}{sent:>34}{meanwhile:>20}", "ms (median / longest)")?;
        let [begun, ended] = ["after its beginning", "after its end"];
        writeln!(f, "  {:<34}{:>6}{begun:>20}{ended:>17}{:>17}", "fault", "count", "meanwhile")?;
        for (kind, times) in self.times() {
            let Times { from_begin, from_end, slowest } = &times;
            let count = from_begin.len();
            let [begin, end, slowest] = [from_begin, from_end, slowest].map(|times| median_and_longest(times));
            writeln!(f, "  {kind:<34}{count:>6}{begin:>20}{end:>17}{slowest:>17}")?;
        }
        if self.prompt.is_some() { self.write_effects(f) } else { Ok(()) }
    }
}

fn median_and_longest(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort_unstable();
    let millis = |time: Option<&Duration>| time.copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("{:.0} / {:.0}", millis(times.get(times.len().saturating_sub(1) / 2)), millis(times.last()))
}

/// The median and the maximum, in seconds.
fn in_seconds(times: impl Iterator<Item = Duration>) -> String {
    let mut times: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
    times.sort_unstable_by(f64::total_cmp);
    match times.last() {
        Some(longest) => format!("{:.1} / {longest:.1}", times[(times.len() - 1) / 2]),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Complaint;
    use super::*;

    fn report(right: &[(u64, u64)], struck: (u64, u64), elapsed: u64) -> Report {
        let seconds = Duration::from_secs;
        let answered = |&(sent, answered): &(u64, u64)| Answered { sent: seconds(sent), answered: seconds(answered) };
        Report {
            tally: Tally { right: right.iter().map(answered).collect(), ..Tally::default() },
            jobs: None,
            struck: vec![Struck {
                kind: "kill model".to_owned(),
                count: 1,
                begun: seconds(struck.0),
                ended: seconds(struck.1),
                calm: seconds(struck.1),
                whole: None,
            }],
            elapsed: seconds(elapsed),
            storage: "memory".to_owned(),
            healing: (Duration::ZERO, Vec::new()),
            prompt: None,
            broken_off: None,
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
        let when = Answered { sent: Duration::ZERO, answered: Duration::from_secs(1) };
        late.tally.complaints.push(Complaint { what: What::Late, when, text: "1".to_owned() });
        assert!(!late.is_clean());
        let mut stuck = report(&[], (0, 1), 2);
        stuck.healing.1.push("model-4".to_owned());
        assert!(!stuck.is_clean());
        let slow = report(&[(5, 31)], (10, 20), 40);
        assert!(slow.is_clean());
        assert!(!Report { prompt: Some(Duration::from_secs(10)), ..slow }.is_clean());
    }
}
