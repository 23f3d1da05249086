//! The traits that a bus implements.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use trireme_inference::{ModelKey, UnixMicros};

use crate::delivery::Delivery;
use crate::error::BusError;
use crate::fault::BusFault;
use crate::inbox::Inbox;
use crate::message::{Reply, WorkMessage};
use crate::options::QueueOptions;
use crate::store::{Bucket, Change, Entry};
use crate::topic::TopicMessage;

/// The place where the broker keeps a message. `None` in process, where messages are found by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePosition(pub(crate) Option<StreamSequence>);

/// A message's place on a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamSequence {
    pub stream: String,
    pub sequence: u64,
    /// The claim under which its body was stored, if there is one.
    pub claim: Option<String>,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// By lane ([`Lane::ALL`](trireme_inference::Lane::ALL)): messages that wait for a worker, those that wait to be delivered again
    /// included.
    pub waiting: [u64; 2],
    /// Messages that workers hold.
    pub delivered: u64,
    /// By lane: the age of the oldest message that no worker was given yet; zero if there is none. A message that a worker
    /// holds may have left its step: its result may wait elsewhere in that worker.
    pub oldest: [Duration; 2],
}

// === impl QueueStatus ===

impl QueueStatus {
    /// The messages of both lanes that wait for a worker.
    pub fn all_waiting(&self) -> u64 {
        self.waiting.iter().sum()
    }

    /// Adds up two parts of a queue.
    pub(crate) fn and(self, other: QueueStatus) -> QueueStatus {
        QueueStatus {
            waiting: [0, 1].map(|lane| self.waiting[lane] + other.waiting[lane]),
            delivered: self.delivered + other.delivered,
            oldest: [0, 1].map(|lane| self.oldest[lane].max(other.oldest[lane])),
        }
    }
}

/// Whether the bus can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// It can be reached. The number counts connections: a change from one number to the next means that the connection
    /// was lost and is back.
    Up(u64),
    /// It cannot be reached right now; the bus keeps trying.
    Down,
}

/// The connection between stages: four primitives. The modules of this crate build on them.
///
/// A request goes to a worker, and its reply to the gateway:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// use trireme_bus::{Bus, InProcess, Output, QueueOptions};
///
/// let bus = InProcess::default();
/// bus.declare_queue(&model, &QueueOptions::default()).await?;
/// let (inbox, message) = (bus.open_inbox("gateway").await?, message(&model, 7));
/// let mut replies = inbox.expect(&message);
/// bus.publish(&message).await?;
///
/// let delivery = bus.pull(&model).await?.next(1).await?.remove(0);
/// bus.reply(delivery.message.reply(Ok(Output::default()))).await?;
/// delivery.acker.ack().await?;
///
/// assert_eq!(replies.next().await.outcome, Ok(Output::default()));
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    // === Work queues ===

    /// Makes sure that the queue of `model` exists and has these `options`. Any number of processes may call this at the
    /// same time. A process that may make no streams waits for a limited time until a gateway has made the queue; an error tells the
    /// gateway's reason, if it cannot.
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError>;

    /// Publishes a message into the queue of its route's current step. Once this returns, the queue has the message,
    /// and [`Bus::take_back`] can remove it by the returned value.
    async fn publish(&self, message: &WorkMessage) -> Result<MessagePosition, BusError>;

    /// Removes a message from its queue because no client waits for its answer. It is no error if the message is gone
    /// already.
    async fn take_back(&self, queued: &MessagePosition) -> Result<(), BusError>;

    /// Opens a consumer of the queue of `model`, with the options of the last [`Bus::declare_queue`] in this process.
    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError>;

    /// Opens a consumer of the bulk lane of `model`'s queue. The lane comes into being with its first message; a consumer that is
    /// opened before waits for that.
    async fn pull_bulk(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError>;

    /// The queues that have a bulk lane.
    async fn bulk_queues(&self) -> Result<HashSet<ModelKey>, BusError>;

    /// How full the queue of `model` is, its `levels` together.
    async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError>;

    /// The ids of the requests of `gateway` that are in the queue of `model`, waiting or delivered, and not settled.
    async fn unsettled(&self, model: &ModelKey, levels: &[u32], gateway: &str) -> Result<HashSet<String>, BusError>;

    /// The model versions that have a queue, whether or not a worker serves them, each with the levels of its queue.
    async fn queues(&self) -> Result<BTreeMap<ModelKey, BTreeSet<u32>>, BusError>;

    /// Removes the queue of `model` if it is empty. Returns whether it did.
    async fn remove_queue(&self, model: &ModelKey) -> Result<bool, BusError>;

    /// How many bytes of tensors a message may have to travel without a claim.
    fn message_bytes(&self) -> usize;

    /// Whether workers of other processes may pull from its queues.
    fn is_shared(&self) -> bool {
        true
    }

    // === Inboxes ===

    /// Opens the inbox for replies to `gateway`. Once per gateway name.
    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError>;

    /// Sends a reply to the inbox of its gateway. It is no error if no such gateway subscribes. Whoever sends the reply that ends a
    /// delivery acknowledges the delivery next: a gateway that does not get the reply publishes the request again.
    async fn reply(&self, reply: Reply) -> Result<(), BusError>;

    // === Last-value stores ===

    /// Writes the value of a key; returns its revision. With `expect` it writes only if the key has that revision,
    /// where 0 means that the key has no value; otherwise it returns [`BusError::Conflict`]. The value lapses after
    /// `lapse`.
    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError>;

    /// The value of a key.
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError>;

    /// The value with the lowest revision above `revision`.
    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError>;

    /// Deletes the value of a key, with `expect` as in [`Bus::put`]. Returns whether there was a value.
    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError>;

    /// Follows a bucket: all its values, [`Change::Complete`], then every change, until the receiver is dropped.
    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError>;

    /// The time by which values lapse.
    fn now(&self) -> UnixMicros {
        UnixMicros::now()
    }

    /// Whether the stores of jobs outlive this process. Over NATS they do.
    fn keeps_jobs(&self) -> bool {
        true
    }

    /// The name of the deployment, which others on the same broker do not have; empty for a deployment without a name.
    fn deployment(&self) -> &str {
        ""
    }

    // === Topics ===

    /// Publishes a message to every process that subscribes to `topic`, which is one word. Best effort, without answers.
    async fn publish_to(&self, topic: &str, body: Bytes) -> Result<(), BusError>;

    /// Sends a request to every process that subscribes to `topic`. Answers arrive until the receiver is dropped; if no process
    /// subscribes, the receiver ends without answers. Best effort: the sender sets a time limit.
    async fn request(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError>;

    /// The messages and requests on `topic` that are sent from now on.
    async fn subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError>;

    /// Like [`Bus::subscribe`], but shares the messages with all other queue subscribers of `topic`: each message goes to one
    /// process.
    async fn queue_subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError>;

    // === The connection ===

    /// Whether the bus can be reached: the present state, and its changes from now on.
    fn connection(&self) -> watch::Receiver<Connection>;

    /// The fault that keeps the bus from taking work, if there is one: the present state and its changes.
    fn fault(&self) -> watch::Receiver<Option<BusFault>>;

    /// Sends buffered messages and closes the connection. No call works afterwards.
    async fn close(&self);
}

/// A worker's consumer of a queue.
///
/// A consumer gets no more messages than it has room for:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// # use trireme_bus::{Bus, InProcess, QueueOptions};
/// # let bus = InProcess::default();
/// bus.declare_queue(&model, &QueueOptions::default()).await?;
/// for number in 0..3 {
///     bus.publish(&message(&model, number)).await?;
/// }
/// let mut consumer = bus.pull(&model).await?;
/// let (first, second) = (consumer.next(2).await?, consumer.next(2).await?);
/// assert_eq!((first.len(), second.len()), (2, 1));
/// assert!(first[1].more && !second[0].more);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Consumer: Send {
    /// Waits for at least one delivery and returns at most `room`. It never asks the queue for more than the caller has
    /// room for, so that idle workers get the rest. With a room of 0 it asks for nothing and returns only deliveries
    /// that it had asked for before. Cancel safe.
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError>;

    /// Takes messages that have waited longer than their level allows ([`WaitTimeout::Reject`](crate::WaitTimeout::Reject)) while this worker had
    /// no room. It returns some of them, for the caller to refuse without executing, or none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), trireme_bus::BusError> {
    /// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
    /// # use std::time::Duration;
    /// use trireme_bus::fixtures::message_at;
    /// # use trireme_bus::{Bus, InProcess, LevelPolicy, QueueOptions, WaitTimeout};
    /// # let bus = InProcess::default();
    /// let policy = LevelPolicy { timeout: Some(WaitTimeout::Reject(Duration::ZERO)), ..LevelPolicy::default() };
    /// bus.declare_queue(&model, &QueueOptions { levels: [(1, policy)].into(), ..QueueOptions::default() }).await?;
    /// bus.publish(&message_at(&model, 1, 7)).await?;
    /// let overdue = bus.pull(&model).await?.overdue().await?;
    /// assert_eq!(overdue.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError>;

    /// Asks for no more work. Deliveries that it had asked for may still be on their way: each call returns the ones that
    /// came, and `None` when no more will come, after a few seconds at most. Call it until then. Cancel safe.
    async fn stop(&mut self) -> Option<Vec<Delivery>>;
}
