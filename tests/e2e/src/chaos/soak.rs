//! Soak: the same system and load without faults for a long time, to check that no resource use grows.
//!
//! The load includes callers that leave, requests that expire, answers in parts and large bodies, because growth would
//! come from their incomplete clean-up.

use std::fmt;
use std::time::{Duration, Instant};

use super::clients::{self, Clients};
use super::cluster::Cluster;
use super::report::Report;
use super::shape::Shape;
use super::usage::{Finding, Trace, Usage};
use crate::golden;

/// How long the system is loaded to measure its capacity.
const CALIBRATION: Duration = Duration::from_secs(10);

/// The deadline of requests: the gateways' default.
const DEADLINE: Duration = Duration::from_secs(60);

/// The least achieved share of the intended rate. Clients wait for answers, so they send fewer requests when answers
/// are late.
const KEEPS_UP: f64 = 0.95;

/// Options of a soak.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// The duration of the load.
    pub duration: Duration,
    /// The rate, as a share of the measured capacity.
    pub share: f64,
    /// The most requests in flight.
    pub concurrency: usize,
}

/// The outcome of a soak.
#[derive(Debug)]
pub struct SoakReport {
    outcome: Report,
    rate: f64,
    traces: Vec<Trace>,
}

/// Measures the system's capacity, then loads it with a share of that. `progress` gets a line each minute.
///
/// # Panics
/// When the system does not become ready, or a process ends.
pub fn soak(options: &SoakOptions, mut progress: impl FnMut(&str)) -> SoakReport {
    let golden = golden();
    let mut cluster = Cluster::start(Shape::new(DEADLINE));
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
    let (storage, healing) = ("memory".to_owned(), Default::default());
    let (jobs, struck) = (None, Vec::new());
    let outcome = Report { tally, jobs, struck, elapsed, storage, healing, prompt: None, broken_off: None };
    SoakReport { outcome, rate, traces }
}

/// Runs the clients for `duration`, calls `sample` every second, and returns how many requests were answered.
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
    /// Whether no process's resource use grew, every request was answered rightly, and the intended rate was reached.
    pub fn is_flat(&self) -> bool {
        let is_steady = self.outcome.is_clean() && self.kept_up() >= KEEPS_UP;
        is_steady && self.traces.iter().all(|trace| trace.finding().is_none())
    }

    /// The achieved rate, as a share of the intended rate.
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
                jobs: None,
                tally: Tally { right, ..Tally::default() },
                struck: Vec::new(),
                elapsed: Duration::from_secs(10),
                storage: "memory".to_owned(),
                healing: Default::default(),
                prompt: None,
                broken_off: None,
            };
            SoakReport { outcome, rate: 10.0, traces: Vec::new() }
        };
        assert!(report(96).is_flat());
        assert!(!report(94).is_flat());
        assert!(report(94).to_string().contains("at 94.0 % of 10 requests/s: TOO SLOW"), "{}", report(94));
    }
}
