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
    /// A batch reads the file.
    #[error("file '{id}' is in use by {batch}: cancel that first, or wait until it has ended")]
    InUse {
        /// The file.
        id: String,
        /// The batch that reads it.
        batch: String,
    },
    /// The owner has as much as it may have.
    #[error("{message}")]
    Quota {
        /// Whether it is about bytes.
        is_size: bool,
        /// Both numbers, and the flag.
        message: String,
    },
    /// The request names something that cannot be done.
    #[error("{0}")]
    Invalid(String),
    /// Bytes that a record names are not in the store any more.
    #[error("{0}")]
    Lost(String),
    /// The store refused or could not be reached.
    #[error("the store of jobs: {0}")]
    Bus(#[from] BusError),
}
