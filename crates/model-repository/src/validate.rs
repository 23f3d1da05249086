//! Checks a normalized message: refuses what Triton refuses, in its words, and also settings that would fail later.
//!
//! Inputs and outputs may be missing: the backend completes them. An input or output that is declared must be complete, unless the model's
//! own code may still complete it ([`Tensors::MayLackParts`]).

use std::collections::BTreeSet;
use std::path::{Component, Path};

use crate::backends::{KnownBackend, onnx_instead};
use crate::normalize::ENSEMBLE;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::model_queue_policy::TimeoutAction;
use crate::proto::model_sequence_batching::StrategyChoice;
use crate::proto::model_warmup::input::InputDataType;
use crate::proto::{
    DataType, ModelConfig, ModelDynamicBatching, ModelInstanceGroup, ModelQueuePolicy, ModelSequenceBatching,
    ModelTensorReshape,
};
use crate::torch;

const TENSORRT: &str = "tensorrt_plan";

/// The most instances of a model on one worker.
const MAX_INSTANCES: i64 = 1024;

/// The fields that the inputs and outputs of a configuration must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tensors {
    /// Each has `data_type` and `dims`.
    Whole,
    /// Each has its name; the model's `auto_complete_config` may give the rest.
    MayLackParts,
}

/// Whether `data_type` and `dims` of an input or output are there.
pub(crate) fn is_whole(data_type: i32, dims: &[i64]) -> bool {
    DataType::try_from(data_type).is_ok_and(|known| known != DataType::TypeInvalid) && !dims.is_empty()
}

/// The first fault of `message`, as text. The data flow of ensembles is [`crate::ensemble::validate_ensemble`]'s business.
pub(crate) fn validate(message: &ModelConfig, directory: Option<&str>, tensors: Tensors) -> Result<(), String> {
    let name = &message.name;
    if name.is_empty() {
        return Err("model configuration must specify 'name'".into());
    }
    if let Some(directory) = directory
        && directory != name
    {
        return Err(format!(
            "unexpected directory name '{directory}' for model '{name}', directory name must equal model name"
        ));
    }
    validate_backend(message)?;
    if message.max_batch_size < 0 {
        return Err(format!("'max_batch_size' must be non-negative value for {name}"));
    }
    match &message.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => validate_batching(batching, message)?,
        Some(SchedulingChoice::SequenceBatching(batching)) => validate_sequences(batching, message)?,
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
    validate_response_cache(message)?;
    validate_metrics(message)?;
    validate_instance_groups(message)?;
    validate_tensors(message, tensors).map_err(|fault| format!("{fault} for {name}"))?;
    validate_warmup(message)?;
    validate_paths(message)
}

/// Whether `path`, as it is written, leads down from its folder: no file is looked up, so that the answer
/// does not show which files exist. Links that an operator has put beneath the folder are followed later.
pub(crate) fn lies_beneath(path: &str) -> bool {
    let down = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    !path.contains('\0') && Path::new(path).components().all(down)
}

/// Paths lead into the model's own folder.
fn validate_paths(message: &ModelConfig) -> Result<(), String> {
    let warmup = message.model_warmup.iter().flat_map(|sample| sample.inputs.values());
    let warmup = warmup.filter_map(|input| match &input.input_data_type {
        Some(InputDataType::InputDataFile(file)) => Some(("input_data_file", file)),
        _ => None,
    });
    let named = [("default_model_filename", &message.default_model_filename)].into_iter();
    let named = named.chain(message.cc_model_filenames.values().map(|file| ("cc_model_filenames", file)));
    let states = match &message.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => Some(crate::sequence::files(batching)),
        _ => None,
    };
    match named.chain(warmup).chain(states.into_iter().flatten()).find(|(_, path)| !lies_beneath(path)) {
        Some((field, path)) => Err(format!(
            "'{field}' is '{path}' for {}, which is outside the model's folder; expected a path beneath it, without '..'",
            message.name
        )),
        None => Ok(()),
    }
}

fn validate_backend(message: &ModelConfig) -> Result<(), String> {
    let ModelConfig { name, platform, backend, .. } = message;
    let steps = matches!(message.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if platform == ENSEMBLE && !backend.is_empty() {
        return Err(format!("Ensemble model '{name}' must have platform type '{ENSEMBLE}' and empty backend type"));
    }
    if platform == ENSEMBLE && !steps {
        return Err(format!("ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}"));
    }
    if platform != ENSEMBLE && steps {
        return Err(format!("ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"));
    }
    if platform.is_empty() && backend.is_empty() {
        return Err(format!("must specify 'platform' or 'backend' for '{name}'"));
    }
    if backend.is_empty() && platform != ENSEMBLE {
        let instead = onnx_instead(platform).map(|instead| format!("; {instead}")).unwrap_or_default();
        return Err(format!("unexpected platform type '{platform}' for {name}{instead}"));
    }
    match KnownBackend::named(backend).and_then(|known| known.platform) {
        Some(required) if required != platform && !torch::is_pair(backend, platform) => {
            Err(format!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"))
        }
        _ => Ok(()),
    }
}

fn validate_batching(batching: &ModelDynamicBatching, message: &ModelConfig) -> Result<(), String> {
    let ModelConfig { name, max_batch_size, .. } = message;
    for &size in &batching.preferred_batch_size {
        if size <= 0 {
            return Err(format!("dynamic batching preferred size must be positive for {name}"));
        }
        if size > *max_batch_size {
            return Err(format!("dynamic batching preferred size must be <= max batch size for {name}"));
        }
    }
    let levels = batching.priority_levels;
    if levels != 0 {
        if batching.default_priority_level == 0 || batching.default_priority_level > levels {
            return Err(format!("default priority level must be in range [1, {levels}] for {name}"));
        }
        if batching.priority_queue_policy.keys().any(|&level| level == 0 || level > levels) {
            return Err(format!("priority queue policy must have priority level in range [1, {levels}] for {name}"));
        }
    }
    if batching.preserve_ordering {
        if levels > 1 {
            return Err(format!("Only one priority level is allowed when 'preserve_ordering' is true for {name}"));
        }
        // A delayed request would be overtaken.
        let delays = |policy: &ModelQueuePolicy| {
            policy.default_timeout_microseconds != 0 && policy.timeout_action == TimeoutAction::Delay as i32
        };
        if batching.default_queue_policy.iter().chain(batching.priority_queue_policy.values()).any(delays) {
            return Err(format!(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            ));
        }
    }
    Ok(())
}

fn validate_sequences(batching: &ModelSequenceBatching, message: &ModelConfig) -> Result<(), String> {
    let ModelConfig { name, max_batch_size, .. } = message;
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            for &size in &oldest.preferred_batch_size {
                if size <= 0 {
                    return Err(format!("sequence batching preferred batch size must be positive for {name}"));
                }
                if size > *max_batch_size {
                    return Err(format!("sequence batching preferred batch size must be <= max batch size for {name}"));
                }
            }
            Ok(())
        }
        Some(StrategyChoice::Direct(direct)) if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) => {
            Err(format!("sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"))
        }
        _ => Ok(()),
    }
}

fn validate_response_cache(message: &ModelConfig) -> Result<(), String> {
    let name = &message.name;
    if !message.response_cache.is_some_and(|cache| cache.enable) {
        return Ok(());
    }
    if matches!(message.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        return Err(format!(
            "Response Cache does not currently support model {name} with sequence batching scheduler. Please disable \
             the response cache."
        ));
    }
    if message.model_transaction_policy.is_some_and(|policy| policy.decoupled) {
        return Err(format!(
            "Response Cache does not currently support model {name} with 'decoupled' transaction policy. Please \
             disable the response cache."
        ));
    }
    Ok(())
}

/// The bounds of a histogram go upwards; the last one may be infinity.
fn validate_metrics(message: &ModelConfig) -> Result<(), String> {
    for (family, bounds) in crate::fields::histogram_bounds(message) {
        if bounds.is_empty() || !bounds.is_sorted_by(|lower, upper| lower < upper) || bounds[0].is_nan() {
            let name = &message.name;
            return Err(format!("buckets of metric '{family}' must increase, found {bounds:?}, for {name}"));
        }
    }
    Ok(())
}

/// Does not check that a group's GPUs exist: only the host that runs it knows them.
fn validate_instance_groups(message: &ModelConfig) -> Result<(), String> {
    for group in &message.instance_group {
        let which = format!("instance group {} of model {}", group.name, message.name);
        let kind = Kind::try_from(group.kind).map_err(|_| format!("{which} has unexpected kind {}", group.kind))?;
        if !group.gpus.is_empty() && matches!(kind, Kind::Cpu | Kind::Model) {
            return Err(format!("{which} has kind {} but specifies one or more GPUs", kind.as_str_name()));
        }
        if !group.profile.is_empty() && message.platform != TENSORRT {
            return Err(format!(
                "{which} and platform {} specifies profile field which is only supported for TensorRT models",
                message.platform
            ));
        }
    }
    let instances = |group: &ModelInstanceGroup| i64::from(group.count.max(1)) * group.gpus.len().max(1) as i64;
    let instances: i64 = message.instance_group.iter().map(instances).sum();
    if instances > MAX_INSTANCES {
        return Err(format!(
            "the instance groups of model {} have {instances} instances, expected {MAX_INSTANCES} at most: each has a thread of its own, \
             write a smaller 'count'",
            message.name
        ));
    }
    Ok(())
}

/// The fields that inputs and outputs share.
struct Declaration<'a> {
    /// `input` or `output`.
    role: &'static str,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
    is_shape_tensor: bool,
}

fn validate_tensors(message: &ModelConfig, tensors: Tensors) -> Result<(), String> {
    let inputs = message.input.iter().map(|i| Declaration {
        role: "input",
        name: &i.name,
        data_type: i.data_type,
        dims: &i.dims,
        reshape: i.reshape.as_ref(),
        is_shape_tensor: i.is_shape_tensor,
    });
    let outputs = message.output.iter().map(|o| Declaration {
        role: "output",
        name: &o.name,
        data_type: o.data_type,
        dims: &o.dims,
        reshape: o.reshape.as_ref(),
        is_shape_tensor: o.is_shape_tensor,
    });
    let mut seen = BTreeSet::new();
    for tensor in inputs.chain(outputs) {
        if tensors == Tensors::Whole || tensor.name.is_empty() || is_whole(tensor.data_type, tensor.dims) {
            validate_tensor(&tensor, message.max_batch_size)?;
        }
        if tensor.is_shape_tensor && message.platform != TENSORRT {
            return Err("shape tensors are only supported for TensorRT platform".into());
        }
        if !seen.insert((tensor.role, tensor.name)) {
            return Err(format!("model {} '{}' is declared more than once", tensor.role, tensor.name));
        }
    }
    match message.input.iter().any(|input| input.format != 0 && !input.dims.is_empty() && input.dims.len() != 3) {
        true => Err("model input NHWC/NCHW require 3 dims".into()),
        false => Ok(()),
    }
}

fn validate_tensor(tensor: &Declaration<'_>, max_batch_size: i32) -> Result<(), String> {
    let Declaration { role, name, dims, .. } = tensor;
    if name.is_empty() {
        return Err(format!("model {role} must specify 'name'"));
    }
    let fault = |what: &str| Err(format!("model {role} '{name}' {what}"));
    let known = DataType::try_from(tensor.data_type).unwrap_or(DataType::TypeInvalid);
    if known == DataType::TypeInvalid {
        return fault("must specify 'data_type'");
    }
    if dims.is_empty() {
        return fault("must specify 'dims'");
    }
    let bad = |dims: &[i64]| dims.iter().any(|&dim| dim < 1 && dim != -1);
    if bad(dims) {
        return fault("dimension must be integer >= 1, or -1 to indicate a variable-size dimension");
    }
    let Some(ModelTensorReshape { shape }) = tensor.reshape else { return Ok(()) };
    if shape.is_empty() && max_batch_size == 0 {
        return fault("cannot have empty reshape for non-batching model as scalar tensors are not supported");
    }
    if bad(shape) {
        return fault("reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
    }
    let (Some(dims), Some(shape)) = (fixed_runs(dims), fixed_runs(shape)) else {
        return fault(&format!("exceeds maximum size of {} elements", i64::MAX));
    };
    // A side with a single run has no variable dimensions; the comparison of sizes below covers it.
    if dims.len() != shape.len() && dims.len() > 1 && shape.len() > 1 {
        return fault("has different number of variable-size dimensions for dims and reshape");
    }
    if dims != shape {
        return fault("has different size for dims and reshape");
    }
    Ok(())
}

/// Element counts of the runs of fixed dimensions between variable ones: `[2,4,-1,6]` gives 8 and 6. A reshape must keep
/// them, so that each variable dimension keeps its size. `None`: too many elements.
fn fixed_runs(dims: &[i64]) -> Option<Vec<i64>> {
    dims.split(|&dim| dim == -1)
        .map(|run| run.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim)))
        .collect()
}

fn validate_warmup(message: &ModelConfig) -> Result<(), String> {
    for sample in &message.model_warmup {
        for (input, setting) in &sample.inputs {
            let place = || format!("; model '{}', warmup sample '{}'", message.name, sample.name);
            let known = DataType::try_from(setting.data_type).unwrap_or(DataType::TypeInvalid);
            if known == DataType::TypeInvalid {
                return Err(format!("warmup setting expects input '{input}' to have data_type set{}", place()));
            }
            if setting.dims.iter().any(|&dim| dim < 0) {
                return Err(format!(
                    "warmup setting expects all variable-size dimensions are specified for input '{input}'{}",
                    place()
                ));
            }
            if setting.input_data_type.is_none() {
                return Err(format!("warmup setting expects input '{input}' to have input_data_type set{}", place()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
