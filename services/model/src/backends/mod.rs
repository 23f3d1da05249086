//! The backends of this service, keyed by `backend` in config.pbtxt. A new one is a module here, a line in [`backends`] and one
//! in [`trireme_model_repository::BACKENDS`]; `conformance` has the requirements on it.

mod abort;
mod generation;
mod identity;
mod onnxruntime;
mod repeat;
mod static_embedding;

use std::sync::Arc;

use trireme_engine::Backend;

pub use generation::Generation;
pub use identity::Identity;
pub use onnxruntime::{OnnxRuntime, OnnxRuntimeOptions, default_cost_model_cache};
pub use repeat::Repeat;
pub use static_embedding::StaticEmbedding;

/// Every backend of this service.
pub fn backends(runtime: OnnxRuntimeOptions) -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(Identity),
        Arc::new(Repeat),
        Arc::new(StaticEmbedding),
        Arc::new(Generation::new(runtime.clone())),
        Arc::new(OnnxRuntime::new(runtime)),
    ]
}

#[cfg(test)]
mod conformance;
