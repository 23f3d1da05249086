//! Proving: a loaded version executes its canary request before it takes work.

use std::time::Duration;

use trireme_bus::Content;
use trireme_engine::{Canary, LoadError, LoadedModel};
use trireme_inference::Tensor;

use super::Models;

/// A loaded version, how long loading took, and its canary request.
pub(super) struct Proven {
    pub loaded: LoadedModel,
    pub initial_states: Vec<Tensor>,
    pub canary: Option<Canary>,
    pub took: Duration,
    /// Its content, as far as that can be told.
    pub content: Option<Content>,
}

// === impl Models ===

impl Models {
    /// Finds the model's canary request if canary requests are enabled.
    pub(super) async fn prove(
        &self,
        name: &str,
        mut loaded: LoadedModel,
        initial_states: Vec<Tensor>,
        took: Duration,
        content: Option<Content>,
    ) -> Result<Proven, LoadError> {
        let canary = match self.options.canary {
            Some(_) => Canary::prove(&mut loaded, name, self.options.execution_limit).await?,
            None => None,
        };
        Ok(Proven { loaded, initial_states, canary, took, content })
    }
}
