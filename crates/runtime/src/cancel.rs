//! A flag that a request's work looks at: does anybody still wait for it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised once, never lowered; clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

// === impl CancelFlag ===

impl CancelFlag {
    /// Nobody waits any more.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
