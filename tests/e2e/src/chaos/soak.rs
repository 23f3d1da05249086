//! Soak: the same system and the same load without faults, for long, to see that nothing grows.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use super::clients::{self, Clients};
use super::cluster::Cluster;
use crate::golden;

/// How long the system is loaded to find out what it can do.
const CALIBRATION: Duration = Duration::from_secs(10);

/// The share of a run after which caches, pools and heaps have the size they keep.
const WARM: f64 = 0.3;

/// What memory may grow by from the middle of a run to its end: allocators are not exact.
const TOLERANCE_SHARE: f64 = 0.05;
const TOLERANCE_BYTES: u64 = 4 << 20;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// How long.
    pub duration: Duration,
    /// The share of the load that the system can take.
    pub share: f64,
    /// Requests in flight, at most.
    pub concurrency: usize,
}

/// What one process uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    memory: u64,
    descriptors: u64,
    threads: u64,
}

/// The samples of one process.
#[derive(Debug)]
struct Trace {
    name: String,
    id: u32,
    samples: Vec<Usage>,
}

/// The outcome of a soak.
#[derive(Debug)]
pub struct SoakReport {
    outcome: super::Report,
    rate: f64,
    traces: Vec<Trace>,
}

/// Runs it: finds out what the system can do, then loads it with a share of that. `progress` hears of each minute.
///
/// # Panics
/// When the system does not get ready, or a process ends.
pub fn soak(options: &SoakOptions, mut progress: impl FnMut(&str)) -> SoakReport {
    let golden = golden();
    let mut cluster = Cluster::start(clients::models(), false, None);
    let doors = cluster.doors.clone();
    let capacity = load(&Clients::new(&doors, &golden), options.concurrency, CALIBRATION, || {}) as f64;
    let rate = capacity / CALIBRATION.as_secs_f64() * options.share;
    progress(&format!("{:.0} requests/s, {:.0} % of what it can do", rate, options.share * 100.0));

    let mut traces: Vec<_> = cluster.processes().map(|(name, id)| Trace { name, id, samples: Vec::new() }).collect();
    let clients = Clients::new(&doors, &golden).at_rate(rate);
    let mut minute = Instant::now();
    load(&clients, options.concurrency, options.duration, || {
        for trace in &mut traces {
            trace.samples.push(Usage::of(trace.id));
        }
        if minute.elapsed() >= Duration::from_secs(60) {
            minute += Duration::from_secs(60);
            progress(&format!("{:.0} s, {} requests answered", clients.elapsed().as_secs_f64(), clients.answered()));
        }
    });
    let crashed = cluster.crashed();
    assert!(crashed.is_empty(), "ended by themselves:\n{}", crashed.join("\n"));
    let elapsed = clients.elapsed();
    SoakReport { outcome: super::Report::new(clients.into_tally(), Vec::new(), elapsed), rate, traces }
}

/// Lets the clients run for a while, calls `sample` every second of it, and tells how many requests were answered.
fn load(clients: &Clients<'_>, concurrency: usize, duration: Duration, mut sample: impl FnMut()) -> usize {
    std::thread::scope(|scope| {
        clients::start(scope, clients, concurrency);
        let until = Instant::now() + duration;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_secs(1));
            sample();
        }
        clients.stop();
    });
    clients.answered()
}

// === impl Usage ===

impl Usage {
    /// What a process uses right now; nothing when it is gone.
    fn of(process: u32) -> Usage {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64);
        Usage { memory: field("VmRSS:") << 10, descriptors, threads: field("Threads:") }
    }
}

// === impl Trace ===

impl Trace {
    /// The median of a figure once warm, in the first and in the last third of what follows.
    fn early_and_late(&self, figure: impl Fn(&Usage) -> u64) -> (u64, u64) {
        let warm = &self.samples[(self.samples.len() as f64 * WARM) as usize..];
        let median = |samples: &[Usage]| {
            let mut figures: Vec<u64> = samples.iter().map(&figure).collect();
            figures.sort_unstable();
            figures.get(figures.len() / 2).copied().unwrap_or(0)
        };
        let third = warm.len() / 3;
        (median(&warm[..third]), median(&warm[warm.len() - third..]))
    }

    fn grows(&self) -> bool {
        let (early, late) = self.early_and_late(|usage| usage.memory);
        let memory = late > early + (early as f64 * TOLERANCE_SHARE) as u64 + TOLERANCE_BYTES;
        let few = |(early, late): (u64, u64)| late > early + early / 10 + 2;
        memory || few(self.early_and_late(|usage| usage.descriptors)) || few(self.early_and_late(|usage| usage.threads))
    }
}

// === impl SoakReport ===

impl SoakReport {
    /// Whether nothing grew, and every request was answered as it should be.
    pub fn is_flat(&self) -> bool {
        self.outcome.is_clean() && !self.traces.iter().any(Trace::grows)
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}at {:.0} requests/s; medians once warm, early and late:", self.outcome, self.rate)?;
        writeln!(f, "  {:<20}{:>22}{:>18}{:>14}", "process", "memory MB", "descriptors", "threads")?;
        for trace in &self.traces {
            let (early, late) = trace.early_and_late(|usage| usage.memory);
            let memory = format!("{:.1} -> {:.1}", early as f64 / 1e6, late as f64 / 1e6);
            let descriptors = trace.early_and_late(|usage| usage.descriptors);
            let threads = trace.early_and_late(|usage| usage.threads);
            let pair = |(early, late): (u64, u64)| format!("{early} -> {late}");
            let verdict = if trace.grows() { "  GROWS" } else { "" };
            writeln!(f, "  {:<20}{memory:>22}{:>18}{:>14}{verdict}", trace.name, pair(descriptors), pair(threads))?;
        }
        Ok(())
    }
}
