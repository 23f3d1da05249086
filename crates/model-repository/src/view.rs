//! The message, once normalized and valid, as the [`ModelConfig`] that services read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trireme_inference::Shape;

use crate::backends::PYTHON;
use crate::ensemble::validate_ensemble;
use crate::fields::{histogram_bounds, read_data_type};
use crate::normalize::{Surroundings, normalize};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step;
use crate::proto::model_instance_group::Kind;
use crate::proto::model_optimization_policy::execution_accelerators::Accelerator;
use crate::proto::model_queue_policy::TimeoutAction;
use crate::proto::model_version_policy::PolicyChoice;
use crate::proto::model_warmup::input::InputDataType;
use crate::validate::{Tensors, is_whole, validate};
use crate::{
    DynamicBatching, EnsembleStep, InstanceGroup, InstanceKind, ModelConfig, ModelInput, ModelOutput, ModelWarmup,
    Optimization, QueuePolicy, RepositoryError, VersionPolicy, WarmupData, WarmupInput, proto, sequence,
};

// === impl ModelConfig ===

impl ModelConfig {
    /// Normalizes and validates `message` and reads it. The only way to a [`ModelConfig`].
    pub(crate) fn from_message(
        mut message: proto::ModelConfig,
        around: &Surroundings<'_>,
    ) -> Result<ModelConfig, RepositoryError> {
        normalize(&mut message, around);
        let lenient = around.completes && message.backend == PYTHON;
        let tensors = if lenient { Tensors::MayLackParts } else { Tensors::Whole };
        validate(&message, around.directory, tensors).map_err(RepositoryError::Invalid)?;
        let config = read(message).map_err(RepositoryError::Invalid)?;
        if config.is_ensemble() {
            validate_ensemble(&config)?;
        }
        Ok(config)
    }

    /// An error if an input or output that the configuration declares lacks its `data_type` or `dims`. Only a configuration from a
    /// repository may, until the model's `auto_complete_config` was asked.
    pub fn check_whole(&self) -> Result<(), RepositoryError> {
        validate(&self.message, None, Tensors::Whole).map_err(RepositoryError::Invalid)
    }
}

fn read(message: proto::ModelConfig) -> Result<ModelConfig, String> {
    let (mut dynamic_batching, mut sequence_batching, mut ensemble) = (None, None, None);
    match &message.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => dynamic_batching = Some(read_batching(batching)),
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            sequence_batching = Some(sequence::read(batching, &message)?);
            dynamic_batching = sequence::read_dynamic(batching, message.max_batch_size);
        }
        Some(SchedulingChoice::EnsembleScheduling(steps)) => {
            ensemble = Some(steps.step.iter().map(read_step).collect());
        }
        None => {}
    }
    let version_policy = match message.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref()) {
        Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest(latest.num_versions),
        Some(PolicyChoice::All(_)) => VersionPolicy::All,
        Some(PolicyChoice::Specific(specific)) => VersionPolicy::Specific(specific.versions.clone()),
        None => VersionPolicy::Latest(1),
    };
    Ok(ModelConfig {
        name: message.name.clone(),
        platform: message.platform.clone(),
        backend: message.backend.clone(),
        max_batch_size: unsigned(message.max_batch_size),
        inputs: message
            .input
            .iter()
            .filter(|i| is_whole(i.data_type, &i.dims))
            .map(read_input)
            .collect::<Result<_, _>>()?,
        outputs: message
            .output
            .iter()
            .filter(|o| is_whole(o.data_type, &o.dims))
            .map(read_output)
            .collect::<Result<_, _>>()?,
        version_policy,
        instance_groups: message.instance_group.iter().map(read_group).collect(),
        default_model_filename: message.default_model_filename.clone(),
        dynamic_batching,
        sequence_batching,
        ensemble,
        optimization: message.optimization.as_ref().map(read_optimization).unwrap_or_default(),
        warmup: message.model_warmup.iter().map(read_warmup).collect::<Result<_, _>>()?,
        max_rows_per_message: max_rows_per_message(&message)?,
        parameters: message.parameters.iter().map(|(key, p)| (key.clone(), p.string_value.clone())).collect(),
        metric_tags: message.metric_tags.clone(),
        histogram_bounds: histogram_bounds(&message),
        decoupled: message.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        response_cache: message.response_cache.is_some_and(|cache| cache.enable),
        message,
    })
}

fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn read_reshape(reshape: &proto::ModelTensorReshape) -> Shape {
    Shape::from(reshape.shape.as_slice())
}

fn read_input(input: &proto::ModelInput) -> Result<ModelInput, String> {
    Ok(ModelInput {
        name: input.name.clone(),
        datatype: read_data_type(input.data_type)?,
        dims: Shape::from(input.dims.as_slice()),
        reshape: input.reshape.as_ref().map(read_reshape),
        optional: input.optional,
        allow_ragged_batch: input.allow_ragged_batch,
    })
}

fn read_output(output: &proto::ModelOutput) -> Result<ModelOutput, String> {
    Ok(ModelOutput {
        name: output.name.clone(),
        datatype: read_data_type(output.data_type)?,
        dims: Shape::from(output.dims.as_slice()),
        reshape: output.reshape.as_ref().map(read_reshape),
        label_filename: output.label_filename.clone(),
    })
}

fn read_group(group: &proto::ModelInstanceGroup) -> InstanceGroup {
    let kind = match group.kind() {
        Kind::Auto => InstanceKind::Auto,
        Kind::Cpu => InstanceKind::Cpu,
        Kind::Gpu => InstanceKind::Gpu,
        Kind::Model => InstanceKind::Model,
    };
    InstanceGroup { name: group.name.clone(), kind, count: unsigned(group.count), gpus: group.gpus.clone() }
}

fn read_batching(batching: &proto::ModelDynamicBatching) -> DynamicBatching {
    let mut read = DynamicBatching {
        preferred_batch_sizes: batching.preferred_batch_size.iter().copied().map(unsigned).collect(),
        max_queue_delay: Duration::from_micros(batching.max_queue_delay_microseconds),
        preserve_ordering: batching.preserve_ordering,
        priority_bounds: priority_bounds(batching),
        default_queue_policy: batching.default_queue_policy.as_ref().map(read_queue_policy).unwrap_or_default(),
        ..DynamicBatching::default()
    };
    read.priority_levels = read.priority_bounds.len() as u32;
    // Numbers fit where there are any levels (validation saw to it); where there are none they mean nothing.
    let level = |priority| read.level_of(priority).unwrap_or_default();
    let policies = batching.priority_queue_policy.iter();
    let policies = policies.map(|(&key, policy)| (level(key), read_queue_policy(policy))).collect();
    let default_level = level(batching.default_priority_level);
    DynamicBatching { default_priority_level: default_level, priority_queue_policy: policies, ..read }
}

/// Priority numbers up to which each has a queue of its own.
const MANY_LEVELS: u64 = 64;

/// The highest priority number of each level. A level is a queue, and Triton allows 2^64 of them: where there are more than
/// a few, only the first numbers, the default and those with a policy have one of their own, and those between share one.
fn priority_bounds(batching: &proto::ModelDynamicBatching) -> Vec<u64> {
    let levels = batching.priority_levels;
    if levels <= MANY_LEVELS {
        return (1..=levels).collect();
    }
    let named = batching.priority_queue_policy.keys().chain([&batching.default_priority_level]);
    let apart = named.flat_map(|&number| [number.saturating_sub(1), number]);
    let bounds: BTreeSet<u64> = (1..=MANY_LEVELS / 2).chain(apart).chain([levels]).collect();
    bounds.into_iter().filter(|bound| (1..=levels).contains(bound)).collect()
}

/// The parameter of this name. It says of every tensor that its first dimension is rows.
fn max_rows_per_message(message: &proto::ModelConfig) -> Result<Option<u32>, String> {
    const NAME: &str = "max_rows_per_message";
    let Some(parameter) = message.parameters.get(NAME) else { return Ok(None) };
    let (model, text) = (&message.name, parameter.string_value.trim());
    let rows = text.parse().ok().filter(|&rows: &u32| rows > 0);
    let rows = rows.ok_or_else(|| {
        format!("parameter '{NAME}' of model '{model}' has to be a whole number from 1, found '{text}'")
    })?;
    let inputs = message.input.iter().map(|input| (&input.name, &input.dims));
    let mut tensors = inputs.chain(message.output.iter().map(|output| (&output.name, &output.dims)));
    match tensors.find(|(_, dims)| message.max_batch_size == 0 && dims.first() != Some(&-1)) {
        Some((tensor, _)) => Err(format!(
            "parameter '{NAME}' of model '{model}' needs a 'max_batch_size', or -1 as the first of the dims of '{tensor}'"
        )),
        None => Ok(Some(rows)),
    }
}

fn read_queue_policy(policy: &proto::ModelQueuePolicy) -> QueuePolicy {
    QueuePolicy {
        delay_on_timeout: policy.timeout_action() == TimeoutAction::Delay,
        default_timeout: Duration::from_micros(policy.default_timeout_microseconds),
        allow_timeout_override: policy.allow_timeout_override,
        max_queue_size: policy.max_queue_size,
    }
}

fn read_step(step: &Step) -> EnsembleStep {
    EnsembleStep {
        model_name: step.model_name.clone(),
        model_version: (step.model_version != -1).then_some(step.model_version),
        input_map: step.input_map.clone(),
        output_map: step.output_map.clone(),
    }
}

fn read_optimization(optimization: &proto::ModelOptimizationPolicy) -> Optimization {
    let read = |list: &[Accelerator]| list.iter().map(|a| (a.name.clone(), a.parameters.clone())).collect();
    let accelerators = optimization.execution_accelerators.as_ref();
    let pinned = [&optimization.input_pinned_memory, &optimization.output_pinned_memory];
    Optimization {
        graph_level: optimization.graph.as_ref().map(|graph| graph.level),
        gpu_accelerators: accelerators.map(|a| read(&a.gpu_execution_accelerator)).unwrap_or_default(),
        cpu_accelerators: accelerators.map(|a| read(&a.cpu_execution_accelerator)).unwrap_or_default(),
        pinned_memory: pinned.into_iter().all(|memory| memory.as_ref().is_none_or(|memory| memory.enable)),
    }
}

fn read_warmup(sample: &proto::ModelWarmup) -> Result<ModelWarmup, String> {
    let mut inputs = BTreeMap::new();
    for (name, input) in &sample.inputs {
        let data = match &input.input_data_type {
            Some(InputDataType::RandomData(_)) => WarmupData::Random,
            Some(InputDataType::InputDataFile(file)) => WarmupData::File(file.clone()),
            Some(InputDataType::ZeroData(_)) | None => WarmupData::Zero,
        };
        let datatype = read_data_type(input.data_type)?;
        inputs.insert(name.clone(), WarmupInput { datatype, dims: Shape::from(input.dims.as_slice()), data });
    }
    Ok(ModelWarmup { name: sample.name.clone(), batch_size: sample.batch_size, count: sample.count, inputs })
}
