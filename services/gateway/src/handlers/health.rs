//! Liveness and readiness.

use trireme_inference::InferError;

use super::Handlers;

impl Handlers {
    /// Whether the process runs: true whenever a client can ask.
    pub fn server_live(&self) -> bool {
        true
    }

    /// Whether every known model is ready; where readiness is not strict, whether any is, or none can be. Errors while the
    /// server is shutting down.
    pub fn server_ready(&self) -> Result<bool, InferError> {
        if !self.health.is_ready() {
            return Err(InferError::unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
            ));
        }
        let catalog = self.registry.catalog();
        Ok(catalog.unready().is_empty() || !self.strict_readiness && catalog.has_begun())
    }

    /// Whether a model version (the latest by default) is ready. Errors when it is unknown.
    pub fn model_ready(&self, model: &str, version: Option<i64>) -> Result<bool, InferError> {
        let catalog = self.registry.catalog();
        match catalog.find(model, version) {
            Ok((version, _)) => Ok(!catalog.is_recovering(model, version)),
            Err(_) if catalog.knows(model, version) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
