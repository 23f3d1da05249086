//! The records of jobs and files, as the store has them.

mod attempts;
mod batch;
mod file;
mod job;
mod object;
mod request;
mod terms;

pub(crate) use attempts::{ATTEMPTS, Attempts};
pub(crate) use batch::Checkpoint;
pub use batch::{Batch, BatchState, Counts, RowRequest, Usage};
pub use file::File;
pub(crate) use file::Purpose;
pub(crate) use job::{Asked, Record, Step};
pub(crate) use object::{Body, Object};
pub use request::{Request, RequestState};
pub use terms::{Webhook, WebhookState};
