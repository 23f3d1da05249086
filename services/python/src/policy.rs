//! Which requests are executed together.

use trireme_inference::Tensor;
use trireme_model_repository::ModelConfig;
use trireme_runtime::DynamicBatcher;
use trireme_runtime::{Appetite, BatchPolicy, Candidate, Decision, Description, OneAtATime};

/// The dynamic batcher, for which inputs that are declared as ragged may differ in shape.
struct Ragged {
    batcher: DynamicBatcher,
    inputs: Vec<String>,
}

/// The policy that a configuration asks for: each request alone without `dynamic_batching`. `execute` gets requests as they came,
/// so nothing is joined here.
pub fn policy(config: &ModelConfig) -> Box<dyn BatchPolicy> {
    let Some(settings) = config.dynamic_batching.as_ref().filter(|_| config.max_batch_size > 0) else {
        return Box::new(OneAtATime);
    };
    let batcher = DynamicBatcher::new(settings, config.max_batch_size);
    let ragged = config.inputs.iter().filter(|input| input.allow_ragged_batch);
    let inputs: Vec<String> = ragged.map(|input| input.name.clone()).collect();
    match inputs.is_empty() {
        true => Box::new(batcher),
        false => Box::new(Ragged { batcher, inputs }),
    }
}

// === impl Ragged ===

impl BatchPolicy for Ragged {
    fn describe(&self, inputs: &[Tensor]) -> Description {
        let strict: Vec<_> =
            inputs.iter().filter(|input| !self.inputs.iter().any(|ragged| ragged == input.name())).cloned().collect();
        Description { signature: Description::exact(&strict).signature, ..Description::exact(inputs) }
    }

    fn decide(&self, waiting: &[Candidate], now: std::time::Instant) -> Decision {
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
    fn ragged_inputs_may_differ_in_shape() {
        let declared = |ragged: bool| {
            let text = format!(
                "backend: 'python' max_batch_size: 8 dynamic_batching {{}}
                 input [{{ name: 'a' data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: {ragged} }},
                        {{ name: 'b' data_type: TYPE_FP32 dims: [-1] }}]
                 output [{{ name: 'c' data_type: TYPE_FP32 dims: [-1] }}]"
            );
            policy(&ModelConfig::parse(&text, "m").unwrap())
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
