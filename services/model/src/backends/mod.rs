//! The backends of this service, keyed by `backend` in config.pbtxt, and those models of backend `postprocess` that make the output of
//! a model small ([`trireme_ops::Reductions`]). A new one is a module here, a line in [`backends`] and one
//! in [`trireme_model_repository::BACKENDS`]; `conformance` has the requirements on it.

#[cfg(feature = "test-backends")]
mod abort;
#[cfg(feature = "generation")]
mod generation;
#[cfg(feature = "test-backends")]
mod identity;
mod onnxruntime;
#[cfg(feature = "test-backends")]
mod repeat;
mod static_embedding;

use std::sync::Arc;

use trireme_engine::Backend;
use trireme_ops::Reductions;

#[cfg(feature = "test-backends")]
pub use identity::Identity;
pub use onnxruntime::{
    AccuracyLevel, FoundLibrary, LibraryError, OnnxRuntime, OnnxRuntimeOptions, TRACED, default_cost_model_cache,
    find_library, processor,
};
#[cfg(feature = "test-backends")]
pub use repeat::Repeat;
pub use static_embedding::StaticEmbedding;

/// Every backend of this service.
pub fn backends(runtime: OnnxRuntimeOptions) -> Vec<Arc<dyn Backend>> {
    vec![
        #[cfg(feature = "test-backends")]
        Arc::new(Identity),
        #[cfg(feature = "test-backends")]
        Arc::new(Repeat),
        Arc::new(StaticEmbedding),
        #[cfg(feature = "generation")]
        Arc::new(generation::generation(runtime.clone())),
        Arc::new(OnnxRuntime::new(runtime)),
        Arc::new(Reductions),
    ]
}

#[cfg(test)]
mod conformance;
