//! Liveness and readiness, in Triton's sense: of the server with its models, and of each model.
//!
//! Not here: whether this process takes work, which orchestrators ask its admin listener (`/readyz`).

use trireme_inference::InferError;

use super::Handlers;
use crate::registry::Catalog;

impl Handlers {
    /// Whether the process runs: true whenever a client can ask.
    pub fn server_live(&self) -> bool {
        true
    }

    /// Whether this process takes work and every known model is ready; where readiness is not strict, whether any is, or none
    /// can be. Errors while the server is shutting down.
    pub fn server_ready(&self) -> Result<bool, InferError> {
        if self.health.is_stopping() {
            return Err(InferError::unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
            ));
        }
        let catalog = self.registry.catalog();
        let models_are_ready = catalog.unready().is_empty() || !self.strict_readiness && catalog.has_begun();
        Ok(models_are_ready && self.health.check().is_ok())
    }

    /// Whether requests for a model version (the latest by default) are executed now. Errors when it is unknown.
    pub fn model_ready(&self, model: &str, version: Option<i64>) -> Result<bool, InferError> {
        let catalog = self.registry.catalog();
        match catalog.find(model, version) {
            Ok((version, _)) => Ok(!catalog.is_recovering(model, version) && self.health.check().is_ok()),
            Err(_) if catalog.knows(model, version) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The present faults, each in a sentence: of this process's way to the broker, and of models.
    pub(super) fn problems(&self, catalog: &Catalog) -> Vec<String> {
        let bus = self.health.bus_fault().map(|fault| fault.to_string());
        bus.into_iter().chain(catalog.problems()).collect()
    }
}
