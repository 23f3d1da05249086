//! The bus that joins the stages: four primitives with two implementations, and functions on top of them that are
//! written once.
//!
//! [`Bus`] has four primitives: a *work queue* for each model version, an *inbox* for the replies to each gateway,
//! *last-value stores* ([`store`]) and *topics* ([`topic`]). Two implementations pass one [`conformance`] suite:
//! [`InProcess`] for a single process, and [`Nats`] over NATS JetStream for services. These parts are written once, as
//! functions of `dyn Bus`: [`settings`], [`registry`] and heartbeats, [`attempts`], [`dead`] letters,
//! [`cancel`]lations, states of sequences, and the [`Call`]s of models to other models.
//!
//! Invariants:
//! - A published message is delivered until it is acknowledged, or until it has been delivered
//!   [`QueueOptions::max_deliveries`] times and a worker gives it up ([`Delivery::attempt`] counts the deliveries). How
//!   many times the message was *begun* is counted separately, in notes that outlive a worker ([`attempts`]).
//! - The gateway acknowledges the delivery behind a reply when it has the reply ([`Bus::reply`]). If a reply is lost on
//!   its way, the delivery comes again and its worker makes the reply again.
//! - A message is named by its request and step. A second message with the same name is accepted, but not delivered
//!   while the first one is unfinished (over NATS: within the dedup window).
//! - Every wait has a limit: a full queue refuses, and a publish that the broker does not confirm fails.
//!
//! Not here: how a worker executes a message (`runtime`), and how an error settles a delivery (`runtime::disposition`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use trireme_inference::{ErrorCode, ModelKey};

pub mod attempts;
mod call;
pub mod cancel;
pub mod conformance;
pub mod dead;
mod delivery;
mod envelope;
mod in_process;
mod inbox;
mod message;
mod nats;
pub mod registry;
mod sequences;
pub mod settings;
pub mod store;
pub mod topic;

pub use attempts::{Attempts, MessageName};
pub use call::{ALIVE, Action, Call, CallReplies, LATEST};
pub use dead::{DeadLetter, StoredLetter};
pub use delivery::{AckHandle, Acker, Delivery};
pub use envelope::{
    CONTRACT_VERSION, EnvelopeError, ReplyHeaders, WorkHeaders, decode_reply, decode_work, encode_reply, encode_work,
};
pub use in_process::InProcess;
pub use inbox::{Inbox, PendingReplies};
pub use message::{Answer, Output, Part, Reply, WorkMessage, original_id};
pub use nats::{Deployment, Nats, NatsLogin, NatsOptions, NatsTls, escape_token};
pub use registry::{Heartbeat, ModelState, RegistryEvent, WorkerEntry};
pub use sequences::{KeptStates, SequenceName, SequenceStates};
pub use store::{Bucket, Change, Entry};
pub(crate) use topic::AnswerHandle;
pub use topic::Question;

/// See [`QueueOptions::max_deliveries`].
const DELIVERIES_PER_ATTEMPT: u32 = 10;
const DELIVERIES_TO_SPARE: u32 = 100;

/// Further deliveries, in which a worker can give the message up.
const DELIVERIES_TO_GIVE_UP: u32 = 10;

/// Settings of a queue. One queue serves one model version.
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
    pub max_deliver: u32,
    /// Keep messages on the broker's disk instead of in its memory.
    pub file_storage: bool,
    /// Copies that the broker keeps of each message.
    pub replicas: usize,
    /// Most messages that workers hold together. They are added to [`LevelPolicy::max_waiting`], because the limit of a
    /// stream counts waiting messages and those that workers hold.
    #[serde(default)]
    pub in_hand: u64,
}

/// The policy for messages that wait at a level of a queue, which means that no worker has taken them.
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
    /// The message is refused: [`Puller::overdue`] returns it.
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
            max_deliver: 3,
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
    /// `max_deliver`, because a message may be delivered many times beside other messages that kill its workers.
    pub fn max_deliveries(&self) -> u32 {
        self.max_deliver.saturating_mul(DELIVERIES_PER_ATTEMPT).saturating_add(DELIVERIES_TO_SPARE)
    }

    /// The number of deliveries that the broker makes. There are some more than [`QueueOptions::max_deliveries`], so
    /// that a worker can still give the message up and answer if another worker died before it could.
    pub(crate) fn deliveries_made(&self) -> u32 {
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

/// The place where the broker keeps a message. `None` in process, where messages are found by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued(pub(crate) Option<Kept>);

/// A message's place on a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub stream: String,
    pub sequence: u64,
    /// The claim under which its body was stored, if there is one.
    pub claim: Option<String>,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Messages that wait for a worker, those that wait to be delivered again included.
    pub waiting: u64,
    /// Messages that workers hold.
    pub delivered: u64,
    /// Age of the oldest unsettled message; zero if the queue is empty.
    pub oldest: Duration,
}

// === impl QueueStatus ===

impl QueueStatus {
    /// Adds up two parts of a queue.
    fn and(self, other: QueueStatus) -> QueueStatus {
        QueueStatus {
            waiting: self.waiting + other.waiting,
            delivered: self.delivered + other.delivered,
            oldest: self.oldest.max(other.oldest),
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
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    // === Work queues ===

    /// Makes sure that the queue of `model` exists and has these `options`. Any number of workers may call this at the
    /// same time.
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError>;

    /// Publishes a message into the queue of its route's current step. Once this returns, the queue has the message,
    /// and [`Bus::take_back`] can remove it by the returned value.
    async fn publish(&self, message: &WorkMessage) -> Result<Queued, BusError>;

    /// Removes a message from its queue because no client waits for its answer. It is no error if the message is gone
    /// already.
    async fn take_back(&self, queued: &Queued) -> Result<(), BusError>;

    /// Opens a puller on the queue of `model`, with the options of the last [`Bus::declare_queue`] in this process.
    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError>;

    /// How full the queue of `model` is, its `levels` together.
    async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError>;

    /// The ids of the requests of `gateway` that are in the queue of `model`, waiting or delivered, and not settled.
    async fn unsettled(&self, model: &ModelKey, levels: &[u32], gateway: &str) -> Result<HashSet<String>, BusError>;

    /// The model versions that have a queue, whether or not a worker serves them.
    async fn queues(&self) -> Result<Vec<ModelKey>, BusError>;

    /// Removes the queue of `model` if it is empty. Returns whether it did.
    async fn remove_queue(&self, model: &ModelKey) -> Result<bool, BusError>;

    /// How many bytes of tensors a message may have to travel without a claim.
    fn message_bytes(&self) -> usize;

    // === Inboxes ===

    /// Opens the inbox for replies to `gateway`. Once per gateway name.
    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError>;

    /// Sends a reply to the inbox of its gateway. If the reply ends a delivery, the delivery is entrusted to the
    /// gateway, which acknowledges it when it has the reply. If the bus reports that no such gateway listens, this
    /// process acknowledges it. After an error the caller still has the delivery.
    async fn reply(&self, reply: Reply, delivery: Option<&mut Acker>) -> Result<(), BusError>;

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

    /// Whether the stores of jobs outlive this process. Over NATS they do.
    fn keeps_jobs(&self) -> bool {
        true
    }

    // === Topics ===

    /// Sends a message to every process that listens on `topic`, which is one word. Best effort, without answers.
    async fn say(&self, topic: &str, body: Bytes) -> Result<(), BusError>;

    /// Asks every process that listens on `topic`. Answers arrive until the receiver is dropped; if no process listens,
    /// the receiver ends without answers. Best effort: the asker sets a time limit.
    async fn ask(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError>;

    /// The messages and questions on `topic` that are sent from now on.
    async fn listen(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError>;

    /// Like [`Bus::listen`], but shares the messages with all other processes that listen in turn on `topic`: each message
    /// goes to one of them.
    async fn listen_in_turn(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError>;

    // === The connection ===

    /// Whether the bus can be reached: the present state and its changes.
    fn connection(&self) -> watch::Receiver<Connection>;

    /// Sends buffered messages and closes the connection. No call works afterwards.
    async fn close(&self);
}

/// A worker's subscription to a queue.
#[async_trait]
pub trait Puller: Send {
    /// Waits for at least one delivery and returns at most `room`. It never asks the queue for more than the caller has
    /// room for, so that idle workers get the rest. With a room of 0 it asks for nothing and returns only deliveries
    /// that it had asked for before. Cancel safe.
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError>;

    /// Takes messages that have waited longer than their level allows ([`WaitTimeout::Reject`]) while this worker had
    /// no room. It returns some of them, for the caller to refuse without executing, or none.
    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError>;

    /// Asks for no more work. Deliveries that it had asked for may still be on their way: each call returns those that
    /// came, and `None` when no more will come, after a few seconds at most. Call it until then. Cancel safe.
    async fn stop(&mut self) -> Option<Vec<Delivery>>;
}

/// The error message for a full queue, in Triton's words.
pub const QUEUE_FULL: &str = "Exceeds maximum queue size";

/// The pause before a message is published again to a queue that is full or missing. `time` counts the pauses from 0:
/// the first is about 50 ms, and each is twice the last, up to about a second. The pause is random, so that waiting
/// processes do not all publish at once when a broker comes back.
pub fn queue_pause(time: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);
    (FIRST * 2u32.pow(time.min(10))).min(LONGEST).mul_f64(0.5 + fastrand::f64())
}

/// Why a bus call failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The queue is full.
    #[error("{QUEUE_FULL}")]
    Full {
        /// The queue's model.
        model: ModelKey,
    },
    /// There is no such queue: no worker has ever served the model here, or the broker lost the queue.
    #[error("no worker serves '{model}' on this bus")]
    NoQueue {
        /// The queue's model.
        model: ModelKey,
    },
    /// The message is larger than the bus accepts, even by claim.
    #[error("message of {size} bytes exceeds the {limit} bytes that {taker} takes")]
    TooLarge {
        /// The message's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
        /// The part of the system with the limit, and the flag that changes it.
        taker: &'static str,
    },
    /// The broker has no room for a message that has to travel by claim.
    #[error("stream trireme_claims is full, there is no room for a message of {size} bytes: {QUEUE_FULL}")]
    ClaimsFull {
        /// The message's size in bytes.
        size: usize,
    },
    /// The key has another value than the caller expected.
    #[error("the value of '{key}' was changed by another process")]
    Conflict {
        /// The key.
        key: String,
    },
    /// The store has no room for the value.
    #[error("the store of {store} is full, there is no room for a value of {size} bytes")]
    StoreFull {
        /// The store's name.
        store: &'static str,
        /// The value's size in bytes.
        size: usize,
    },
    /// The broker cannot be reached, or did not confirm in time.
    #[error("message bus is unreachable: {0}")]
    Unreachable(String),
    /// The broker answered with an error.
    #[error("message bus refused {action}: {reason}")]
    Refused {
        /// The action that the broker refused.
        action: &'static str,
        /// The broker's error message.
        reason: String,
    },
    /// The message cannot be encoded.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
}

// === impl BusError ===

impl BusError {
    /// The error code for a request that fails because of this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            BusError::Full { .. }
            | BusError::NoQueue { .. }
            | BusError::ClaimsFull { .. }
            | BusError::StoreFull { .. }
            | BusError::Unreachable(_) => ErrorCode::Unavailable,
            BusError::TooLarge { .. }
            | BusError::Envelope(EnvelopeError::TooMany(_) | EnvelopeError::TensorName(_)) => ErrorCode::InvalidArg,
            BusError::Conflict { .. } | BusError::Refused { .. } | BusError::Envelope(_) => ErrorCode::Internal,
        }
    }
}

/// Starts one of the bus's own tasks. Each ends by itself when the value it serves is dropped, so no task is joined.
fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    use tracing::Instrument;
    #[allow(clippy::disallowed_methods, reason = "the one place where this crate starts tasks")]
    drop(tokio::spawn(task.instrument(tracing::debug_span!("bus", task = name))));
}
