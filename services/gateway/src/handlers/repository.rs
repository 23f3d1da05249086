//! The model repository extension.

use trireme_inference::{InferError, UnixMicros};
use trireme_protocol::repository::{IndexEntry, IndexState, LoadRequest};
use trireme_runtime::model_control::Override;

use super::Handlers;

impl Handlers {
    /// The models and versions that are known; with `ready_only`, those that are ready.
    pub fn repository_index(&self, ready_only: bool) -> Vec<IndexEntry> {
        let mut index = self.registry.catalog().index();
        if ready_only {
            index.retain(|entry| entry.version.as_ref().is_some_and(|version| version.state == IndexState::Ready));
        }
        index
    }

    /// Loads a model at every worker that has its backend.
    pub async fn load_model(&self, model: &str, request: LoadRequest) -> Result<(), InferError> {
        self.models
            .load(model, Override { config: request.config, files: request.files, since: UnixMicros::now() })
            .await
    }

    /// Unloads a model everywhere; with `dependents`, an ensemble's composing models, too.
    pub async fn unload_model(&self, model: &str, dependents: bool) -> Result<(), InferError> {
        self.models.unload(model, dependents).await
    }
}
