//! The python stage: hosts models that are a `model.py` of Triton's python backend.
//!
//! Each instance is a child process: the interpreter of the model's own environment, which runs the package `trireme_python`
//! (in `python/`, part of this binary). A worker speaks with it over a Unix socket ([`frame`], [`message`]; docs/stage-protocol.md).
//! The worker keeps all that makes a stage: queue, batches, deadlines, acknowledgements.
//!
//! Invariants:
//! - What a model's code gives or raises is the answer to its request; a value of it ends no child ([`salvage`]).
//! - A child that ends takes no request with it: its requests fail with UNAVAILABLE, which the harness tries again.
//! - A child that ends is started again, with a pause that grows; until it is there its instance takes no work ([`slot`]).
//! - No child outlives its worker, and none sees of the worker's environment more than the allow list ([`environment`]).
//! - Nothing runs unless it was allowed ([`AllowPython`]).

mod archive;
mod args;
mod backend;
mod batch;
mod child;
mod decoupled;
pub mod environment;
pub mod frame;
mod memory;
pub mod message;
mod nested;
mod package;
mod policy;
mod process;
mod reshaped;
mod salvage;
pub mod slot;

use std::sync::Arc;

use trireme_runtime::Backend;

pub use args::{AllowPython, PythonArgs, PythonOptions};
pub use backend::PythonBackend;
pub use process::ProcessBackend;

/// The backends that this service hosts.
pub fn backends(options: &PythonOptions) -> [Arc<dyn Backend>; 2] {
    [Arc::new(PythonBackend::new(options.clone())), Arc::new(ProcessBackend::new(options.clone()))]
}
