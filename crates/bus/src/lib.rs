//! What joins the stages: queues of work, replies to gateways, the registry of workers, cancellations.
//!
//! [`Bus`] is the whole surface. Two implementations pass one [`conformance`] suite: [`InProcess`] for a single process,
//! and [`Nats`] over NATS JetStream for services. Everything above this crate is the same on both.
//!
//! Invariants:
//! - A published message is delivered until it is acknowledged, or so often ([`QueueOptions::max_deliveries`]) that it has to
//!   be given up ([`Delivery::attempt`] says which time it is). How often it was *begun* is another matter: workers note that
//!   where it outlives them ([`Bus::note_attempts`]).
//! - A message is named by its request and step. A second one of the same name is accepted and not delivered while the
//!   first is unfinished (over NATS: within the dedup window).
//! - Nothing waits without a limit: a full queue refuses, a publish that the broker does not confirm fails.
//!
//! Not here: what a message makes a worker do (`runtime`), what an error does to a delivery (`runtime::disposition`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use trireme_inference::{ErrorCode, ModelKey};

pub mod conformance;
mod control;
mod delivery;
mod envelope;
mod in_process;
mod inbox;
mod message;
mod nats;
mod registry;

pub(crate) use control::AnswerHandle;
pub use control::Question;
pub use delivery::{AckHandle, Acker, Delivery};
pub use envelope::{
    CONTRACT_VERSION, EnvelopeError, ReplyHeaders, WorkHeaders, decode_reply, decode_work, encode_reply, encode_work,
};
pub use in_process::InProcess;
pub use inbox::{Arrival, Inbox, PendingReplies};
pub use message::{
    Answer, Attempts, DeadLetter, MessageName, Output, Part, Reply, StoredLetter, WorkMessage, original_id,
};
pub use nats::{Nats, NatsLogin, NatsOptions, NatsTls};
pub use registry::{ModelState, RegistryEvent, WorkerEntry};

/// See [`QueueOptions::max_deliveries`].
const DELIVERIES_PER_ATTEMPT: u32 = 10;
const DELIVERIES_TO_SPARE: u32 = 100;

/// Deliveries beyond those, for giving up.
const DELIVERIES_TO_GIVE_UP: u32 = 10;

/// How a queue behaves. One queue serves one model version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueOptions {
    /// Its priority levels, 1 highest, each with what holds for the messages that wait there. Empty is one level, 0. Higher
    /// levels are taken first.
    pub levels: BTreeMap<u32, LevelPolicy>,
    /// Most messages at each level, those being worked on included unless they are counted apart
    /// ([`QueueOptions::has_policy`]). One more is refused.
    pub max_messages: u64,
    /// Most bytes at each level, likewise.
    pub max_bytes: u64,
    /// How long a delivery may stay without acknowledgement or sign of progress before it is delivered again.
    pub ack_wait: Duration,
    /// How often a message is begun before it is given up. Deliveries that were never begun do not count.
    pub max_deliver: u32,
    /// Keep messages on the broker's disk instead of in its memory.
    pub file_storage: bool,
    /// Copies the broker keeps of each message.
    pub replicas: usize,
}

/// What holds for the messages that wait at a level of a queue, which are those that no worker has taken to execute them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelPolicy {
    /// Most of them, where that is less than the queue's `max_messages`. One more is refused.
    pub max_waiting: Option<u64>,
    /// How long each may wait.
    pub timeout: Option<WaitTimeout>,
}

/// What becomes of a message that waits longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitTimeout {
    /// It is refused: [`Puller::overdue`] gives it.
    Reject(Duration),
    /// It goes behind all others of its level.
    Delay(Duration),
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            levels: BTreeMap::new(),
            max_messages: 10_000,
            max_bytes: 64 << 20,
            ack_wait: Duration::from_secs(2),
            max_deliver: 3,
            file_storage: false,
            replicas: 1,
        }
    }
}

// === impl LevelPolicy ===

impl LevelPolicy {
    /// Whether a message that has waited so long goes behind all others of its level.
    pub(crate) fn delays(&self, waited: Duration) -> bool {
        matches!(self.timeout, Some(WaitTimeout::Delay(timeout)) if waited > timeout)
    }

    /// How long a message waits at most before it is refused.
    pub(crate) fn rejects_after(&self) -> Option<Duration> {
        match self.timeout {
            Some(WaitTimeout::Reject(timeout)) => Some(timeout),
            Some(WaitTimeout::Delay(_)) | None => None,
        }
    }
}

// === impl QueueOptions ===

impl QueueOptions {
    /// How often a message is delivered before it is given up, begun or not: far more often than it may be begun, because a
    /// message that waits beside others of which each kills its worker is not to blame.
    pub fn max_deliveries(&self) -> u32 {
        self.max_deliver.saturating_mul(DELIVERIES_PER_ATTEMPT).saturating_add(DELIVERIES_TO_SPARE)
    }

    /// Deliveries that are made: some more, so that a worker can give the message up with an answer even if another died
    /// before it could.
    pub(crate) fn deliveries_made(&self) -> u32 {
        self.max_deliveries().saturating_add(DELIVERIES_TO_GIVE_UP)
    }

    /// Whether waiting and being executed are two things in it: there is an order among those that wait, or a limit to them.
    pub fn has_policy(&self) -> bool {
        self.levels.len() > 1 || self.levels.values().any(|policy| *policy != LevelPolicy::default())
    }

    /// Its levels, the highest first.
    pub(crate) fn policies(&self) -> Vec<(u32, LevelPolicy)> {
        match self.levels.is_empty() {
            true => vec![(0, LevelPolicy::default())],
            false => self.levels.iter().map(|(&level, &policy)| (level, policy)).collect(),
        }
    }
}

/// Where the broker keeps a message. Within one process messages go by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued(pub(crate) Option<Kept>);

/// A message's place on a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub stream: String,
    pub sequence: u64,
    /// The claim under which its body was laid down, if it was.
    pub claim: Option<String>,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Messages that nobody has been given yet, or that wait to be given again.
    pub waiting: u64,
    /// Messages that workers have in hand.
    pub delivered: u64,
    /// Age of the oldest message that is not settled; zero when there is none.
    pub oldest: Duration,
}

// === impl QueueStatus ===

impl QueueStatus {
    /// Two parts of a queue together.
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
    /// It can; the number counts connections made, so a change from one to the next means "lost and back".
    Up(u64),
    /// It cannot right now; the bus keeps trying.
    Down,
}

/// The connection between stages.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// Makes sure that the queue of `model` exists and is as `options` have it. Any number of workers may do so at the same
    /// time.
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError>;

    /// Puts a message into the queue of its route's current step. Once this returns, the queue has it, and it can be taken
    /// back by what is given.
    async fn publish(&self, message: &WorkMessage) -> Result<Queued, BusError>;

    /// Takes a message out of its queue that nobody waits for any more. One that is not there any more is no error.
    async fn take_back(&self, queued: &Queued) -> Result<(), BusError>;

    /// How often a message was begun, as [`Bus::note_attempts`] said last. `None`: nobody noted it, or that is forgotten.
    async fn attempts(&self, message: &MessageName) -> Result<Option<Attempts>, BusError>;

    /// Notes how often a message was begun, for whoever it is delivered to next. Once this returns, the note outlives this
    /// process where the message does, but not a restart of the broker; it is forgotten with the message or when its
    /// deadline has passed.
    async fn note_attempts(&self, message: &MessageName, attempts: Attempts) -> Result<(), BusError>;

    /// How many bytes of tensors a message may have that travels as it is, without a claim.
    fn message_bytes(&self) -> usize;

    /// Takes part in working on the queue of `model`, which is as [`Bus::declare_queue`] was last given it here.
    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError>;

    /// How full the queue of `model` is, `levels` of it together, and whether it has a policy
    /// ([`QueueOptions::has_policy`]).
    async fn queue_status(&self, model: &ModelKey, levels: &[u32], policy: bool) -> Result<QueueStatus, BusError>;

    /// Opens the inbox that replies to `gateway` arrive in. Once per gateway name.
    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError>;

    /// Sends a reply to the inbox it is addressed to, and returns when no loss of this connection can lose it any more: what
    /// it answers may be acknowledged. A gateway that is gone is no error: nobody waits any more.
    async fn reply(&self, reply: Reply) -> Result<(), BusError>;

    /// Tells every worker that nobody waits for this request any more. Best effort. In process it also takes its messages
    /// out of their queues.
    async fn cancel(&self, request_id: &str) -> Result<(), BusError>;

    /// The ids of cancelled requests, from now on.
    async fn cancellations(&self) -> Result<mpsc::Receiver<String>, BusError>;

    /// Sets a message aside that could not be worked on.
    async fn dead_letter(&self, letter: DeadLetter) -> Result<(), BusError>;

    /// The first message set aside whose number is greater than `number`.
    async fn dead_letter_after(&self, number: u64) -> Result<Option<StoredLetter>, BusError>;

    /// Forgets a message that was set aside. Whether it was there.
    async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError>;

    /// Publishes or renews a worker's registry entry; it lapses after [`WorkerEntry::TIME_TO_LIVE`].
    async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError>;

    /// Takes a worker's entry back.
    async fn withdraw(&self, entry: &WorkerEntry) -> Result<(), BusError>;

    /// The registry: first every entry there is, then every change. After a reconnect entries may come again. An entry
    /// that lapses is no event: whoever watches forgets it [`WorkerEntry::TIME_TO_LIVE`] after its last `Put`.
    async fn watch_registry(&self) -> Result<mpsc::Receiver<RegistryEvent>, BusError>;

    /// Asks everybody who listens on `topic`, which is one word. Answers arrive until the receiver is dropped; without
    /// anybody who listens there are none and the receiver ends. Best effort: who asks sets a limit of time.
    async fn ask(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError>;

    /// The questions that are asked on `topic`, from now on.
    async fn questions(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError>;

    /// Whether the bus can be reached, now and from now on.
    fn connection(&self) -> watch::Receiver<Connection>;

    /// Makes this process known to people who look at the bus: its service and whatever else describes it. Nothing in the
    /// pipeline depends on it, and a bus without such a place does nothing.
    async fn advertise(&self, service: &str, metadata: HashMap<String, String>) -> Result<(), BusError>;

    /// Sends out what is still buffered and closes. Nothing works afterwards.
    async fn close(&self);
}

/// A worker's hold on a queue.
#[async_trait]
pub trait Puller: Send {
    /// Waits for work: at least one delivery, at most `room`. Never asks for more from the queue than the caller has room
    /// for, so that idle peers get the rest. With a room of 0 it asks for nothing, and only what was asked for before comes.
    /// Cancel safe.
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError>;

    /// What has waited for longer than its level allows ([`WaitTimeout::Reject`]) while this worker had no room: some of it,
    /// to be refused and not executed. Nothing when there is none.
    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError>;

    /// Asks for no more work. What was asked for before may be on its way here: gives it as it comes, and `None` when nothing
    /// will come any more, which takes seconds at most. To be called until then. Cancel safe.
    async fn stop(&mut self) -> Option<Vec<Delivery>>;
}

/// What is said of a full queue, in Triton's words.
pub const QUEUE_FULL: &str = "Exceeds maximum queue size";

/// How long to wait before a message is offered again to a queue that its workers have to make anew, the `time`th time,
/// from 0: 50 ms, and twice that each time up to a second, so that all who wait are no storm on a broker that comes back.
pub fn queue_pause(time: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);
    (FIRST * 2u32.pow(time.min(10))).min(LONGEST)
}

/// Why the bus did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The queue holds as much as it may.
    #[error("{QUEUE_FULL}")]
    Full {
        /// The queue's model.
        model: ModelKey,
    },
    /// No queue of this name: no worker has ever served the model here, or the broker lost it.
    #[error("no worker serves '{model}' on this bus")]
    NoQueue {
        /// The queue's model.
        model: ModelKey,
    },
    /// The message is larger than the bus takes, by claim as well.
    #[error("message of {size} bytes exceeds the {limit} bytes that the message bus takes")]
    TooLarge {
        /// The message's size in bytes.
        size: usize,
        /// The most the bus takes, in bytes.
        limit: usize,
    },
    /// The broker has no room for a message that has to travel by claim.
    #[error("stream trireme_claims is full, there is no room for a message of {size} bytes: {QUEUE_FULL}")]
    ClaimsFull {
        /// The message's size in bytes.
        size: usize,
    },
    /// The broker cannot be reached, or did not confirm in time.
    #[error("message bus is unreachable: {0}")]
    Unreachable(String),
    /// The broker answered with an error.
    #[error("message bus refused {action}: {reason}")]
    Refused {
        /// What was asked of it.
        action: &'static str,
        /// Its words.
        reason: String,
    },
    /// The message cannot be put on the wire.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
}

// === impl BusError ===

impl BusError {
    /// The code for a request that fails because of this.
    pub fn code(&self) -> ErrorCode {
        match self {
            BusError::Full { .. }
            | BusError::NoQueue { .. }
            | BusError::ClaimsFull { .. }
            | BusError::Unreachable(_) => ErrorCode::Unavailable,
            BusError::TooLarge { .. }
            | BusError::Envelope(EnvelopeError::TooMany(_) | EnvelopeError::TensorName(_)) => ErrorCode::InvalidArg,
            BusError::Refused { .. } | BusError::Envelope(_) => ErrorCode::Internal,
        }
    }
}

/// Runs one of the bus's own tasks. They end by themselves when what they serve is gone, so nobody joins them.
fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    use tracing::Instrument;
    #[allow(clippy::disallowed_methods, reason = "the one place where this crate starts tasks")]
    drop(tokio::spawn(task.instrument(tracing::debug_span!("bus", task = name))));
}
