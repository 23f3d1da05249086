//! Which requests are executed together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trireme_inference::Tensor;
use trireme_model_repository::{DynamicBatching, ModelConfig};
use trireme_runtime::DynamicBatcher;
use trireme_runtime::{Appetite, BatchPolicy, Candidate, Decision, Description, OneAtATime};

/// The dynamic batcher, for which inputs that are declared as ragged may differ in shape.
struct Ragged {
    batcher: DynamicBatcher,
    inputs: Vec<String>,
}

/// So long the first request of a frame may wait for the last one.
const FRAME_TIME: Duration = Duration::from_millis(5);

/// Longer calls are sent one by one: the way to the child and back is short beside them.
const SHORT_CALL: Duration = Duration::from_millis(1);

/// Calls that take less than the way to the child and back.
const VERY_SHORT_CALL: Duration = Duration::from_micros(100);

/// Most requests of a frame whose requests are executed one by one.
const MAX_APART: usize = 32;

/// How long a call of `execute` takes, by the clock of the child. Instances note it, the policy reads it.
#[derive(Debug)]
pub struct CallTime(AtomicU64);

/// Each request is a call of `execute` of its own. While calls are short, a frame has several requests, because the way to the child
/// and back takes longer than they do.
struct Apart {
    time: Arc<CallTime>,
    instances: usize,
}

/// The policy that a configuration asks for: each request alone without `dynamic_batching`. `execute` gets requests as they came,
/// so nothing is joined here. `apart` says how long such calls take; without it a frame has one request.
pub fn policy(config: &ModelConfig, instances: usize, apart: Option<Arc<CallTime>>) -> Box<dyn BatchPolicy> {
    let Some(settings) = batching(config) else {
        return match apart {
            Some(time) => Box::new(Apart { time, instances }),
            None => Box::new(OneAtATime),
        };
    };
    let batcher = DynamicBatcher::new(settings, config.max_batch_size);
    let ragged = config.inputs.iter().filter(|input| input.allow_ragged_batch);
    let inputs: Vec<String> = ragged.map(|input| input.name.clone()).collect();
    match inputs.is_empty() {
        true => Box::new(batcher),
        false => Box::new(Ragged { batcher, inputs }),
    }
}

/// The settings of a model whose `execute` gets several requests at a time.
pub fn batching(config: &ModelConfig) -> Option<&DynamicBatching> {
    config.dynamic_batching.as_ref().filter(|_| config.max_batch_size > 0)
}

// === impl CallTime ===

impl Default for CallTime {
    /// Before the first call: too long to send several.
    fn default() -> Self {
        CallTime(AtomicU64::new(u64::MAX))
    }
}

impl CallTime {
    /// Notes how long a call took. A longer one counts at once, shorter ones little by little.
    pub fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.0.load(Ordering::Relaxed);
        let now = match before {
            u64::MAX => took,
            before => took.max(before - before / 8 + took / 8),
        };
        self.0.store(now, Ordering::Relaxed);
    }

    /// Whether calls take less time than the way to the child and back.
    pub fn are_short(&self) -> bool {
        self.0.load(Ordering::Relaxed) < VERY_SHORT_CALL.as_nanos() as u64
    }

    /// The number of calls that a frame may have.
    fn fitting(&self) -> usize {
        let time = Duration::from_nanos(self.0.load(Ordering::Relaxed).max(1));
        match time > SHORT_CALL {
            true => 1,
            false => ((FRAME_TIME.as_nanos() / time.as_nanos()) as usize).clamp(1, MAX_APART),
        }
    }
}

// === impl Apart ===

impl BatchPolicy for Apart {
    fn decide(&self, waiting: &[Candidate], _now: Instant) -> Decision {
        if waiting.is_empty() {
            return Decision::Wait;
        }
        let count = self.time.fitting().min(waiting.len().div_ceil(self.instances));
        let mut order: Vec<usize> = (0..waiting.len()).collect();
        order.sort_by_key(|&index| waiting[index].priority);
        order.truncate(count);
        Decision::Run(order)
    }

    fn max_rows(&self) -> u32 {
        1
    }

    fn appetite(&self) -> Appetite {
        Appetite { batch: self.time.fitting(), ..OneAtATime.appetite() }
    }

    fn cost(&self, members: &[Description]) -> f64 {
        members.len().max(1) as f64
    }

    fn in_hand(&self, instances: usize) -> usize {
        instances * 2 * MAX_APART
    }
}

// === impl Ragged ===

impl BatchPolicy for Ragged {
    fn describe(&self, inputs: &[Tensor]) -> Description {
        let strict: Vec<_> =
            inputs.iter().filter(|input| !self.inputs.iter().any(|ragged| ragged == input.name())).cloned().collect();
        Description { signature: Description::exact(&strict).signature, ..Description::exact(inputs) }
    }

    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        self.batcher.decide(waiting, now)
    }

    fn max_rows(&self) -> u32 {
        self.batcher.max_rows()
    }

    fn appetite(&self) -> Appetite {
        self.batcher.appetite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_share_a_frame() {
        let time = Arc::new(CallTime::default());
        let policy = |instances| Apart { time: time.clone(), instances };
        let candidate = |priority| Candidate {
            arrived: Instant::now(),
            priority,
            description: Description { rows: 1, length: 1, signature: 0 },
        };
        let waiting: Vec<_> = [2, 2, 0, 2, 2, 2, 2].map(candidate).into();
        let chosen = |instances| policy(instances).decide(&waiting, Instant::now());
        assert_eq!(chosen(1), Decision::Run(vec![2]), "nothing is known");
        time.note(Duration::from_micros(900));
        assert_eq!(chosen(1), Decision::Run(vec![2, 0, 1, 3, 4]));
        assert_eq!(chosen(3), Decision::Run(vec![2, 0, 1]), "other instances take some");
        time.note(Duration::from_micros(10));
        assert_eq!(chosen(1), Decision::Run(vec![2, 0, 1, 3, 4, 5]), "one short call says little");
        (0..100).for_each(|_| time.note(Duration::from_micros(10)));
        assert_eq!(chosen(1), Decision::Run(vec![2, 0, 1, 3, 4, 5, 6]));
        assert_eq!(policy(1).appetite().batch, MAX_APART);
        time.note(Duration::from_millis(5));
        assert_eq!(chosen(1), Decision::Run(vec![2]), "one long call says much");
        assert_eq!(policy(1).decide(&[], Instant::now()), Decision::Wait);
    }

    #[test]
    fn ragged_inputs_may_differ_in_shape() {
        let declared = |ragged: bool| {
            let text = format!(
                "backend: 'python' max_batch_size: 8 dynamic_batching {{}}
                 input [{{ name: 'a' data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: {ragged} }},
                        {{ name: 'b' data_type: TYPE_FP32 dims: [-1] }}]
                 output [{{ name: 'c' data_type: TYPE_FP32 dims: [-1] }}]"
            );
            policy(&ModelConfig::parse(&text, "m").unwrap(), 1, None)
        };
        let inputs = |a: i64, b: i64| {
            let tensor = |name, size| Tensor::from_values(name, [1, size], vec![0f32; size as usize]).unwrap();
            [tensor("a", a), tensor("b", b)]
        };
        let (strict, ragged) = (declared(false), declared(true));
        let differ = |policy: &dyn BatchPolicy, other: &[Tensor]| {
            policy.describe(&inputs(1, 2)).signature != policy.describe(other).signature
        };
        assert!(differ(&*strict, &inputs(3, 2)) && differ(&*ragged, &inputs(1, 3)));
        assert!(!differ(&*ragged, &inputs(3, 2)), "only the ragged one differs");
    }
}
