//! How much work a worker takes from a queue that it shares with other workers: as much as its instances can begin
//! soon. Pure.
//!
//! A message that one worker holds is not available to others, so a slow worker must not hold messages that a fast one
//! could execute. On the other hand, an instance must not idle between two runs because its next message is still with
//! the broker. So room is counted in time: for each instance, the part of a horizon in which it is free, estimated by
//! how long its runs take ([`RunTimes`]). The worker takes as many requests as fit into that time, and at least a full
//! batch for each instance that is free within the horizon. It takes nothing for instances that are busy beyond the
//! horizon; [`Intake::room`] returns the time when there will be more room. The horizon is the batch policy's
//! look-ahead, or twice the time that messages take to come from the broker if that is longer. A queue that no other
//! worker pulls from has no horizon: there the batch policy may choose among all that the worker can hold.
//!
//! Not here: the queue that keeps to the room and to the most requests that a worker holds (`queue`), and which requests run
//! together (`batching`).

use std::time::{Duration, Instant};

use crate::backend::Instance;
use crate::batching::{Appetite, BatchPolicy};

/// Weight of the running means: roughly the number of runs, or fetches, that count.
const MEMORY: f64 = 8.0;

/// A fetch that takes longer counts as this long, so that it does not widen the horizon further.
const LONGEST_FETCH: Duration = Duration::from_millis(250);

/// A worker takes work in portions of at least this part of the horizon, because a pull request for each message is one more message
/// for the worker and the broker.
const PORTION: f64 = 1.0 / 8.0;

/// The horizon of background instances, as a multiple of the others': no user waits for bulk requests, so a worker may choose among
/// more of them.
const BACKGROUND_HORIZON: u32 = 5;

/// The horizon while several owners have requests. In the shared queue requests wait in the order in which they came, so a worker gives owners
/// their shares among the requests that it has taken.
const SHARED_HORIZON: Duration = Duration::from_secs(1);

/// Differences up to this size count as rounding errors, in seconds and in requests.
const ROUNDED: f64 = 1e-6;

/// Added to a time, so that it has certainly passed when a caller asks again.
const TOO_EARLY: Duration = Duration::from_micros(100);

/// How long runs take, as running means over the last `MEMORY` runs, so that one odd run does not count for much.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunTimes {
    runs: f64,
    /// Means over runs: seconds, cost, and number of requests.
    seconds: f64,
    cost: f64,
    requests: f64,
}

/// The instances' runs under way, and how long runs and fetches take.
///
/// Until the first run has ended, the duration of runs is not known:
///
/// ```
/// # use std::time::{Duration, Instant};
/// use trireme_engine::{Appetite, Intake, Room};
///
/// let (now, millis) = (Instant::now(), Duration::from_millis);
/// let mut intake = Intake::new(1, Appetite { batch: 4, look_ahead: millis(20) });
/// assert_eq!(intake.room(0, now), Room::Now(4));
///
/// let run = intake.begin(1.0, now);
/// assert_eq!(intake.room(0, now), Room::None);
///
/// // A run of four requests took 10 ms: eight of them fit into the look-ahead.
/// intake.end(run, 4, now + millis(10));
/// assert_eq!(intake.room(0, now + millis(10)), Room::Now(8));
/// ```
#[derive(Clone, Debug)]
pub struct Intake {
    instances: usize,
    appetite: Appetite,
    /// Whether other workers may pull from the queue.
    shared: bool,
    pace: RunTimes,
    running: Vec<Running>,
    last: u64,
    /// Number of fetches seen, and the mean of their seconds.
    fetches: (f64, f64),
    /// Until when the worker looks as far ahead as [`SHARED_HORIZON`].
    contested: Option<Instant>,
}

/// A run under way.
#[derive(Clone, Copy, Debug)]
struct Running {
    id: RunId,
    started: Instant,
    cost: f64,
}

/// Identifies a run under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId(u64);

/// How many more requests to take from the shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// This many now; never 0.
    Now(usize),
    /// None until this time, unless a run begins or ends or a request leaves before.
    At(Instant),
    /// None until a run begins or ends or a request leaves.
    None,
}

/// The most requests that this worker holds for a model, waiting and being executed. Stepwise instances say themselves how
/// many requests they take; one more per instance may wait, so that no place stays empty between pulls.
pub fn most_in_hand(policy: &dyn BatchPolicy, instances: &[Instance]) -> usize {
    by_instances(instances, |batches| policy.in_hand(batches))
}

/// How many requests of this worker the limits of a queue policy allow for, beside those that wait: as in Triton, a batch for each
/// instance and one more. A worker whose runs are short may hold more; then fewer requests wait before the limit is reached.
pub fn allowance(policy: &dyn BatchPolicy, instances: &[Instance]) -> usize {
    by_instances(instances, |batches| (batches + 1).saturating_mul(policy.max_rows().max(1) as usize))
}

fn by_instances(instances: &[Instance], in_batches: impl Fn(usize) -> usize) -> usize {
    let batches = instances.iter().filter(|instance| matches!(instance, Instance::Batch(_))).count();
    let stepwise = instances.iter().filter_map(|instance| match instance {
        Instance::Batch(_) => None,
        Instance::Stepwise(instance) => Some(instance.room() + 1),
    });
    let stepwise: usize = stepwise.sum();
    match (batches, stepwise) {
        (0, 0) => in_batches(1),
        (0, stepwise) => stepwise,
        (batches, stepwise) => in_batches(batches) + stepwise,
    }
}

/// How much of the shared queue this worker takes at a time. `None` for stepwise instances: their requests share time
/// with each other, so there are no runs to measure. `shared`: whether other workers may pull from the queue.
pub fn of(policy: &dyn BatchPolicy, instances: &[Instance], shared: bool) -> Option<Intake> {
    let batches = instances.iter().all(|instance| matches!(instance, Instance::Batch(_)));
    batches.then(|| Intake { shared, ..Intake::new(instances.len(), policy.appetite()) })
}

// === impl RunTimes ===

impl RunTimes {
    /// Adds a run of this many requests to the means.
    fn note(&mut self, took: Duration, cost: f64, requests: usize) {
        self.runs = (self.runs + 1.0).min(MEMORY);
        let weigh = |mean: &mut f64, value: f64| *mean += (value - *mean) / self.runs;
        weigh(&mut self.seconds, took.as_secs_f64());
        weigh(&mut self.cost, cost);
        weigh(&mut self.requests, requests as f64);
    }

    /// Seconds that a run of this cost takes; `None` before the first run.
    fn run(&self, cost: f64) -> Option<f64> {
        (self.cost > 0.0).then(|| cost * self.seconds / self.cost)
    }

    /// Seconds of an instance's time per request; `None` before the first run.
    fn request(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| self.seconds / self.requests)
    }
}

// === impl Intake ===

impl Intake {
    /// The intake of this many idle instances, from a queue that other workers pull from, too.
    pub fn new(instances: usize, appetite: Appetite) -> Intake {
        let (pace, running) = (RunTimes::default(), Vec::new());
        Intake {
            instances: instances.max(1),
            appetite,
            shared: true,
            pace,
            running,
            last: 0,
            fetches: (0.0, 0.0),
            contested: None,
        }
    }

    /// The same for one idle background instance, before anything was measured.
    pub fn for_background(&self) -> Intake {
        let appetite = Appetite { look_ahead: self.appetite.look_ahead * BACKGROUND_HORIZON, ..self.appetite };
        Intake { shared: self.shared, ..Intake::new(1, appetite) }
    }

    /// One more instance, idle.
    pub fn add_instance(&mut self) {
        self.instances += 1;
    }

    /// Requests that fill a run.
    pub fn batch(&self) -> usize {
        self.appetite.batch.max(1)
    }

    /// Adds a fetch: a message that was already in the shared queue arrived this long after there was room for it.
    pub fn fetched(&mut self, took: Duration) {
        let (seen, mean) = &mut self.fetches;
        *seen = (*seen + 1.0).min(MEMORY);
        *mean += (took.min(LONGEST_FETCH).as_secs_f64() - *mean) / *seen;
    }

    /// The horizon in seconds: the worker takes work for an instance that will be free within it. It is the policy's
    /// look-ahead, or twice the mean fetch time if that is longer.
    fn horizon(&self, now: Instant) -> f64 {
        let usual = self.appetite.look_ahead.as_secs_f64().max(2.0 * self.fetches.1);
        if self.contested.is_some_and(|until| now < until) { usual.max(SHARED_HORIZON.as_secs_f64()) } else { usual }
    }

    /// Several owners have requests until this time: the worker takes more of them, so that it can choose among all owners.
    pub fn contest(&mut self, until: Instant) {
        self.contested = Some(until);
    }

    /// An instance begins a run; `cost` is in the batch policy's unit.
    pub fn begin(&mut self, cost: f64, now: Instant) -> RunId {
        self.last += 1;
        let id = RunId(self.last);
        self.running.push(Running { id, started: now, cost });
        id
    }

    /// A run has ended that executed this many requests: its cost and how long it took. With 0 requests, it is `None`, and its time is not
    /// added to the means.
    pub fn end(&mut self, id: RunId, requests: usize, now: Instant) -> Option<(f64, Duration)> {
        let position = self.running.iter().position(|run| run.id == id)?;
        let run = self.running.swap_remove(position);
        let took = now.saturating_duration_since(run.started);
        (requests > 0).then(|| self.note(took, run.cost, requests)).map(|()| (run.cost, took))
    }

    /// Requests of this cost have taken so long together.
    pub fn note(&mut self, took: Duration, cost: f64, requests: usize) {
        self.pace.note(took, cost, requests);
    }

    /// Expected duration of a run of this cost; `None` before the first run.
    pub fn run(&self, cost: f64) -> Option<Duration> {
        self.pace.run(cost).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Expected duration of a run that contains a request of this cost, and the expected wait until it begins behind
    /// `waiting` requests; `None` before the first run. The run is assumed to have as many requests of this cost as
    /// runs have on average. It is assumed to take no longer than the average run, because an unusual request may run
    /// alone. The runs before it are assumed to take as long.
    pub fn outlook(&self, cost: f64, waiting: usize, now: Instant) -> Option<(Duration, Duration)> {
        let run = (self.pace.runs > 0.0).then_some(self.pace.seconds)?;
        let run = self.pace.run(cost * self.pace.requests).map_or(run, |alike| run.min(alike));
        let left = |run: &Running| {
            let takes = self.pace.run(run.cost).unwrap_or_default();
            (takes - now.saturating_duration_since(run.started).as_secs_f64()).max(0.0)
        };
        // Seconds until each instance is free; idle instances come first.
        let mut free = vec![0.0; self.instances.saturating_sub(self.running.len())];
        free.extend(self.running.iter().map(left));
        free.sort_unstable_by(f64::total_cmp);
        // Number of runs that the waiting requests need.
        let before = (waiting as f64 / self.pace.requests.max(1.0) + ROUNDED) as usize;
        let (rounds, turn) = (before / free.len(), before % free.len());
        let wait = free.get(turn)? + rounds as f64 * run;
        Some((Duration::try_from_secs_f64(run).ok()?, Duration::try_from_secs_f64(wait).ok()?))
    }

    /// How many requests to take in addition to the `waiting` ones.
    pub fn room(&self, waiting: usize, now: Instant) -> Room {
        if !self.shared {
            return Room::Now(usize::MAX);
        }
        let horizon = self.horizon(now);
        // Seconds until a running instance is free; infinite while the pace is unknown.
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
        let takers = idle + soon().count();
        let by_batch = takers.saturating_mul(self.appetite.batch);
        let portion = per_request.map_or(0.0, |each| takers as f64 * horizon / each.max(f64::MIN_POSITIVE) * PORTION);
        let portion = (portion as usize).max(1);
        match by_time.max(by_batch).saturating_sub(waiting) {
            room if by_batch > waiting || room >= portion => Room::Now(room),
            _ => self.later(waiting + portion - 1, &busy, time, now),
        }
    }

    /// When there will be room if only time passes.
    fn later(&self, waiting: usize, busy: &[f64], time: f64, now: Instant) -> Room {
        let horizon = self.horizon(now);
        let enters = busy.iter().filter(|left| left.is_finite() && **left >= horizon).map(|left| left - horizon);
        let ending = busy.iter().filter(|left| **left > 0.0 && **left < horizon);
        // While these runs go on, the free time within the horizon grows by each second that passes, for each of them.
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
