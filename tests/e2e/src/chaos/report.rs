//! What the clients noticed.

use std::fmt;
use std::time::Duration;

use super::clients::Tally;

/// A fault that happened, in time since the start of the load.
#[derive(Debug)]
pub struct Struck {
    pub description: String,
    pub begun: Duration,
    /// When it was put right again.
    pub ended: Duration,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Report {
    tally: Tally,
    struck: Vec<Struck>,
    elapsed: Duration,
}

// === impl Report ===

impl Report {
    pub(super) fn new(mut tally: Tally, struck: Vec<Struck>, elapsed: Duration) -> Report {
        tally.right.sort_unstable();
        Report { tally, struck, elapsed }
    }

    /// Requests that were sent.
    pub fn requests(&self) -> usize {
        self.tally.right.len() + self.complaints().map(|(_, list)| list.len()).sum::<usize>()
    }

    /// Requests that were not answered by their deadline.
    pub fn lost(&self) -> usize {
        self.tally.lost.len()
    }

    /// Whether every request was answered once and as it should be.
    pub fn is_clean(&self) -> bool {
        self.complaints().all(|(_, list)| list.is_empty())
    }

    fn complaints(&self) -> impl Iterator<Item = (&'static str, &Vec<String>)> {
        let Tally { wrong, lost, doubled, failed, broken, .. } = &self.tally;
        [
            ("wrong", wrong),
            ("lost", lost),
            ("doubled", doubled),
            ("failed before its deadline", failed),
            ("connection broken", broken),
        ]
        .into_iter()
    }

    /// The longest time without any answer.
    fn longest_gap(&self) -> Duration {
        let pairs = self.tally.right.iter().zip(self.tally.right.iter().skip(1));
        pairs.map(|(one, next)| *next - *one).max().unwrap_or_default()
    }

    /// From the beginning of each fault to the next answer, by kind of fault: how many, the median and the longest.
    fn first_answers(&self) -> Vec<(String, usize, Duration, Duration)> {
        let mut kinds: std::collections::BTreeMap<String, Vec<Duration>> = Default::default();
        for Struck { description, begun, .. } in &self.struck {
            let next = self.tally.right.partition_point(|answered| answered < begun);
            let first = self.tally.right.get(next).map_or(self.elapsed, |answered| *answered) - *begun;
            let mut words = description.split([' ', '-']);
            let kind: Vec<&str> = words.by_ref().take(2).collect();
            kinds.entry(kind.join(" ")).or_default().push(first);
        }
        let summary = |(kind, mut times): (String, Vec<Duration>)| {
            times.sort_unstable();
            (kind, times.len(), times[times.len() / 2], times[times.len() - 1])
        };
        kinds.into_iter().map(summary).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { right, moved, slowest, .. } = &self.tally;
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "{} requests in {seconds:.0} s, {} faults", self.requests(), self.struck.len())?;
        writeln!(f, "  {:<28}{:>8}", "right", right.len())?;
        for (what, list) in self.complaints() {
            writeln!(f, "  {what:<28}{:>8}", list.len())?;
            for one in list.iter().take(3) {
                writeln!(f, "      {}", one.chars().take(200).collect::<String>())?;
            }
        }
        writeln!(f, "  {:<28}{moved:>8}", "sent to another gateway")?;
        writeln!(f, "  longest without an answer   {:>8.0} ms", self.longest_gap().as_secs_f64() * 1e3)?;
        writeln!(f, "  slowest request             {:>8.0} ms", slowest.as_secs_f64() * 1e3)?;
        let faulty: Duration = self.struck.iter().map(|struck| struck.ended - struck.begun).sum();
        writeln!(f, "  time under some fault       {:>8.0} %", 100.0 * faulty.as_secs_f64() / seconds)?;
        writeln!(f, "\n  from a fault to the first answer     count   median ms   longest ms")?;
        for (kind, count, median, longest) in self.first_answers() {
            let millis = |time: Duration| time.as_secs_f64() * 1e3;
            writeln!(f, "  {kind:<36}{count:>6}{:>12.0}{:>13.0}", millis(median), millis(longest))?;
        }
        Ok(())
    }
}
