//! Settling deliveries with the broker, and with them the claims that they came by.

use std::time::Duration;

use async_nats::jetstream::{self, AckKind};
use async_trait::async_trait;

use super::Nats;
use super::claims::Store;
use super::connect::taken;
use crate::{AckHandle, BusError};

/// Settles a message that a pull consumer delivered.
pub struct NatsAck {
    pub nats: Nats,
    pub message: jetstream::Message,
    /// The claim that ends with the delivery.
    pub claim: Option<String>,
}

// === impl NatsAck ===

impl NatsAck {
    async fn send(&self, kind: AckKind) -> Result<(), BusError> {
        taken(self.message.ack_with(kind)).await
    }

    /// The last word about a message. Its claim is kept until the broker has heard it: delivered again, the message needs
    /// the claim again.
    async fn end(&self, kind: AckKind) -> Result<(), BusError> {
        let Some(claim) = &self.claim else { return self.send(kind).await };
        taken(self.message.double_ack_with(kind)).await?;
        self.nats.discard(Store::Claims, claim.clone());
        Ok(())
    }
}

#[async_trait]
impl AckHandle for NatsAck {
    async fn ack(&self) -> Result<(), BusError> {
        self.end(AckKind::Ack).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        self.send(AckKind::Nak((!delay.is_zero()).then_some(delay))).await
    }

    async fn term(&self, _reason: &str) -> Result<(), BusError> {
        self.end(AckKind::Term).await
    }

    async fn in_progress(&self) -> Result<(), BusError> {
        // What is said while nobody listens is only in the way when the connection is back: it is said again soon.
        if self.nats.is_down() {
            return Ok(());
        }
        self.send(AckKind::Progress).await
    }

    fn abandon(&self) {
        tracing::warn!("delivery was let go without being settled; the broker delivers it again after ack_wait");
    }
}
