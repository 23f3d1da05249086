//! Whether padding does what was declared, tried out before the model serves: a short request, alone and beside a longer
//! one.
//!
//! Requests that cannot run together at all are a fault of the declaration, and fail the load. That a result depends on
//! its neighbours is a warning: a wrong padding value or mask does that, but so does quantization whose scales are taken
//! from the whole batch, which somebody may have chosen.

use trireme_inference::{InferError, Tensor};
use trireme_model_repository::ModelConfig;
use trireme_runtime::LoadError;

use super::instance::OnnxInstance;
use super::measure;
use crate::batcher::Declaration;

/// Tokens of the two requests: few enough for any model's positions.
const SHORT: u32 = 3;
const LONG: u32 = 8;

/// Differences up to this are rounding.
const ROUNDING: f32 = 1e-4;

/// Tries padding on `instance`.
pub fn check(config: &ModelConfig, declaration: &Declaration, instance: &mut OnnxInstance) -> Result<(), LoadError> {
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
                difference,
                "a request's result depends on the requests that share its batch; the cause may be the padding value, a \
                 mask that is not padded, or quantization over the batch"
            );
        }
    }
    Ok(())
}

/// The largest difference of two outputs of one shape; 0 where they are no floats.
fn difference(left: &Tensor, right: &Tensor) -> f32 {
    let (Ok(left), Ok(right)) = (left.values::<f32>(), right.values::<f32>()) else { return 0.0 };
    left.iter().zip(&*right).map(|(l, r)| (l - r).abs()).fold(0.0, f32::max)
}
