//! The error that answers a request, wherever in the pipeline it arose.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::TensorError;

/// The error message for a full queue, in Triton's words.
pub const QUEUE_FULL: &str = "Exceeds maximum queue size";

/// Triton's error codes (`TRITONSERVER_Error_Code`). HTTP and gRPC statuses are derived from these in one table in
/// `protocol`, acknowledgements in one table in `runtime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "each variant is Triton's own word")]
pub enum ErrorCode {
    Unknown,
    Internal,
    NotFound,
    InvalidArg,
    Unavailable,
    Unsupported,
    AlreadyExists,
    Cancelled,
}

/// Why a request fails, where the gateway treats that unlike other errors of the same code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Cause {
    /// A queue, or the gateway, has no room for it now.
    QueueFull,
    /// Its owner has asked for as much as the gateway allows, for now.
    OwnerLimit,
    /// It is larger than a limit of the gateway.
    TooLarge,
    /// The rules for sequences. Triton answers such a request without its id.
    Sequence,
    /// The worker that got it serves another content of the model than the one that the request was admitted for.
    OtherContent,
    /// Its answer would not be of a space that it asks for (`If-Space`).
    OtherSpace,
    /// A cause that this program does not know.
    #[serde(other)]
    Other,
}

/// The error of a request: a code, a message for its sender, and where in the pipeline it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct InferError {
    /// The code, from which statuses and acknowledgements follow.
    pub code: ErrorCode,
    /// Lowercase, no full stop; names the model, tensor or field, the value found and the value expected.
    pub message: String,
    /// The model whose step failed, as `name:version`; `None` when the request never reached one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The worker that ran the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Whether the model's own code has made the error. Then it is the answer: its message reaches the client as it is, and the
    /// request is not tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_model: bool,
    /// After how long the same request may succeed; only within the gateway.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
    /// Why the request fails, if that matters to the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

// === impl ErrorCode ===

impl ErrorCode {
    /// Every code.
    pub const ALL: [ErrorCode; 8] = [
        ErrorCode::Unknown,
        ErrorCode::Internal,
        ErrorCode::NotFound,
        ErrorCode::InvalidArg,
        ErrorCode::Unavailable,
        ErrorCode::Unsupported,
        ErrorCode::AlreadyExists,
        ErrorCode::Cancelled,
    ];
}

// === impl InferError ===

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident),* $(,)?) => {$(
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> InferError {
            InferError::new(ErrorCode::$code, message)
        }
    )*};
}

impl InferError {
    /// An error without a stage.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> InferError {
        InferError {
            code,
            message: message.into(),
            stage: None,
            worker: None,
            of_model: false,
            retry_after: None,
            cause: None,
        }
    }

    constructors! {
        /// A fault of Trireme.
        internal => Internal,
        /// A model, version or resource that does not exist.
        not_found => NotFound,
        /// A fault of the request.
        invalid_arg => InvalidArg,
        /// The request cannot be served now; it may succeed later.
        unavailable => Unavailable,
        /// The request asks for something that is not offered.
        unsupported => Unsupported,
        /// No client waits for the answer any more.
        cancelled => Cancelled,
    }

    /// This error with its cause.
    pub fn because(self, cause: Cause) -> InferError {
        InferError { cause: Some(cause), ..self }
    }

    /// This error with the step and worker where it arose, unless it has them already.
    pub fn at(mut self, stage: impl fmt::Display, worker: &str) -> InferError {
        if self.stage.is_none() {
            self.stage = Some(stage.to_string());
            self.worker = Some(worker.to_owned());
        }
        self
    }
}

impl fmt::Display for InferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A tensor that its reader cannot use is the sender's fault.
impl From<TensorError> for InferError {
    fn from(error: TensorError) -> Self {
        InferError::invalid_arg(error.to_string())
    }
}
