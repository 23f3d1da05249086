//! The traits that a service implements: a [`Backend`] loads model versions, a [`ModelInstance`] or a [`StepwiseInstance`]
//! executes them.
//!
//! The engine forms batches by the model's [`BatchPolicy`] and runs the instances. The worker (`runtime`) does everything
//! else: pulling work, forwarding results, acknowledging, registering, draining.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use trireme_inference::{InferError, Name, Owner, Parameters, Tensor, TextFacts, UnixMicros};
use trireme_model_repository::{InstanceKind, ModelConfig, Uploaded};

use crate::batching::BatchPolicy;
use crate::calls::{Calls, IdleCalls};
use crate::cancel::{CancelFlag, unwanted};

/// Loads model versions of one kind, which config.pbtxt names in `backend`.
///
/// A backend whose instances are the `Doubler` of [`ModelInstance`]:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use trireme_engine::{ExecuteRequest, ExecuteResponse, ModelInstance};
/// # use trireme_inference::{InferError, Tensor};
/// # struct Doubler;
/// # impl ModelInstance for Doubler {
/// #     fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
/// #         let double = |request: &ExecuteRequest| {
/// #             let numbers: Vec<i64> = request.inputs[0].values()?.iter().map(|number: &i64| 2 * number).collect();
/// #             let outputs = vec![Tensor::from_values("DOUBLED", [numbers.len() as i64], numbers)?];
/// #             Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
/// #         };
/// #         requests.iter().map(double).collect()
/// #     }
/// # }
/// # use std::sync::Arc;
/// # use trireme_model_repository::RepositoryModel;
/// use trireme_engine::{Backend, Instance, LoadError, LoadOptions, LoadedModel, ModelSource, load_version, policy};
///
/// struct DoublerBackend;
///
/// impl Backend for DoublerBackend {
///     fn name(&self) -> &'static str {
///         "doubler"
///     }
///
///     fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
///         let instance = || Instance::Batch(Box::new(Doubler));
///         Ok(LoadedModel {
///             config: Arc::new(source.config.clone()),
///             instances: std::iter::repeat_with(instance).take(source.cpu_instances()?).collect(),
///             background: Vec::new(),
///             guests: Vec::new(),
///             policy: policy(source.config),
///             canary: None,
///         })
///     }
/// }
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path();
/// # std::fs::create_dir(path.join("1"))?;
/// std::fs::write(path.join("config.pbtxt"), "backend: 'doubler' instance_group { count: 2 kind: KIND_CPU }")?;
/// let model = RepositoryModel::open("numbers", path, &[])?;
/// let (loaded, _states, _took) = load_version(&model, 1, Arc::new(DoublerBackend), LoadOptions::default()).await?;
/// assert_eq!(loaded.instances.len(), 2);
/// # Ok(())
/// # }
/// ```
pub trait Backend: Send + Sync {
    /// The name that config.pbtxt uses in `backend`.
    fn name(&self) -> &'static str;

    /// Whether it hosts models with this configuration; a service may leave some of a backend's models to another service.
    fn hosts(&self, _config: &ModelConfig) -> bool {
        true
    }

    /// Whether it acts on `reshape` of inputs and outputs. A model with one is not loaded where not.
    fn reshapes(&self) -> bool {
        false
    }

    /// Whether its models may have `sequence_batching`.
    fn keeps_sequences(&self) -> SequenceSupport {
        SequenceSupport::None
    }

    /// What the model's answers come from besides its files and configuration, such as the packages of an interpreter: the same text on
    /// hosts that answer alike. May block. The error says why that is not known.
    fn surroundings(&self, _source: &ModelSource<'_>) -> Result<String, String> {
        Ok(String::new())
    }

    /// Loads one version of a model: reads its files, completes its configuration, makes its instances and warms them
    /// up. Runs on a thread of its own and may block.
    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError>;
}

/// What to write where a model asks for GPUs that are not there: the end of an error.
pub const CPU_INSTEAD: &str =
    "instance_group [ { kind: KIND_CPU } ], or serve such groups on the CPU with --gpu-groups-on-cpu";

/// Which models with `sequence_batching` a backend executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceSupport {
    /// No models with sequences.
    None,
    /// Only models that declare their states: the backend runs code that could keep further states in its own process.
    DeclaredStates,
    /// All models with sequences: a model of this backend keeps nothing between two requests.
    All,
}

/// The files and configuration of a model version to load.
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
    /// Whether the backend may complete the configuration.
    pub auto_complete: bool,
    /// The parts that came with a load request and replace the repository's; `None`: none did.
    pub uploaded: Option<&'a Uploaded>,
    /// The way of the model's code to other models while no request is executed.
    pub calls: IdleCalls,
}

// === impl ModelSource ===

impl ModelSource<'_> {
    /// Number of instances that the configuration asks for, for a backend that runs on the CPU: a group on GPUs is an
    /// error.
    pub fn cpu_instances(&self) -> Result<usize, LoadError> {
        let groups = &self.config.instance_groups;
        if let Some(group) = groups.iter().find(|group| group.kind == InstanceKind::Gpu) {
            return Err(LoadError::Config(format!(
                "model '{}': instance group '{}' asks for KIND_GPU, but backend '{}' runs on the CPU only; write {CPU_INSTEAD}",
                self.config.name, group.name, self.config.backend
            )));
        }
        Ok(groups.iter().map(|group| group.count as usize).sum::<usize>().max(1))
    }
}

/// A model version ready to execute.
pub struct LoadedModel {
    /// Its configuration after auto-completion, which the registry publishes and `/config` shows.
    pub config: Arc<ModelConfig>,
    /// Its instances; each gets an OS thread of its own.
    pub instances: Vec<Instance>,
    /// Instances for bulk requests alone, which run in the time that live requests leave. Without any, `instances` execute bulk
    /// requests between live ones.
    pub background: Vec<BackgroundInstance>,
    /// Further instances, which execute short requests on the threads that bring them: for a backend that computes and waits for
    /// nothing. Usually as many as `instances`, or none.
    pub guests: Vec<Box<dyn ModelInstance>>,
    /// Decides which waiting requests run together. For stepwise instances it only gives the order of the requests.
    pub policy: Box<dyn BatchPolicy>,
    /// A request for the canary that was executed when the model was loaded; with `None` the harness makes one up.
    pub canary: Option<ExecuteRequest>,
}

/// Makes an instance for bulk requests: called when the first bulk request comes, on the thread that then runs the instance. Threads
/// that are started meanwhile have its low priority.
pub type BackgroundInstance = Box<dyn FnOnce() -> Result<Box<dyn ModelInstance>, LoadError> + Send>;

/// An instance that `make` makes.
///
/// With the `Doubler` of [`ModelInstance`]:
///
/// ```
/// # use trireme_engine::{ExecuteRequest, ExecuteResponse, ModelInstance};
/// # use trireme_inference::{InferError, Tensor};
/// # struct Doubler;
/// # impl ModelInstance for Doubler {
/// #     fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
/// #         let double = |request: &ExecuteRequest| {
/// #             let numbers: Vec<i64> = request.inputs[0].values()?.iter().map(|number: &i64| 2 * number).collect();
/// #             let outputs = vec![Tensor::from_values("DOUBLED", [numbers.len() as i64], numbers)?];
/// #             Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
/// #         };
/// #         requests.iter().map(double).collect()
/// #     }
/// # }
/// use trireme_engine::in_background;
///
/// let make = in_background(|| Ok(Doubler));
/// let request = ExecuteRequest::made_up("1", vec![Tensor::from_values("NUMBERS", [1], vec![3i64])?], ["DOUBLED"]);
/// let response = make()?.execute(&[request]).remove(0)?;
/// assert_eq!(*response.outputs[0].values::<i64>()?, [6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn in_background<I: ModelInstance + 'static>(
    make: impl FnOnce() -> Result<I, LoadError> + Send + 'static,
) -> BackgroundInstance {
    Box::new(|| make().map(|instance| Box::new(instance) as Box<dyn ModelInstance>))
}

/// One copy of a model, by the way it executes requests.
///
/// With the `Doubler` of [`ModelInstance`]:
///
/// ```
/// # use trireme_engine::{ExecuteRequest, ExecuteResponse, ModelInstance};
/// # use trireme_inference::{InferError, Tensor};
/// # struct Doubler;
/// # impl ModelInstance for Doubler {
/// #     fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
/// #         let double = |request: &ExecuteRequest| {
/// #             let numbers: Vec<i64> = request.inputs[0].values()?.iter().map(|number: &i64| 2 * number).collect();
/// #             let outputs = vec![Tensor::from_values("DOUBLED", [numbers.len() as i64], numbers)?];
/// #             Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
/// #         };
/// #         requests.iter().map(double).collect()
/// #     }
/// # }
/// # use trireme_engine::Instance;
/// let mut instance = Instance::Batch(Box::new(Doubler));
/// assert!(instance.as_batch().is_some() && instance.as_stepwise().is_none());
/// ```
pub enum Instance {
    /// Executes batches, one after the other.
    Batch(Box<dyn ModelInstance>),
    /// Works on its requests step by step.
    Stepwise(Box<dyn StepwiseInstance>),
}

// === impl Instance ===

impl Instance {
    /// The instance if it executes batches.
    pub fn as_batch(&mut self) -> Option<&mut dyn ModelInstance> {
        match self {
            Instance::Batch(instance) => Some(instance.as_mut()),
            Instance::Stepwise(_) => None,
        }
    }

    /// The instance if it works step by step.
    pub fn as_stepwise(&mut self) -> Option<&mut dyn StepwiseInstance> {
        match self {
            Instance::Batch(_) => None,
            Instance::Stepwise(instance) => Some(instance.as_mut()),
        }
    }

    /// Reports the times in which the instance cannot execute, if it may have any.
    pub fn outage(&self) -> Option<watch::Receiver<Outage>> {
        match self {
            Instance::Batch(instance) => instance.outage(),
            Instance::Stepwise(instance) => instance.outage(),
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

/// Why an instance cannot execute now, though it will again; `None`: it can.
pub type Outage = Option<Arc<str>>;

/// One copy of a model, used by one thread at a time.
///
/// An instance that doubles numbers:
///
/// ```
/// use trireme_engine::{ExecuteRequest, ExecuteResponse, ModelInstance};
/// use trireme_inference::{InferError, Tensor};
///
/// struct Doubler;
///
/// impl ModelInstance for Doubler {
///     fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
///         let double = |request: &ExecuteRequest| {
///             let numbers: Vec<i64> = request.inputs[0].values()?.iter().map(|number: &i64| 2 * number).collect();
///             let outputs = vec![Tensor::from_values("DOUBLED", [numbers.len() as i64], numbers)?];
///             Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
///         };
///         requests.iter().map(double).collect()
///     }
/// }
///
/// let request = ExecuteRequest::made_up("1", vec![Tensor::from_values("NUMBERS", [2], vec![3i64, 4])?], ["DOUBLED"]);
/// let response = Doubler.execute(&[request]).remove(0)?;
/// assert_eq!(*response.outputs[0].values::<i64>()?, [6, 8]);
/// # Ok::<(), InferError>(())
/// ```
pub trait ModelInstance: Send {
    /// Executes requests that the model's policy put together. Returns one result per request, in their order. The
    /// failure of one request must not fail the others.
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>>;

    /// Handle that stops an execution from another thread; `None` if the instance cannot be stopped.
    fn stop(&self) -> Option<Arc<dyn Stop>> {
        None
    }

    /// Reports the times in which the instance cannot execute: for an instance that may lose a resource and gets it back by
    /// itself. Meanwhile the harness takes no work for the instance. While all instances of a model are out, the model is not
    /// ready.
    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        None
    }
}

/// Stops executions of one [`ModelInstance`] from another thread.
pub trait Stop: Send + Sync {
    /// Stops the execution under way: no client waits for its requests any more, so it may end at once, with any error.
    /// Does not wait. This may be called just after the execution has begun, so the instance checks its requests
    /// ([`ExecuteRequest::unwanted`]) as soon as it can be stopped.
    fn stop(&self);

    /// The execution under way has passed the execution limit: ends it by force, where that is possible, and says whether it
    /// did. The execution is over soon then, with an error that is tried again. Does not wait.
    fn kill(&self) -> bool {
        false
    }
}

/// One request to execute.
#[derive(Clone, Debug)]
pub struct ExecuteRequest {
    /// The request's id: the same for each execution, on every worker.
    pub request_id: Name,
    /// The client's own id for the request; may be empty.
    pub client_id: Name,
    /// Inputs under the model's names, checked against its configuration.
    pub inputs: Vec<Tensor>,
    /// The outputs that the route or the client needs, under the model's names.
    pub outputs: Vec<Name>,
    /// The request's parameters.
    pub parameters: Arc<Parameters>,
    /// The deadline of the whole request.
    pub deadline: UnixMicros,
    /// Raised when the client does not wait for the answer any more.
    pub cancelled: CancelFlag,
    /// Whether the client takes the answer in parts, as they are made. Otherwise it gets one response.
    pub in_parts: bool,
    /// The way for the model's code to send requests to other models.
    pub calls: Calls,
    /// Whose request it is.
    pub owner: Owner,
}

// === impl ExecuteRequest ===

impl ExecuteRequest {
    /// A request that the harness makes: without a deadline, never cancelled, answered as a whole.
    pub fn made_up(
        request_id: impl Into<Name>,
        inputs: Vec<Tensor>,
        outputs: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> ExecuteRequest {
        ExecuteRequest {
            request_id: request_id.into(),
            client_id: Name::default(),
            inputs,
            outputs: outputs.into_iter().map(Name::new).collect(),
            parameters: Arc::default(),
            deadline: UnixMicros::NEVER,
            cancelled: CancelFlag::default(),
            in_parts: false,
            calls: Calls::default(),
            owner: Owner::default(),
        }
    }

    /// Why the request need not be executed any more: the client cancelled it, or its deadline has passed.
    pub fn unwanted(&self) -> Option<InferError> {
        unwanted(&self.cancelled, self.deadline)
    }
}

/// The result of executing a request.
#[derive(Clone, Debug, Default)]
pub struct ExecuteResponse {
    /// Outputs under the model's names; at least those asked for.
    pub outputs: Vec<Tensor>,
    /// Durations of the execution's parts. The same for all requests of a batch.
    pub timing: ExecuteTiming,
    /// The counts for the request's texts, where the model is a tokenizer.
    pub texts: Option<TextFacts>,
    /// The same counts for each of several texts; empty where they are not known.
    pub each_text: Vec<TextFacts>,
    /// Parameters of the response, which the client gets where this is the last step.
    pub parameters: Parameters,
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

/// The reason why a model version could not be loaded. Each message names the remedy, where it is known.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum LoadError {
    /// A file that the backend needs is missing or unreadable.
    #[error("model '{model}': cannot read {path}: {source}")]
    File { model: String, path: PathBuf, source: std::io::Error },
    /// The configuration does not fit the model or the backend; the text is Triton's where it has one.
    #[error("{0}")]
    Config(String),
    /// The backend's library returned an error.
    #[error("model '{model}': {reason}")]
    Backend { model: String, reason: String },
    /// The model is loaded, and the broker has no room for its queue. Its worker serves its other models.
    #[error("model '{model}' has no queue: {reason}")]
    NoQueue { model: String, reason: String },
}

/// A request within a [`StepwiseInstance`], from joining to its end.
pub type Ticket = u64;

/// One copy of a model that works on its requests step by step. Requests join and leave between steps, so long answers
/// do not hold short ones back. Owned by one thread.
///
/// When a worker dies, another worker runs its requests again from the start, and the client leaves out the parts that
/// it already has. So a request must give the same parts each time it is run: random numbers come from the request's
/// own seed, or from its id.
///
/// A panic fails all requests in the instance. The harness calls `leave` for each of them and goes on using the
/// instance.
///
/// An instance that counts down, one number a step:
///
/// ```
/// use trireme_engine::{ExecuteRequest, ExecuteResponse, Progress, StepwiseInstance, Ticket};
/// use trireme_inference::{InferError, Tensor};
///
/// struct Countdown(Vec<(Ticket, i64)>);
///
/// impl StepwiseInstance for Countdown {
///     fn room(&self) -> usize {
///         8 - self.0.len()
///     }
///
///     fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
///         self.0.push((ticket, request.inputs[0].values::<i64>()?[0]));
///         Ok(())
///     }
///
///     fn leave(&mut self, ticket: Ticket) {
///         self.0.retain(|(other, _)| *other != ticket);
///     }
///
///     fn step(&mut self) -> Vec<(Ticket, Progress)> {
///         self.0.iter_mut().for_each(|(_, number)| *number -= 1);
///         let done = self.0.extract_if(.., |(_, number)| *number == 0);
///         done.map(|(ticket, _)| (ticket, Progress::Done(Ok(ExecuteResponse::default())))).collect()
///     }
/// }
///
/// let request = ExecuteRequest::made_up("1", vec![Tensor::from_values("FROM", [1], vec![2i64])?], ["LEFT"]);
/// let mut countdown = Countdown(Vec::new());
/// countdown.join(7, request)?;
/// assert!(countdown.step().is_empty());
/// assert!(matches!(countdown.step()[..], [(7, Progress::Done(Ok(_)))]));
/// # Ok::<(), InferError>(())
/// ```
pub trait StepwiseInstance: Send {
    /// Number of requests that can join now. The harness takes at most this number from the queue.
    fn room(&self) -> usize;

    /// Lets a request join. An error refuses this request and does not affect the others.
    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError>;

    /// Forgets a request: its deadline has passed, or the client has cancelled it.
    fn leave(&mut self, ticket: Ticket);

    /// Takes every request one step further. The harness calls it while there are requests in the instance, and checks
    /// deadlines and cancellations between two calls.
    fn step(&mut self) -> Vec<(Ticket, Progress)>;

    /// Reports the times in which the instance cannot execute; see [`ModelInstance::outage`].
    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        None
    }
}

/// Outcome of a step for one request.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Part of the answer and its parameters, for requests that take it in parts ([`ExecuteRequest::in_parts`]); more parts follow.
    Part(Vec<Tensor>, Parameters),
    /// The answer, its last part, or the error. The request has left the instance. A last part without outputs only says
    /// that no more parts follow.
    Done(Result<ExecuteResponse, InferError>),
}

/// The error of a request for one answer to a model that gives another number of responses. The text is Triton's. It
/// counts as the request's fault, because a retry would fail in the same way.
pub fn one_response() -> InferError {
    InferError::invalid_arg(
        "generate expects model to produce exactly 1 response, use generate stream for model that may generate various \
         number of responses",
    )
}

/// The instance has panicked.
pub(crate) fn panicked() -> InferError {
    InferError::internal("model instance panicked while executing")
}

/// Shortens the library's messages, which may have several lines and quote whole tensors.
///
/// ```
/// assert_eq!(trireme_engine::one_line("no such file:\n    model.onnx\n"), "no such file: model.onnx");
/// ```
pub fn one_line(message: &str) -> String {
    const LONGEST: usize = 600;
    let mut line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push('…');
    }
    line
}
