//! Why a call on a job fails.

use trireme_bus::BusError;

/// Why a call on a job failed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// There is no such job or file.
    #[error("no {kind} with id '{id}': it does not exist, was deleted, or its time to live is over")]
    Unknown {
        /// `request`, `batch` or `file`.
        kind: &'static str,
        /// The id that the client sent.
        id: String,
    },
    /// The client's key was used before, for another request.
    #[error("the Idempotency-Key was used before with another request: send each request with a key of its own")]
    OtherRequest,
    /// The request names something that cannot be done.
    #[error("{0}")]
    Invalid(String),
    /// The store refused or could not be reached.
    #[error("the store of jobs: {0}")]
    Bus(#[from] BusError),
}
