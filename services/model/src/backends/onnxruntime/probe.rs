//! Checks before a model serves that padding works as declared: runs a short request, alone and beside a longer one.
//!
//! If the requests cannot run together at all, the declaration is wrong, and the load fails. If a result depends on the
//! other request, that is a warning. A wrong padding value or mask causes it, but so does quantization with scales from
//! the whole batch, which may be intended.

use trireme_engine::LoadError;
use trireme_inference::{InferError, Tensor};
use trireme_model_repository::ModelConfig;

use super::accelerators::InstanceDevice;
use super::instance::OnnxInstance;
use super::measure;
use crate::batcher::Declaration;

/// Tokens of the two requests; few enough for any model's positions.
const SHORT: u32 = 3;
const LONG: u32 = 8;

/// Differences up to this count as rounding.
const ROUNDING: f32 = 1e-4;

/// Checks padding on `instance`, which is at `place`.
pub fn check(
    config: &ModelConfig,
    declaration: &Declaration,
    place: InstanceDevice,
    instance: &mut OnnxInstance,
) -> Result<(), LoadError> {
    let requests = [SHORT, LONG].map(|length| measure::request(config, declaration, 1, length));
    let [Ok(short), Ok(long)] = requests else {
        tracing::debug!(model = config.name, "padding cannot be tried: inputs have no definite size");
        return Ok(());
    };
    let refused = |what: &str, error: InferError| {
        let reason = format!("parameter 'pad_inputs': {what}: {}", error.message);
        LoadError::Backend { model: config.name.clone(), reason }
    };
    let alone = instance.execute_together(std::slice::from_ref(&short));
    let alone = alone.map_err(|error| refused(&format!("a request of length {SHORT} cannot run"), error))?;
    let together = instance.execute_together(&[short, long]);
    let together = together.map_err(|error| refused("requests of different lengths cannot run together", error))?;

    for (alone, together) in alone[0].outputs.iter().zip(&together[0].outputs) {
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
        if difference > ROUNDING {
            tracing::warn!(
                model = config.name,
                output = alone.name(),
                %place,
                difference,
                "a request's result depends on the requests that share its batch; the cause may be the padding value, a \
                 mask that is not padded, or quantization over the batch"
            );
        }
    }
    Ok(())
}

/// The largest difference between two outputs of one shape; 0 if they are not floats.
fn difference(left: &Tensor, right: &Tensor) -> f32 {
    let (Ok(left), Ok(right)) = (left.values::<f32>(), right.values::<f32>()) else { return 0.0 };
    left.iter().zip(&*right).map(|(l, r)| (l - r).abs()).fold(0.0, f32::max)
}
