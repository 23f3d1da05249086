//! The two messages of the pipeline, work and replies, as values.

use std::sync::Arc;

use trireme_inference::{InferError, Ledger, ModelKey, Parameters, Route, Tensor, UnixMicros};

/// A request on its way through the stages.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkMessage {
    /// Unique among all requests of all gateways; one token of a NATS subject.
    pub request_id: String,
    /// The gateway that waits for the answer.
    pub gateway: String,
    /// When the whole request has to be answered.
    pub deadline: UnixMicros,
    /// Priority level, 1 highest; 0 is the model's default level.
    pub priority: u32,
    /// W3C trace context of the span this hop belongs to.
    pub traceparent: Option<String>,
    /// The client's own id for the request; may be empty.
    pub client_id: String,
    /// When the stage before sent it.
    pub sent_at: UnixMicros,
    /// The steps still to run.
    pub route: Route,
    /// The live tensors.
    pub tensors: Vec<Tensor>,
    /// The request's parameters, for every step.
    pub parameters: Arc<Parameters>,
    /// Where the time went so far.
    pub ledger: Ledger,
}

/// An answer to a request, or one of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The request it answers.
    pub request_id: String,
    /// The gateway that waits.
    pub gateway: String,
    /// Counts the replies to one request from 0; a repeated number is a repetition.
    pub sequence: u32,
    /// No more replies follow.
    pub last: bool,
    /// The result, or why there is none.
    pub outcome: Result<Output, InferError>,
    /// Where the time went.
    pub ledger: Ledger,
    /// When it was sent.
    pub sent_at: UnixMicros,
}

/// A result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The tensors that were asked for.
    pub tensors: Vec<Tensor>,
    /// Response parameters.
    pub parameters: Parameters,
}

/// A message that was given up, with the reason.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The message as it was last delivered.
    pub message: WorkMessage,
    /// Why it was given up.
    pub reason: InferError,
    /// How often it was tried.
    pub attempts: u32,
}

// === impl WorkMessage ===

impl WorkMessage {
    /// The queue it belongs into: that of its route's current step. `None` when the route is complete.
    pub fn queue(&self) -> Option<&ModelKey> {
        self.route.current().map(|step| &step.model)
    }

    /// Its name among all messages, the same each time the step is sent: `request/step`.
    pub fn message_id(&self) -> String {
        format!("{}/{}", self.request_id, self.route.step_number())
    }

    /// A reply to this request. The first of its replies and the last.
    pub fn reply(&self, outcome: Result<Output, InferError>) -> Reply {
        Reply {
            request_id: self.request_id.clone(),
            gateway: self.gateway.clone(),
            sequence: 0,
            last: true,
            outcome,
            ledger: self.ledger.clone(),
            sent_at: UnixMicros::now(),
        }
    }
}
