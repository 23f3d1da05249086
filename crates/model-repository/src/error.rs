//! The reasons why a model repository, or one configuration in it, cannot be used.

use std::io;
use std::path::PathBuf;

use trireme_inference::ErrorCode;

use crate::EnsembleError;

/// A fault in a model repository. One model has at most one; a repository reports those of all its models.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum RepositoryError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file that came with a request cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The text of a config.pbtxt does not follow the text format or the schema.
    #[error("failed to read text proto from {file}: line {line}: {reason}")]
    Text { file: String, line: usize, reason: String },
    /// A configuration in JSON does not follow JSON or the schema.
    #[error("failed to read model configuration from JSON: {reason}")]
    Json { reason: String },
    /// The configuration contradicts itself or its surroundings; the text is Triton's where it has one.
    #[error("{0}")]
    Invalid(String),
    /// Two model repositories hold a model of the same name.
    #[error("model '{model}' is in more than one model repository: {} and {}", first.display(), second.display())]
    Duplicate { model: String, first: PathBuf, second: PathBuf },
    /// No version directory fits the version policy.
    #[error(
        "at least one version must be available under the version policy of model '{model}'; version directories in {}: {found}",
        path.display()
    )]
    NoVersion { model: String, path: PathBuf, found: String },
    /// The model repositories have no model directory.
    #[error(
        "{paths} is empty: expected a directory for each model, with its config.pbtxt and a directory for each version"
    )]
    Empty { paths: String },
    /// An ensemble's steps do not make a data flow.
    #[error(transparent)]
    Ensemble(#[from] EnsembleError),
}

// === impl RepositoryError ===

impl RepositoryError {
    /// The code that answers a request to load the model.
    pub fn code(&self) -> ErrorCode {
        match self {
            RepositoryError::Read { .. } | RepositoryError::Write { .. } => ErrorCode::Internal,
            RepositoryError::Text { .. }
            | RepositoryError::Json { .. }
            | RepositoryError::Invalid(_)
            | RepositoryError::NoVersion { .. } => ErrorCode::InvalidArg,
            RepositoryError::Duplicate { .. } => ErrorCode::AlreadyExists,
            RepositoryError::Empty { .. } => ErrorCode::NotFound,
            RepositoryError::Ensemble(error) => error.code(),
        }
    }
}
