//! The trait that a service implements: a [`Backend`] loads model versions, whose instances are a [`ModelInstance`] or a [`StepwiseInstance`].
//!
//! The engine forms batches by the model's [`BatchPolicy`] and runs the instances. The worker (`runtime`) does everything
//! else: pulling work, forwarding results, acknowledging, registering, draining.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use trireme_model_repository::{InstanceKind, ModelConfig, Uploaded};

use crate::batching::BatchPolicy;
use crate::calls::IdleCalls;
use crate::instance::{ModelInstance, Outage, StepwiseInstance};
use crate::request::ExecuteRequest;

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

    /// Names the programs that the model's answers depend on, besides its files and configuration, such as the packages of an interpreter: the
    /// same text on hosts that answer alike. May block. The error says why they are not known.
    fn surroundings(&self, _source: &ModelSource<'_>) -> Result<String, String> {
        Ok(String::new())
    }

    /// Loads one version of a model: reads its files, completes its configuration, makes its instances and warms them
    /// up. Runs on a thread of its own and may block.
    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError>;
}

/// The remedy for a model that asks for missing GPUs: the end of an error.
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
