//! A request for an operation, without its texts.

use std::time::Duration;

use trireme_inference::{Lane, Parameters, TraceParent};
use trireme_server::budget::BytesPermit;

use crate::TextOptions;

/// A request for an operation, as far as it is the same for all of them.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// The model's name; `None`: the only one that does it.
    pub model: Option<String>,
    /// How the texts are treated.
    pub options: TextOptions,
    /// The request's part of the memory for requests.
    pub permit: BytesPermit,
    /// Headers that models get as parameters.
    pub parameters: Parameters,
    /// The client's W3C trace context.
    pub traceparent: Option<TraceParent>,
    /// The id of the request, for spans and logs.
    pub request_id: String,
    /// How it waits.
    pub waits: Waits,
    /// The route of HTTP that it came by; `None`: it comes from this process itself.
    pub route: Option<&'static str>,
}

/// How a request waits for its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Its lane.
    pub lane: Lane,
    /// How long it waits for room in a full queue before it is refused.
    pub patience: Duration,
}
