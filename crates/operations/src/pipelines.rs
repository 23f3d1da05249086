//! The models that operations run on, and the way of a request through them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use trireme_inference::{InferError, InferRequest, InferResponse, Name};
use trireme_model_repository::ModelConfig;

use crate::{Capabilities, OperationRequest, Task};

/// The ready models of a gateway. Each is found in the version on which requests run that name no version.
pub trait Pipelines: Send + Sync + 'static {
    /// Every model that does something with texts besides tokenizing.
    fn all(&self) -> Vec<Pipeline>;

    /// Why other models are not ready, a sentence for each.
    fn unready(&self) -> Vec<String>;

    /// Whether every model is ready.
    fn ready(&self) -> bool;

    /// How many requests wait for their answers.
    fn in_flight(&self) -> u64;

    /// The model of this name, its own or one that its configuration gives it (`served_names`); `None`: no model has it.
    ///
    /// # Errors
    /// The model is not ready, or its configuration of operations is faulty.
    fn named(&self, name: &str) -> Result<Option<Pipeline>, InferError>;

    /// The model of this name; without a name the only one that offers the operation.
    ///
    /// # Errors
    /// There is no such model, it is not ready, or it does not offer the operation: the error names models that do.
    fn offering(&self, task: Task, name: Option<&str>) -> Result<Pipeline, InferError>;

    /// The tokenizer for a request to tokenize or decode: the model of this name, or the step of it that tokenizes; without a
    /// name that of the only model that does something with texts, or the only tokenizer.
    ///
    /// # Errors
    /// As for [`Pipelines::offering`].
    fn tokenizing(&self, task: Task, name: Option<&str>) -> Result<Pipeline, InferError>;

    /// The origin of this model's answers with these outputs.
    fn origin(&self, model: &Pipeline, outputs: &[String]) -> Origin;

    /// The classes of an output, from the file that the configuration names (`label_filename`); empty without one.
    fn labels(&self, model: &str, output: &str) -> Vec<String>;

    /// Runs a request of `operation`, which does `task`.
    fn infer<'a>(
        &'a self,
        request: InferRequest,
        operation: &'a OperationRequest,
        task: Task,
    ) -> BoxFuture<'a, Result<InferResponse, InferError>>;
}

/// A model that does something with texts.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Its own name.
    pub name: String,
    /// Its operations.
    pub capabilities: Arc<Capabilities>,
    /// Its configuration.
    pub config: Arc<ModelConfig>,
    /// The configurations of the steps that its requests go through; its own one, if it is no ensemble.
    pub steps: Vec<Arc<ModelConfig>>,
}

/// The origin of a model's answers, as workers announce it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Their space, as `trireme-space` tells it.
    pub space: Option<String>,
    /// The spaces that this one was measured to equal.
    pub equivalent: Vec<Name>,
    /// When the newest of the model's files was changed, in seconds since 1970.
    pub files_at: Option<u64>,
}

// === impl Pipeline ===

impl Pipeline {
    /// Whether its entities are of labels that a request names.
    pub(crate) fn takes_labels(&self) -> bool {
        let has_prompt = |step: &Arc<ModelConfig>| step.backend == "tokenizer" && step.parameters.contains_key("spans");
        self.steps.iter().any(has_prompt)
    }

    /// Whether a step folds the rows of a text's windows.
    pub(crate) fn folds(&self) -> bool {
        self.steps.iter().any(|step| step.fold().is_some())
    }
}
