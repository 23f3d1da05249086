//! The model service: executes model versions with one of its [`mod@backends`], on batches that its [`batcher`] puts
//! together.
//!
//! Invariants: an instance is owned by one thread; one request's failure never fails its neighbours in a batch; a missing
//! library, accelerator or GPU that the configuration asks for fails the load, and is never replaced in silence.
//!
//! Not here: pulling work, forwarding results, acknowledging, registering, draining: the harness in `trireme-runtime`
//! does those for every service.

mod args;
pub mod backends;
pub mod batcher;
mod cpus;

pub use args::OnnxRuntimeArgs;
pub use backends::{FoundLibrary, LibraryError, OnnxRuntimeOptions, TRACED, backends, find_library, processor};
