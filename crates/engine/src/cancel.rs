//! The flag of a cancelled request, and the errors of requests that need not be executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trireme_inference::{InferError, UnixMicros};

/// The text is Triton's.
const TIMEOUT_EXPIRED: &str = "Request timeout expired";

/// A flag that is raised once and never lowered; clones share it.
///
/// ```
/// # use trireme_inference::{ErrorCode, UnixMicros};
/// use trireme_engine::{CancelFlag, unwanted};
///
/// let flag = CancelFlag::default();
/// assert!(unwanted(&flag, UnixMicros::NEVER).is_none());
/// flag.clone().cancel();
/// assert!(unwanted(&flag, UnixMicros::NEVER).is_some_and(|error| error.code == ErrorCode::Cancelled));
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

// === impl CancelFlag ===

impl CancelFlag {
    /// Raises the flag: the client does not wait any more.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a request need not be worked on any more: it was cancelled, or its deadline has passed.
pub fn unwanted(cancelled: &CancelFlag, deadline: UnixMicros) -> Option<InferError> {
    if cancelled.is_cancelled() {
        Some(cancelled_by_client())
    } else if deadline <= UnixMicros::now() {
        Some(expired())
    } else {
        None
    }
}

/// The error of a request that its client has cancelled.
pub fn cancelled_by_client() -> InferError {
    InferError::cancelled("cancelled by the client")
}

/// The error of a request whose deadline has passed or will pass too soon: the gateway answers it.
pub fn expired() -> InferError {
    InferError::cancelled(TIMEOUT_EXPIRED)
}

/// The error of a request that waited longer than the queue policy allows.
pub fn refused() -> InferError {
    InferError::unavailable(TIMEOUT_EXPIRED)
}
