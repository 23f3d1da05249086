//! The state of the operations. The operations themselves are in the other files here, as functions of [`Handlers`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use trireme_inference::{InferError, InferResponse};
use trireme_runtime::Health;
use trireme_runtime::response_cache::ResponseCache;
use trireme_server::access::Access;
use trireme_server::budget::Budget;
use trireme_triton_compat::shared_memory::SharedMemory;

use super::sampling::Tracing;
use crate::counts::RequestCounts;
use crate::dispatch::Dispatcher;
use crate::models::ModelControl;
use crate::registry::{Registry, ServedModel};
use crate::statistics::{Collector, Windows};
use crate::text_cache::TextCache;
use crate::usage::Usage;

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
    /// Durable work, once the HTTP listener serves and if this gateway keeps jobs.
    pub(crate) jobs: std::sync::OnceLock<trireme_jobs::Jobs>,
    /// Counts of requests.
    pub(crate) counts: RequestCounts,
    /// The statistics of all processes.
    pub(crate) collector: Collector,
    /// The last status document of the whole system.
    pub(crate) last_status: tokio::sync::Mutex<LastStatus>,
    /// Whether this gateway takes durable work.
    pub(crate) keeps_jobs: bool,
    /// The name of the deployment; empty for a deployment without a name.
    pub(crate) deployment: String,
    /// Usage of the owners of keys.
    pub(crate) usage: Usage,
    /// The access rules.
    pub(crate) access: Access,
    /// The timeout of requests that set none.
    pub(crate) default_timeout: Duration,
    /// The longest time that a request may ask for.
    pub(crate) max_timeout: Duration,
    /// Answers of models with `response_cache`, if there is a cache.
    pub(crate) cache: Option<ResponseCache<InferResponse>>,
    /// Results of single texts, if there is a cache of them.
    pub(crate) text_cache: Option<TextCache>,
    /// The budget for the bytes of all requests.
    pub(crate) budget: Budget,
    /// Memory that clients share with this process.
    pub(crate) shared_memory: SharedMemory,
    /// Whether clients may register shared memory.
    pub(crate) allow_client_shm: bool,
}

/// The operations as listeners share them.
pub type SharedHandlers = Arc<Handlers>;

/// The last status document.
#[derive(Default)]
pub struct LastStatus {
    /// When it was made, and its text.
    pub(super) told: Option<(Instant, Bytes)>,
    pub(super) windows: Windows,
}

// === impl Handlers ===

impl Handlers {
    /// The model version that a request for `model` runs on.
    pub fn find_model(&self, model: &str, version: Option<i64>) -> Result<(i64, Arc<ServedModel>), InferError> {
        self.registry.catalog().find(model, version).map(|(version, served)| (version, served.clone()))
    }
}
