//! The way by which a request came in, for spans and trace files. Listeners make it; operations only pass it on.

use crate::traces::Protocol;

/// How a request came in.
#[derive(Clone, Copy, Debug)]
pub enum Caller {
    /// Over HTTP, at this route.
    Http(&'static str),
    /// Over gRPC, by this method.
    Grpc(&'static str),
    /// From a model.
    Model,
    /// From this process itself, which has no client then.
    Process,
}

// === impl Caller ===

impl Caller {
    /// The attributes of the span, by OpenTelemetry's conventions.
    pub fn attributes(self) -> Vec<(&'static str, String)> {
        match self {
            Caller::Http(route) => vec![("http.request.method", "POST".to_owned()), ("http.route", route.to_owned())],
            Caller::Grpc(method) => vec![
                ("rpc.system", "grpc".to_owned()),
                ("rpc.service", "inference.GRPCInferenceService".to_owned()),
                ("rpc.method", method.to_owned()),
            ],
            Caller::Model | Caller::Process => Vec::new(),
        }
    }

    /// The protocol under which trace files have the request. They are about the requests of clients, so others have none.
    pub fn protocol(self) -> Option<Protocol> {
        match self {
            Caller::Http(_) => Some(Protocol::Http),
            Caller::Grpc(_) => Some(Protocol::Grpc),
            Caller::Model | Caller::Process => None,
        }
    }
}
