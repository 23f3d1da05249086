//! Deliveries in this process: they are kept alive until they are settled with the broker. Settling a delivery also
//! discards the claim that its body came by.
//!
//! A task reports progress on each delivery every third of `ack_wait`. The broker gives a delivery without reports to
//! another worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::Subject;
use async_nats::jetstream::{self, AckKind};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::Nats;
use super::claims::Place;
use super::connect::taken;
use super::headers;
use super::subjects::{self, Ended};
use crate::{AckHandle, BusError};

/// Settles a message that a pull consumer delivered.
pub struct NatsAck {
    nats: Nats,
    message: jetstream::Message,
    /// The claim to discard when the delivery ends.
    claim: Option<String>,
    alive: Alive,
}

/// The deliveries that a connection keeps alive, with the subject that settles each. Clones share them.
#[derive(Clone)]
pub struct Deliveries(Arc<Held>);

struct Held {
    /// The time is when the delivery began.
    by_number: Mutex<HashMap<u64, (Subject, Instant)>>,
    next: AtomicU64,
    /// Milliseconds after which the broker gives a delivery without a progress report to another worker.
    ack_wait: AtomicU64,
}

/// Keeps a delivery alive until it is dropped.
pub struct Alive {
    deliveries: Deliveries,
    number: u64,
}

// === impl Deliveries ===

impl Deliveries {
    /// Starts to keep deliveries alive, until the last clone of the connection is dropped.
    pub fn open(client: async_nats::Client) -> Deliveries {
        let held = Held { by_number: Mutex::default(), next: AtomicU64::new(0), ack_wait: AtomicU64::new(2000) };
        let deliveries = Deliveries(Arc::new(held));
        let held = Arc::downgrade(&deliveries.0);
        crate::spawn("nats progress", async move {
            loop {
                let Some(period) = held.upgrade().map(|held| held.period()) else { return };
                tokio::time::sleep(period).await;
                let Some(subjects) = held.upgrade().map(|held| held.older_than(period / 2)) else { return };
                if client.connection_state() != async_nats::connection::State::Connected {
                    // Reports made without a connection would only delay other messages when it is back.
                    continue;
                }
                for subject in subjects {
                    let _ = taken(client.publish(subject, Bytes::from_static(b"+WPI"))).await;
                }
            }
        });
        deliveries
    }

    /// Sets how long this process's queues wait for a progress report.
    pub fn set_ack_wait(&self, ack_wait: Duration) {
        self.0.ack_wait.store(ack_wait.as_millis() as u64, Ordering::Relaxed);
    }

    /// Keeps a delivery alive.
    pub fn keep(&self, subject: Subject) -> Alive {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.by_number.lock().insert(number, (subject, Instant::now()));
        Alive { deliveries: self.clone(), number }
    }
}

impl Held {
    fn period(&self) -> Duration {
        Duration::from_millis(self.ack_wait.load(Ordering::Relaxed)) / 3
    }

    fn older_than(&self, age: Duration) -> Vec<Subject> {
        let held = self.by_number.lock();
        held.values().filter(|(_, since)| since.elapsed() >= age).map(|(subject, _)| subject.clone()).collect()
    }
}

// === impl Alive ===

impl Alive {
    /// Stops keeping the delivery alive.
    pub fn end(&self) {
        self.deliveries.0.by_number.lock().remove(&self.number);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.end();
    }
}

// === impl NatsAck ===

impl NatsAck {
    /// Keeps a delivery alive from now on.
    pub fn new(nats: &Nats, message: jetstream::Message, claim: Option<String>) -> NatsAck {
        let alive = nats.deliveries.keep(message.reply.clone().unwrap_or_else(|| Subject::from_static("")));
        NatsAck { nats: nats.clone(), message, claim, alive }
    }

    pub fn message(&self) -> &jetstream::Message {
        &self.message
    }

    async fn settle(&self, kind: AckKind) -> Result<(), BusError> {
        let sent = match (&self.claim, matches!(kind, AckKind::Nak(_))) {
            // The claim is kept until the broker has confirmed: until then the message may be delivered again and needs
            // it.
            (Some(claim), false) => {
                let heard = taken(self.message.double_ack_with(kind)).await;
                if heard.is_ok() {
                    self.nats.discard(Place::Claims, claim.clone());
                }
                heard
            }
            _ => taken(self.message.ack_with(kind)).await,
        };
        self.alive.end();
        sent
    }
}

#[async_trait]
impl AckHandle for NatsAck {
    async fn ack(&self) -> Result<(), BusError> {
        self.settle(AckKind::Ack).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        self.settle(AckKind::Nak((!delay.is_zero()).then_some(delay))).await
    }

    async fn term(&self, _reason: &str) -> Result<(), BusError> {
        self.settle(AckKind::Term).await
    }

    fn settled_by(&self) -> Option<String> {
        let acknowledgement = self.message.reply.as_ref()?.to_string();
        let is_part = headers::is_part(&self.message);
        Some(subjects::unheard(&self.nats.unheard, &Ended { acknowledgement, claim: self.claim.clone(), is_part }))
    }

    fn entrust(&self) {
        self.alive.end();
    }

    fn abandon(&self) {
        self.alive.end();
        tracing::warn!("delivery was let go without being settled; the broker delivers it again after ack_wait");
    }
}

/// Acknowledges a delivery on behalf of its worker.
pub async fn acknowledge(nats: &Nats, ended: Ended) {
    let subject = ended.acknowledgement;
    let sent = match ended.claim {
        None => taken(nats.client.publish(subject, Bytes::from_static(b"+ACK"))).await,
        // The claim is kept until the broker has confirmed: until then the message may be delivered again and needs it.
        Some(claim) => {
            let nats = nats.clone();
            crate::spawn("nats acknowledgement", async move {
                if taken(nats.client.request(subject, Bytes::from_static(b"+ACK"))).await.is_ok() {
                    nats.discard(Place::Claims, claim);
                }
            });
            Ok(())
        }
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "not acknowledged; the broker delivers the request again");
    }
}
