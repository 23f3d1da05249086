//! A model's configuration as the services read it.
//!
//! [`ModelConfig`] is a view over the parsed `inference.ModelConfig` message, which it keeps: `/config` prints the
//! message, the services read the fields. Auto-completion changes the configuration through
//! [`ModelConfig::complete`], so that the two never differ.

use std::collections::BTreeMap;
use std::time::Duration;

use trireme_inference::{DataType, Shape, TensorSpec};

use crate::sequence_batching::SequenceBatching;

/// A validated, normalized model configuration, from [`ModelConfig::parse`], [`ModelConfig::from_json`] or a
/// [`crate::Repository`].
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The model's name: its directory in the repository.
    pub name: String,
    /// Triton's older way to name a backend: `onnxruntime_onnx`, `ensemble`; empty when not given.
    pub platform: String,
    /// The backend that executes the model; empty for an ensemble.
    pub backend: String,
    /// Largest batch, in rows. 0: the model has no batch dimension, `dims` are full shapes.
    pub max_batch_size: u32,
    /// Inputs in configuration order.
    pub inputs: Vec<ModelInput>,
    /// Outputs in configuration order.
    pub outputs: Vec<ModelOutput>,
    /// Which version directories are served.
    pub version_policy: VersionPolicy,
    /// How many instances run, and where. Never empty, except for ensembles.
    pub instance_groups: Vec<InstanceGroup>,
    /// Name of the model file in the version directory; empty: the backend's default.
    pub default_model_filename: String,
    /// `dynamic_batching`, when the block is present, or how requests of different sequences share batches.
    pub dynamic_batching: Option<DynamicBatching>,
    /// `sequence_batching`, when the block is present. Its `oldest` strategy is also in `dynamic_batching`.
    pub sequence_batching: Option<SequenceBatching>,
    /// The steps of an ensemble.
    pub ensemble: Option<Vec<EnsembleStep>>,
    /// `optimization`.
    pub optimization: Optimization,
    /// `model_warmup`.
    pub warmup: Vec<ModelWarmup>,
    /// `parameters.max_rows_per_message`: rows are independent of one another, and a request of more rows travels in parts.
    pub max_rows_per_message: Option<u32>,
    /// `parameters`: the backend's own options.
    pub parameters: BTreeMap<String, String>,
    /// `metric_tags`: labels that the model's metrics carry.
    pub metric_tags: BTreeMap<String, String>,
    /// `model_metrics`: the bounds of histograms, in their units, by the metric's name.
    pub histogram_bounds: BTreeMap<String, Vec<f64>>,
    /// `model_transaction_policy.decoupled`: a request may have any number of responses.
    pub decoupled: bool,
    /// `response_cache.enable`: answers may come from a cache.
    pub response_cache: bool,
    pub(crate) message: crate::proto::ModelConfig,
}

/// An input declaration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInput {
    /// The input's name.
    pub name: String,
    /// Datatype of its elements.
    pub datatype: DataType,
    /// Dimensions without the batch dimension (where `max_batch_size` is not 0), -1 for any size.
    pub dims: Shape,
    /// The shape the model itself takes, when it differs from `dims`.
    pub reshape: Option<Shape>,
    /// Whether a request may leave it out.
    pub optional: bool,
    /// Whether requests of different shapes may share a batch.
    pub allow_ragged_batch: bool,
}

/// An output declaration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOutput {
    /// The output's name.
    pub name: String,
    /// Datatype of its elements.
    pub datatype: DataType,
    /// Dimensions without the batch dimension, -1 for any size.
    pub dims: Shape,
    /// The shape the model itself gives, when it differs from `dims`.
    pub reshape: Option<Shape>,
    /// File of labels, one a line, beside config.pbtxt; empty when there is none.
    pub label_filename: String,
}

/// Which versions in the repository are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The highest this many.
    Latest(u32),
    /// All of them.
    All,
    /// Just these.
    Specific(Vec<i64>),
}

/// A group of equal instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceGroup {
    /// The group's name.
    pub name: String,
    /// Where its instances run.
    pub kind: InstanceKind,
    /// How many there are (per GPU for [`InstanceKind::Gpu`]).
    pub count: u32,
    /// GPU indices.
    pub gpus: Vec<i32>,
}

/// Where an instance runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "Triton's own words: KIND_AUTO, KIND_CPU, KIND_GPU, KIND_MODEL")]
pub enum InstanceKind {
    Auto,
    Cpu,
    Gpu,
    Model,
}

/// The dynamic batcher's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicBatching {
    /// Batch sizes worth sending at once, in rows.
    pub preferred_batch_sizes: Vec<u32>,
    /// How long the oldest request may wait for a batch to fill.
    pub max_queue_delay: Duration,
    /// Answers leave in the order requests came.
    pub preserve_ordering: bool,
    /// Number of priority levels that have queues; 0: no priorities. Each is known by its place among them, 1 first.
    pub priority_levels: u32,
    /// The highest priority number of each of these levels, ascending. Up to 64 levels each number is a level of its own.
    pub priority_bounds: Vec<u64>,
    /// The level of requests that name none.
    pub default_priority_level: u32,
    /// The queue policy of levels that have none of their own.
    pub default_queue_policy: QueuePolicy,
    /// Queue policies by priority level.
    pub priority_queue_policy: BTreeMap<u32, QueuePolicy>,
}

/// The rules for requests that wait in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// On timeout move the request behind all others (DELAY) instead of answering it with an error (REJECT).
    pub delay_on_timeout: bool,
    /// Longest wait; zero: no limit.
    pub default_timeout: Duration,
    /// Whether a request's own timeout may lower that.
    pub allow_timeout_override: bool,
    /// Most requests waiting; 0: no limit of the model's own.
    pub max_queue_size: u32,
}

/// One step of an ensemble as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// The composing model.
    pub model_name: String,
    /// Its version; `None` (-1 in the file) is the latest.
    pub model_version: Option<i64>,
    /// Composing model's input name to ensemble tensor name.
    pub input_map: BTreeMap<String, String>,
    /// Composing model's output name to ensemble tensor name.
    pub output_map: BTreeMap<String, String>,
}

/// How the backend shall optimize the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// `graph.level`: unset, 1, -1 or 2, as Triton's ONNX Runtime backend reads them.
    pub graph_level: Option<i32>,
    /// Accelerators on GPUs: name and parameters.
    pub gpu_accelerators: Vec<(String, BTreeMap<String, String>)>,
    /// Accelerators on the CPU: name and parameters.
    pub cpu_accelerators: Vec<(String, BTreeMap<String, String>)>,
    /// Whether inputs and outputs of a model on a GPU may be in pinned memory: unless `input_pinned_memory` or
    /// `output_pinned_memory` is off.
    pub pinned_memory: bool,
}

/// A request made up to warm the model before it is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelWarmup {
    /// The sample's name.
    pub name: String,
    /// Rows; 0 skips the sample.
    pub batch_size: u32,
    /// How often it runs; 0 is once.
    pub count: u32,
    /// Its inputs by name.
    pub inputs: BTreeMap<String, WarmupInput>,
}

/// One input of a warm-up sample.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmupInput {
    /// Datatype of its elements.
    pub datatype: DataType,
    /// Dimensions without the batch dimension; every one is given.
    pub dims: Shape,
    /// Where its data comes from.
    pub data: WarmupData,
}

/// Where a warm-up input's data comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmupData {
    /// Zeros.
    Zero,
    /// Random numbers.
    Random,
    /// This file in the model's `warmup` directory.
    File(String),
}

/// The inputs, outputs and batch size that a backend found for a model whose configuration leaves them open.
#[derive(Clone, Debug, Default)]
pub struct AutoComplete {
    /// The model's inputs with their full shapes, -1 for any size; used where the configuration declares none.
    pub inputs: Vec<TensorSpec>,
    /// The model's outputs, likewise.
    pub outputs: Vec<TensorSpec>,
    /// The largest batch, where the model batches and the configuration says nothing (`default-max-batch-size`).
    pub default_max_batch_size: u32,
}

// === impl DynamicBatching ===

impl DynamicBatching {
    /// The level of a priority number; `None` where there is no such number.
    pub(crate) fn level_of(&self, priority: u64) -> Option<u32> {
        let below = self.priority_bounds.partition_point(|&bound| bound < priority);
        (priority > 0 && below < self.priority_bounds.len()).then_some(below as u32 + 1)
    }

    /// The queue policy of a level.
    pub fn policy(&self, level: u32) -> &QueuePolicy {
        self.priority_queue_policy.get(&level).unwrap_or(&self.default_queue_policy)
    }
}

// === impl ModelConfig ===

impl ModelConfig {
    /// Whether this is an ensemble.
    pub fn is_ensemble(&self) -> bool {
        self.ensemble.is_some()
    }

    /// The first input or output that has a `reshape`.
    pub fn reshaped(&self) -> Option<&str> {
        let inputs = self.inputs.iter().filter(|input| input.reshape.is_some()).map(|input| &input.name);
        let outputs = self.outputs.iter().filter(|output| output.reshape.is_some()).map(|output| &output.name);
        inputs.chain(outputs).next().map(String::as_str)
    }

    /// How the model's op `fold` joins the rows of a text's windows, where a request does not say it: `mean`, `first`, `max` or `keep`.
    /// `None` where it has no such op.
    pub fn fold(&self) -> Option<&str> {
        let ops = self.parameters.get("ops").filter(|_| self.backend == "postprocess")?;
        let argument = ops.split(',').find_map(|op| op.trim().strip_prefix("fold:"))?;
        argument.split('+').next().map(str::trim)
    }

    /// The levels of the model's queue, the highest first; 0 alone where it has no priorities.
    pub fn queue_levels(&self) -> Vec<u32> {
        match self.dynamic_batching.as_ref().map_or(0, |batching| batching.priority_levels) {
            0 => vec![0],
            levels => (1..=levels).collect(),
        }
    }

    /// Whether the model's queue has an order among the requests that wait, or limits to them.
    pub fn has_queue_policy(&self) -> bool {
        let limits = |policy: &QueuePolicy| policy.max_queue_size > 0 || !policy.default_timeout.is_zero();
        self.dynamic_batching.as_ref().is_some_and(|batching| {
            batching.priority_levels > 1 || self.queue_levels().into_iter().any(|level| limits(batching.policy(level)))
        })
    }

    /// The level of the model's queue in which a request of this priority waits; 0 where the queue has no levels. A priority
    /// without a level, such as 0, gets the default level.
    pub fn priority_level(&self, priority: u64) -> u32 {
        match &self.dynamic_batching {
            Some(batching) if batching.priority_levels == 0 => 0,
            Some(batching) => batching.level_of(priority).unwrap_or(batching.default_priority_level),
            None => 0,
        }
    }

    /// The inputs with their full shapes, batch dimension included.
    pub fn input_specs(&self) -> Vec<TensorSpec> {
        let spec = |i: &ModelInput| TensorSpec {
            name: i.name.as_str().into(),
            datatype: i.datatype,
            shape: self.full_shape(&i.dims),
            optional: i.optional,
        };
        self.inputs.iter().map(spec).collect()
    }

    /// The outputs with their full shapes, batch dimension included.
    pub fn output_specs(&self) -> Vec<TensorSpec> {
        let spec = |o: &ModelOutput| TensorSpec {
            name: o.name.as_str().into(),
            datatype: o.datatype,
            shape: self.full_shape(&o.dims),
            optional: false,
        };
        self.outputs.iter().map(spec).collect()
    }

    /// `dims` with the batch dimension in front, where the model batches.
    pub fn full_shape(&self, dims: &Shape) -> Shape {
        match self.max_batch_size {
            0 => dims.clone(),
            _ => dims.prepend(-1),
        }
    }
}
