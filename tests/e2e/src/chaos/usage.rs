//! What a process uses over time, and whether that grows.

use std::fs;

use super::healing::sum;
use super::member::Member;

/// The share of a run after which caches, pools and heaps have the size they keep.
const WARM: f64 = 0.3;

/// What memory may grow by from the middle of a run to its end: allocators are not exact.
const TOLERANCE_SHARE: f64 = 0.05;
const TOLERANCE_BYTES: u64 = 4 << 20;

/// What the number of tasks may grow by: as many belong to the requests that happen to be under way.
const TOLERANCE_TASKS: u64 = 32;

/// What one process uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub memory: u64,
    pub descriptors: u64,
    pub threads: u64,
    /// Asynchronous tasks; 0 where nobody tells.
    pub tasks: u64,
}

/// The samples of one process.
#[derive(Debug)]
pub(super) struct Trace {
    pub name: String,
    pub id: u32,
    pub samples: Vec<Usage>,
}

// === impl Usage ===

impl Usage {
    /// What a process uses right now; nothing when it is gone.
    pub fn of(process: u32, member: Option<&Member>) -> Usage {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64);
        let tasks = member.and_then(|member| sum(member, "trireme_process_tasks")).unwrap_or(0.0) as u64;
        Usage { memory: field("VmRSS:") << 10, descriptors, threads: field("Threads:"), tasks }
    }
}

// === impl Trace ===

impl Trace {
    /// The median of a figure once warm, in the first and in the last third of what follows.
    pub fn early_and_late(&self, figure: impl Fn(&Usage) -> u64) -> (u64, u64) {
        let warm = &self.samples[(self.samples.len() as f64 * WARM) as usize..];
        let median = |samples: &[Usage]| {
            let mut figures: Vec<u64> = samples.iter().map(&figure).collect();
            figures.sort_unstable();
            figures.get(figures.len() / 2).copied().unwrap_or(0)
        };
        let third = warm.len() / 3;
        (median(&warm[..third]), median(&warm[warm.len() - third..]))
    }

    pub fn grows(&self) -> bool {
        let (early, late) = self.early_and_late(|usage| usage.memory);
        let memory = late > early + (early as f64 * TOLERANCE_SHARE) as u64 + TOLERANCE_BYTES;
        let few = |(early, late): (u64, u64), more: u64| late > early + early / 10 + more;
        memory
            || few(self.early_and_late(|usage| usage.descriptors), 2)
            || few(self.early_and_late(|usage| usage.threads), 2)
            || few(self.early_and_late(|usage| usage.tasks), TOLERANCE_TASKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_noticed() {
        let trace = |sample: fn(u64) -> Usage| Trace {
            name: "gateway-0".to_owned(),
            id: 0,
            samples: (0..100).map(sample).collect(),
        };
        let flat =
            |second| Usage { memory: 40 << 20, descriptors: 30 + second % 3, threads: 9, tasks: 50 + second % 20 };
        assert!(!trace(flat).grows());
        assert!(trace(|second| Usage { memory: second << 20, ..Usage::default() }).grows());
        assert!(trace(|second| Usage { descriptors: second, ..Usage::default() }).grows());
        assert!(trace(|second| Usage { threads: second, ..Usage::default() }).grows());
        assert!(trace(|second| Usage { tasks: 5 * second, ..Usage::default() }).grows());
    }
}
