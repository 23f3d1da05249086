//! The trace of a request under way.

use std::sync::Arc;

use parking_lot::Mutex;
use trireme_bus::WorkMessage;
use trireme_inference::{Ledger, ModelKey, Tensor, UnixMicros};
use trireme_protocol::tracing::TraceLevel;
use trireme_server::{Port, RequestTimes};

use super::trace::Trace;
use super::writer::{Stream, Writer};

/// The trace of a request under way. When it is dropped, with the end of sending the answer, it goes to the writer.
#[derive(Debug)]
pub struct OpenTrace {
    writer: Arc<Writer>,
    stream: Arc<Stream>,
    trace: Mutex<Option<Box<Trace>>>,
}

// === impl OpenTrace ===

impl OpenTrace {
    /// The trace of a request for `model`, which is written with those of `stream`.
    pub fn begin(
        writer: Arc<Writer>,
        stream: Arc<Stream>,
        level: TraceLevel,
        port: Port,
        model: ModelKey,
        request_id: String,
        times: Arc<RequestTimes>,
    ) -> OpenTrace {
        let now = UnixMicros::now();
        let trace = Trace {
            level,
            port,
            model,
            request_id,
            times,
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
