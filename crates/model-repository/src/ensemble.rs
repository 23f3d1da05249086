//! Ensembles: from steps as configured to a checked route.
//!
//! [`validate_ensemble`] checks the configuration alone: every tensor has one source and is used, and every output is written.
//! [`compile_ensemble`] also needs the composing models: datatypes and shapes that meet agree, all inputs are mapped, and each
//! model batches as much as the ensemble. It returns the plan that routes are made from.

mod compile;
mod graph;

use std::sync::Arc;

use trireme_inference::{ErrorCode, RoutePlan};

use crate::ModelConfig;

pub use compile::compile_ensemble;
pub use graph::validate_ensemble;

/// An ensemble that was checked against its composing models.
#[derive(Clone, Debug)]
pub struct CompiledEnsemble {
    /// Its configuration; an ensemble with a decoupled model is decoupled itself.
    pub config: Arc<ModelConfig>,
    /// The steps of its requests.
    pub plan: RoutePlan,
}

/// The reason why an ensemble gives no route. Texts begin with Triton's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum EnsembleError {
    /// Composing models do not exist (yet).
    #[error("ensemble {ensemble} contains models that are not available or ambiguous: {}", models.join(", "))]
    ModelsUnavailable { ensemble: String, models: Vec<String> },
    /// A composing model exists, but not in the version that the step asks for.
    #[error("ensemble '{ensemble}' depends on '{model}' whose required version {version} is not loaded.{}", version_hint(*version))]
    VersionUnavailable { ensemble: String, model: String, version: i64 },
    /// The configuration of the ensemble is wrong, or does not fit its composing models.
    #[error("{0}")]
    Invalid(String),
}

/// A hint for a step that leaves the version out, which means version 0.
fn version_hint(version: i64) -> &'static str {
    match version {
        0 => " A step without 'model_version' asks for version 0; -1 asks for the latest",
        _ => "",
    }
}

// === impl EnsembleError ===

impl EnsembleError {
    /// The code that answers a request to load the ensemble.
    pub fn code(&self) -> ErrorCode {
        match self {
            EnsembleError::ModelsUnavailable { .. } | EnsembleError::VersionUnavailable { .. } => {
                ErrorCode::Unavailable
            }
            EnsembleError::Invalid(_) => ErrorCode::InvalidArg,
        }
    }
}

/// The plan of a single model.
pub fn plan_single(config: &ModelConfig) -> RoutePlan {
    let inputs = config.inputs.iter().map(|input| (input.name.as_str().into(), input.optional));
    let outputs = config.outputs.iter().map(|output| output.name.as_str().into()).collect();
    RoutePlan::single(&config.name, inputs, outputs)
}

#[cfg(test)]
mod tests;
