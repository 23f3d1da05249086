//! The operations of the protocol, free of HTTP and gRPC, which both call them.

mod access;
mod classification;
pub mod forward;
mod health;
mod infer;
mod logging;
mod metadata;
pub mod operations;
mod query;
mod repository;
mod sequences;
mod shared_memory;
mod statistics;
mod status;
mod timing;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use trireme_inference::InferResponse;
use trireme_runtime::Health;
use trireme_runtime::response_cache::ResponseCache;

use crate::budget::Budget;
use crate::dispatch::Dispatcher;
use crate::models::ModelControl;
use crate::registry::Registry;
use crate::shared_memory::SharedMemory;
use crate::statistics::Collector;

pub use access::{Access, AccessArgs, Category, ControlAccess, Credentials, Denied, Restriction, Secret};
pub use classification::Labels;
pub use infer::{Next, Responses, Rows, Traced, Via};
pub use statistics::Queues;
pub use status::LastStatus;
pub use timing::answer_headers;
pub use trace::Tracing;

/// The state of the operations. One per gateway, shared by all its listeners.
pub struct Handlers {
    pub(crate) registry: Registry,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) health: Health,
    /// The server's name in its metadata.
    pub(crate) id: String,
    /// Whether the server is ready only when every model is.
    pub(crate) strict_readiness: bool,
    /// Loads and unloads models.
    pub(crate) models: ModelControl,
    /// The format of log lines that a client has set.
    pub(crate) log_format: parking_lot::Mutex<&'static str>,
    /// Which requests are traced.
    pub(crate) tracing: Tracing,
    /// The statistics of all processes.
    pub(crate) collector: Collector,
    /// The last status document of the whole system.
    pub(crate) last_status: tokio::sync::Mutex<LastStatus>,
    /// Whether this gateway takes durable work.
    pub(crate) keeps_jobs: bool,
    /// The access rules.
    pub(crate) access: Access,
    /// The timeout of requests that set none.
    pub(crate) default_timeout: Duration,
    /// Answers of models with `response_cache`, if there is a cache.
    pub(crate) cache: Option<ResponseCache<InferResponse>>,
    /// The budget for the bytes of all requests.
    pub(crate) budget: Budget,
    /// Memory that clients share with this process.
    pub(crate) shared_memory: SharedMemory,
    /// Whether clients may register shared memory.
    pub(crate) allow_client_shm: bool,
}

/// The operations as listeners share them.
pub type SharedHandlers = Arc<Handlers>;
