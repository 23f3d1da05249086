//! When a request came, and when its answer went.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trireme_inference::UnixMicros;

/// When a request came, and when its answer went.
#[derive(Debug)]
pub struct RequestTimes {
    begun: UnixMicros,
    /// In microseconds since the Unix epoch.
    received: AtomicU64,
    /// In microseconds since the Unix epoch; 0 before the answer begins to be sent.
    sending: AtomicU64,
}

// === impl RequestTimes ===

impl RequestTimes {
    /// The times of a request that begins now.
    pub fn begin() -> Arc<RequestTimes> {
        let begun = UnixMicros::now();
        Arc::new(RequestTimes { begun, received: AtomicU64::new(begun.0), sending: AtomicU64::new(0) })
    }

    /// A part of the request has come.
    pub fn receive(&self) {
        self.received.store(UnixMicros::now().0, Ordering::Relaxed);
    }

    /// The answer begins to be sent.
    pub fn send(&self) {
        self.sending.store(UnixMicros::now().0, Ordering::Relaxed);
    }

    /// When the request's head was there.
    pub fn begun(&self) -> UnixMicros {
        self.begun
    }

    /// When the last part of it came.
    pub fn received(&self) -> UnixMicros {
        UnixMicros(self.received.load(Ordering::Relaxed))
    }

    /// When its answer began to be sent; 0 before that.
    pub fn sending(&self) -> UnixMicros {
        UnixMicros(self.sending.load(Ordering::Relaxed))
    }
}
