//! The resource use of processes, from the operating system.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Measures the CPU time of a group of processes.
pub struct CpuWatch {
    processes: Vec<u32>,
    before: u64,
    since: Instant,
}

// === impl CpuWatch ===

impl CpuWatch {
    /// Begins to watch these processes.
    pub fn start(processes: Vec<u32>) -> CpuWatch {
        CpuWatch { before: ticks(&processes), processes, since: Instant::now() }
    }

    /// The CPU time of all the processes since the start, in percent of one core.
    pub fn percent(&self) -> f64 {
        percent(ticks(&self.processes).saturating_sub(self.before), self.since)
    }
}

/// Measures the CPU time of the whole machine.
pub struct MachineWatch {
    before: u64,
    since: Instant,
}

// === impl MachineWatch ===

impl MachineWatch {
    /// Begins to watch.
    pub fn start() -> MachineWatch {
        MachineWatch { before: machine_ticks(), since: Instant::now() }
    }

    /// The CPU time of everything on the machine since the start, in percent of one core.
    pub fn percent(&self) -> f64 {
        percent(machine_ticks().saturating_sub(self.before), self.since)
    }
}

fn machine_ticks() -> u64 {
    busy_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or(0)
}

/// The busy clock ticks of all CPUs, from the first line of `/proc/stat`, without idle time and waiting for disks.
fn busy_ticks(stat: &str) -> Option<u64> {
    let counts = stat.lines().next()?.split_whitespace().skip(1);
    // User, nice, system, idle, iowait, irq, softirq, steal; the time of guests is part of the first two.
    let counts: Vec<u64> = counts.take(8).map_while(|count| count.parse().ok()).collect();
    Some(counts.iter().sum::<u64>() - counts.get(3)? - counts.get(4)?)
}

/// Clock ticks since then, in percent of one core.
fn percent(ticks: u64, since: Instant) -> f64 {
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    seconds / since.elapsed().as_secs_f64() * 100.0
}

/// The CPU time that the processes have used, in clock ticks.
fn ticks(processes: &[u32]) -> u64 {
    let of = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat_ticks(&stat).unwrap_or(0)
    };
    processes.iter().map(of).sum()
}

/// User and system time in a line of `/proc/<pid>/stat`, in clock ticks. The program's name is in parentheses and may
/// contain any characters.
fn stat_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

/// The memory that a process occupies, in mebibytes; 0 if it has ended.
pub fn resident_mebibytes(process: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.unwrap_or(0.0) / 1024.0
}

/// Raises the descriptor limit of this process, and of its children, as far as the system allows.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Without the right to raise it, the limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The median and the largest value.
pub fn median_and_worst(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    [median, times.last().copied().unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_are_found_behind_its_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 99 0 0 0 250 50 0 0 20 0 3 0 100 1 2";
        assert_eq!(stat_ticks(stat), Some(300));
        assert_eq!(stat_ticks("7 (a"), None);
        assert_eq!(busy_ticks("cpu  10 1 20 500 7 2 3 4 9 9\ncpu0 5"), Some(40));
        assert!(resident_mebibytes(std::process::id()) > 0.0);
    }
}
