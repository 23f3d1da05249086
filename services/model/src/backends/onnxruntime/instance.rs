//! One session and what its thread does with it: gather a batch, run it, hand out the results.

use std::borrow::Cow;
use std::time::Instant;

use ort::session::{OutputSelector, RunOptions, Session, SessionInputValue};
use trireme_inference::{ErrorCode, InferError, Shape, Tensor, TensorSpec};
use trireme_model_repository::ModelConfig;
use trireme_runtime::{ExecuteRequest, ExecuteResponse, ExecuteTiming, ModelInstance};

use super::reshape::Reshape;
use super::schema::Schema;
use super::values;
use crate::batcher::merge;

/// An instance of an ONNX model.
pub struct OnnxInstance {
    model: String,
    session: Session,
    /// Whether the first dimension is the batch.
    batches: bool,
    /// Output names in the configuration's order.
    outputs: Vec<String>,
    /// Inputs that change shape on the way in, outputs on the way out.
    input_reshapes: Vec<(String, Reshape)>,
    output_reshapes: Vec<(String, Reshape)>,
    /// Devices whose arena is shrunk after each run.
    arena_shrinkage: Option<String>,
}

/// A batch that ran.
struct Batch {
    /// Outputs of all requests together, as the model gave them.
    outputs: Vec<Tensor>,
    /// Rows of each request.
    rows: Vec<u32>,
    started: Instant,
    gathered: Instant,
    ran: Instant,
}

// === impl OnnxInstance ===

impl OnnxInstance {
    /// An instance that runs `session` as `config` describes it.
    pub fn new(
        config: &ModelConfig,
        schema: &Schema,
        session: Session,
        arena_shrinkage: Option<String>,
    ) -> OnnxInstance {
        let batches = config.max_batch_size > 0;
        let input_reshapes = config.inputs.iter().filter_map(|input| {
            let to = input.reshape.clone().or_else(|| scalar(&schema.inputs, &input.name, batches))?;
            Some((input.name.clone(), Reshape { from: input.dims.clone(), to, batches }))
        });
        let output_reshapes = config.outputs.iter().filter_map(|output| {
            let from = output.reshape.clone().or_else(|| scalar(&schema.outputs, &output.name, batches))?;
            Some((output.name.clone(), Reshape { from, to: output.dims.clone(), batches }))
        });
        OnnxInstance {
            model: config.name.clone(),
            session,
            batches,
            outputs: config.outputs.iter().map(|output| output.name.clone()).collect(),
            input_reshapes: input_reshapes.collect(),
            output_reshapes: output_reshapes.collect(),
            arena_shrinkage,
        }
    }

    /// Runs `requests` as one batch; an error is every request's.
    fn execute_together(&mut self, requests: &[ExecuteRequest]) -> Result<Vec<ExecuteResponse>, InferError> {
        let Batch { outputs, rows, started, gathered, ran } = self.run(requests)?;
        let parts = self.hand_out(requests, outputs, &rows)?;
        let timing = ExecuteTiming {
            compute_input: gathered - started,
            compute_infer: ran - gathered,
            compute_output: ran.elapsed(),
            batch_size: rows.iter().fold(0, |sum, rows| sum.saturating_add(*rows)),
        };
        Ok(parts.into_iter().map(|outputs| ExecuteResponse { outputs, timing }).collect())
    }

    fn run(&mut self, requests: &[ExecuteRequest]) -> Result<Batch, InferError> {
        let started = Instant::now();
        let rows = match self.batches {
            true => requests
                .iter()
                .map(|request| merge::rows(&self.model, &request.inputs))
                .collect::<Result<Vec<_>, _>>()?,
            false => vec![1; requests.len()],
        };
        let selected = self.select_outputs(requests)?;
        let options = self.run_options(&selected).map_err(|error| run_error(&self.model, &error))?;
        let inputs = merge::join(&requests.iter().map(|request| &request.inputs[..]).collect::<Vec<_>>())
            .map_err(|error| in_model(&self.model, error))?;
        let values = self.input_values(&inputs).map_err(|error| run_error(&self.model, &error))?;
        let gathered = Instant::now();
        let results =
            self.session.run_with_options(values, &options).map_err(|error| run_error(&self.model, &error))?;
        let ran = Instant::now();
        let outputs = results.into_iter().map(|(name, value)| values::output_tensor(name, &value));
        let outputs = outputs.collect::<Result<_, _>>().map_err(|error| in_model(&self.model, error))?;
        Ok(Batch { outputs, rows, started, gathered, ran })
    }

    fn input_values<'t>(&self, inputs: &'t [Tensor]) -> ort::Result<Vec<(Cow<'t, str>, SessionInputValue<'t>)>> {
        let value = |tensor: &'t Tensor| {
            let reshape = self.input_reshapes.iter().find(|(name, _)| name == tensor.name());
            let shape = reshape.map_or_else(|| tensor.shape().clone(), |(_, reshape)| reshape.apply(tensor.shape()));
            Ok((Cow::Borrowed(tensor.name()), values::input_value(tensor, &shape)?))
        };
        inputs.iter().map(value).collect()
    }

    /// The outputs that any of the requests needs.
    fn select_outputs(&self, requests: &[ExecuteRequest]) -> Result<Vec<String>, InferError> {
        let wanted = |name: &String| requests.iter().any(|request| request.outputs.contains(name));
        if let Some(unknown) = requests.iter().flat_map(|r| &r.outputs).find(|name| !self.outputs.contains(name)) {
            let allowed = self.outputs.join(", ");
            return Err(InferError::invalid_arg(format!(
                "unexpected inference output '{unknown}', allowed outputs are: {allowed}"
            )));
        }
        Ok(self.outputs.iter().filter(|name| wanted(name)).cloned().collect())
    }

    fn run_options(&self, selected: &[String]) -> ort::Result<RunOptions<ort::session::HasSelectedOutputs>> {
        let mut options = RunOptions::new()?;
        if let Some(devices) = &self.arena_shrinkage {
            options.set("memory.enable_memory_arena_shrinkage", devices)?;
        }
        Ok(options.with_outputs(selected.iter().fold(OutputSelector::no_default(), OutputSelector::with)))
    }

    /// Each request's rows of the outputs it asked for.
    fn hand_out(
        &self,
        requests: &[ExecuteRequest],
        outputs: Vec<Tensor>,
        rows: &[u32],
    ) -> Result<Vec<Vec<Tensor>>, InferError> {
        let mut parts: Vec<Vec<Tensor>> = requests.iter().map(|r| Vec::with_capacity(r.outputs.len())).collect();
        for output in outputs {
            let name = output.name().to_owned();
            let split = self.split(output, rows).map_err(|error| in_model(&self.model, error))?;
            for ((part, request), own) in split.into_iter().zip(requests).zip(&mut parts) {
                if request.outputs.contains(&name) {
                    own.push(part);
                }
            }
        }
        Ok(parts)
    }

    /// One output under the shape that clients see, split by request.
    fn split(&self, output: Tensor, rows: &[u32]) -> Result<Vec<Tensor>, InferError> {
        let output = match self.output_reshapes.iter().find(|(name, _)| name == output.name()) {
            Some((_, reshape)) => {
                let shape = reshape.apply(output.shape());
                output.reshaped(shape).map_err(|error| InferError::internal(error.to_string()))?
            }
            None => output,
        };
        if self.batches { merge::split(output, rows) } else { Ok(vec![output]) }
    }
}

impl ModelInstance for OnnxInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let together = requests.len() == 1 || self.batches;
        match together.then(|| self.execute_together(requests)) {
            Some(Ok(responses)) => responses.into_iter().map(Ok).collect(),
            Some(Err(error)) if requests.len() == 1 => vec![Err(error)],
            // Whose fault it was shows when each runs alone.
            _ => requests.iter().flat_map(|request| self.execute(std::slice::from_ref(request))).collect(),
        }
    }
}

/// The shape of a scalar, where the model's tensor is one: declared as one element, because no dimensions cannot be.
fn scalar(tensors: &[TensorSpec], name: &str, batches: bool) -> Option<Shape> {
    let is_scalar = tensors.iter().any(|tensor| tensor.name == name && tensor.shape.is_empty());
    (is_scalar && !batches).then(Shape::default)
}

/// An error that does not know whose tensors it is about.
fn in_model(model: &str, error: InferError) -> InferError {
    InferError { message: format!("model '{model}': {}", error.message), ..error }
}

/// ONNX Runtime's error as the request's. Inputs that do not suit the model are the sender's fault; operators report them
/// as invalid arguments, or as failures that speak of shapes.
fn run_error(model: &str, error: &ort::Error) -> InferError {
    let message = super::one_line(error.message());
    let lower = message.to_lowercase();
    let about_shapes = ["shape", "dimension", "broadcast"].iter().any(|word| lower.contains(word));
    let code = match error.code() {
        ort::ErrorCode::InvalidArgument => ErrorCode::InvalidArg,
        ort::ErrorCode::RuntimeException | ort::ErrorCode::GenericFailure if about_shapes => ErrorCode::InvalidArg,
        _ => ErrorCode::Internal,
    };
    InferError::new(code, format!("model '{model}': onnxruntime: {message}"))
}
