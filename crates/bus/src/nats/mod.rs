//! The bus over NATS JetStream: a work-queue stream for each level of a model version's queue, a stream for each store,
//! and replies and topics over core NATS. Needs nats-server 2.11 or newer with JetStream enabled.
//!
//! The only user of `async-nats`. Each file is one part of the surface: [`connect`]; [`work`] (publish) and [`puller`]
//! for queues, with [`ack`] for deliveries; [`replies`]; [`store`]; [`topics`]; [`streams`] (creating streams) and
//! [`buckets`] (their configurations); the broker's [`clock`]. Bodies that travel by claim are in [`claims`] and
//! [`fetch`], names on the wire in [`subjects`], headers in [`headers`], and the meaning of the broker's errors in
//! [`errors`].

mod ack;
mod buckets;
mod claims;
mod clock;
mod connect;
mod errors;
mod fetch;
mod headers;
mod makers;
mod open;
mod puller;
mod pulls;
mod replies;
mod source;
mod store;
mod streams;
mod subjects;
mod topics;
mod work;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use trireme_inference::ModelKey;

pub use connect::{Deployment, NatsLogin, NatsOptions, NatsTls};
pub use subjects::escape_token;

use ack::Deliveries;
use connect::{REQUEST_TIMEOUT, limited, taken};
use streams::{Needed, OutOfReach};

use crate::{
    Acker, Bucket, Bus, BusError, Change, Connection, Entry, Inbox, Puller, Question, QueueOptions, QueueStatus,
    Queued, Reply, WorkMessage,
};

/// Messages on topics that may wait to be sent.
const SAYING: usize = 1024;

/// The time limit of a call that asks the broker several times.
const LONGEST: Duration = Duration::from_secs(30);

/// Approximate bytes of headers, route, parameters and ledger. If they take more, the body travels by claim.
const BODY_EXTRA: usize = 64 << 10;

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    connection: watch::Receiver<Connection>,
    /// The text of the last action that the broker did not permit. The broker sends it apart from the answers to
    /// requests.
    refusals: watch::Receiver<String>,
    /// The deliveries in this process.
    deliveries: Deliveries,
    /// The inbox to which the broker reports replies that no gateway listened to.
    unheard: String,
    /// Whether this process creates streams itself, or asks a gateway.
    makes_streams: bool,
    /// Room for messages on topics that are being sent.
    saying: Arc<Semaphore>,
    /// The queues that this process declared.
    queues: Arc<Mutex<HashMap<ModelKey, QueueOptions>>>,
    /// The deployment's settings, if this process creates streams.
    settings: Arc<Mutex<Option<QueueOptions>>>,
    out_of_reach: Arc<OutOfReach>,
    closed: Arc<AtomicBool>,
}

// === impl Nats ===

#[async_trait]
impl Bus for Nats {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        self.queues.lock().insert(model.clone(), options.clone());
        self.deliveries.set_ack_wait(options.ack_wait);
        limited(LONGEST, self.need(Needed::Queue(model, options))).await
    }

    async fn publish(&self, message: &WorkMessage) -> Result<Queued, BusError> {
        self.publish_work(message).await
    }

    async fn take_back(&self, queued: &Queued) -> Result<(), BusError> {
        limited(REQUEST_TIMEOUT, work::take_back(self, queued)).await
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        let options = self.queues.lock().get(model).cloned().unwrap_or_default();
        Ok(Box::new(puller::NatsPuller::open(self, model, &options).await?))
    }

    async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
        limited(LONGEST, work::queue_status(self, model, levels)).await
    }

    async fn unsettled(&self, model: &ModelKey, levels: &[u32], gateway: &str) -> Result<HashSet<String>, BusError> {
        limited(REQUEST_TIMEOUT, work::unsettled(self, model, levels, gateway)).await
    }

    async fn queues(&self) -> Result<Vec<ModelKey>, BusError> {
        limited(LONGEST, self.queue_names()).await
    }

    async fn remove_queue(&self, model: &ModelKey) -> Result<bool, BusError> {
        limited(LONGEST, self.remove_empty_queue(model)).await
    }

    fn message_bytes(&self) -> usize {
        self.max_payload().saturating_sub(BODY_EXTRA)
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        self.receive_replies(gateway).await
    }

    async fn reply(&self, reply: Reply, delivery: Option<&mut Acker>) -> Result<(), BusError> {
        self.send_reply(&reply, delivery).await
    }

    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        limited(LONGEST, self.put_value(bucket, key, value, expect, lapse)).await
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        limited(LONGEST, self.get_value(bucket, key)).await
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        limited(LONGEST, self.next_value(bucket, revision)).await
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        limited(LONGEST, self.delete_value(bucket, key, expect)).await
    }

    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError> {
        Ok(self.watch_bucket(bucket))
    }

    async fn say(&self, topic: &str, body: Bytes) -> Result<(), BusError> {
        topics::say(self, topic, body).await
    }

    async fn ask(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        topics::ask(self, topic, body).await
    }

    async fn listen(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
        topics::listen(self, topic, false).await
    }

    async fn listen_in_turn(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
        topics::listen(self, topic, true).await
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.clone()
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Sends buffered messages. The wait has a limit, because a broker that is gone cannot take them.
        let until = tokio::time::Instant::now() + connect::CLOSE_TIMEOUT;
        let flushed = tokio::time::timeout_at(until, self.client.flush()).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the message bus was closed before everything was sent");
        }
        let _ = tokio::time::timeout_at(until, self.client.drain()).await;
    }
}

impl Nats {
    async fn subscribe(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        taken(self.client.subscribe(subject)).await
    }

    /// Subscribes and waits until the broker has read the subscription, so that no later message is missed.
    async fn subscribe_at_once(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        let subscriber = self.subscribe(subject).await?;
        self.until_subscribed(subscriber).await
    }

    /// Waits until the broker has read a subscription.
    async fn until_subscribed(&self, subscriber: async_nats::Subscriber) -> Result<async_nats::Subscriber, BusError> {
        // The broker reads a connection's messages in order, so its answer shows that it has read the subscription.
        match self.jetstream.query_account().await {
            Ok(_) => Ok(subscriber),
            Err(error) => Err(BusError::Unreachable(format!("subscribing: {error}"))),
        }
    }

    /// Copies that the broker keeps of each stream.
    fn replicas(&self) -> usize {
        self.settings.lock().as_ref().map_or(1, |settings| settings.replicas)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the connection is lost right now.
    fn is_down(&self) -> bool {
        *self.connection.borrow() == Connection::Down
    }

    fn max_payload(&self) -> usize {
        self.client.server_info().max_payload
    }
}
