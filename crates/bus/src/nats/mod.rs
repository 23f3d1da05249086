//! The bus over NATS JetStream: one work-queue stream per model version, replies over core NATS, the registry in a
//! key-value bucket. Needs nats-server 2.11 or newer with JetStream enabled.
//!
//! The only user of `async-nats`. Each file is one part of the surface: [`connect`], [`work`] (publish and declare),
//! [`puller`], [`registry`]; names on the wire are in [`subjects`], headers in [`headers`].

mod connect;
mod control;
mod headers;
mod micro;
mod puller;
mod pulls;
mod registry;
mod subjects;
mod work;

use std::collections::HashMap;
use std::sync::Arc;

use async_nats::jetstream;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use trireme_inference::ModelKey;

pub use connect::{NatsLogin, NatsOptions, NatsTls};
pub(crate) use subjects::escape_token;

use crate::registry::{RegistryEvent, WorkerEntry};
use crate::{
    Bus, BusError, Connection, DeadLetter, Inbox, Puller, Question, QueueOptions, QueueStatus, Reply, WorkMessage,
    envelope,
};

/// Changes of the registry and cancellations that a reader may be behind before the bus waits for it.
const WATCH_BACKLOG: usize = 4096;

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    connection: watch::Receiver<Connection>,
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

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        Ok(Box::new(puller::NatsPuller::open(self, model).await?))
    }

    async fn queue_status(&self, model: &ModelKey) -> Result<QueueStatus, BusError> {
        work::queue_status(self, model).await
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        let mut replies = self.subscribe_at_once(subjects::replies_to(gateway)).await?;
        let (receiver, client) = (Arc::downgrade(&inbox), self.client.clone());
        crate::spawn("nats inbox", async move {
            while let Some(message) = replies.next().await {
                let Some(inbox) = receiver.upgrade() else { return };
                let reply =
                    headers::read_reply(&message).and_then(|headers| envelope::decode_reply(headers, &message.payload));
                match reply {
                    Ok(reply) => {
                        if let Some(given_up) = inbox.dispatch(reply) {
                            // Best effort, like every cancellation.
                            let _ = client.publish(subjects::CANCEL, given_up.into()).await;
                        }
                    }
                    Err(error) => tracing::warn!(subject = %message.subject, %error, "ignored a malformed reply"),
                }
            }
        });
        Ok(inbox)
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        let body = envelope::encode_reply(&reply)?;
        let subject = subjects::reply(&reply.gateway, &reply.request_id);
        let size = body.len();
        let published = self.client.publish_with_headers(subject, headers::write_reply(&reply)?, body).await;
        published.map_err(|error| match error.kind() {
            async_nats::PublishErrorKind::MaxPayloadExceeded => {
                BusError::TooLarge { model: "reply".to_owned(), size, limit: self.max_payload() }
            }
            _ => BusError::Unreachable(error.to_string()),
        })
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
                let Ok(request_id) = std::str::from_utf8(&message.payload) else { continue };
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
