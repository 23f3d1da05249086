//! The facts about a traced request, as the gateway and the ledger know them.

use std::sync::Arc;

use trireme_inference::{Ledger, ModelKey, Route, Tensor, UnixMicros};
use trireme_protocol::tracing::TraceLevel;
use trireme_server::{Port, RequestTimes};

/// The facts about a traced request.
#[derive(Debug)]
pub struct Trace {
    pub level: TraceLevel,
    pub port: Port,
    /// The model, with the version that the client named, or -1, before the version is resolved.
    pub model: ModelKey,
    pub request_id: String,
    pub times: Arc<RequestTimes>,
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

/// The names of the points in time: a request's first and last bytes, an answer's first and last bytes.
pub fn timestamps(port: Port) -> [&'static str; 4] {
    match port {
        Port::Http => ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
        Port::Grpc => ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
    }
}
