//! The life of a worker: which models it loads, how they come and go, how it announces them, and how it ends.

mod announce;
pub(crate) mod control_mode;
mod drain;
pub(crate) mod folder_args;
pub(crate) mod model_args;
pub mod model_control;
mod models;
mod options;
mod scheduler;
mod worker;

pub use drain::LAST_WORDS;
pub use options::{OtherContent, StartError, WorkerOptions};
pub use worker::Worker;
