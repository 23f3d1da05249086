//! What each operation of the protocol does, free of HTTP and gRPC: both call these.

mod health;
mod infer;
mod metadata;

use std::sync::Arc;
use std::time::Duration;

use trireme_runtime::Health;

use crate::dispatch::Dispatcher;
use crate::registry::Registry;

pub use infer::Traced;

/// What the operations work with. One per gateway, shared by all its listeners.
pub struct Handlers {
    pub(crate) registry: Registry,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) health: Health,
    /// Time a request may take when it does not say.
    pub(crate) default_timeout: Duration,
}

/// How listeners hold the operations.
pub type SharedHandlers = Arc<Handlers>;
