//! What a service implements: a [`Backend`] loads model versions, a [`ModelInstance`] executes them.
//!
//! The harness (`worker`) does everything else: pulling work, forming batches by the model's [`crate::BatchPolicy`],
//! forwarding results, acknowledging, registering, draining.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use trireme_inference::{InferError, Parameters, Tensor, UnixMicros};
use trireme_model_repository::{InstanceKind, ModelConfig};

use crate::hosted::unwanted;
use crate::{BatchPolicy, CancelFlag};

/// Loads model versions of one kind; keyed by `backend` in config.pbtxt.
pub trait Backend: Send + Sync {
    /// The name that config.pbtxt calls it by.
    fn name(&self) -> &'static str;

    /// Loads one version of a model: reads its files, completes its configuration, makes its instances and warms them
    /// up. Runs on a thread of its own and may block.
    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError>;
}

/// Where a model version comes from.
#[derive(Clone, Debug)]
pub struct ModelSource<'a> {
    /// Its configuration as read from the repository.
    pub config: &'a ModelConfig,
    /// The version to load.
    pub version: i64,
    /// The model's directory: config.pbtxt, label files, `warmup/`.
    pub model_path: &'a Path,
    /// The version's directory: the model's own files.
    pub version_path: &'a Path,
    /// Whether the backend may fill in what the configuration leaves out.
    pub auto_complete: bool,
}

// === impl ModelSource ===

impl ModelSource<'_> {
    /// How many instances the configuration asks for, for a backend that runs on the CPU: a group on GPUs is an error.
    pub fn cpu_instances(&self) -> Result<usize, LoadError> {
        let groups = &self.config.instance_groups;
        if let Some(group) = groups.iter().find(|group| group.kind == InstanceKind::Gpu) {
            return Err(LoadError::Config(format!(
                "model '{}': instance group '{}' asks for KIND_GPU, but this build runs backend '{}' on the CPU only; use \
                 KIND_CPU",
                self.config.name, group.name, self.config.backend
            )));
        }
        Ok(groups.iter().map(|group| group.count as usize).sum::<usize>().max(1))
    }
}

/// A model version ready to execute.
pub struct LoadedModel {
    /// Its configuration after auto-completion: what the registry publishes and `/config` shows.
    pub config: Arc<ModelConfig>,
    /// Its instances; each gets an OS thread of its own.
    pub instances: Vec<Instance>,
    /// Which waiting requests run together. To stepwise instances it gives their order only.
    pub policy: Box<dyn BatchPolicy>,
    /// A request that has been executed while it was loaded, for the canary; `None`: one is made up.
    pub canary: Option<ExecuteRequest>,
}

/// One copy of a model, by the way it works.
pub enum Instance {
    /// Executes batches, one after the other.
    Batch(Box<dyn ModelInstance>),
    /// Works on its requests step by step.
    Stepwise(Box<dyn StepwiseInstance>),
}

// === impl Instance ===

impl Instance {
    /// The instance as one that executes batches; `None` when it is none.
    pub fn as_batch(&mut self) -> Option<&mut dyn ModelInstance> {
        match self {
            Instance::Batch(instance) => Some(instance.as_mut()),
            Instance::Stepwise(_) => None,
        }
    }

    /// The instance as one that works step by step; `None` when it is none.
    pub fn as_stepwise(&mut self) -> Option<&mut dyn StepwiseInstance> {
        match self {
            Instance::Batch(_) => None,
            Instance::Stepwise(instance) => Some(instance.as_mut()),
        }
    }
}

impl From<Box<dyn ModelInstance>> for Instance {
    fn from(instance: Box<dyn ModelInstance>) -> Self {
        Instance::Batch(instance)
    }
}

impl From<Box<dyn StepwiseInstance>> for Instance {
    fn from(instance: Box<dyn StepwiseInstance>) -> Self {
        Instance::Stepwise(instance)
    }
}

/// One copy of a model, owned by one thread.
pub trait ModelInstance: Send {
    /// Executes requests that the model's policy put together. Returns one result per request, in their order; one
    /// request's failure must not fail its neighbours.
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>>;

    /// What stops its executions from another thread; `None` where that is not possible.
    fn stop(&self) -> Option<Arc<dyn Stop>> {
        None
    }
}

/// Stops executions of one [`ModelInstance`] from another thread.
pub trait Stop: Send + Sync {
    /// Nobody waits for the requests of the execution under way any more: it may end at once, with any error. Does not
    /// wait. May be called when the execution has only just begun, so the instance has a look at its requests
    /// ([`ExecuteRequest::unwanted`]) once it can be stopped.
    fn stop(&self);
}

/// One request to execute.
#[derive(Clone, Debug)]
pub struct ExecuteRequest {
    /// The request's id: the same each time it is executed, on whichever worker.
    pub request_id: String,
    /// Inputs under the model's names, checked against its configuration.
    pub inputs: Vec<Tensor>,
    /// The outputs somebody needs, under the model's names.
    pub outputs: Vec<String>,
    /// The request's parameters.
    pub parameters: Arc<Parameters>,
    /// When the whole request has to be answered.
    pub deadline: UnixMicros,
    /// Raised when nobody waits for the answer any more.
    pub cancelled: CancelFlag,
    /// Whether the caller takes the answer in parts, as they come. Otherwise it gets one.
    pub in_parts: bool,
}

// === impl ExecuteRequest ===

impl ExecuteRequest {
    /// A request that no client has sent: without a deadline, never cancelled, answered as a whole.
    pub fn made_up(
        request_id: impl Into<String>,
        inputs: Vec<Tensor>,
        outputs: impl IntoIterator<Item = impl ToString>,
    ) -> ExecuteRequest {
        ExecuteRequest {
            request_id: request_id.into(),
            inputs,
            outputs: outputs.into_iter().map(|name| name.to_string()).collect(),
            parameters: Arc::default(),
            deadline: UnixMicros::NEVER,
            cancelled: CancelFlag::default(),
            in_parts: false,
        }
    }

    /// Why nobody waits for the answer any more, if so.
    pub fn unwanted(&self) -> Option<InferError> {
        unwanted(&self.cancelled, self.deadline)
    }
}

/// What executing a request gave.
#[derive(Clone, Debug, Default)]
pub struct ExecuteResponse {
    /// Outputs under the model's names; at least those asked for.
    pub outputs: Vec<Tensor>,
    /// Where the time went. The same for all requests of a batch.
    pub timing: ExecuteTiming,
}

/// How long the parts of an execution took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecuteTiming {
    /// Gathering, padding and converting inputs.
    pub compute_input: Duration,
    /// The run itself.
    pub compute_infer: Duration,
    /// Splitting and converting outputs.
    pub compute_output: Duration,
    /// Rows of the executed batch.
    pub batch_size: u32,
}

/// Why a model version could not be loaded. Each message says what to do where that is known.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum LoadError {
    /// A file that the backend needs is missing or unreadable.
    #[error("model '{model}': cannot read {path}: {source}")]
    File { model: String, path: PathBuf, source: std::io::Error },
    /// The configuration does not fit the model or the backend; the text is Triton's where it has one.
    #[error("{0}")]
    Config(String),
    /// The backend's library refused.
    #[error("model '{model}': {reason}")]
    Backend { model: String, reason: String },
}

/// A request within a [`StepwiseInstance`], from joining to its end.
pub type Ticket = u64;

/// One copy of a model that works on its requests step by step: they join and leave between steps, so that long answers
/// do not hold short ones back. Owned by one thread.
///
/// When a worker dies, another one runs its requests again from the start, and the caller leaves out the parts that it has
/// had. So a request has to give the same parts each time it is run: whatever is drawn at random is drawn from the
/// request's own seed, or from its id.
///
/// A panic fails the requests in hand; each of them is made to leave, and the instance goes on to be used.
pub trait StepwiseInstance: Send {
    /// How many more requests could join now. The harness takes no more from the queue.
    fn room(&self) -> usize;

    /// Takes a request in; an error refuses it and leaves its neighbours alone.
    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError>;

    /// Forgets a request: its deadline has passed, or nobody waits any more.
    fn leave(&mut self, ticket: Ticket);

    /// Takes every request one step further. The harness calls it while there is a request in hand, and looks at
    /// deadlines and cancellations in between.
    fn step(&mut self) -> Vec<(Ticket, Progress)>;
}

/// What a step gave for a request.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Part of the answer, for requests that take it in parts ([`ExecuteRequest::in_parts`]); more follows.
    Part(Vec<Tensor>),
    /// The answer, or its last part, or why there is none. The request has left the instance. A last part without outputs
    /// only says that nothing follows.
    Done(Result<ExecuteResponse, InferError>),
}
