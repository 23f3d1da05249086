//! Which waiting requests run together: the pure part of batching.
//!
//! A [`BatchPolicy`] sees the waiting requests and the time, and decides. The queue and the instance threads that call
//! it are in `queue`. [`OneAtATime`] is the policy of stages that gain nothing from batches; the dynamic batcher is in
//! `dynamic_batching`, and the batcher that puts texts of similar length together in `services/model`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use trireme_inference::Tensor;

/// Fewest requests that a worker may hold for each instance. A fast stage so asks the broker seldom, and does not idle between pulls; a
/// step whose worker has also executed the step before takes over all requests of a batch at once. A slow stage takes fewer, because
/// its room is counted in time.
const MIN_REQUESTS_PER_INSTANCE: usize = 64;

/// Default look-ahead of a policy: about the time that it takes to fetch a message from the broker, with slack.
const FETCH_TIME: Duration = Duration::from_millis(20);

/// A waiting request, as a policy sees it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// When it entered this worker's queue.
    pub arrived: Instant,
    /// Smaller comes first. Twice the request's priority level, plus one if the queue policy has put the request behind
    /// all others of its level.
    pub priority: u32,
    /// The request's inputs, as the policy describes them.
    pub description: Description,
}

/// The properties of a request's inputs that matter for batching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Rows of the request: the first dimension of its inputs.
    pub rows: u32,
    /// Length of each row in tokens if the policy pads rows to a common length; otherwise 1.
    pub length: u32,
    /// Requests with equal signatures may share a batch.
    pub signature: u64,
}

/// How many requests a policy wants to have waiting in this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appetite {
    /// Requests that fill a run, at least 1.
    pub batch: usize,
    /// The worker takes requests ahead of time if they can begin within this time.
    pub look_ahead: Duration,
}

/// A policy's decision for an idle instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Execute these, by index into the queue; never empty, each index at most once.
    Run(Vec<usize>),
    /// Ask again when a request arrives, and at this time at the latest.
    WaitUntil(Instant),
    /// Ask again when a request arrives.
    Wait,
}

/// Chooses the next batch. Pure: the same queue at the same time gives the same decision, after the same runs.
///
/// A policy that runs requests in pairs:
///
/// ```
/// use std::time::Instant;
/// use trireme_engine::{BatchPolicy, Candidate, Decision, Description};
///
/// struct Pairs;
///
/// impl BatchPolicy for Pairs {
///     fn decide(&self, waiting: &[Candidate], _now: Instant) -> Decision {
///         if waiting.len() < 2 { Decision::Wait } else { Decision::Run(vec![0, 1]) }
///     }
///
///     fn max_rows(&self) -> u32 {
///         2
///     }
/// }
///
/// let now = Instant::now();
/// let request = Candidate { arrived: now, priority: 0, description: Description::exact(&[]) };
/// assert_eq!(Pairs.decide(&[request.clone()], now), Decision::Wait);
/// assert_eq!(Pairs.decide(&[request.clone(), request], now), Decision::Run(vec![0, 1]));
/// ```
pub trait BatchPolicy: Send + Sync {
    /// Describes a request with these inputs. By default only requests of equal shapes share a batch.
    fn describe(&self, inputs: &[Tensor]) -> Description {
        Description::exact(inputs)
    }

    /// Decides what an idle instance does about `waiting`, which is in arrival order.
    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision;

    /// The most rows that one execution takes.
    fn max_rows(&self) -> u32;

    /// How many requests to take from the shared queue.
    fn appetite(&self) -> Appetite {
        Appetite { batch: self.max_rows() as usize, look_ahead: FETCH_TIME }
    }

    /// Cost of running these requests together, above 0. Only ratios matter. By default every run costs the same.
    fn cost(&self, _members: &[Description]) -> f64 {
        1.0
    }

    /// A run of this cost has taken so long. By default a policy does not look at it.
    fn ran(&self, _cost: f64, _took: Duration) {}

    /// The most requests that a worker with this many instances holds, waiting and being executed, however fast it is.
    fn in_hand(&self, instances: usize) -> usize {
        instances * (2 * self.max_rows() as usize).max(MIN_REQUESTS_PER_INSTANCE)
    }
}

// === impl Description ===

impl Description {
    /// Describes requests as alike when their inputs have equal names, datatypes and shapes, except for the first
    /// dimension.
    ///
    /// ```
    /// # use trireme_inference::{Tensor, TensorError};
    /// use trireme_engine::Description;
    ///
    /// let one = Description::exact(&[Tensor::from_values("x", [1, 2], vec![1f32, 2.0])?]);
    /// let two = Description::exact(&[Tensor::from_values("x", [2, 2], vec![1f32, 2.0, 3.0, 4.0])?]);
    /// assert_eq!((one.rows, two.rows), (1, 2));
    /// assert_eq!(one.signature, two.signature);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn exact(inputs: &[Tensor]) -> Description {
        let mut hasher = DefaultHasher::new();
        for input in inputs {
            (input.name(), input.datatype()).hash(&mut hasher);
            input.shape().get(1..).hash(&mut hasher);
        }
        let rows = inputs.first().and_then(|input| input.shape().first()).copied();
        let rows = rows.map_or(1, |rows| u32::try_from(rows).unwrap_or(u32::MAX));
        Description { rows, length: 1, signature: hasher.finish() }
    }

    /// Its tokens, or its rows where lengths do not matter to the model's policy; at least 1.
    pub fn tokens(&self) -> u64 {
        u64::from(self.rows.max(1)) * u64::from(self.length.max(1))
    }
}

/// Runs every request alone, by priority, then by age.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneAtATime;

impl BatchPolicy for OneAtATime {
    fn decide(&self, waiting: &[Candidate], _now: Instant) -> Decision {
        let first = (0..waiting.len()).min_by_key(|&index| waiting[index].priority);
        first.map_or(Decision::Wait, |index| Decision::Run(vec![index]))
    }

    fn max_rows(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_alike_when_all_but_the_rows_is() {
        let describe = |name: &str, shape: &[i64]| {
            let values = vec![0i64; shape.iter().product::<i64>() as usize];
            Description::exact(&[Tensor::from_values(name, shape, values).unwrap()])
        };
        let (one, three) = (describe("x", &[1, 4]), describe("x", &[3, 4]));
        assert_eq!((one.rows, three.rows, one.length), (1, 3, 1));
        assert_eq!(one.signature, three.signature);
        for other in [describe("y", &[1, 4]), describe("x", &[1, 5]), describe("x", &[1, 4, 1]), describe("x", &[])] {
            assert_ne!(one.signature, other.signature);
        }
        let floats = Tensor::from_values("x", [1, 4], vec![0f64; 4]).unwrap();
        assert_ne!(one.signature, Description::exact(&[floats]).signature);
        assert_eq!((describe("x", &[]).rows, Description::exact(&[]).rows), (1, 1));
    }

    #[test]
    fn instances_have_more_in_hand_than_they_execute() {
        assert_eq!(OneAtATime.in_hand(2), 2 * MIN_REQUESTS_PER_INSTANCE);
    }
}
