//! Suspects: messages that were delivered before, so that a worker may have died of them.
//!
//! Not here: counting their attempts, and running the last attempt alone (`intake::attempts`).

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use trireme_bus::AttemptNote;

/// The lock of a process's suspects that may have killed their workers and have one attempt left. One of them is
/// executed at a time.
#[derive(Default)]
pub(crate) struct Suspects(pub Arc<Mutex<()>>);

/// The state of a suspect.
pub(crate) struct Suspect {
    /// The attempts before this one.
    pub known: AttemptNote,
    /// Whether the message has to run in a batch of its own.
    pub alone: bool,
    /// The turn, held until the message has been executed.
    pub _turn: Option<OwnedMutexGuard<()>>,
}
