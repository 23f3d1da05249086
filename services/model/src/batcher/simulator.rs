//! Workers on one queue in virtual time: the effect of a policy on a trace of arrivals, without threads, models or real
//! waiting.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trireme_engine::{BatchPolicy, Candidate, Decision, Description, Intake, Room, RunId};

use super::cost::CostModel;

/// How long a message takes from the shared queue to a worker with room.
const FETCH: Duration = Duration::from_millis(1);

/// A request of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it comes, from the start of the simulation.
    pub at: Duration,
    /// Its description for the policy.
    pub description: Description,
    /// Its priority level.
    pub priority: u32,
}

/// The workers and the policy of a simulation.
pub struct Site<'a> {
    pub policy: &'a dyn BatchPolicy,
    /// The time of a run in seconds, at speed 1.
    pub cost: CostModel,
    /// The instances and the speed of each worker.
    pub workers: &'a [(usize, f64)],
    /// Most requests in flight: each answer admits the next request, whatever its time of arrival. `None`: requests
    /// come at their own times.
    pub in_flight: Option<usize>,
}

/// A run of the simulation.
#[derive(Clone, Debug)]
pub struct Execution {
    /// When it began.
    pub at: Duration,
    /// The worker that ran it.
    pub worker: usize,
    /// Its requests, by index into the trace.
    pub requests: Vec<usize>,
    /// The requests that stayed in that worker's queue.
    pub left_waiting: Vec<usize>,
}

/// The result. Lists of times are indexed by the request's position in the trace.
#[derive(Clone, Debug)]
pub struct Report {
    /// Runs in the order of their start.
    pub executions: Vec<Execution>,
    /// When each request came.
    pub came: Vec<Duration>,
    /// When a worker received each request.
    pub received: Vec<Duration>,
    /// How long each request waited, in the shared queue and in a worker.
    pub queued: Vec<Duration>,
    /// When each request was answered.
    pub done: Vec<Duration>,
    /// When the last run ended.
    pub end: Duration,
    /// Tokens of the requests, and tokens computed.
    pub useful_tokens: u64,
    pub padded_tokens: u64,
}

struct SimulatedWorker {
    intake: Intake,
    instances: usize,
    speed: f64,
    /// Most requests it may hold.
    capacity: usize,
    /// Requests on their way to it, with their times of arrival there.
    coming: VecDeque<(Duration, usize)>,
    waiting: Vec<(usize, Candidate)>,
    busy: Vec<Busy>,
}

struct Busy {
    id: RunId,
    until: Duration,
    requests: usize,
}

struct Simulation<'a> {
    site: &'a Site<'a>,
    trace: &'a [Arrival],
    start: Instant,
    now: Duration,
    /// Requests that are not in the shared queue yet.
    to_come: VecDeque<usize>,
    shared: VecDeque<usize>,
    workers: Vec<SimulatedWorker>,
    /// The worker that is offered a request first.
    turn: usize,
    report: Report,
}

/// Plays `trace`, in order of arrival.
pub fn simulate(site: &Site<'_>, trace: &[Arrival]) -> Report {
    let worker = |&(instances, speed): &(usize, f64)| SimulatedWorker {
        intake: Intake::new(instances, site.policy.appetite()),
        instances,
        speed,
        capacity: site.policy.in_hand(instances),
        coming: VecDeque::new(),
        waiting: Vec::new(),
        busy: Vec::new(),
    };
    let none = vec![Duration::ZERO; trace.len()];
    let report = Report {
        executions: Vec::new(),
        came: trace.iter().map(|arrival| arrival.at).collect(),
        received: none.clone(),
        queued: none.clone(),
        done: none,
        end: Duration::ZERO,
        useful_tokens: 0,
        padded_tokens: 0,
    };
    let mut simulation = Simulation {
        site,
        trace,
        start: Instant::now(),
        now: Duration::ZERO,
        to_come: (0..trace.len()).collect(),
        shared: VecDeque::new(),
        workers: site.workers.iter().map(worker).collect(),
        turn: 0,
        report,
    };
    let first = site.in_flight.unwrap_or(0);
    simulation.release(first);
    while let Some(next) = simulation.step() {
        simulation.now = next;
    }
    simulation.report.end = simulation.now;
    simulation.report
}

// === impl Simulation ===

impl Simulation<'_> {
    /// Handles all events that are due; returns when the next one is due.
    fn step(&mut self) -> Option<Duration> {
        self.end_runs();
        if self.site.in_flight.is_none() {
            while self.to_come.front().is_some_and(|&next| self.trace[next].at <= self.now) {
                self.shared.extend(self.to_come.pop_front());
            }
        }
        let mut wake: Vec<Duration> = Vec::new();
        loop {
            self.hand_out();
            let begun = (0..self.workers.len()).filter(|&worker| self.begin_runs(worker, &mut wake)).count();
            if begun == 0 {
                break;
            }
            wake.clear();
        }
        if self.site.in_flight.is_none() {
            wake.extend(self.to_come.front().map(|&next| self.trace[next].at));
        }
        for worker in &self.workers {
            wake.extend(worker.busy.iter().map(|busy| busy.until).chain(worker.coming.front().map(|(at, _)| *at)));
            match worker.room(self.start + self.now) {
                Room::At(at) if !self.shared.is_empty() => wake.push(at - self.start),
                _ => {}
            }
        }
        wake.into_iter().min()
    }

    fn end_runs(&mut self) {
        let (now, mut ended) = (self.now, 0);
        for SimulatedWorker { intake, busy, .. } in &mut self.workers {
            busy.retain(|run| {
                if run.until <= now {
                    if let Some((cost, took)) = intake.end(run.id, run.requests, self.start + now) {
                        self.site.policy.ran(cost, took);
                    }
                    ended += run.requests;
                }
                run.until > now
            });
        }
        if self.site.in_flight.is_some() {
            self.release(ended);
        }
    }

    /// Puts the next requests into the shared queue.
    fn release(&mut self, count: usize) {
        for next in self.to_come.drain(..count.min(self.to_come.len())) {
            self.report.came[next] = self.now;
            self.shared.push_back(next);
        }
    }

    /// Gives requests from the shared queue to workers with room, in turn, and passes arrived ones to the workers'
    /// policies.
    fn hand_out(&mut self) {
        let count = self.workers.len();
        while let Some(&next) = self.shared.front() {
            let free = |worker: &usize| matches!(self.workers[*worker].room(self.start + self.now), Room::Now(_));
            let Some(taker) = (self.turn..self.turn + count).map(|worker| worker % count).find(free) else { break };
            self.shared.pop_front();
            self.workers[taker].coming.push_back((self.now + FETCH, next));
            self.turn = taker + 1;
        }
        for worker in &mut self.workers {
            while worker.coming.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, next) = worker.coming.pop_front().expect("there is a first");
                let Arrival { description, priority, .. } = self.trace[next];
                self.report.received[next] = self.now;
                worker.waiting.push((next, Candidate { arrived: self.start + self.now, priority, description }));
            }
        }
    }

    /// Lets a worker start a run. Returns whether it did; otherwise adds the time to ask again to `wake`.
    fn begin_runs(&mut self, number: usize, wake: &mut Vec<Duration>) -> bool {
        let worker = &mut self.workers[number];
        if worker.busy.len() == worker.instances {
            return false;
        }
        let candidates: Vec<_> = worker.waiting.iter().map(|(_, candidate)| candidate.clone()).collect();
        match self.site.policy.decide(&candidates, self.start + self.now) {
            Decision::Run(members) => {
                self.run(number, &members);
                return true;
            }
            Decision::WaitUntil(due) => {
                let due = due - self.start;
                assert!(due > self.now, "asked to wait for the past");
                wake.push(due);
            }
            Decision::Wait => assert!(worker.waiting.is_empty(), "requests wait for nothing"),
        }
        false
    }

    fn run(&mut self, number: usize, members: &[usize]) {
        assert!(!members.is_empty(), "an empty batch");
        let (worker, report, now) = (&mut self.workers[number], &mut self.report, self.now);
        let requests: Vec<usize> = members.iter().map(|&member| worker.waiting[member].0).collect();
        let mut index = 0;
        worker.waiting.retain(|_| {
            index += 1;
            !members.contains(&(index - 1))
        });
        let described: Vec<_> = requests.iter().map(|&request| self.trace[request].description).collect();
        let rows: u32 = described.iter().map(|d| d.rows).sum();
        let length = described.iter().map(|d| d.length).max().unwrap_or(0);
        let until = now + Duration::from_secs_f64(self.site.cost.cost(rows, length) / worker.speed);
        for &request in &requests {
            report.queued[request] = now.saturating_sub(report.came[request]);
            report.done[request] = until;
        }
        report.useful_tokens += described.iter().map(|d| u64::from(d.rows) * u64::from(d.length)).sum::<u64>();
        report.padded_tokens += u64::from(rows) * u64::from(length);
        let id = worker.intake.begin(self.site.policy.cost(&described), self.start + now);
        worker.busy.push(Busy { id, until, requests: requests.len() });
        let left_waiting = worker.waiting.iter().map(|waiting| waiting.0).collect();
        report.executions.push(Execution { at: now, worker: number, requests, left_waiting });
    }
}

// === impl SimulatedWorker ===

impl SimulatedWorker {
    fn room(&self, now: Instant) -> Room {
        let held = self.coming.len() + self.waiting.len();
        let executing: usize = self.busy.iter().map(|busy| busy.requests).sum();
        match self.intake.room(held, now) {
            Room::Now(_) if held + executing >= self.capacity => Room::None,
            room => room,
        }
    }
}

// === impl Report ===

impl Report {
    /// Requests per second from the first arrival to the end of the last run.
    pub fn throughput(&self) -> f64 {
        self.queued.len() as f64 / self.end.as_secs_f64()
    }

    /// Tokens computed for padding, as a share of the useful ones.
    pub fn padding_waste(&self) -> f64 {
        self.padded_tokens as f64 / self.useful_tokens as f64 - 1.0
    }

    /// Average number of requests in a run.
    pub fn mean_batch(&self) -> f64 {
        self.queued.len() as f64 / self.executions.len() as f64
    }

    /// The waiting time that this share of the requests did not exceed.
    pub fn queue_time(&self, share: f64) -> Duration {
        quantile(self.queued.clone(), share)
    }

    /// The time from arrival to answer that this share of the requests did not exceed.
    pub fn latency(&self, share: f64) -> Duration {
        quantile(self.done.iter().zip(&self.came).map(|(done, came)| *done - *came).collect(), share)
    }

    /// Requests that a worker executed.
    pub fn executed_by(&self, worker: usize) -> usize {
        self.executions.iter().filter(|run| run.worker == worker).map(|run| run.requests.len()).sum()
    }
}

fn quantile(mut times: Vec<Duration>, share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() as f64 * share) as usize).min(times.len() - 1)]
}

/// `count` lengths like those of natural sentences and short paragraphs: log-normal, median 24, mean 35, from 3 to 256.
/// Equal seeds give equal lengths.
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

mod tests;
