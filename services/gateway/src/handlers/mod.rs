//! What each operation of the protocol does, free of HTTP and gRPC: both call these.

mod access;
mod classification;
pub mod forward;
mod health;
mod infer;
mod logging;
mod metadata;
pub mod operations;
mod repository;
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
pub use infer::{Responses, Rows, Traced, Via};
pub use statistics::Queues;
pub use status::LastStatus;
pub use timing::answer_headers;
pub use trace::Tracing;

/// What the operations work with. One per gateway, shared by all its listeners.
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
    /// The format that clients were told log lines have.
    pub(crate) log_format: parking_lot::Mutex<&'static str>,
    /// Which requests are traced.
    pub(crate) tracing: Tracing,
    /// What everybody has done.
    pub(crate) collector: Collector,
    /// What was last told of the whole system.
    pub(crate) last_status: tokio::sync::Mutex<LastStatus>,
    /// Who may ask.
    pub(crate) access: Access,
    /// Time a request may take when it does not say.
    pub(crate) default_timeout: Duration,
    /// Answers of models with `response_cache`, where there is a cache.
    pub(crate) cache: Option<ResponseCache<InferResponse>>,
    /// The bytes of all requests in hand.
    pub(crate) budget: Budget,
    /// Memory that clients have in common with this process.
    pub(crate) shared_memory: SharedMemory,
    /// Whether they may say where it is.
    pub(crate) allow_client_shm: bool,
}

/// How listeners hold the operations.
pub type SharedHandlers = Arc<Handlers>;
