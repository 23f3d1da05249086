//! Checks before a model serves whether rows of different lengths may share a run: runs short and long requests, alone and together.
//!
//! Where the requests cannot run together, or a result depends on the other request, rows do not share a run, and a warning says so. A
//! wrong padding value or mask causes it, a convolution over tokens that sees the padding, and quantization with scales from the whole
//! batch.

use trireme_engine::{ExecuteRequest, LoadError};
use trireme_inference::{DataType, InferError, Tensor};
use trireme_model_repository::ModelConfig;

use super::accelerators::InstanceDevice;
use super::instance::OnnxInstance;
use super::measure;
use crate::batcher::Declaration;
use crate::batcher::merge::{self, Cut};

/// Tokens of the requests, where the declaration has no rows; few enough for any model's positions.
const LENGTHS: [u32; 2] = [3, 8];

/// The input whose values are tokens.
const TOKENS: &str = "input_ids";

/// Differences up to `ROUNDING` are those of sums in another order, in numbers of 32 bits. Larger ones up to `COARSE` may be those of
/// fewer bits (FP16, quantized activations, GPUs), so that the row's neighbors decide. `COARSE` is more than such numbers cause.
pub(super) const ROUNDING: f32 = 1e-4;
const COARSE: f32 = 5e-2;

/// Whether rows may share a run on `instance`, which is at `place`. A warning says why not. The error is a shape that contradicts the
/// configuration.
pub fn check(
    config: &ModelConfig,
    declaration: &Declaration,
    place: InstanceDevice,
    instance: &mut OnnxInstance,
) -> Result<bool, LoadError> {
    let apart = |why: &str| {
        tracing::warn!(
            model = config.name,
            %place,
            "texts of different lengths do not share a run of this model, which costs throughput under load: {why}"
        );
        Ok(false)
    };
    let lengths: Vec<u32> = match declaration.sample_rows.is_empty() {
        true => LENGTHS.to_vec(),
        false => declaration.sample_rows.iter().map(|row| row.len() as u32).collect(),
    };
    let requests = lengths.iter().map(|&length| measure::request(config, declaration, 1, length));
    let Ok(requests) = requests.collect::<Result<Vec<_>, _>>() else {
        tracing::debug!(model = config.name, "padding cannot be tried: inputs have no definite size");
        return Ok(true);
    };
    let mut alone = Vec::with_capacity(requests.len());
    for (request, length) in requests.iter().zip(&lengths) {
        match instance.execute_together(std::slice::from_ref(request)) {
            Ok(mut ran) => alone.extend(ran.pop()),
            // Real rows may run all the same.
            Err(error) => {
                return apart(&format!("a row of {length} tokens that tries it cannot run: {}", error.message));
            }
        }
    }
    let together = match instance.execute_together(&requests) {
        Ok(together) => together,
        Err(error) => return apart(&format!("rows of different lengths cannot run together: {}", error.message)),
    };
    let mut largest = (0.0, "");
    for (alone, together) in
        alone.iter().zip(&together).flat_map(|(alone, together)| alone.outputs.iter().zip(&together.outputs))
    {
        if alone.shape() != together.shape() {
            return Err(LoadError::Config(format!(
                "model '{}': output '{}' of a padded request has shape {}, alone it has {}: 'unpad_outputs' has to name \
                 the outputs that are as long as the padded inputs",
                config.name,
                alone.name(),
                together.shape(),
                alone.shape()
            )));
        }
        let difference = difference(alone, together);
        if difference > largest.0 {
            largest = (difference, alone.name());
        }
    }
    let (difference, output) = largest;
    tracing::debug!(model = config.name, %place, output, difference, "rows of different lengths, together and alone");
    let depends = match difference {
        // Not a number compares with nothing.
        _ if difference <= ROUNDING => false,
        _ if difference <= COARSE => match by_neighbors(declaration, instance, &requests, &lengths) {
            // A graph that looks for its padding among the tokens has another row then.
            Ok(change) => {
                tracing::debug!(model = config.name, change, "a row with other neighbors");
                change > ROUNDING && change <= COARSE
            }
            Err(error) => {
                tracing::debug!(
                    model = config.name,
                    reason = error.message,
                    "other neighbors of a row cannot be tried"
                );
                true
            }
        },
        _ => true,
    };
    match depends {
        true => apart(&format!(
            "output '{output}' of a row depends on the rows that share its run (by {difference:.2e} of its length); the cause may be \
             the padding's value or side, a mask that is not padded, or quantization over the run. To let them share it all the same, \
             set parameter padding_check to off"
        )),
        false => Ok(true),
    }
}

/// How much the shortest row changes when the other rows of its run and its padding have other tokens. All shapes stay, and with them
/// all rounding: the results of a row that depends on nothing else are the same.
fn by_neighbors(
    declaration: &Declaration,
    instance: &mut OnnxInstance,
    requests: &[ExecuteRequest],
    lengths: &[u32],
) -> Result<f32, InferError> {
    let missing = || InferError::internal("there is no input of tokens");
    let shortest = (0..lengths.len()).min_by_key(|&at| lengths[at]).ok_or_else(missing)?;
    let mut others = requests.to_vec();
    for request in others.iter_mut().enumerate().filter(|(at, _)| *at != shortest).map(|(_, request)| request) {
        request.inputs = request.inputs.iter().map(|input| with_tokens(input, <[i64]>::reverse)).collect();
    }
    let own = requests[shortest].inputs.iter().find(|input| input.name() == TOKENS).ok_or_else(missing)?;
    let mut padding = declaration.padding.inputs.clone();
    let tokens = padding.iter_mut().find(|padded| padded.name == TOKENS).ok_or_else(missing)?;
    tokens.value = own.data()[..tokens.value.len()].to_vec();
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let mut run = |requests: &[ExecuteRequest], padding| {
        let inputs: Vec<_> = requests.iter().map(|request| &request.inputs[..]).collect();
        let inputs = merge::join(&inputs, padding, None)?.into_owned();
        let request = ExecuteRequest { inputs, ..requests[0].clone() };
        let outputs = instance.execute_together(&[request])?.remove(0).outputs;
        let row = |output: Tensor| {
            let unpadded = declaration.padding.outputs.iter().find(|own| own.name == output.name());
            let cut = unpadded.map(|own| Cut { axis: own.axis, lengths, padded: longest, left: own.left });
            Ok(merge::split(output, &vec![1; lengths.len()], cut)?.swap_remove(shortest))
        };
        outputs.into_iter().map(row).collect::<Result<Vec<_>, InferError>>()
    };
    let (before, after) = (run(requests, &declaration.padding.inputs)?, run(&others, &padding)?);
    Ok(before.iter().zip(&after).map(|(before, after)| difference(before, after)).fold(0.0, f32::max))
}

/// A copy of an input whose tokens `change` has changed; other inputs stay as they are.
pub(super) fn with_tokens(input: &Tensor, change: impl Fn(&mut [i64])) -> Tensor {
    let Some(mut ids) = ids(input).filter(|ids| input.name() == TOKENS && !ids.is_empty()) else {
        return input.clone();
    };
    change(&mut ids);
    let (name, shape) = (input.name(), input.shape().clone());
    let made = match input.datatype() {
        DataType::Int32 => Tensor::from_values(name, shape, ids.iter().map(|&id| id as i32).collect()),
        _ => Tensor::from_values(name, shape, ids),
    };
    made.unwrap_or_else(|_| input.clone())
}

fn ids(input: &Tensor) -> Option<Vec<i64>> {
    match input.values::<i64>() {
        Ok(ids) => Some(ids.to_vec()),
        Err(_) => Some(input.values::<i32>().ok()?.iter().map(|&id| i64::from(id)).collect()),
    }
}

/// The largest distance between vectors of two outputs of one shape (those of the last dimension), as a part of the vector's length
/// where that is above 1; 0 if they are not floats.
pub(super) fn difference(left: &Tensor, right: &Tensor) -> f32 {
    let floats = |tensor: &Tensor| match tensor.values::<f32>() {
        Ok(values) => Some(values.to_vec()),
        Err(_) => Some(tensor.values::<half::f16>().ok()?.iter().map(|value| value.to_f32()).collect()),
    };
    let (Some(l), Some(r)) = (floats(left), floats(right)) else { return 0.0 };
    let width = left.shape().last().map_or(1, |&width| (width as usize).max(1));
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    let pairs = l.chunks_exact(width).zip(r.chunks_exact(width));
    let each = pairs.map(|(l, r)| {
        let distance = length(&mut l.iter().zip(r).map(|(l, r)| l - r));
        distance / length(&mut l.iter().copied()).max(1.0)
    });
    // Infinite and missing numbers are the largest of all.
    each.fold(0.0, |largest, own| if own.is_nan() { f32::INFINITY } else { largest.max(own) })
}
