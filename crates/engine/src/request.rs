//! A request to execute, and its response.

use std::sync::Arc;
use std::time::Duration;

use trireme_inference::{InferError, Name, Owner, Parameters, Tensor, TextFacts, UnixMicros};

use crate::calls::Calls;
use crate::cancel::{CancelFlag, unwanted};

/// One request to execute.
#[derive(Clone, Debug)]
pub struct ExecuteRequest {
    /// The request's id: the same for each execution, on every worker.
    pub request_id: Name,
    /// The client's own id for the request; may be empty.
    pub client_id: Name,
    /// Inputs under the model's names, checked against its configuration.
    pub inputs: Vec<Tensor>,
    /// The outputs that the route or the client needs, under the model's names.
    pub outputs: Vec<Name>,
    /// The request's parameters.
    pub parameters: Arc<Parameters>,
    /// The deadline of the whole request.
    pub deadline: UnixMicros,
    /// Raised when the client does not wait for the answer any more.
    pub cancelled: CancelFlag,
    /// Whether the client takes the answer in parts, as they are made. Otherwise it gets one response.
    pub in_parts: bool,
    /// The way for the model's code to send requests to other models.
    pub calls: Calls,
    /// The owner of the request.
    pub owner: Owner,
}

// === impl ExecuteRequest ===

impl ExecuteRequest {
    /// A request that the harness makes: without a deadline, never cancelled, answered as a whole.
    pub fn made_up(
        request_id: impl Into<Name>,
        inputs: Vec<Tensor>,
        outputs: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> ExecuteRequest {
        ExecuteRequest {
            request_id: request_id.into(),
            client_id: Name::default(),
            inputs,
            outputs: outputs.into_iter().map(Name::new).collect(),
            parameters: Arc::default(),
            deadline: UnixMicros::NEVER,
            cancelled: CancelFlag::default(),
            in_parts: false,
            calls: Calls::default(),
            owner: Owner::default(),
        }
    }

    /// Why the request need not be executed any more: the client cancelled it, or its deadline has passed.
    pub fn unwanted(&self) -> Option<InferError> {
        unwanted(&self.cancelled, self.deadline)
    }
}

/// The result of executing a request.
#[derive(Clone, Debug, Default)]
pub struct ExecuteResponse {
    /// Outputs under the model's names; at least those asked for.
    pub outputs: Vec<Tensor>,
    /// Durations of the execution's parts. The same for all requests of a batch.
    pub timing: ExecuteTiming,
    /// The counts for the request's texts, where the model is a tokenizer.
    pub texts: Option<TextFacts>,
    /// The same counts for each of several texts; empty where they are not known.
    pub each_text: Vec<TextFacts>,
    /// Parameters of the response, which the client gets where this is the last step.
    pub parameters: Parameters,
}

/// How long the parts of an execution took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecuteTiming {
    /// Gathering, padding and converting inputs.
    pub compute_input: Duration,
    /// The run itself.
    pub compute_infer: Duration,
    /// Splitting and converting outputs.
    pub compute_output: Duration,
    /// Rows of the executed batch.
    pub batch_size: u32,
}
