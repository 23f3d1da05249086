//! Why a call of the bus fails, and the error code of a request that fails because of it.

use trireme_inference::{Cause, ErrorCode, InferError, ModelKey, QUEUE_FULL};

use crate::envelope::EnvelopeError;

/// Why a bus call failed.
///
/// ```
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// # use trireme_bus::BusError;
/// # use trireme_inference::{ErrorCode, InferError};
/// let error = BusError::NoQueue { model };
/// assert_eq!(error.code(), ErrorCode::Unavailable);
/// assert_eq!(InferError::from(&error).message, "no worker serves 'encoder:1' on this bus");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The queue is full.
    #[error("{QUEUE_FULL}")]
    Full {
        /// The queue's model.
        model: ModelKey,
    },
    /// There is no such queue: no worker has ever served the model here, or the broker lost the queue.
    #[error("no worker serves '{model}' on this bus")]
    NoQueue {
        /// The queue's model.
        model: ModelKey,
    },
    /// The message is larger than the bus accepts, even by claim.
    #[error("message of {size} bytes exceeds the {limit} bytes that {taker} takes")]
    TooLarge {
        /// The message's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
        /// The part of the system with the limit, and the flag that changes it.
        taker: &'static str,
    },
    /// The broker has no room for a message that has to travel by claim.
    #[error("stream trireme_claims is full, there is no room for a message of {size} bytes: {QUEUE_FULL}")]
    ClaimsFull {
        /// The message's size in bytes.
        size: usize,
    },
    /// The key has another value than the caller expected.
    #[error("the value of '{key}' was changed by another process")]
    Conflict {
        /// The key.
        key: String,
    },
    /// The store has no room for the value.
    #[error("the store of {store} is full, there is no room for a value of {size} bytes")]
    StoreFull {
        /// The store's name.
        store: &'static str,
        /// The value's size in bytes.
        size: usize,
    },
    /// The broker cannot be reached, or did not confirm in time.
    #[error("message bus is unreachable: {0}")]
    Unreachable(String),
    /// The broker answered with an error.
    #[error("message bus refused {action}: {reason}")]
    Refused {
        /// The action that the broker refused.
        action: &'static str,
        /// The broker's error message.
        reason: String,
    },
    /// The account has no room for one more stream or consumer, or for the bytes that it may hold.
    #[error("{reason}")]
    OverLimit {
        /// The stream, the limit and its figure, and what to do about it.
        reason: String,
    },
    /// The message cannot be encoded.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
}

// === impl BusError ===

impl BusError {
    /// The error code for a request that fails because of this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            BusError::Full { .. }
            | BusError::NoQueue { .. }
            | BusError::ClaimsFull { .. }
            | BusError::StoreFull { .. }
            | BusError::OverLimit { .. }
            | BusError::Unreachable(_) => ErrorCode::Unavailable,
            BusError::TooLarge { .. }
            | BusError::Envelope(EnvelopeError::TooMany(_) | EnvelopeError::TensorName(_)) => ErrorCode::InvalidArg,
            BusError::Conflict { .. } | BusError::Refused { .. } | BusError::Envelope(_) => ErrorCode::Internal,
        }
    }
}

impl From<&BusError> for InferError {
    fn from(error: &BusError) -> InferError {
        let is_full = matches!(error, BusError::Full { .. } | BusError::ClaimsFull { .. });
        let cause = is_full.then_some(Cause::QueueFull);
        InferError { cause, ..InferError::new(error.code(), error.to_string()) }
    }
}
