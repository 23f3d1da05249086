//! How much work a worker takes from a queue that it shares with its peers: what its instances begin soon, and no more.
//! Pure.
//!
//! What one worker holds no other can take, so a slow worker must not hold what a fast one could have done meanwhile; and
//! an instance must not idle between two runs for want of a message that is still with the broker. So room is counted in
//! time: for each instance the part of a horizon in which it is free, by how long its runs take ([`Pace`]). That much
//! waits here, and never less than a full batch for each instance that is free within the horizon; nothing for those that
//! are busy beyond it. [`Intake::room`] says when it will be more. The horizon is what the batch policy wants to look ahead;
//! where messages take long to come from the broker, twice that time.
//!
//! Not here: the most requests that a worker holds whatever its pace (`queue`), which of them run together (`batching`).

use std::time::{Duration, Instant};

use crate::backend::Instance;
use crate::batching::{Appetite, BatchPolicy};

/// Runs, and fetches, that are remembered, roughly.
const MEMORY: f64 = 8.0;

/// Fetches that take longer than this do not widen the horizon any further.
const LONGEST_FETCH: Duration = Duration::from_millis(250);

/// What counts as rounding, in seconds and in requests.
const ROUNDED: f64 = 1e-6;

/// What is added to a time, so that nobody asks a moment too early.
const TOO_EARLY: Duration = Duration::from_micros(100);

/// How long runs take, by those of late. Weighted, so that one odd run does not count for much.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    runs: f64,
    /// Means over runs: seconds, cost, requests.
    seconds: f64,
    cost: f64,
    requests: f64,
}

/// What a worker's instances do, and how long they take for it.
#[derive(Clone, Debug)]
pub struct Intake {
    instances: usize,
    appetite: Appetite,
    pace: Pace,
    running: Vec<Running>,
    last: u64,
    /// Fetches seen, and the mean of their seconds.
    fetches: (f64, f64),
}

/// A run under way.
#[derive(Clone, Copy, Debug)]
struct Running {
    id: RunId,
    started: Instant,
    cost: f64,
}

/// Names a run under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId(u64);

/// How many more requests to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// So many now; never 0.
    Now(usize),
    /// None before then, if nothing happens.
    At(Instant),
    /// None before something happens.
    None,
}

/// The most requests that this worker has in hand for a model, waiting and being executed. Instances that work step by step
/// say themselves how many they take; one more each waits, so that no place stays empty between pulls. Where the model's
/// `queue` has a policy, what is in hand is out of its order: as in Triton that is a batch for each instance and one more.
pub(crate) fn most_in_hand(policy: &dyn BatchPolicy, instances: &[Instance], queue: bool) -> usize {
    let batches = instances.iter().filter(|instance| matches!(instance, Instance::Batch(_))).count();
    let stepwise = instances.iter().filter_map(|instance| match instance {
        Instance::Batch(_) => None,
        Instance::Stepwise(instance) => Some(instance.room() + 1),
    });
    let stepwise: usize = stepwise.sum();
    let in_batches = |batches: usize| match queue {
        true => (batches + 1).saturating_mul(policy.max_rows().max(1) as usize),
        false => policy.in_hand(batches),
    };
    match (batches, stepwise) {
        (0, 0) => in_batches(1),
        (0, stepwise) => stepwise,
        (batches, stepwise) => in_batches(batches) + stepwise,
    }
}

/// How much of the shared queue this worker takes at a time; `None` where instances work step by step: a request that joins
/// one shares its time with the others, so there are no runs to go by.
pub(crate) fn of(policy: &dyn BatchPolicy, instances: &[Instance]) -> Option<Intake> {
    let batches = instances.iter().all(|instance| matches!(instance, Instance::Batch(_)));
    batches.then(|| Intake::new(instances.len(), policy.appetite()))
}

// === impl Pace ===

impl Pace {
    /// Takes in a run of that many requests.
    fn note(&mut self, took: Duration, cost: f64, requests: usize) {
        self.runs = (self.runs + 1.0).min(MEMORY);
        let weigh = |mean: &mut f64, value: f64| *mean += (value - *mean) / self.runs;
        weigh(&mut self.seconds, took.as_secs_f64());
        weigh(&mut self.cost, cost);
        weigh(&mut self.requests, requests as f64);
    }

    /// Seconds that a run of this cost takes, once that is known.
    fn run(&self, cost: f64) -> Option<f64> {
        (self.cost > 0.0).then(|| cost * self.seconds / self.cost)
    }

    /// Seconds of an instance for each request, once that is known.
    fn request(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| self.seconds / self.requests)
    }
}

// === impl Intake ===

impl Intake {
    /// The intake of that many idle instances.
    pub fn new(instances: usize, appetite: Appetite) -> Intake {
        let (pace, running) = (Pace::default(), Vec::new());
        Intake { instances: instances.max(1), appetite, pace, running, last: 0, fetches: (0.0, 0.0) }
    }

    /// Work that waited in the shared queue came so long after there was room for it.
    pub fn fetched(&mut self, took: Duration) {
        let (seen, mean) = &mut self.fetches;
        *seen = (*seen + 1.0).min(MEMORY);
        *mean += (took.min(LONGEST_FETCH).as_secs_f64() - *mean) / *seen;
    }

    /// Seconds within which an instance has to be free for work to be taken for it: what the policy wants, and where
    /// messages take long to come, twice as long as that.
    fn horizon(&self) -> f64 {
        self.appetite.look_ahead.as_secs_f64().max(2.0 * self.fetches.1)
    }

    /// An instance begins a run, whose cost is in the batch policy's unit.
    pub fn begin(&mut self, cost: f64, now: Instant) -> RunId {
        self.last += 1;
        let id = RunId(self.last);
        self.running.push(Running { id, started: now, cost });
        id
    }

    /// A run is over that executed so many requests; 0 says that nothing was executed, which tells nothing of the pace.
    pub fn end(&mut self, id: RunId, requests: usize, now: Instant) {
        let Some(position) = self.running.iter().position(|run| run.id == id) else { return };
        let run = self.running.swap_remove(position);
        if requests > 0 {
            self.pace.note(now.saturating_duration_since(run.started), run.cost, requests);
        }
    }

    /// How long a run of this cost is expected to take, once that is known.
    pub fn run(&self, cost: f64) -> Option<Duration> {
        self.pace.run(cost).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// How long a run takes that has a request of this cost in it, and how long it is until that begins after those that
    /// wait here; `None` while that is not known. The run has as many like it as runs have of late, and takes no longer than
    /// those do: one that is odd may well be by itself. Those before it are taken to be like it.
    pub fn outlook(&self, cost: f64, waiting: usize, now: Instant) -> Option<(Duration, Duration)> {
        let run = (self.pace.runs > 0.0).then_some(self.pace.seconds)?;
        let run = self.pace.run(cost * self.pace.requests).map_or(run, |alike| run.min(alike));
        let left = |run: &Running| {
            let takes = self.pace.run(run.cost).unwrap_or_default();
            (takes - now.saturating_duration_since(run.started).as_secs_f64()).max(0.0)
        };
        // When each instance is free: first those that are idle.
        let mut free = vec![0.0; self.instances.saturating_sub(self.running.len())];
        free.extend(self.running.iter().map(left));
        free.sort_unstable_by(f64::total_cmp);
        // In how many runs those are that wait.
        let before = (waiting as f64 / self.pace.requests.max(1.0) + ROUNDED) as usize;
        let (rounds, turn) = (before / free.len(), before % free.len());
        let wait = free.get(turn)? + rounds as f64 * run;
        Some((Duration::try_from_secs_f64(run).ok()?, Duration::try_from_secs_f64(wait).ok()?))
    }

    /// How many requests to take in addition to those that wait here.
    pub fn room(&self, waiting: usize, now: Instant) -> Room {
        let horizon = self.horizon();
        // How long each running instance is busy yet; unknown is long.
        let busy = |run: &Running| match self.pace.run(run.cost) {
            Some(takes) => (takes - now.saturating_duration_since(run.started).as_secs_f64()).max(0.0),
            None => f64::INFINITY,
        };
        let busy: Vec<f64> = self.running.iter().map(busy).collect();
        let idle = self.instances.saturating_sub(busy.len());
        let soon = || busy.iter().copied().filter(|&left| left < horizon);
        let time = idle as f64 * horizon + soon().map(|left| horizon - left).sum::<f64>();
        let per_request = self.pace.request();
        let by_time = per_request.map_or(0.0, |each| time / each.max(f64::MIN_POSITIVE) + ROUNDED) as usize;
        let by_batch = (idle + soon().count()).saturating_mul(self.appetite.batch);
        match by_time.max(by_batch).saturating_sub(waiting) {
            0 => self.later(waiting, &busy, time, now),
            room => Room::Now(room),
        }
    }

    /// When there will be room, by the clock alone.
    fn later(&self, waiting: usize, busy: &[f64], time: f64, now: Instant) -> Room {
        let horizon = self.horizon();
        let enters = busy.iter().filter(|left| left.is_finite() && **left >= horizon).map(|left| left - horizon);
        let ending = busy.iter().filter(|left| **left > 0.0 && **left < horizon);
        // While those run down, the time that they are free grows by as much.
        let grown = self.pace.request().map(|each| (waiting + 1) as f64 * each - time);
        let longest = ending.clone().copied().fold(0.0, f64::max);
        let grows = grown.map(|missing| missing / ending.count() as f64).filter(|after| *after <= longest + ROUNDED);
        let after = enters.chain(grows).fold(f64::INFINITY, f64::min);
        let at = Duration::try_from_secs_f64(after.max(0.0)).ok().and_then(|after| now.checked_add(after + TOO_EARLY));
        at.map_or(Room::None, Room::At)
    }
}

#[cfg(test)]
mod tests;
