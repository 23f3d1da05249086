//! Durable work: requests that are answered later, files, and batches over files.
//!
//! A job is a record in the store [`Bucket::Jobs`] and its bytes in [`Bucket::Objects`]. Records are replaced by compare
//! and swap only, so that two gateways cannot both change a job. A record names the gateway that owns the job: the owner
//! runs the job, and when the owner's heartbeats have stopped another gateway takes the job over. The calls of a job go
//! through [`Execute`], as if a client had sent them.
//!
//! Invariants:
//! - A job that was accepted is in the store, and stays there until it has ended and its time to live is over.
//! - A job ends once: the record of its end is written over the record that its owner has read.
//! - A batch writes its output in parts before it moves its checkpoint. After a crash it begins again at the checkpoint and
//!   writes the same parts again, so no line is missing and none is there twice.
//!
//! Not here: HTTP (`gateway`), the stores (`bus`).
//!
//! [`Bucket::Jobs`]: trireme_bus::Bucket::Jobs
//! [`Bucket::Objects`]: trireme_bus::Bucket::Objects

mod batch;
mod batches;
mod driver;
mod files;
mod lines;
mod objects;
mod pace;
mod record;
mod requests;
mod store;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_bus::{Bus, BusError};

pub use batches::NewBatch;
pub use files::{Content, Upload};
pub use pace::Pace;
pub use record::{Batch, BatchState, Counts, File, Request, RequestState};
pub use requests::Accepted;

/// A request to one of the gateway's routes, without the client's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The path, with the query.
    pub path: String,
    /// The headers that the route needs, with names in lower case.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers that describe the body, with names in lower case.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

/// The system that runs calls.
#[async_trait]
pub trait Execute: Send + Sync + 'static {
    /// Runs a call. The caller may drop the future, which cancels the call.
    async fn execute(&self, call: Call) -> Answer;

    /// Whether the gateway of this name is alive, as far as its heartbeats tell.
    fn lives(&self, gateway: &str) -> bool;
}

/// Limits of durable work.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most calls of durable work that this gateway has in flight.
    pub max_in_flight: usize,
    /// How long a request that has not ended may stay, and how long one that has ended is kept.
    pub time_to_live: Duration,
}

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

/// Durable work on one bus. Clones are the same.
#[derive(Clone)]
pub struct Jobs(Arc<Shared>);

struct Shared {
    bus: Arc<dyn Bus>,
    /// The name of this gateway.
    own: String,
    execute: Arc<dyn Execute>,
    options: Options,
    pace: Pace,
    /// Wakes those that wait for the end of a job.
    ended: tokio::sync::broadcast::Sender<String>,
}

// === impl Call ===

impl Call {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_ref())
    }
}

// === impl Answer ===

impl Answer {
    /// Whether the same call may get another answer later: the queue was full, no worker was there, or time ran out.
    pub fn is_temporary(&self) -> bool {
        matches!(self.status, 408 | 429 | 503 | 504)
    }
}

// === impl Jobs ===

impl Jobs {
    /// Opens the store of jobs and runs what belongs to this gateway until the returned future is dropped.
    pub fn open(
        bus: Arc<dyn Bus>,
        own: &str,
        execute: Arc<dyn Execute>,
        options: Options,
    ) -> (Jobs, impl Future<Output = ()> + Send + 'static) {
        let pace = Pace::new(options.max_in_flight);
        let (ended, _) = tokio::sync::broadcast::channel(1024);
        let jobs = Jobs(Arc::new(Shared { bus, own: own.to_owned(), execute, options, pace, ended }));
        (jobs.clone(), driver::run(jobs))
    }
}
