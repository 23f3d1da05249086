//! Settings of queues: how much they hold, how often a message is delivered, and how long it may wait.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// See [`QueueOptions::max_deliveries`].
const DELIVERIES_PER_ATTEMPT: u32 = 10;
const DELIVERIES_TO_SPARE: u32 = 100;

/// Further deliveries, in which a worker can give the message up.
const DELIVERIES_TO_GIVE_UP: u32 = 10;

/// Settings of a queue. One queue serves one model version.
///
/// A queue that has room for one message:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// use trireme_bus::{Bus, BusError, InProcess, QueueOptions};
///
/// let bus = InProcess::default();
/// let options = QueueOptions { max_messages: 1, ..QueueOptions::default() };
/// bus.declare_queue(&model, &options).await?;
/// bus.publish(&message(&model, 1)).await?;
/// assert!(matches!(bus.publish(&message(&model, 2)).await, Err(BusError::Full { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueOptions {
    /// Its priority levels, 1 highest, each with the policy for the messages that wait there. If empty, there is one
    /// level, 0. Workers take from higher levels first.
    pub levels: BTreeMap<u32, LevelPolicy>,
    /// Most messages at each level, those that workers hold included. The queue refuses any more.
    pub max_messages: u64,
    /// Most bytes at each level, counted in the same way; 0 means as many as the broker has room for. A broker reserves
    /// the bytes.
    pub max_bytes: u64,
    /// How long a delivery may go without acknowledgement or sign of progress before the message is delivered again.
    pub ack_wait: Duration,
    /// How many times a message is begun before a worker gives it up. Deliveries that no worker began do not count.
    #[serde(rename = "max_deliver")]
    pub max_attempts: u32,
    /// Keep messages on the broker's disk instead of in its memory.
    pub file_storage: bool,
    /// Copies that the broker keeps of each message.
    pub replicas: usize,
    /// An allowance for the messages that workers hold together. It is added to [`LevelPolicy::max_waiting`], because the limit of a
    /// stream counts waiting messages and those that workers hold.
    pub in_hand: u64,
}

/// The policy for messages that wait at a level of a queue, which means that no worker has taken them.
///
/// A queue with two levels:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message_at;
/// use trireme_bus::{Bus, InProcess, LevelPolicy, QueueOptions};
///
/// let bus = InProcess::default();
/// let levels = [1, 2].map(|level| (level, LevelPolicy::default())).into();
/// bus.declare_queue(&model, &QueueOptions { levels, ..QueueOptions::default() }).await?;
/// bus.publish(&message_at(&model, 2, 7)).await?;
/// bus.publish(&message_at(&model, 1, 8)).await?;
/// let deliveries = bus.pull(&model).await?.next(2).await?;
/// assert_eq!(deliveries[0].message.level(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelPolicy {
    /// Most waiting messages, if that is less than the queue's `max_messages`. The queue refuses any more.
    pub max_waiting: Option<u64>,
    /// How long each message may wait.
    pub timeout: Option<WaitTimeout>,
}

/// The treatment of a message that waits longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitTimeout {
    /// The message is refused: [`Consumer::overdue`](crate::Consumer::overdue) returns it.
    Reject(Duration),
    /// The message goes behind all others of its level.
    Delay(Duration),
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            levels: BTreeMap::new(),
            max_messages: 10_000,
            max_bytes: 0,
            ack_wait: Duration::from_secs(2),
            max_attempts: 3,
            file_storage: false,
            replicas: 1,
            in_hand: 0,
        }
    }
}

// === impl LevelPolicy ===

impl LevelPolicy {
    /// Whether a message that has waited for this time goes behind all others of its level.
    pub(crate) fn delays(&self, waited: Duration) -> bool {
        matches!(self.timeout, Some(WaitTimeout::Delay(timeout)) if waited > timeout)
    }

    /// Most messages at a level with this policy, those that workers hold included.
    pub(crate) fn max_messages(&self, options: &QueueOptions) -> u64 {
        let waiting = self.max_waiting.map(|waiting| waiting.saturating_add(options.in_hand));
        waiting.unwrap_or(u64::MAX).min(options.max_messages)
    }

    /// How long a message may wait before it is refused.
    pub(crate) fn rejects_after(&self) -> Option<Duration> {
        match self.timeout {
            Some(WaitTimeout::Reject(timeout)) => Some(timeout),
            Some(WaitTimeout::Delay(_)) | None => None,
        }
    }
}

// === impl QueueOptions ===

impl QueueOptions {
    /// How many times a message is delivered before a worker gives it up, begun or not. The number is far above
    /// `max_attempts`, because a message may be delivered many times beside other messages that kill its workers.
    pub fn max_deliveries(&self) -> u32 {
        self.max_attempts.saturating_mul(DELIVERIES_PER_ATTEMPT).saturating_add(DELIVERIES_TO_SPARE)
    }

    /// The `max_deliver` of the broker's consumer: the number of deliveries that the broker makes. There are some more than [`QueueOptions::max_deliveries`], so
    /// that a worker can still give the message up and answer if another worker died before it could.
    pub(crate) fn broker_max_deliver(&self) -> u32 {
        self.max_deliveries().saturating_add(DELIVERIES_TO_GIVE_UP)
    }

    /// Its levels, the highest first.
    pub(crate) fn policies(&self) -> Vec<(u32, LevelPolicy)> {
        match self.levels.is_empty() {
            true => vec![(0, LevelPolicy::default())],
            false => self.levels.iter().map(|(&level, &policy)| (level, policy)).collect(),
        }
    }
}
