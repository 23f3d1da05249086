//! The bus over NATS JetStream: one work-queue stream per model version, replies over core NATS, the registry in a
//! key-value bucket. Needs nats-server 2.11 or newer with JetStream enabled.
//!
//! The only user of `async-nats`. Each file is one part of the surface: [`connect`], [`work`] (publish and declare),
//! [`puller`], [`ack`], [`registry`]; bodies that travel by claim are in [`claims`] and [`fetch`], names on the wire in
//! [`subjects`], headers in [`headers`].

mod ack;
mod claims;
mod connect;
mod control;
mod dead;
mod fetch;
mod headers;
mod levels;
mod micro;
mod puller;
mod pulls;
mod registry;
mod subjects;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, jetstream};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use trireme_inference::{InferError, ModelKey};

pub use connect::{NatsLogin, NatsOptions, NatsTls};
pub(crate) use subjects::escape_token;

use claims::{Claim, Store};

use crate::envelope::MAX_NAME;
use crate::registry::{RegistryEvent, WorkerEntry};
use crate::{
    Bus, BusError, Connection, DeadLetter, Inbox, Puller, Question, QueueOptions, QueueStatus, Reply, StoredLetter,
    WorkMessage, envelope,
};

/// Changes of the registry and cancellations that a reader may be behind before the bus waits for it.
const WATCH_BACKLOG: usize = 4096;

/// Bodies of replies that are fetched at the same time.
const FETCHES_AT_ONCE: usize = 16;

/// How long the body of a reply waits for its gateway, which fetches it at once.
const REPLY_LAPSE: Duration = Duration::from_secs(60);

/// What headers, route, parameters and ledger take beside the tensors, roughly; should they take more, a claim does it.
const BODY_EXTRA: usize = 64 << 10;

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    connection: watch::Receiver<Connection>,
    /// The levels of the queues that were declared here.
    levels: Arc<Mutex<HashMap<ModelKey, Vec<u32>>>>,
    /// Keeps the answers of [`micro`] going.
    service: Arc<Mutex<Option<async_nats::service::Service>>>,
}

// === impl Nats ===

#[async_trait]
impl Bus for Nats {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        self.declare(model, options).await
    }

    async fn publish(&self, message: &WorkMessage) -> Result<(), BusError> {
        self.publish_work(message).await
    }

    fn message_bytes(&self) -> usize {
        self.max_payload().saturating_sub(BODY_EXTRA)
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        let levels = self.levels.lock().get(model).cloned().unwrap_or_else(|| vec![0]);
        if let [level] = levels[..] {
            return Ok(Box::new(puller::NatsPuller::open(self, model, level).await?));
        }
        let mut pullers = Vec::with_capacity(levels.len());
        for level in levels {
            pullers.push((level, puller::NatsPuller::open(self, model, level).await?));
        }
        Ok(Box::new(levels::LevelPuller::new(pullers)))
    }

    async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
        work::queue_status(self, model, levels).await
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        let mut replies = self.subscribe_at_once(subjects::replies_to(gateway)).await?;
        let receiver = Arc::downgrade(&inbox);
        let nats = self.clone();
        crate::spawn("nats inbox", async move {
            // Bodies that have to be fetched hold up nobody else's reply.
            let mut fetching = JoinSet::new();
            loop {
                let message = tokio::select! {
                    message = replies.next() => message,
                    Some(_) = fetching.join_next() => continue,
                };
                let (Some(message), Some(inbox)) = (message, receiver.upgrade()) else { return };
                match headers::read_claim(&message) {
                    Ok(None) => nats.receive_reply(&inbox, &message, &message.payload).await,
                    Ok(Some(claim)) if fetching.len() < FETCHES_AT_ONCE => {
                        let nats = nats.clone();
                        fetching.spawn(async move { nats.fetch_reply(&inbox, &message, claim).await });
                    }
                    Ok(Some(claim)) => nats.fetch_reply(&inbox, &message, claim).await,
                    Err(error) => tracing::warn!(subject = %message.subject, %error, "ignored a malformed reply"),
                }
            }
        });
        Ok(inbox)
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        let mut body = envelope::encode_reply(&reply)?;
        let mut headers = headers::write_reply(&reply)?;
        if claims::wire_size(&headers) + body.len() > self.max_payload() {
            let name = format!("{}/reply/{}", reply.request_id, reply.sequence);
            let name = subjects::escape_token(&name);
            let claim = self.lay_down(Store::Claims, name, &body, Some(REPLY_LAPSE)).await?;
            headers::write_claim(&mut headers, &claim);
            body = Bytes::new();
        }
        let subject = subjects::reply(&reply.gateway, &reply.request_id);
        let published = self.client.publish_with_headers(subject, headers, body).await;
        published.map_err(|error| BusError::Unreachable(error.to_string()))
    }

    async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        let published = self.client.publish(subjects::CANCEL, request_id.to_owned().into()).await;
        published.map_err(|error| BusError::Unreachable(error.to_string()))
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
        self.publish_dead(letter).await
    }

    async fn dead_letter_after(&self, number: u64) -> Result<Option<StoredLetter>, BusError> {
        self.dead_after(number).await
    }

    async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError> {
        self.remove_dead(number).await
    }

    async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        registry::announce(self, entry).await
    }

    async fn withdraw(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        registry::withdraw(self, entry).await
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
        let flushed = tokio::time::timeout(connect::CLOSE_TIMEOUT, self.client.flush()).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the message bus was closed before everything was sent");
        }
        let _ = tokio::time::timeout(connect::CLOSE_TIMEOUT, self.client.drain()).await;
    }
}

impl Nats {
    /// Reads the body of a reply that came by claim.
    async fn fetch_reply(&self, inbox: &Inbox, message: &Message, claim: Claim) {
        match self.redeem(Store::Claims, &claim, None).await {
            Ok(body) => self.receive_reply(inbox, message, &body).await,
            Err(error) => {
                tracing::warn!(subject = %message.subject, %error, "the body of a reply could not be fetched");
                // A reply that was delivered twice may have been read and discarded: then this one is a repetition.
                if let Ok(headers) = headers::read_reply(message) {
                    self.dispatch(
                        inbox,
                        Reply::failed(headers, InferError::unavailable(format!("reply was lost: {error}"))),
                    )
                    .await;
                }
                return;
            }
        }
        self.discard(Store::Claims, claim.name);
    }

    async fn receive_reply(&self, inbox: &Inbox, message: &Message, body: &Bytes) {
        match headers::read_reply(message).and_then(|headers| envelope::decode_reply(headers, body)) {
            Ok(reply) => self.dispatch(inbox, reply).await,
            Err(error) => tracing::warn!(subject = %message.subject, %error, "ignored a malformed reply"),
        }
    }

    async fn dispatch(&self, inbox: &Inbox, reply: Reply) {
        if let Some(given_up) = inbox.dispatch(reply) {
            // Best effort, like every cancellation.
            let _ = self.client.publish(subjects::CANCEL, given_up.into()).await;
        }
    }

    async fn subscribe(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        let subscribed = self.client.subscribe(subject).await;
        subscribed.map_err(|error| BusError::Unreachable(error.to_string()))
    }

    /// Subscribes and waits until the broker has seen it, so that nothing sent from now on is missed.
    async fn subscribe_at_once(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        let subscriber = self.subscribe(subject).await?;
        // The broker reads a connection's lines in order: having answered a question, it knows the subscription before.
        self.jetstream.query_account().await.map_err(|error| work::failure("subscribing", &error))?;
        Ok(subscriber)
    }

    fn max_payload(&self) -> usize {
        self.client.server_info().max_payload
    }
}
