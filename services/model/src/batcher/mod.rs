//! Batching: which requests run together and how their tensors become one batch and come apart again ([`merge`]).
//!
//! There are three policies. [`LengthBatcher`] is for models that declare their inputs as paddable ([`Declaration`]): it
//! puts texts of like length together. [`DynamicBatcher`] is Triton's dynamic batcher, for requests of equal shapes. Models
//! without either run each request alone. All are pure; the queue and the threads around them are the harness's
//! (`trireme-runtime`).

pub mod cost;
mod declaration;
mod length;
pub mod merge;
mod padding;
mod policy;
#[cfg(test)]
mod simulator;

use trireme_model_repository::ModelConfig;
use trireme_runtime::{BatchPolicy, OneAtATime};

pub use declaration::Declaration;
pub use length::LengthBatcher;
pub use padding::{PaddedInput, Padding, UnpaddedOutput};
pub use policy::DynamicBatcher;

/// The policy for requests of equal shapes that a configuration asks for: the dynamic batcher where there is a
/// `dynamic_batching` block and a batch dimension, each request alone where not.
pub fn policy(config: &ModelConfig) -> Box<dyn BatchPolicy> {
    match &config.dynamic_batching {
        Some(settings) if config.max_batch_size > 0 => Box::new(DynamicBatcher::new(settings, config.max_batch_size)),
        _ => Box::new(OneAtATime),
    }
}
