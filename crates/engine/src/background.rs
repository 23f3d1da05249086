//! Threads that run in the time that others leave, for the instances that execute bulk requests: they have a low priority for the
//! operating system, and so have the threads that a model's library starts for them.
//!
//! Not here: which requests they take (`queue`), and the life of the threads (`execute`).

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// The nice value of the threads, the lowest priority. Where all others want all of the CPUs, Linux leaves such a thread some hundredths of a
/// CPU: enough that bulk requests move on.
const NICE: i32 = 19;

/// A thread is judged by runs of this much time together. Less than this share of a CPU in them is too little.
const JUDGED_AFTER: Duration = Duration::from_secs(1);
const SHARE: f64 = 0.15;

/// How many times the limit of other runs a run may take: it may have to wait for a CPU most of the time.
pub(crate) const PATIENCE: u32 = 10;

/// Whether priorities decide which thread runs. Not where the process has a CPU quota that is less than its CPUs, as a container's limit
/// is: bulk requests on one CPU would use up the quota of live requests on another.
pub(crate) fn priorities_count() -> bool {
    let allowed = rustix::thread::sched_getaffinity(None).map(|set| set.count() as usize);
    // The standard library reads the quota.
    let available = thread::available_parallelism().map(usize::from);
    matches!((allowed, available), (Ok(allowed), Ok(available)) if allowed <= available)
}

/// Gives the calling thread a low priority, which it cannot give up again.
pub(crate) fn lower_priority() -> io::Result<()> {
    // Linux: without a process id, of the calling thread alone.
    Ok(rustix::process::setpriority_process(None, NICE)?)
}

/// How much of a CPU the runs of a thread get.
#[derive(Default)]
pub(crate) struct Share {
    /// The time of the runs so far, and their CPU time.
    took: Duration,
    used: Duration,
}

// === impl Share ===

impl Share {
    /// Makes a run of the calling thread.
    pub fn of<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let (began, before) = (Instant::now(), used());
        let result = run();
        self.took += began.elapsed();
        self.used += used().saturating_sub(before);
        result
    }

    /// Whether the runs so far have shown that the thread gets too little.
    pub fn is_too_little(&mut self) -> bool {
        if self.took < JUDGED_AFTER {
            return false;
        }
        let share = std::mem::take(self);
        share.used.as_secs_f64() < SHARE * share.took.as_secs_f64()
    }
}

/// The CPU time of the calling thread.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_judged_after_a_second_of_runs() {
        let of = |took, used| {
            let millis = Duration::from_millis;
            Share { took: millis(took), used: millis(used) }.is_too_little()
        };
        assert!(!of(900, 0), "too early");
        assert!(of(1000, 140) && !of(1000, 160));
        let mut share = Share::default();
        share.of(|| thread::sleep(Duration::from_millis(1100)));
        assert!(share.is_too_little() && !share.is_too_little(), "it begins again");
    }
}
