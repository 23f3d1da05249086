//! One run of an ONNX model: inputs into a session, outputs out of it.
//!
//! A run happens in the instance's own session, in the one that instances share, or in the wide one, and in memory for the device if there
//! is any. It can be stopped from another thread. Not here: batches of requests (`instance`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions, Session, SessionInputValue};
use trireme_engine::ExecuteRequest;
use trireme_inference::{ErrorCode, InferError, Name, Reshape, Shape, Tensor};

use super::binding::{Memory, Staging};
use super::layouts::{Layout, Turn, Wide};
use super::shared::{InstanceSession, Ran};
use super::stop::Stopper;
use super::values;

/// Runs the session of an instance.
pub struct Runner {
    model: String,
    session: InstanceSession,
    /// The session on all CPUs, shared with the model's other instances, if layouts are chosen by load.
    wide: Option<Arc<Wide>>,
    /// The memory for inputs and outputs, if the session is on a device.
    staging: Option<Staging>,
    /// Inputs whose shape differs at the model.
    reshapes: Vec<(String, Reshape)>,
    /// Devices whose arena is shrunk after each run.
    arena_shrinkage: Option<String>,
    stopper: Arc<Stopper>,
}

/// A run that is over.
pub struct Outcome {
    /// The outputs, as the model returned them.
    pub outputs: Vec<Tensor>,
    pub began: Instant,
    pub ended: Instant,
}

/// The inputs of a run, by name.
type Inputs<'t> = Vec<(Cow<'t, str>, SessionInputValue<'t>)>;

// === impl Runner ===

impl Runner {
    /// Runs `session`, with the inputs of `reshapes` in the model's shapes.
    pub fn new(
        model: String,
        session: InstanceSession,
        reshapes: Vec<(String, Reshape)>,
        arena_shrinkage: Option<String>,
    ) -> Runner {
        Runner { model, session, wide: None, staging: None, reshapes, arena_shrinkage, stopper: Arc::default() }
    }

    /// The session of the runs.
    pub fn into_session(self) -> InstanceSession {
        self.session
    }

    /// Lets the instance use `wide` when it runs alone.
    pub fn share(&mut self, wide: Arc<Wide>) {
        self.wide = Some(wide);
    }

    /// Gives the instance `memory` for its inputs and outputs. Without it the instance runs all the same, only slower.
    pub fn stage(&mut self, memory: Memory) {
        match self.session.with(|session| Staging::new(session, memory)) {
            Ok(staging) => self.staging = Some(staging),
            Err(error) => {
                let reason = trireme_engine::one_line(error.message());
                tracing::warn!(model = self.model, reason, "inputs and outputs are not in memory of {memory:?}");
            }
        }
    }

    /// Whether inputs and outputs are in memory for the device.
    #[cfg(test)]
    pub fn is_staged(&self) -> bool {
        self.staging.is_some()
    }

    /// The handle that stops the run from another thread.
    pub fn stopper(&self) -> Arc<Stopper> {
        self.stopper.clone()
    }

    /// Runs `inputs`, in the staging memory if there is one, and gives the outputs `selected`. A run for which no client of `requests` waits
    /// any more is not begun.
    pub fn run(
        &mut self,
        requests: &[ExecuteRequest],
        inputs: &[Tensor],
        selected: &[Name],
    ) -> Result<Outcome, InferError> {
        let Some(staging) = &self.staging else { return self.run_unstaged(requests, inputs, selected) };
        let failed = |error: ort::Error| run_error(&self.model, &error);
        let values =
            inputs.iter().map(|tensor| Ok((tensor.name(), staging.copy(tensor, &self.shape_at_model(tensor))?)));
        let values = values.collect::<ort::Result<Vec<_>>>().map_err(failed)?;
        let run = self.stopper.begin(self.run_options().map_err(failed)?);
        if let Some(error) = unwanted(requests) {
            return Err(error);
        }
        let ran = self.session.run(|session| staging.run(session, &values, selected, run.options()));
        copied(&self.model, ran.map_err(failed)?)
    }

    fn run_unstaged(
        &mut self,
        requests: &[ExecuteRequest],
        inputs: &[Tensor],
        selected: &[Name],
    ) -> Result<Outcome, InferError> {
        let failed = |error: ort::Error| run_error(&self.model, &error);
        let names = selected.iter().map(Name::as_str);
        let options = self.run_options().map_err(failed)?;
        let options = options.with_outputs(names.fold(OutputSelector::no_default(), OutputSelector::with));
        let values = inputs.iter().map(|tensor| {
            let value = values::input_value(tensor, &self.shape_at_model(tensor))?;
            Ok((Cow::Borrowed(tensor.name()), value))
        });
        let values = values.collect::<ort::Result<Inputs<'_>>>().map_err(failed)?;
        let run = self.stopper.begin(options);
        // The requests were cancelled before the run could be stopped.
        if let Some(error) = unwanted(requests) {
            return Err(error);
        }
        let began = Instant::now();
        let turn = self.wide.as_ref().map(|wide| (wide, wide.layouts.enter()));
        let (outputs, ended) = match (&turn, &mut self.session) {
            (Some((wide, Turn { layout: Layout::Wide, .. })), _) => {
                run_session(&self.model, &mut wide.session.lock(), values, run.options())
            }
            (_, InstanceSession::Own(session)) => run_session(&self.model, session, values, run.options()),
            (_, shared) => {
                let ran = shared.run(|session| {
                    let outputs = session.run_with_options(values, run.options())?;
                    Ok(outputs.into_iter().map(|(name, value)| (Name::new(name), value)).collect())
                });
                return copied(&self.model, ran.map_err(failed)?);
            }
        }?;
        Ok(Outcome { outputs, began, ended })
    }

    fn shape_at_model(&self, input: &Tensor) -> Shape {
        let reshape = self.reshapes.iter().find(|(name, _)| name == input.name());
        reshape.map_or_else(|| input.shape().clone(), |(_, reshape)| reshape.apply(input.shape()))
    }

    fn run_options(&self) -> ort::Result<RunOptions> {
        let mut options = RunOptions::new()?;
        if let Some(devices) = &self.arena_shrinkage {
            options.set("memory.enable_memory_arena_shrinkage", devices)?;
        }
        Ok(options)
    }
}

/// The reason why no client waits for any of the requests, if that is so.
pub fn unwanted(requests: &[ExecuteRequest]) -> Option<InferError> {
    let mut reasons = requests.iter().map(ExecuteRequest::unwanted);
    reasons.next()?.filter(|_| reasons.all(|reason| reason.is_some()))
}

/// One run: its outputs, and the time at which it ended.
fn run_session(
    model: &str,
    session: &mut Session,
    values: Inputs<'_>,
    options: &RunOptions<HasSelectedOutputs>,
) -> Result<(Vec<Tensor>, Instant), InferError> {
    let results = session.run_with_options(values, options).map_err(|error| run_error(model, &error))?;
    let ran = Instant::now();
    let outputs = results.into_iter().map(|(name, value)| values::output_tensor(name, &value));
    Ok((outputs.collect::<Result<_, _>>().map_err(|error| in_model(model, error))?, ran))
}

/// Copies the outputs of a run that is over. Meanwhile the next instance may run.
fn copied(model: &str, ran: Ran) -> Result<Outcome, InferError> {
    let outputs = ran.outputs.iter().map(|(name, value)| values::output_tensor(name, value));
    let outputs = outputs.collect::<Result<_, _>>().map_err(|error| in_model(model, error))?;
    Ok(Outcome { outputs, began: ran.began, ended: ran.ended })
}

/// Adds the model's name to an error.
pub fn in_model(model: &str, error: InferError) -> InferError {
    InferError { message: format!("model '{model}': {}", error.message), ..error }
}

/// Converts ONNX Runtime's error to the request's. Inputs that do not fit the model are the sender's fault. Operators
/// report them as invalid arguments, or as failures whose text mentions shapes.
fn run_error(model: &str, error: &ort::Error) -> InferError {
    let message = trireme_engine::one_line(error.message());
    let lower = message.to_lowercase();
    let about_shapes = ["shape", "dimension", "broadcast"].iter().any(|word| lower.contains(word));
    let code = match error.code() {
        ort::ErrorCode::InvalidArgument => ErrorCode::InvalidArg,
        ort::ErrorCode::RuntimeException | ort::ErrorCode::GenericFailure if about_shapes => ErrorCode::InvalidArg,
        // TensorRT's function for the shapes of a run fails outside of the profiles.
        ort::ErrorCode::ExecutionProviderFailure if message.contains("setInputShape") => ErrorCode::InvalidArg,
        _ => ErrorCode::Internal,
    };
    InferError::new(code, format!("model '{model}': onnxruntime: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_fails_is_not_the_senders_fault() {
        // The library makes the errors.
        super::super::library::environment(None).unwrap();
        let code = |message: &str| {
            run_error("m", &ort::Error::new_with_code(ort::ErrorCode::ExecutionProviderFailure, message)).code
        };
        let outside = "TensorRT EP failed to call nvinfer1::IExecutionContext::setInputShape() for input 'ids'";
        assert_eq!(code(outside), ErrorCode::InvalidArg);
        assert_eq!(code("CUDA failure 700 while running Reshape node"), ErrorCode::Internal);
    }
}
