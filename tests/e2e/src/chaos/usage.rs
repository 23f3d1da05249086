//! A process's resource use over time, and whether it grows.

use std::fs;

use super::healing::sum;
use super::member::Member;

/// The share of a run after which caches, pools and heaps should not grow any more.
const WARM: f64 = 0.3;

/// How much memory may grow from the middle of a run to its end: allocators are not exact.
const TOLERANCE_SHARE: f64 = 0.05;
const TOLERANCE_BYTES: u64 = 4 << 20;

/// How much the number of tasks may grow: this many belong to the requests that happen to be under way.
const TOLERANCE_TASKS: u64 = 32;

/// The resource use of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub memory: u64,
    pub descriptors: u64,
    pub threads: u64,
    /// Number of async tasks, if the process has metrics.
    pub tasks: Option<u64>,
}

/// The resource use of one process over time.
#[derive(Debug)]
pub(super) struct Trace {
    pub name: String,
    pub id: u32,
    /// Whether it has metrics of its own; only brokers do not.
    pub is_member: bool,
    /// How many requests the system had answered by then, and the process's resource use.
    pub samples: Vec<(usize, Usage)>,
}

/// A finding about a process's resource use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Grows,
    /// The process never reported its number of tasks, so their growth is unknown.
    TellsNoTasks,
}

// === impl Usage ===

impl Usage {
    /// A process's current resource use; zeros if it has ended.
    pub fn of(process: u32, member: Option<&Member>) -> Usage {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64);
        let tasks = member.and_then(|member| sum(member, "trireme_process_tasks")).map(|tasks| tasks as u64);
        Usage { memory: field("VmRSS:") << 10, descriptors, threads: field("Threads:"), tasks }
    }
}

// === impl Trace ===

impl Trace {
    /// The median of a figure in the first and in the last third of the samples after [`WARM`].
    pub fn early_and_late(&self, figure: impl Fn(&Usage) -> Option<u64>) -> (u64, u64) {
        let warm = &self.samples[(self.samples.len() as f64 * WARM) as usize..];
        let median = |samples: &[(usize, Usage)]| {
            let mut figures: Vec<u64> = samples.iter().filter_map(|(_, usage)| figure(usage)).collect();
            figures.sort_unstable();
            figures.get(figures.len() / 2).copied().unwrap_or(0)
        };
        let third = warm.len() / 3;
        (median(&warm[..third]), median(&warm[warm.len() - third..]))
    }

    /// The bytes by which its memory grows per request: the slope of a line through the second half of the run.
    pub fn bytes_per_request(&self) -> f64 {
        let half = &self.samples[self.samples.len() / 2..];
        slope(half.iter().map(|(requests, usage)| (*requests as f64, usage.memory as f64)))
    }

    pub fn finding(&self) -> Option<Finding> {
        let tells_tasks = self.samples.iter().any(|(_, usage)| usage.tasks.is_some());
        match (self.is_member && !tells_tasks, self.grows()) {
            (true, _) => Some(Finding::TellsNoTasks),
            (_, true) => Some(Finding::Grows),
            _ => None,
        }
    }

    fn grows(&self) -> bool {
        let (early, late) = self.early_and_late(|usage| Some(usage.memory));
        let memory = late > early + (early as f64 * TOLERANCE_SHARE) as u64 + TOLERANCE_BYTES;
        let few = |(early, late): (u64, u64), more: u64| late > early + early / 10 + more;
        memory
            || few(self.early_and_late(|usage| Some(usage.descriptors)), 2)
            || few(self.early_and_late(|usage| Some(usage.threads)), 2)
            || few(self.early_and_late(|usage| usage.tasks), TOLERANCE_TASKS)
    }
}

/// The slope of the line that fits these points best by least squares; 0 if there is none.
fn slope(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = points.clone().count() as f64;
    let mean = |coordinate: fn((f64, f64)) -> f64| points.clone().map(coordinate).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.clone().map(|point| (point.0 - x).powi(2)).sum();
    let slope = points.map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
    if slope.is_finite() { slope } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS_A_SECOND: usize = 500;

    fn trace(sample: fn(u64) -> Usage) -> Trace {
        let samples = (0..100).map(|second| (second as usize * REQUESTS_A_SECOND, sample(second))).collect();
        Trace { name: "gateway-0".to_owned(), id: 0, is_member: true, samples }
    }

    fn flat(second: u64) -> Usage {
        Usage { memory: 40 << 20, descriptors: 30 + second % 3, threads: 9, tasks: Some(50 + second % 20) }
    }

    #[test]
    fn what_grows_is_noticed() {
        assert_eq!(trace(flat).finding(), None);
        let grows = |sample| assert_eq!(trace(sample).finding(), Some(Finding::Grows));
        grows(|second| Usage { memory: second << 20, ..flat(second) });
        grows(|second| Usage { descriptors: second, ..flat(second) });
        grows(|second| Usage { threads: second, ..flat(second) });
        grows(|second| Usage { tasks: Some(5 * second), ..flat(second) });
    }

    #[test]
    fn tasks_that_nobody_tells_of_are_noticed() {
        let silent = || trace(|second| Usage { tasks: None, ..flat(second) });
        assert_eq!(silent().finding(), Some(Finding::TellsNoTasks));
        assert_eq!(Trace { is_member: false, ..silent() }.finding(), None, "the broker tells of none");
        let now_and_then = |second| Usage { tasks: Some(50).filter(|_| second % 3 == 0), ..flat(second) };
        assert_eq!(trace(now_and_then).finding(), None, "it may not answer for once");
    }

    #[test]
    fn growth_is_told_for_each_request() {
        // Too little to count as growth in so short a run.
        let leak = |second: u64| Usage { memory: (40 << 20) + second * REQUESTS_A_SECOND as u64 * 30, ..flat(second) };
        assert_eq!(trace(leak).finding(), None);
        assert!((trace(leak).bytes_per_request() - 30.0).abs() < 0.1);
        let warms_up = |second: u64| Usage { memory: second.min(45) << 20, ..flat(second) };
        assert_eq!([trace(flat).bytes_per_request(), trace(warms_up).bytes_per_request()], [0.0, 0.0]);
        assert_eq!(slope(std::iter::empty()), 0.0);
    }
}
