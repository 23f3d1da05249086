//! Settles deliveries with the broker. Settling a delivery also discards the claim that its body came by.
//!
//! Not here: keeping deliveries alive until then (`deliveries`).

use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::{self, AckKind};
use async_trait::async_trait;
use bytes::Bytes;

use super::claims::BodyStore;
use super::connection::Nats;
use super::deliveries::Alive;
use super::limits::taken;
use super::subjects::Ended;
use crate::{AckHandle, BusError};

/// Settles a message that a pull consumer delivered.
pub struct NatsAck {
    nats: Nats,
    message: jetstream::Message,
    /// The claim to discard when the delivery ends.
    claim: Option<String>,
    alive: Alive,
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
}

#[async_trait]
impl AckHandle for NatsAck {
    async fn ack(&self) -> Result<(), BusError> {
        let sent = match &self.claim {
            // The claim is kept until the broker has confirmed: until then the message may be delivered again and needs
            // it.
            Some(claim) => {
                let heard = taken(self.message.double_ack()).await;
                if heard.is_ok() {
                    self.nats.discard(BodyStore::Claims, claim.clone());
                }
                heard
            }
            None => taken(self.message.ack()).await,
        };
        self.alive.end();
        sent
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        let sent = taken(self.message.ack_with(AckKind::Nak((!delay.is_zero()).then_some(delay)))).await;
        self.alive.end();
        sent
    }

    fn abandon(&self) {
        self.alive.end();
        tracing::warn!("delivery was let go without being settled; the broker delivers it again after ack_wait");
    }
}

/// Acknowledges a delivery on behalf of a worker of the release before, which leaves that to the receiver of its reply.
pub async fn acknowledge(nats: &Nats, ended: Ended) {
    let subject = ended.acknowledgement;
    let sent = match ended.claim {
        None => taken(nats.client.publish(subject, Bytes::from_static(b"+ACK"))).await,
        // The claim is kept until the broker has confirmed: until then the message may be delivered again and needs it.
        Some(claim) => {
            let nats = nats.clone();
            crate::spawn("nats acknowledgement", async move {
                if taken(nats.client.request(subject, Bytes::from_static(b"+ACK"))).await.is_ok() {
                    nats.discard(BodyStore::Claims, claim);
                }
            });
            Ok(())
        }
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "not acknowledged; the broker delivers the request again");
    }
}
