//! The bus over NATS JetStream: one work-queue stream per model version, replies over core NATS, the registry in a
//! key-value bucket. Needs nats-server 2.11 or newer with JetStream enabled.
//!
//! The only user of `async-nats`. Each file is one part of the surface: [`connect`], [`work`] (publish), [`streams`] (who makes them),
//! [`puller`] and, where a queue has a policy, [`policy`], [`ack`], [`attempts`], [`replies`] and the [`fence`] behind which they have arrived, [`registry`]; bodies that
//! travel by claim are in [`claims`] and [`fetch`], names on the wire in [`subjects`], headers in [`headers`].

mod ack;
mod attempts;
mod claims;
mod connect;
mod control;
mod dead;
mod fence;
mod fetch;
mod fixed_streams;
mod headers;
mod micro;
mod open;
mod policy;
mod puller;
mod pulls;
mod registry;
mod replies;
mod source;
mod streams;
mod subjects;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use trireme_inference::ModelKey;

pub use connect::{NatsLogin, NatsOptions, NatsTls};
pub(crate) use subjects::escape_token;

use connect::{REQUEST_TIMEOUT, limited, taken};
use fence::Fence;
use streams::Needed;

use crate::envelope::MAX_NAME;
use crate::registry::{RegistryEvent, WorkerEntry};
use crate::{
    Attempts, Bus, BusError, Connection, DeadLetter, Inbox, MessageName, Puller, Question, QueueOptions, QueueStatus,
    Queued, Reply, StoredLetter, WorkMessage,
};

/// Changes of the registry and cancellations that a reader may be behind before the bus waits for it.
const WATCH_BACKLOG: usize = 4096;

/// Cancellations that may wait to be sent.
const CANCELLING: usize = 1024;

/// How long something may take that asks the broker several times.
const LONGEST: Duration = Duration::from_secs(30);

/// What headers, route, parameters and ledger take beside the tensors, roughly; should they take more, a claim does it.
const BODY_EXTRA: usize = 64 << 10;

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    connection: watch::Receiver<Connection>,
    /// What the broker did not let this process do last, in its own words: nobody else answers what it refuses.
    refusals: watch::Receiver<String>,
    /// Room for cancellations on their way.
    cancelling: Arc<Semaphore>,
    fence: Fence,
    /// Whether this process makes streams, or asks a gateway for them.
    keeps_streams: bool,
    /// The queues that were declared here.
    queues: Arc<Mutex<HashMap<ModelKey, QueueOptions>>>,
    /// Keeps the answers of [`micro`] going.
    service: Arc<Mutex<Option<async_nats::service::Service>>>,
}

// === impl Nats ===

#[async_trait]
impl Bus for Nats {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        self.queues.lock().insert(model.clone(), options.clone());
        limited(LONGEST, self.need(Needed::Queue(model, options))).await
    }

    async fn publish(&self, message: &WorkMessage) -> Result<Queued, BusError> {
        self.publish_work(message).await
    }

    async fn attempts(&self, message: &MessageName) -> Result<Option<Attempts>, BusError> {
        limited(REQUEST_TIMEOUT, self.noted_attempts(message)).await
    }

    async fn note_attempts(&self, message: &MessageName, attempts: Attempts) -> Result<(), BusError> {
        limited(REQUEST_TIMEOUT, self.publish_attempts(message, attempts)).await
    }

    async fn take_back(&self, queued: &Queued) -> Result<(), BusError> {
        limited(REQUEST_TIMEOUT, work::take_back(self, queued)).await
    }

    fn message_bytes(&self) -> usize {
        self.max_payload().saturating_sub(BODY_EXTRA)
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        let options = self.queues.lock().get(model).cloned().unwrap_or_default();
        match limited(LONGEST, self.is_scheduled(model, &options)).await? {
            true => Ok(Box::new(policy::PolicyPuller::open(self, model, &options).await?)),
            false => {
                let level = options.levels.keys().next().copied().unwrap_or(0);
                Ok(Box::new(puller::NatsPuller::open(self, model, level).await?))
            }
        }
    }

    async fn queue_status(&self, model: &ModelKey, levels: &[u32], policy: bool) -> Result<QueueStatus, BusError> {
        limited(LONGEST, work::queue_status(self, model, levels, policy)).await
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        self.receive_replies(gateway).await
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        self.send_reply(&reply).await
    }

    async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        // Best effort: what would wait for the broker is let go, or a long outage would gather all that ended in it.
        let place = self.cancelling.try_acquire();
        match place {
            Ok(_place) if !self.is_down() => {
                taken(self.client.publish(subjects::CANCEL, request_id.to_owned().into())).await
            }
            _ => Err(BusError::Unreachable("nobody can be told of a cancellation right now".to_owned())),
        }
    }

    async fn cancellations(&self) -> Result<mpsc::Receiver<String>, BusError> {
        let mut messages = self.subscribe_at_once(subjects::CANCEL.to_owned()).await?;
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
        crate::spawn("nats cancellations", async move {
            while let Some(message) = messages.next().await {
                let request_id = std::str::from_utf8(&message.payload).ok().filter(|id| id.len() <= MAX_NAME);
                let Some(request_id) = request_id else {
                    let bytes = message.payload.len();
                    tracing::warn!(bytes, "ignored a malformed cancellation");
                    continue;
                };
                if sender.send(request_id.to_owned()).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    async fn dead_letter(&self, letter: DeadLetter) -> Result<(), BusError> {
        limited(LONGEST, self.publish_dead(letter)).await
    }

    async fn dead_letter_after(&self, number: u64) -> Result<Option<StoredLetter>, BusError> {
        self.dead_after(number).await
    }

    async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError> {
        self.remove_dead(number).await
    }

    async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        limited(LONGEST, registry::announce(self, entry)).await
    }

    async fn withdraw(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        limited(LONGEST, registry::withdraw(self, entry)).await
    }

    async fn watch_registry(&self) -> Result<mpsc::Receiver<RegistryEvent>, BusError> {
        Ok(registry::watch(self.clone()))
    }

    async fn ask(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        control::ask(self, topic, body).await
    }

    async fn questions(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
        control::questions(self, topic).await
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.clone()
    }

    async fn advertise(&self, service: &str, metadata: HashMap<String, String>) -> Result<(), BusError> {
        micro::advertise(self, service, metadata).await
    }

    async fn close(&self) {
        // Sends out what is buffered. A broker that is gone cannot take it: waiting has a limit.
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

    /// Subscribes and waits until the broker has seen it, so that nothing sent from now on is missed.
    async fn subscribe_at_once(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        let subscriber = self.subscribe(subject).await?;
        match self.fence.pass().await? {
            true => Ok(subscriber),
            false => Err(BusError::Unreachable("subscribing: the broker does not answer".to_owned())),
        }
    }

    /// Whether the connection is lost right now.
    fn is_down(&self) -> bool {
        *self.connection.borrow() == Connection::Down
    }

    fn max_payload(&self) -> usize {
        self.client.server_info().max_payload
    }
}
