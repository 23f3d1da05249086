//! Soak: the same system and the same load without faults, for long, to see that nothing grows.
//!
//! The load has callers that leave, requests that expire, answers in parts and large bodies in it: what is cleaned up
//! after those would be what grows.

use std::fmt;
use std::time::{Duration, Instant};

use super::clients::{self, Clients};
use super::cluster::{Cluster, Shape};
use super::report::Report;
use super::usage::{Finding, Trace, Usage};
use crate::golden;

/// How long the system is loaded to find out what it can do.
const CALIBRATION: Duration = Duration::from_secs(10);

/// The deadline of requests: that of gateways that are told no other.
const DEADLINE: Duration = Duration::from_secs(60);

/// The share of the rate at which requests have to be answered: clients wait for answers, so less are sent when those are
/// late.
const KEEPS_UP: f64 = 0.95;

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

/// The outcome of a soak.
#[derive(Debug)]
pub struct SoakReport {
    outcome: Report,
    rate: f64,
    traces: Vec<Trace>,
}

/// Runs it: finds out what the system can do, then loads it with a share of that. `progress` hears of each minute.
///
/// # Panics
/// When the system does not get ready, or a process ends.
pub fn soak(options: &SoakOptions, mut progress: impl FnMut(&str)) -> SoakReport {
    let golden = golden();
    let shape = Shape { deadline: DEADLINE, acknowledge_early: false, hand_over: false, disk: None };
    let mut cluster = Cluster::start(shape);
    let doors = cluster.doors.clone();
    let capacity = load(&Clients::new(&doors, &golden, DEADLINE), options.concurrency, CALIBRATION, || {}) as f64;
    let rate = capacity / CALIBRATION.as_secs_f64() * options.share;
    progress(&format!("{:.0} requests/s, {:.0} % of what it can do", rate, options.share * 100.0));

    let trace =
        |(name, id, member): (_, _, Option<_>)| Trace { name, id, is_member: member.is_some(), samples: vec![] };
    let mut traces: Vec<_> = cluster.processes().map(trace).collect();
    let clients = Clients::new(&doors, &golden, DEADLINE).at_rate(rate);
    let mut minute = Instant::now();
    load(&clients, options.concurrency, options.duration, || {
        for (trace, (_, _, member)) in traces.iter_mut().zip(cluster.processes()) {
            trace.samples.push((clients.answered(), Usage::of(trace.id, member)));
        }
        if minute.elapsed() >= Duration::from_secs(60) {
            minute += Duration::from_secs(60);
            progress(&format!("{:.0} s, {} requests answered", clients.elapsed().as_secs_f64(), clients.answered()));
        }
    });
    cluster.assert_alive();
    let elapsed = clients.elapsed();
    let tally = clients.into_tally();
    let outcome = Report { tally, struck: Vec::new(), elapsed, storage: "memory", healing: Default::default() };
    SoakReport { outcome, rate, traces }
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

// === impl SoakReport ===

impl SoakReport {
    /// Whether nothing grew, as far as every process tells, and every request was answered as it should be, at the rate that
    /// was meant.
    pub fn is_flat(&self) -> bool {
        let is_steady = self.outcome.is_clean() && self.kept_up() >= KEEPS_UP;
        is_steady && self.traces.iter().all(|trace| trace.finding().is_none())
    }

    /// The rate of requests, as a share of what was meant.
    fn kept_up(&self) -> f64 {
        self.outcome.requests() as f64 / self.outcome.elapsed.as_secs_f64() / self.rate
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept_up = self.kept_up();
        let verdict = if kept_up < KEEPS_UP { ": TOO SLOW" } else { "" };
        writeln!(f, "{}at {:.1} % of {:.0} requests/s{verdict}", self.outcome, kept_up * 100.0, self.rate)?;
        writeln!(f, "medians once warm, early and late, and the growth of memory in the second half:")?;
        write!(f, "  {:<20}{:>22}{:>15}", "process", "memory MB", "bytes/request")?;
        writeln!(f, "{:>18}{:>14}{:>14}", "descriptors", "threads", "tasks")?;
        for trace in &self.traces {
            let (early, late) = trace.early_and_late(|usage| Some(usage.memory));
            let memory = format!("{:.1} -> {:.1}", early as f64 / 1e6, late as f64 / 1e6);
            let growth = trace.bytes_per_request();
            let descriptors = trace.early_and_late(|usage| Some(usage.descriptors));
            let threads = trace.early_and_late(|usage| Some(usage.threads));
            let tasks = trace.early_and_late(|usage| usage.tasks);
            let pair = |(early, late): (u64, u64)| format!("{early} -> {late}");
            let verdict = match trace.finding() {
                Some(Finding::Grows) => "  GROWS",
                Some(Finding::TellsNoTasks) => "  TELLS NO TASKS",
                None => "",
            };
            let [descriptors, threads, tasks] = [descriptors, threads, tasks].map(pair);
            write!(f, "  {:<20}{memory:>22}{growth:>15.1}", trace.name)?;
            writeln!(f, "{descriptors:>18}{threads:>14}{tasks:>14}{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::{Answered, Tally};
    use super::*;

    #[test]
    fn a_load_that_falls_behind_its_rate_is_noticed() {
        let report = |requests: usize| {
            let right = vec![Answered { sent: Duration::ZERO, answered: Duration::ZERO }; requests];
            let outcome = Report {
                tally: Tally { right, ..Tally::default() },
                struck: Vec::new(),
                elapsed: Duration::from_secs(10),
                storage: "memory",
                healing: Default::default(),
            };
            SoakReport { outcome, rate: 10.0, traces: Vec::new() }
        };
        assert!(report(96).is_flat());
        assert!(!report(94).is_flat());
        assert!(report(94).to_string().contains("at 94.0 % of 10 requests/s: TOO SLOW"), "{}", report(94));
    }
}
