//! Checks before a model serves whether rows of different lengths may share a run: runs short and long requests, alone and together.
//!
//! Where the requests cannot run together, or a result depends on the other request, rows do not share a run, and a warning says so. A
//! wrong padding value or mask causes it, and so does quantization with scales from the whole batch.

use trireme_engine::LoadError;
use trireme_inference::Tensor;
use trireme_model_repository::ModelConfig;

use super::accelerators::InstanceDevice;
use super::instance::OnnxInstance;
use super::measure;
use crate::batcher::Declaration;

/// Tokens of the requests, where the declaration has no rows; few enough for any model's positions.
const LENGTHS: [u32; 2] = [3, 8];

/// Differences up to this count as rounding, as a part of the largest value: weights of 16 bits, and GPUs, which compute with fewer bits.
const ROUNDING: f32 = 2e-3;
const ROUNDING_OF_GPUS: f32 = 2e-2;

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
        if difference > if place.is_gpu() { ROUNDING_OF_GPUS } else { ROUNDING } {
            return apart(&format!(
                "output '{}' of a row depends on the rows that share its run (by {difference:.2e} of the largest value); the cause may be \
                 the padding's value or side, a mask that is not padded, or quantization over the run. To let them share it all the same, set parameter padding_check to off",
                alone.name()
            ));
        }
    }
    Ok(true)
}

/// The largest difference between two outputs of one shape, as a part of the largest value where that is above 1; 0 if they are not
/// floats.
fn difference(left: &Tensor, right: &Tensor) -> f32 {
    let (Ok(left), Ok(right)) = (left.values::<f32>(), right.values::<f32>()) else { return 0.0 };
    let largest = left.iter().fold(1.0f32, |largest, value| largest.max(value.abs()));
    left.iter().zip(&*right).map(|(l, r)| (l - r).abs() / largest).fold(0.0, f32::max)
}
