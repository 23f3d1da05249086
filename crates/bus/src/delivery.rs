//! A message delivered to a worker, and the right to settle it once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{BusError, WorkMessage};

/// A message as a worker receives it.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: WorkMessage,
    /// How many times the message was delivered, this time included. Deliveries that no worker began count too.
    pub deliveries: u32,
    /// Whether further messages of its lane waited in the queue when it was delivered.
    pub more: bool,
    /// Settles it.
    pub acker: Acker,
}

/// How a bus settles one delivery.
#[async_trait]
pub trait AckHandle: Send + Sync {
    /// The work is done, or of no use any more: forget the message.
    async fn ack(&self) -> Result<(), BusError>;
    /// Not now: deliver it again after `delay`.
    async fn nak(&self, delay: Duration) -> Result<(), BusError>;
    /// The worker dropped the delivery without settling it.
    fn abandon(&self);
}

/// The right to settle a delivery. Settling takes it by value, so a delivery is settled at most once. If it is dropped
/// unsettled, the message is delivered again: at once in process, after `ack_wait` over NATS.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// # use std::time::Duration;
/// use trireme_bus::fixtures::message;
/// # use trireme_bus::{Bus, InProcess, QueueOptions, QueueStatus};
/// # let bus = InProcess::default();
/// # bus.declare_queue(&model, &QueueOptions::default()).await?;
/// bus.publish(&message(&model, 7)).await?;
/// let mut consumer = bus.pull(&model).await?;
/// let first = consumer.next(1).await?.remove(0);
/// first.acker.nak(Duration::ZERO).await?;
///
/// let second = consumer.next(1).await?.remove(0);
/// assert_eq!((first.deliveries, second.deliveries), (1, 2));
/// second.acker.ack().await?;
/// assert_eq!(bus.queue_status(&model, &[0]).await?, QueueStatus::default());
/// # Ok(())
/// # }
/// ```
pub struct Acker {
    handle: Option<Arc<dyn AckHandle>>,
}

// === impl Acker ===

impl Acker {
    /// Wraps a bus's handle.
    pub fn new(handle: Arc<dyn AckHandle>) -> Acker {
        Acker { handle: Some(handle) }
    }

    /// The work is done and its result passed on: forget the message.
    pub async fn ack(mut self) -> Result<(), BusError> {
        self.take().ack().await
    }

    /// Deliver the message again after `delay`.
    pub async fn nak(mut self, delay: Duration) -> Result<(), BusError> {
        self.take().nak(delay).await
    }

    /// A handle that can return the delivery to the queue when the worker that holds the `Acker` hangs.
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
