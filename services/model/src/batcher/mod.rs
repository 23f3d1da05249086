//! Batching: which requests run together ([`policy`]) and how their tensors become one batch and come apart again
//! ([`merge`]). Both are pure; the queue and the threads around them are the harness's (`trireme-runtime`).

pub mod merge;
mod policy;

use trireme_model_repository::ModelConfig;
use trireme_runtime::{BatchPolicy, OneAtATime};

pub use policy::DynamicBatcher;

/// The policy that a model's configuration asks for: the dynamic batcher where there is a `dynamic_batching` block and a
/// batch dimension, each request alone where not.
pub fn policy(config: &ModelConfig) -> Box<dyn BatchPolicy> {
    match &config.dynamic_batching {
        Some(settings) if config.max_batch_size > 0 => Box::new(DynamicBatcher::new(settings, config.max_batch_size)),
        _ => Box::new(OneAtATime),
    }
}
