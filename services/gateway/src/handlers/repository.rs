//! The model repository extension. Models are loaded when workers start (Triton's `--model-control-mode=none`), so asking
//! to load or unload one is refused as Triton refuses it then.

use trireme_inference::InferError;
use trireme_protocol::repository::IndexEntry;

use super::Handlers;

impl Handlers {
    /// The models and versions that are known; with `ready_only`, those that are ready.
    pub fn repository_index(&self, ready_only: bool) -> Vec<IndexEntry> {
        let mut index = self.registry.catalog().index();
        if ready_only {
            index.retain(|entry| entry.version.as_ref().is_some_and(|version| version.ready));
        }
        index
    }

    /// Why no model can be loaded by request.
    pub fn load_model(&self) -> Result<(), InferError> {
        Err(InferError::unavailable("explicit model load / unload is not allowed if polling is enabled"))
    }

    /// Why no model can be unloaded by request.
    pub fn unload_model(&self) -> Result<(), InferError> {
        self.load_model()
    }
}
