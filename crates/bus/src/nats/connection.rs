//! The connection that all parts of this bus share.
//!
//! Not here: making it (`connect`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use async_nats::jetstream::account::Account;
use async_nats::{Subject, jetstream};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use trireme_inference::ModelKey;

use super::groups::Groups;
use super::limits::taken;
use super::reach::OutOfReach;
use super::subjects::Names;
use crate::{BusError, BusFault, Connection, QueueOptions};

/// The bulk lanes that a gateway has made or tried to make. The request that holds a lane's lock is making the lane.
pub type BulkLanes = HashMap<ModelKey, Arc<tokio::sync::Mutex<BulkLane>>>;

/// A bulk lane as a gateway knows it.
#[derive(Default)]
pub struct BulkLane {
    /// The connection over which the gateway has made it. A broker that was restarted has lost the streams in its memory.
    pub(super) made_over: Option<Connection>,
    /// The broker's reason, if it refused the last attempt.
    pub(super) refused: Option<String>,
}

/// A value that changes. `follow` gives a receiver that sees later changes alone; a plain clone of the receiver would also see an earlier
/// change.
#[derive(Clone)]
pub struct Changing<T>(watch::Receiver<T>);

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats {
    pub(super) client: async_nats::Client,
    pub(super) jetstream: jetstream::Context,
    pub(super) connection: Changing<Connection>,
    /// The fault that keeps the broker from taking work.
    pub(super) fault: Changing<Option<BusFault>>,
    /// The text of the last action that the broker did not permit. The broker sends it apart from the answers to
    /// requests.
    pub(super) refusals: Changing<String>,
    /// The deliveries that this process keeps alive, by the subjects that settle them, and when each began.
    pub(super) held: Arc<Mutex<BTreeMap<Subject, Instant>>>,
    /// Milliseconds after which the broker gives a delivery without a report of progress to another worker.
    pub(super) ack_wait: Arc<AtomicU64>,
    /// The name of the deployment; empty for a deployment without a name.
    pub(super) deployment: Arc<str>,
    /// The names of the deployment on the wire.
    pub(super) names: Names,
    /// The beginning of the subjects at which JetStream is asked: `$JS.API`, or `$JS.<domain>.API`.
    pub(super) api: Arc<str>,
    /// The beginning of all inboxes of the deployment, with a dot at its end. The broker's permissions do not cover reply
    /// subjects, so answers go to inboxes only.
    pub(super) inboxes: Arc<str>,
    /// Whether this process creates streams, as gateways do.
    pub(super) makes_streams: bool,
    /// The account as it was last read.
    pub(super) account: Arc<Mutex<Account>>,
    /// Bytes that an operator gives to stores.
    pub(super) store_bytes: Arc<BTreeMap<&'static str, u64>>,
    /// Room for messages on topics that are being sent.
    pub(super) saying: Arc<Semaphore>,
    /// The queues that this process declared.
    pub(super) queues: Arc<Mutex<HashMap<ModelKey, QueueOptions>>>,
    /// The deployment's settings, if this process creates streams.
    pub(super) settings: Arc<Mutex<Option<QueueOptions>>>,
    /// The bulk lanes that this process makes.
    pub(super) bulk_lanes: Arc<Mutex<BulkLanes>>,
    /// The records of jobs that wait to be sent.
    pub(super) groups: Arc<Groups>,
    pub(super) out_of_reach: Arc<OutOfReach>,
    pub(super) closed: Arc<AtomicBool>,
}

// === impl Changing ===

impl<T> Changing<T> {
    pub(super) fn new(values: watch::Receiver<T>) -> Changing<T> {
        Changing(values)
    }

    /// The present value.
    pub(super) fn now(&self) -> watch::Ref<'_, T> {
        self.0.borrow()
    }

    /// The changes from now on.
    pub(super) fn follow(&self) -> watch::Receiver<T> {
        let mut changes = self.0.clone();
        changes.mark_unchanged();
        changes
    }
}

// === impl Nats ===

impl Nats {
    pub(super) async fn subscribe(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        taken(self.client.subscribe(subject)).await
    }

    /// Subscribes and waits until the broker has read the subscription, so that no later message is missed.
    pub(super) async fn subscribe_at_once(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        let subscriber = self.subscribe(subject).await?;
        self.until_subscribed(subscriber).await
    }

    /// Waits until the broker has read a subscription.
    pub(super) async fn until_subscribed(
        &self,
        subscriber: async_nats::Subscriber,
    ) -> Result<async_nats::Subscriber, BusError> {
        // The broker reads a connection's messages in order, so its answer shows that it has read the subscription.
        match self.jetstream.query_account().await {
            Ok(_) => Ok(subscriber),
            Err(error) => Err(BusError::Unreachable(format!("subscribing: {error}"))),
        }
    }

    /// Copies that the broker keeps of each stream.
    pub(super) fn replicas(&self) -> usize {
        self.settings.lock().as_ref().map_or(1, |settings| settings.replicas)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the connection is lost right now.
    pub(super) fn is_down(&self) -> bool {
        *self.connection.now() == Connection::Down
    }

    /// Whether the broker is one of a cluster.
    pub(super) fn is_clustered(&self) -> bool {
        self.client.server_info().cluster.is_some()
    }

    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }
}
