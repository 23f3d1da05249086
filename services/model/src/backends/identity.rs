//! `backend: "identity"`: answers `OUTPUTn` with the tensor `INPUTn` and shares its bytes. It serves tests, and measurements of
//! everything but a model.
//!
//! Parameters: `execute_delay_ms` sleeps that long per execution (not per request), and `instance_wise_delay_multiplier`
//! lets instance i sleep max(1, i × multiplier) times as long. In builds for tests, `abort_on` is a number that ends the process
//! when an INT32 input contains it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use trireme_engine::{
    Backend, ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, LoadError, LoadedModel, ModelInstance,
    ModelSource,
};
use trireme_inference::{DataType, InferError, Reshape, Shape, Tensor, room_for};
use trireme_model_repository::{ModelConfig, ModelInput, ModelOutput};

use super::abort::AbortOn;
use crate::batcher::{self, merge};
use trireme_engine::warmup;

/// The longest delay that makes sense: an hour.
const MAX_DELAY_MS: u64 = 3_600_000;

/// The identity backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

/// An instance of an identity model.
#[derive(Clone)]
struct IdentityInstance {
    model: String,
    /// Output and the input that it copies, in configuration order.
    pairs: Vec<Pair>,
    batches: bool,
    delay: Duration,
    abort_on: AbortOn,
}

#[derive(Clone)]
struct Pair {
    input: String,
    output: String,
    /// For an input that may be absent: the output of a request without it, zeros of these dims.
    absent: Option<(DataType, Shape)>,
    /// `reshape` of the input, then of the output.
    reshapes: Vec<Reshape>,
}

impl Backend for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn reshapes(&self) -> bool {
        true
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let config = source.config;
        let pairs = pairs(config)?;
        let delay_ms = parameter(config, "execute_delay_ms")?.unwrap_or(0);
        let multiplier = parameter(config, "instance_wise_delay_multiplier")?.unwrap_or(0);
        let abort_on = AbortOn::of(config)?;
        let count = source.cpu_instances()?;
        let (mut instances, mut guests) = (Vec::new(), Vec::<Box<dyn ModelInstance>>::new());
        for index in 0..count as u64 {
            let delay_ms = delay_ms.saturating_mul(index.saturating_mul(multiplier).max(1)).min(MAX_DELAY_MS);
            let mut instance = IdentityInstance {
                model: config.name.clone(),
                pairs: pairs.clone(),
                batches: config.max_batch_size > 0,
                delay: Duration::from_millis(delay_ms),
                abort_on,
            };
            warmup::run(config, source.model_path, &mut instance)?;
            if delay_ms == 0 {
                guests.push(Box::new(instance.clone()));
            }
            instances.push(Instance::Batch(Box::new(instance)));
        }
        let canary = warmup::first(config, source.model_path)?;
        Ok(LoadedModel {
            config: Arc::new(config.clone()),
            instances,
            background: Vec::new(),
            guests,
            policy: batcher::policy(config),
            canary,
        })
    }
}

/// Pairs outputs with inputs by the number in their names.
fn pairs(config: &ModelConfig) -> Result<Vec<Pair>, LoadError> {
    let (inputs, outputs) = (config.inputs.len(), config.outputs.len());
    if inputs != outputs {
        return Err(LoadError::Config(format!(
            "model '{}': an identity model has as many outputs as inputs, found {inputs} inputs and {outputs} outputs",
            config.name
        )));
    }
    let pair = |output: &ModelOutput| {
        let input = output.name.strip_prefix("OUTPUT").map(|number| format!("INPUT{number}"));
        let input = input.and_then(|name| config.inputs.iter().find(|input| input.name == name));
        let (dims, reshape) = (&output.dims, &output.reshape);
        let (taken, given) = (
            |input: &ModelInput| input.reshape.clone().unwrap_or_else(|| input.dims.clone()),
            reshape.as_ref().unwrap_or(dims),
        );
        let input = input.filter(|input| input.datatype == output.datatype && taken(input) == *given);
        let input = input.ok_or_else(|| {
            LoadError::Config(format!(
                "model '{}': output '{}' of an identity model needs an input of the same number, datatype and dims \
                 (OUTPUT0 answers INPUT0); where one has a reshape, that stands for its dims",
                config.name, output.name
            ))
        })?;
        let inward = input.reshape.clone().map(|to| Reshape { from: input.dims.clone(), to });
        let outward = reshape.clone().map(|from| Reshape { from, to: dims.clone() });
        Ok(Pair {
            input: input.name.clone(),
            output: output.name.clone(),
            absent: input
                .optional
                .then(|| (output.datatype, dims.iter().map(|&dim| dim.max(1)).collect::<Vec<_>>().into())),
            reshapes: inward.into_iter().chain(outward).collect(),
        })
    };
    config.outputs.iter().map(pair).collect()
}

fn parameter(config: &ModelConfig, name: &str) -> Result<Option<u64>, LoadError> {
    let Some(text) = config.parameters.get(name) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| {
        let model = &config.name;
        LoadError::Config(format!("model '{model}': parameter '{name}' has to be a whole number, found '{text}'"))
    })
}

// === impl IdentityInstance ===

impl IdentityInstance {
    fn answer(&self, request: &ExecuteRequest) -> Result<Vec<Tensor>, InferError> {
        let mut outputs = Vec::with_capacity(request.outputs.len());
        for name in &request.outputs {
            let pair = self.pairs.iter().find(|pair| pair.output == *name).ok_or_else(|| {
                let allowed = self.pairs.iter().map(|pair| pair.output.as_str()).collect::<Vec<_>>().join(", ");
                let message = format!("unexpected inference output '{name}', allowed outputs are: {allowed}");
                InferError::invalid_arg(message)
            })?;
            match request.inputs.iter().find(|input| input.name() == pair.input) {
                Some(input) => {
                    let shape =
                        pair.reshapes.iter().fold(input.shape().clone(), |shape, reshape| reshape.apply(&shape));
                    outputs.push(input.clone().renamed(name.clone()).reshaped(shape)?);
                }
                None if let Some((datatype, dims)) = &pair.absent => {
                    outputs.push(self.zeros(name, *datatype, dims, request)?)
                }
                None => {
                    let message = format!("model '{}': input '{}' is missing", self.model, pair.input);
                    return Err(InferError::invalid_arg(message));
                }
            }
        }
        Ok(outputs)
    }

    /// Zeros, as Triton's identity backend answers for an optional input that is absent.
    fn zeros(
        &self,
        name: &str,
        datatype: DataType,
        dims: &Shape,
        request: &ExecuteRequest,
    ) -> Result<Tensor, InferError> {
        let shape = if self.batches { dims.prepend(i64::from(self.rows(request))) } else { dims.clone() };
        // An empty text is four zero bytes, too.
        let element = datatype.element_size().unwrap_or(4);
        let room = room_for(name, shape.clone(), element, 0);
        let count = room.map_err(|error| InferError::invalid_arg(format!("model '{}': {error}", self.model)))?;
        Ok(Tensor::new(name, datatype, shape, vec![0; count * element].into())?)
    }

    fn rows(&self, request: &ExecuteRequest) -> u32 {
        if self.batches { merge::rows(&self.model, &request.inputs).unwrap_or(1) } else { 1 }
    }
}

impl ModelInstance for IdentityInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let started = Instant::now();
        let batch_size = requests.iter().fold(0u32, |rows, request| rows.saturating_add(self.rows(request)));
        if !self.delay.is_zero() && !requests.is_empty() {
            thread::sleep(self.delay);
        }
        if requests.iter().any(|request| self.abort_on.is_in(&request.inputs)) {
            self.abort_on.abort();
        }
        let timing = ExecuteTiming { compute_infer: started.elapsed(), batch_size, ..ExecuteTiming::default() };
        let answer = |request| {
            self.answer(request).map(|outputs| ExecuteResponse { outputs, timing, ..ExecuteResponse::default() })
        };
        requests.iter().map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::conformance::{self, Case, load};

    fn config(rest: &str) -> ModelConfig {
        let text = format!("backend: 'identity' {rest}");
        ModelConfig::parse(&text, "m").unwrap()
    }

    const ONE: &str = "input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
                       output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]";

    #[test]
    fn conforms() {
        let batching = config(&format!("max_batch_size: 8 dynamic_batching {{}} {ONE}"));
        let row = |value: f32| vec![Tensor::from_values("INPUT0", [1, 3], vec![value, 2.0, 3.0]).unwrap()];
        let case = Case { inputs: (0..4).map(|i| row(i as f32)).collect(), outputs: vec!["OUTPUT0".into()] };
        conformance::check(&Identity, &batching, "", &case);
    }

    #[test]
    fn every_datatype_passes_with_shared_bytes() {
        for datatype in DataType::ALL {
            let io = format!("data_type: {} dims: [-1]", datatype.config_name());
            let config = config(&format!("input [{{ name: 'INPUT0' {io} }}] output [{{ name: 'OUTPUT0' {io} }}]"));
            let bytes = bytes::Bytes::from(vec![0u8; 4 * datatype.element_size().unwrap_or(4)]);
            let tensor = Tensor::new("INPUT0", datatype, [4], bytes.clone()).unwrap();
            let mut model = load(&Identity, &config, "").unwrap();
            let result = model.instances[0]
                .as_batch()
                .unwrap()
                .execute(&[conformance::request(&[tensor], &["OUTPUT0"])])
                .remove(0)
                .unwrap();
            assert_eq!((result.outputs[0].name(), result.outputs[0].datatype()), ("OUTPUT0", datatype));
            assert_eq!(result.outputs[0].data().as_ptr(), bytes.as_ptr());
        }
    }

    #[test]
    fn an_absent_optional_input_is_answered_with_zeros() {
        let config = config(
            "input [{ name: 'INPUT0' data_type: TYPE_INT8 dims: [1] }, { name: 'INPUT1' data_type: TYPE_INT8 dims: [1] optional: true }]
             output [{ name: 'OUTPUT0' data_type: TYPE_INT8 dims: [1] }, { name: 'OUTPUT1' data_type: TYPE_INT8 dims: [1] }]",
        );
        let tensor = |name: &str| Tensor::from_values(name, [1], vec![7i8]).unwrap();
        let mut model = load(&Identity, &config, "").unwrap();
        let both = ["OUTPUT0", "OUTPUT1"];
        let requests =
            [conformance::request(&[tensor("INPUT0")], &both), conformance::request(&[tensor("INPUT1")], &both)];
        let results = model.instances[0].as_batch().unwrap().execute(&requests);
        let zeros = Tensor::from_values("OUTPUT1", [1], vec![0i8]).unwrap();
        assert_eq!(results[0].as_ref().unwrap().outputs, [tensor("OUTPUT0"), zeros]);
        assert_eq!(results[1].as_ref().unwrap_err().message, "model 'm': input 'INPUT0' is missing");
    }

    #[test]
    fn zeros_for_rows_without_elements_have_a_limit() {
        let config = config(
            "max_batch_size: 8
             input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }, { name: 'INPUT1' data_type: TYPE_FP32 dims: [16] optional: true }]
             output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }, { name: 'OUTPUT1' data_type: TYPE_FP32 dims: [16] }]",
        );
        let mut model = load(&Identity, &config, "").unwrap();
        let vast = Tensor::new("INPUT0", DataType::Fp32, [1 << 22, 0], bytes::Bytes::new()).unwrap();
        let result = model.instances[0].as_batch().unwrap().execute(&[conformance::request(&[vast], &["OUTPUT1"])]);
        let outputs = result.into_iter().next().unwrap().map(|response| response.outputs);
        assert!(outputs.is_err());
        conformance::assert_bounded("m", outputs);
    }

    #[test]
    fn shapes_change_as_both_sides_are_declared() {
        let io = |name: &str, dims: &str| format!("{{ name: '{name}' data_type: TYPE_FP32 {dims} }}");
        let config = config(&format!(
            "max_batch_size: 8 input [{}] output [{}]",
            io("INPUT0", "dims: [4] reshape { shape: [2, 2] }"),
            io("OUTPUT0", "dims: [1, 4] reshape { shape: [2, 2] }")
        ));
        let mut model = load(&Identity, &config, "").unwrap();
        let input = Tensor::from_values("INPUT0", [2, 4], vec![1f32; 8]).unwrap();
        let results = model.instances[0].as_batch().unwrap().execute(&[conformance::request(&[input], &["OUTPUT0"])]);
        assert_eq!(results[0].as_ref().unwrap().outputs[0].shape()[..], [2, 1, 4]);
    }

    #[test]
    fn the_delay_is_per_execution_and_grows_with_the_instance() {
        let parameter =
            |key: &str, value: &str| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
        let (delay, multiplier) =
            (parameter("execute_delay_ms", "20"), parameter("instance_wise_delay_multiplier", "2"));
        let config = config(&format!(
            "{ONE} max_batch_size: 8 instance_group [{{ count: 3 kind: KIND_CPU }}] {delay} {multiplier}"
        ));
        let mut model = load(&Identity, &config, "").unwrap();
        let request =
            conformance::request(&[Tensor::from_values("INPUT0", [2, 1], vec![1f32, 2.0]).unwrap()], &["OUTPUT0"]);
        for (instance, at_least) in model.instances.iter_mut().zip([20, 40, 80].map(Duration::from_millis)) {
            let started = Instant::now();
            let results = instance.as_batch().unwrap().execute(&vec![request.clone(); 50]);
            let timing = results[49].as_ref().unwrap().timing;
            assert!(started.elapsed() >= at_least && timing.compute_infer >= at_least, "{timing:?}");
            assert!(timing.compute_infer < at_least * 50, "once per execution, not per request: {timing:?}");
            assert_eq!(timing.batch_size, 100);
        }
    }

    #[test]
    fn a_configuration_that_is_no_identity_is_refused() {
        let fail = |rest: &str| load(&Identity, &config(rest), "").err().unwrap().to_string();
        let io = "data_type: TYPE_FP32 dims: [1]";
        assert_eq!(
            fail(&format!("input [{{ name: 'a' {io} }}] output [{{ name: 'b' {io} }}]")),
            "model 'm': output 'b' of an identity model needs an input of the same number, datatype and dims (OUTPUT0 \
             answers INPUT0); where one has a reshape, that stands for its dims"
        );
        let two =
            format!("input [{{ name: 'INPUT0' {io} }}, {{ name: 'INPUT1' {io} }}] output [{{ name: 'OUTPUT0' {io} }}]");
        assert!(fail(&two).contains("found 2 inputs and 1 outputs"));
        let delay = format!("{ONE} parameters {{ key: 'execute_delay_ms' value {{ string_value: 'soon' }} }}");
        assert_eq!(fail(&delay), "model 'm': parameter 'execute_delay_ms' has to be a whole number, found 'soon'");
    }
}
