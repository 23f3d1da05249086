//! The handle on durable work.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use trireme_bus::Bus;
use trireme_inference::Owner;

use crate::call::Execute;
use crate::index::Index;
use crate::pace::Paces;
use crate::quotas::Quotas;
use crate::room::Rooms;
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
    /// Bytes of a batch's error file at which the batch ends: its lines fail for the same few reasons, however many they are.
    pub max_error_bytes: u64,
    /// Most bytes of running batches in memory.
    pub max_bytes: u64,
    /// How much an owner may have.
    pub quotas: Quotas,
}

/// When a job begins, and which URL is called when it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOptions {
    /// The time before which it does not begin, in seconds since 1970. Its time to live counts from then on.
    pub not_before: Option<u64>,
    /// The URL that is called when it has ended.
    pub webhook: Option<String>,
}

/// Durable work on one bus. Clones are the same.
#[derive(Clone)]
pub struct Jobs(pub(crate) Arc<JobsState>, pub(crate) Client);

/// The client: a record of another client is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Client {
    /// The system itself, or an administrator.
    #[default]
    Everybody,
    /// The owner of an API key, by its name. Without keys the name is empty.
    Owner(Arc<str>),
}

// === impl Jobs ===

impl Jobs {
    /// The same work as this client sees it.
    pub fn of(&self, client: Client) -> Jobs {
        Jobs(self.0.clone(), client)
    }

    /// Whether what belongs to `owner` is there for this client.
    pub(crate) fn sees(&self, owner: &str) -> bool {
        match &self.1 {
            Client::Everybody => true,
            Client::Owner(name) => name.as_ref() == owner,
        }
    }

    /// An owner with its weight now.
    pub(crate) fn owner(&self, name: &str) -> Owner {
        Owner::new(name, self.0.execute.weight(name))
    }

    /// The owner of what this client makes.
    pub(crate) fn client(&self) -> &str {
        match &self.1 {
            Client::Everybody => "",
            Client::Owner(name) => name,
        }
    }
}

pub(crate) struct JobsState {
    pub bus: Arc<dyn Bus>,
    /// The name of this gateway.
    pub own: String,
    /// Tells this process from others, also from earlier ones of the same name.
    pub process: String,
    pub execute: Arc<dyn Execute>,
    pub options: Options,
    pub paces: Paces,
    pub rooms: Rooms,
    pub counters: Counters,
    pub index: Arc<Index>,
    /// Whether pieces of the reserve may be missing.
    pub reserve_is_short: AtomicBool,
    /// Wakes those that wait for the end of a job.
    pub ended: tokio::sync::broadcast::Sender<String>,
}
