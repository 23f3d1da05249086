//! The life of a worker: which models it loads, how they come and go, how it announces them, and how it ends.

mod announce;
pub(crate) mod control_mode;
mod drain;
pub(crate) mod folder_args;
pub(crate) mod model_args;
pub mod model_control;
mod models;
mod options;
mod reading;
mod scheduler;
mod turns;
mod worker;

pub use drain::LAST_WORDS;
pub(crate) use options::LOAD_THREADS;
pub use options::{OtherContent, StartError, WorkerOptions};
pub use reading::{find_model, read_again};
pub use worker::Worker;
