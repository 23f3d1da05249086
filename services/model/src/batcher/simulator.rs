//! A worker in virtual time: what a policy makes of a trace of arrivals, without threads, models or waiting.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trireme_runtime::{BatchPolicy, Candidate, Decision, Description};

use super::cost::CostModel;

/// A request of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it comes, from the start of the simulation.
    pub at: Duration,
    /// What it is like.
    pub description: Description,
    /// Its priority level.
    pub priority: u32,
}

/// A run as it happened.
#[derive(Clone, Debug)]
pub struct Execution {
    /// When it began.
    pub at: Duration,
    /// Its requests, by index into the trace.
    pub requests: Vec<usize>,
    /// Those that stayed behind.
    pub left_waiting: Vec<usize>,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Report {
    /// Runs in order of their beginning.
    pub executions: Vec<Execution>,
    /// When each request came into the worker's hands, by index into the trace.
    pub received: Vec<Duration>,
    /// How long each request waited, by index into the trace.
    pub queued: Vec<Duration>,
    /// When the last run ended.
    pub end: Duration,
    /// Tokens of the requests, and tokens computed.
    pub useful_tokens: u64,
    pub padded_tokens: u64,
}

/// Plays `trace`, in order of arrival, on `instances` that take as long as `cost` says, in seconds. The worker sees as
/// many requests at a time as the policy wants in hand.
pub fn simulate(policy: &dyn BatchPolicy, trace: &[Arrival], cost: &CostModel, instances: usize) -> Report {
    let start = Instant::now();
    let mut report = Report {
        executions: Vec::new(),
        received: vec![Duration::ZERO; trace.len()],
        queued: vec![Duration::ZERO; trace.len()],
        end: Duration::ZERO,
        useful_tokens: 0,
        padded_tokens: 0,
    };
    let mut arriving: VecDeque<usize> = (0..trace.len()).collect();
    let mut waiting: Vec<(usize, Candidate)> = Vec::new();
    // When each busy instance is free again, and how many requests it holds.
    let mut busy: Vec<(Duration, usize)> = Vec::new();
    let mut now = Duration::ZERO;
    loop {
        busy.retain(|(free, _)| *free > now);
        let executing: usize = busy.iter().map(|(_, requests)| requests).sum();
        let mut room = policy.in_hand(instances).saturating_sub(executing + waiting.len());
        while room > 0 && arriving.front().is_some_and(|&next| trace[next].at <= now) {
            let next = arriving.pop_front().expect("there is a first");
            let Arrival { description, priority, .. } = trace[next];
            report.received[next] = now;
            waiting.push((next, Candidate { arrived: start + now, priority, description }));
            room -= 1;
        }
        let mut wake = busy.iter().map(|(free, _)| *free).min();
        if room > 0 {
            let next = arriving.front().map(|&next| trace[next].at);
            wake = wake.into_iter().chain(next).min();
        }
        if busy.len() < instances {
            let candidates: Vec<_> = waiting.iter().map(|(_, candidate)| candidate.clone()).collect();
            match policy.decide(&candidates, start + now) {
                Decision::Run(members) => {
                    let duration = run(&mut report, trace, cost, now, &mut waiting, &members);
                    busy.push((now + duration, members.len()));
                    continue;
                }
                Decision::WaitUntil(due) => {
                    let due = due - start;
                    assert!(due > now, "asked to wait for the past");
                    wake = wake.into_iter().chain([due]).min();
                }
                Decision::Wait => assert!(waiting.is_empty(), "requests wait for nothing"),
            }
        }
        match wake {
            Some(time) => now = time,
            None => break,
        }
    }
    report.end = now;
    report
}

fn run(
    report: &mut Report,
    trace: &[Arrival],
    cost: &CostModel,
    now: Duration,
    waiting: &mut Vec<(usize, Candidate)>,
    members: &[usize],
) -> Duration {
    assert!(!members.is_empty(), "an empty batch");
    let requests: Vec<usize> = members.iter().map(|&member| waiting[member].0).collect();
    let mut index = 0;
    waiting.retain(|_| {
        index += 1;
        !members.contains(&(index - 1))
    });
    let described = || requests.iter().map(|&request| trace[request].description);
    let rows: u32 = described().map(|d| d.rows).sum();
    let length = described().map(|d| d.length).max().unwrap_or(0);
    for &request in &requests {
        report.queued[request] = now.saturating_sub(trace[request].at);
    }
    report.useful_tokens += described().map(|d| u64::from(d.rows) * u64::from(d.length)).sum::<u64>();
    report.padded_tokens += u64::from(rows) * u64::from(length);
    report.executions.push(Execution { at: now, requests, left_waiting: waiting.iter().map(|w| w.0).collect() });
    Duration::from_secs_f64(cost.cost(rows, length))
}

// === impl Report ===

impl Report {
    /// Requests per second from the first arrival to the end of the last run.
    pub fn throughput(&self) -> f64 {
        self.queued.len() as f64 / self.end.as_secs_f64()
    }

    /// Tokens computed in vain, as a share of the useful ones.
    pub fn padding_waste(&self) -> f64 {
        self.padded_tokens as f64 / self.useful_tokens as f64 - 1.0
    }

    /// Requests of a run on average.
    pub fn mean_batch(&self) -> f64 {
        self.queued.len() as f64 / self.executions.len() as f64
    }

    /// The wait that this share of the requests did not exceed.
    pub fn queue_time(&self, share: f64) -> Duration {
        let mut queued = self.queued.clone();
        queued.sort_unstable();
        queued[((queued.len() as f64 * share) as usize).min(queued.len() - 1)]
    }
}

/// `count` lengths like those of natural sentences and short paragraphs: log-normal, median 24, mean 35, from 3 to 256. The
/// same for equal seeds.
pub fn natural_lengths(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    };
    let mut length = || {
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        (24.0 * (0.87 * normal).exp()).round().clamp(3.0, 256.0) as u32
    };
    (0..count).map(|_| length()).collect()
}
