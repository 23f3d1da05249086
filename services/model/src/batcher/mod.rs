//! Batching: which requests run together, and how their tensors are joined and split ([`merge`]).
//!
//! There are three policies. [`LengthBatcher`] is for models that declare their inputs as paddable ([`Declaration`]):
//! it puts texts of similar length together. [`DynamicBatcher`] is Triton's dynamic batcher, for requests of equal
//! shapes. Models without either run each request alone. All are pure; the harness (`trireme-runtime`) has the queue
//! and the threads.

pub mod cost;
mod declaration;
mod length;
pub mod merge;
mod padding;
#[cfg(test)]
mod simulator;

use trireme_engine::{BatchPolicy, DynamicBatcher, OneAtATime};
use trireme_model_repository::ModelConfig;

pub use declaration::Declaration;
pub use length::LengthBatcher;
pub use padding::{PaddedInput, Padding, UnpaddedOutput};

/// The policy for requests of equal shapes in a configuration: the dynamic batcher if there is a `dynamic_batching`
/// block and a batch dimension, otherwise each request alone.
pub fn policy(config: &ModelConfig) -> Box<dyn BatchPolicy> {
    match &config.dynamic_batching {
        Some(settings) if config.max_batch_size > 0 => Box::new(DynamicBatcher::new(settings, config.max_batch_size)),
        _ => Box::new(OneAtATime),
    }
}
