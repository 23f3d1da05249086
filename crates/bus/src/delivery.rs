//! A message handed to a worker, and the one right to settle it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{BusError, WorkMessage};

/// A message as a worker receives it.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: WorkMessage,
    /// Which delivery of the message this is, counted from 1, whether the others began it or not.
    pub attempt: u32,
    /// Settles it.
    pub acker: Acker,
}

/// How a bus settles one delivery.
#[async_trait]
pub trait AckHandle: Send + Sync {
    /// The work is done: forget the message.
    async fn ack(&self) -> Result<(), BusError>;
    /// Not now: deliver it again after `delay`.
    async fn nak(&self, delay: Duration) -> Result<(), BusError>;
    /// Never again: forget the message although it was not done.
    async fn term(&self, reason: &str) -> Result<(), BusError>;
    /// Still at it: start the wait for acknowledgement anew.
    async fn in_progress(&self) -> Result<(), BusError>;
    /// The worker let go of the delivery without settling it.
    fn abandon(&self);
}

/// The right to settle a delivery. Settling takes it by value, so a delivery is settled at most once. Dropped unsettled,
/// the message is delivered again: at once in process, after `ack_wait` over NATS.
pub struct Acker {
    handle: Option<Arc<dyn AckHandle>>,
}

// === impl Acker ===

impl Acker {
    /// Wraps a bus's handle.
    pub fn new(handle: Arc<dyn AckHandle>) -> Acker {
        Acker { handle: Some(handle) }
    }

    /// The work is done and handed on: forget the message.
    pub async fn ack(mut self) -> Result<(), BusError> {
        self.take().ack().await
    }

    /// Deliver the message again after `delay`.
    pub async fn nak(mut self, delay: Duration) -> Result<(), BusError> {
        self.take().nak(delay).await
    }

    /// Forget the message although it was not done.
    pub async fn term(mut self, reason: &str) -> Result<(), BusError> {
        self.take().term(reason).await
    }

    /// What keeps the delivery alive while it is worked on, without the right to settle it.
    pub fn handle(&self) -> Arc<dyn AckHandle> {
        self.handle.clone().expect("present until settled, and settling takes self")
    }

    fn take(&mut self) -> Arc<dyn AckHandle> {
        self.handle.take().expect("present until settled, and settling takes self")
    }
}

impl Drop for Acker {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.abandon();
        }
    }
}

impl std::fmt::Debug for Acker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acker")
    }
}
