//! The facts about a traced request, as the gateway and the ledger know them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trireme_inference::{Ledger, ModelKey, Route, Tensor, UnixMicros};
use trireme_protocol::tracing::TraceLevel;

/// When a request came, and when its answer went.
#[derive(Debug)]
pub struct Passage {
    /// When the request's head was there.
    pub(super) begun: UnixMicros,
    /// When the last part of it came, in microseconds since the Unix epoch.
    pub(super) received: AtomicU64,
    /// When its answer began to be sent, in the same unit; 0 before that.
    pub(super) sending: AtomicU64,
}

/// The protocol that a traced request came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// gRPC.
    Grpc,
}

/// The facts about a traced request.
#[derive(Debug)]
pub struct Trace {
    pub level: TraceLevel,
    pub protocol: Protocol,
    /// The model, with the version that the client named, or -1, before the version is resolved.
    pub model: ModelKey,
    pub request_id: String,
    pub passage: Arc<Passage>,
    pub started: UnixMicros,
    /// The request's route and when it was sent on it, if it was.
    pub sent: Option<(Route, UnixMicros)>,
    pub ledger: Ledger,
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    /// When responses came.
    pub responses: Vec<UnixMicros>,
    pub ended: UnixMicros,
    pub sent_off: UnixMicros,
}

// === impl Passage ===

impl Passage {
    /// The passage of a request that begins now.
    pub fn begin() -> Arc<Passage> {
        let begun = UnixMicros::now();
        Arc::new(Passage { begun, received: AtomicU64::new(begun.0), sending: AtomicU64::new(0) })
    }

    /// A part of the request has come.
    pub fn receive(&self) {
        self.received.store(UnixMicros::now().0, Ordering::Relaxed);
    }

    /// The answer begins to be sent.
    pub fn send(&self) {
        self.sending.store(UnixMicros::now().0, Ordering::Relaxed);
    }
}

// === impl Protocol ===

impl Protocol {
    /// The names of the points in time: a request's first and last bytes, an answer's first and last bytes.
    pub fn timestamps(self) -> [&'static str; 4] {
        match self {
            Protocol::Http => ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
            Protocol::Grpc => ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
        }
    }
}
