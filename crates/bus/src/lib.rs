//! The bus that joins the stages: four primitives with two implementations, and functions on top of them that are
//! written once.
//!
//! [`Bus`] has four primitives: a *work queue* for each model version, an *inbox* for the replies to each gateway,
//! *last-value stores* ([`store`]) and *topics* ([`topic`]). Two implementations pass one suite (`tests/conformance`):
//! [`InProcess`] for a single process, and [`Nats`] over NATS JetStream for services. These parts are written once, as
//! functions of `dyn Bus`: [`settings`], [`registry`] and heartbeats, [`attempts`], [`dead`] letters,
//! [`cancel`]lations, states of sequences, and the [`Call`]s of models to other models.
//!
//! Invariants:
//! - A published message is delivered until it is acknowledged, or until it has been delivered
//!   [`QueueOptions::max_deliveries`] times and a worker gives it up ([`Delivery::deliveries`] counts them). How
//!   many times the message was *begun* is counted separately, in notes that outlive a worker ([`attempts`]).
//! - A worker acknowledges a delivery after it has sent the reply ([`Bus::reply`]). If the reply is lost on its way, the gateway
//!   finds its request in no queue ([`Bus::unsettled`]) and publishes it again.
//! - A message is named by its request and step. A second message with the same name is accepted, but not delivered
//!   while the first one is unfinished (over NATS: within the dedup window).
//! - Every wait has a limit: a full queue refuses, and a publish that the broker does not confirm fails.
//!
//! Not here: how a worker executes a message (`runtime`), and how an error settles a delivery (`runtime::settle`).

pub mod attempts;
mod bus;
mod call;
pub mod cancel;
pub mod dead;
mod delivery;
mod envelope;
mod error;
mod fault;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod in_process;
mod inbox;
mod message;
mod nats;
mod options;
pub mod registry;
mod sequences;
pub mod settings;
pub mod store;
mod tasks;
mod token;
pub mod topic;
mod waiting_rooms;

pub use attempts::{AttemptNote, MessageName};
pub(crate) use bus::StreamSequence;
pub use bus::{Bus, Connection, Consumer, MessagePosition, QueueStatus};
pub use call::{ALIVE, Call, CallReplies, LATEST};
pub use dead::{DeadLetter, StoredLetter};
pub use delivery::{AckHandle, Acker, Delivery};
pub use envelope::{
    CONTRACT_VERSION, EnvelopeError, ReplyHeaders, WorkHeaders, decode_body, decode_reply, decode_work, encode_reply,
    encode_work,
};
pub use error::BusError;
pub use fault::{BusFault, FaultKind};
pub use in_process::{InProcess, KeptStores};
pub use inbox::{Inbox, PendingReplies};
pub use message::{AnswerForm, Output, Part, Reply, SequenceStates, WorkMessage, original_id};
pub use nats::{
    Counted, Deployment, DeploymentName, Examination, Nats, NatsLogin, NatsOptions, NatsTls, NatsUrl, NeededStream,
    STORES,
};
pub use options::{LevelPolicy, QueueOptions, WaitTimeout};
pub use registry::{
    Content, ContentChoice, ContentQuestion, Heartbeat, ModelState, RegistryEvent, RegistryEvents, Verdict, WorkerEntry,
};
pub use sequences::{KeptStates, SequenceName};
pub use store::{Bucket, Change, Entry};
pub(crate) use tasks::spawn;
pub use tasks::{Reopening, queue_pause, room_pause};
pub use token::escape_token;
pub(crate) use topic::RespondHandle;
pub use topic::{TopicMessage, TopicValues};
pub use waiting_rooms::{First, WaitingRooms};
