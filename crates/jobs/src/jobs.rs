//! The handle on durable work.

use std::sync::Arc;
use std::time::Duration;

use trireme_bus::Bus;

use crate::call::Execute;
use crate::pace::Paces;
use crate::statistics::Counters;

/// Limits of durable work.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most calls of durable work that this gateway has in flight.
    pub max_in_flight: usize,
    /// How long a request that has not ended may stay, and how long one that has ended is kept.
    pub time_to_live: Duration,
    /// How long a file may arrive without new bytes. Then its parts are deleted.
    pub upload_patience: Duration,
}

/// When a job begins, and which URL is called when it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The time before which it does not begin, in seconds since 1970. Its time to live counts from then on.
    pub not_before: Option<u64>,
    /// The URL that is called when it has ended.
    pub webhook: Option<String>,
}

/// Durable work on one bus. Clones are the same.
#[derive(Clone)]
pub struct Jobs(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub bus: Arc<dyn Bus>,
    /// The name of this gateway.
    pub own: String,
    pub execute: Arc<dyn Execute>,
    pub options: Options,
    pub paces: Paces,
    pub counters: Counters,
    /// Wakes those that wait for the end of a job.
    pub ended: tokio::sync::broadcast::Sender<String>,
}
