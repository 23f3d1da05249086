//! Trace files, as Triton writes them: what happened to single requests, and when.
//!
//! A request that is picked has an [`OpenTrace`]. It collects what the gateway learns about the request until the answer has
//! been sent. Then the trace goes to the [`Writer`], which makes text of it and writes files in a thread of its own.
//!
//! Invariant: requests never wait for files. A trace for which the writer has no room is dropped and counted.
//!
//! Not here: which requests are picked (`handlers::trace`), spans (`telemetry`), the records' format (`protocol`).

mod args;
mod files;
mod record;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use trireme_bus::WorkMessage;
use trireme_inference::{Ledger, ModelKey, Route, Tensor, UnixMicros};
use trireme_protocol::tracing::TraceLevel;

pub use args::{TraceArgs, TraceConfig, TraceTarget};
pub use writer::{Stream, Writer};

/// When a request came, and when its answer went.
#[derive(Debug)]
pub struct Passage {
    /// When the request's head was there.
    begun: UnixMicros,
    /// When the last part of it came, in microseconds since the Unix epoch.
    received: AtomicU64,
    /// When its answer began to be sent, in the same unit; 0 before that.
    sending: AtomicU64,
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
    level: TraceLevel,
    protocol: Protocol,
    /// The model, with the version that the client named, or -1, before the version is resolved.
    model: ModelKey,
    request_id: String,
    passage: Arc<Passage>,
    started: UnixMicros,
    /// The request's route and when it was sent on it, if it was.
    sent: Option<(Route, UnixMicros)>,
    ledger: Ledger,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// When responses came.
    responses: Vec<UnixMicros>,
    ended: UnixMicros,
    sent_off: UnixMicros,
}

/// The trace of a request under way. When it is dropped, with the end of sending the answer, it goes to the writer.
#[derive(Debug)]
pub struct OpenTrace {
    writer: Arc<Writer>,
    stream: Arc<Stream>,
    trace: Mutex<Option<Box<Trace>>>,
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

// === impl OpenTrace ===

impl OpenTrace {
    /// The trace of a request for `model`, which is written with those of `stream`.
    pub fn begin(
        writer: Arc<Writer>,
        stream: Arc<Stream>,
        level: TraceLevel,
        protocol: Protocol,
        model: ModelKey,
        request_id: String,
        passage: Arc<Passage>,
    ) -> OpenTrace {
        let now = UnixMicros::now();
        let trace = Trace {
            level,
            protocol,
            model,
            request_id,
            passage,
            started: now,
            sent: None,
            ledger: Ledger::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            responses: Vec::new(),
            ended: now,
            sent_off: now,
        };
        OpenTrace { writer, stream, trace: Mutex::new(Some(Box::new(trace))) }
    }

    fn note(&self, note: impl FnOnce(&mut Trace)) {
        if let Some(trace) = self.trace.lock().as_mut() {
            note(trace);
        }
    }

    /// The request was checked and goes on its route.
    pub fn admitted(&self, message: &WorkMessage) {
        self.note(|trace| {
            trace.model = message.route.model().clone();
            trace.sent = Some((message.route.clone(), message.sent_at));
            if trace.level.tensors {
                trace.inputs.clone_from(&message.tensors);
            }
        });
    }

    /// A response with these outputs came.
    pub fn responded(&self, ledger: &Ledger, outputs: &[Tensor]) {
        self.note(|trace| {
            trace.ended = UnixMicros::now();
            trace.responses.push(trace.ended);
            trace.ledger.clone_from(ledger);
            if trace.level.tensors {
                trace.outputs.extend_from_slice(outputs);
            }
        });
    }

    /// The request is done, also if it failed.
    pub fn ended(&self) {
        self.note(|trace| trace.ended = UnixMicros::now());
    }
}

impl Drop for OpenTrace {
    fn drop(&mut self) {
        if let Some(mut trace) = self.trace.get_mut().take() {
            trace.sent_off = UnixMicros::now();
            self.writer.write(trace, self.stream.clone());
        }
    }
}

// === impl Protocol ===

impl Protocol {
    /// The names of the points in time: a request's first and last bytes, an answer's first and last bytes.
    fn timestamps(self) -> [&'static str; 4] {
        match self {
            Protocol::Http => ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
            Protocol::Grpc => ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
        }
    }
}
