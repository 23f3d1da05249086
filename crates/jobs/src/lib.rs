//! Durable work: requests that are answered later, files, and batches over files.
//!
//! A job is a record in the store [`Bucket::Jobs`] and its bytes in [`Bucket::Objects`]. Records are replaced by compare
//! and swap only, so that two gateways cannot both change a job. A record names the gateway that owns the job: the owner
//! runs the job, and when the owner's heartbeats have stopped another gateway takes the job over. The calls of a job go
//! through [`Execute`], as if a client had sent them.
//!
//! Invariants:
//! - A job that was accepted is in the store, and stays there until it has ended and its time to live is over.
//! - A job ends once: the record of its end is written over the record that its owner has read.
//! - A batch writes its output in parts before it moves its checkpoint. After a crash it begins again at the checkpoint and
//!   writes the same parts again, so no line is missing and none is there twice.
//! - Bytes are deleted when no record names them, and no record that was not confirmed may name them.
//!
//! Not here: HTTP (`gateway`), the stores (`bus`).
//!
//! [`Bucket::Jobs`]: trireme_bus::Bucket::Jobs
//! [`Bucket::Objects`]: trireme_bus::Bucket::Objects

mod batch;
mod batches;
mod call;
mod clock;
mod columns;
mod driver;
mod error;
mod files;
mod id;
mod index;
mod jobs;
mod lines;
mod lists;
mod objects;
mod outcomes;
mod pace;
mod quotas;
mod record;
mod requests;
mod reserve;
mod room;
mod statistics;
mod store;
mod turns;
mod uploads;
mod webhook;

pub use batches::NewBatch;
pub use call::{CallOf, Execute, Executed, JobAnswer, JobCall, WebhookAnswer, WebhookCall};
pub use clock::now;
pub use error::JobError;
pub use files::{Arrival, Content};
pub use index::Page;
pub use jobs::{Client, JobOptions, Jobs, Options};
pub use lists::Listed;
pub use quotas::Quotas;
pub use record::{Batch, BatchState, Counts, File, Request, RequestState, RowRequest, Usage, Webhook, WebhookState};
pub use requests::Accepted;
pub use statistics::{Load, Statistics, WebhookCounts};
pub use uploads::NewUpload;
