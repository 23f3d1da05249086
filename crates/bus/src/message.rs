//! The two messages of the pipeline, work and replies, as values.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trireme_inference::{
    Callers, InferError, Lane, Ledger, ModelKey, Name, Owner, Parameters, Route, Tensor, TraceParent, UnixMicros,
    format_name,
};

/// A request on its way through the stages.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkMessage {
    /// Unique among all requests of all gateways; one token of a NATS subject.
    pub request_id: Name,
    /// The gateway that waits for the answer.
    pub gateway: Name,
    /// The time by which the whole request has to be answered.
    pub deadline: UnixMicros,
    /// The client's priority, 1 highest; 0 if the client set none. The levels that follow from it are in the route.
    pub priority: u64,
    /// W3C trace context of the span this hop belongs to.
    pub traceparent: Option<TraceParent>,
    /// The client's own id for the request; may be empty.
    pub client_id: Name,
    /// When the previous stage sent it.
    pub sent_at: UnixMicros,
    /// The steps still to run.
    pub route: Route,
    /// The live tensors.
    pub tensors: Vec<Tensor>,
    /// The request's parameters, for every step.
    pub parameters: Arc<Parameters>,
    /// The time spent in each hop so far.
    pub ledger: Ledger,
    /// Whether the answer comes whole or in parts.
    pub answer: AnswerForm,
    /// The models whose instances wait for the answer; empty for a client's request.
    pub callers: Callers,
    /// The job that the request belongs to, and its line in a batch; `None` for a client's own request. For people only.
    pub job: Option<Name>,
    /// The owner of the request. Owners share the service of a lane.
    pub owner: Owner,
}

/// How the answer to a request comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerForm {
    /// As one reply.
    #[default]
    Whole,
    /// In as many replies as the models make. The caller takes them one by one.
    InParts,
    /// The answer comes in parts and this message is a part: the step that makes the parts has run.
    Part(Part),
}

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Counts the parts of an answer from 0. The reply made from the part has the same number.
    pub sequence: u32,
    /// No more parts follow.
    pub last: bool,
}

/// A reply to a request: the whole answer or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The id of the request.
    pub request_id: Name,
    /// The gateway that waits for the answer.
    pub gateway: Name,
    /// Counts the replies to one request from 0; a repeated number is a repetition.
    pub sequence: u32,
    /// No more replies follow.
    pub last: bool,
    /// The result, or the error.
    pub outcome: Result<Output, InferError>,
    /// The time spent in each hop.
    pub ledger: Ledger,
    /// When it was sent.
    pub sent_at: UnixMicros,
}

/// A result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The requested tensors.
    pub tensors: Vec<Tensor>,
    /// Response parameters.
    pub parameters: Parameters,
}

/// The states of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceStates {
    /// The request that has left them. So the values of two requests always differ, and a writer whose confirmation was lost can
    /// tell its own value from that of another request.
    pub request: String,
    /// The steps that the sequence has begun. A step may be without states.
    pub steps: Vec<String>,
    /// The states of all steps, under names that differ.
    pub tensors: Vec<Tensor>,
}

/// Separates a request's id from the number of the times it was published again.
const AGAIN: char = '~';

/// Approximate bytes that an entry of a list takes in memory, without its texts and bytes.
const ENTRY: usize = 64;

/// Approximate bytes that tensors take in memory.
fn tensors_size(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| 2 * ENTRY + tensor.name().len() + 8 * tensor.shape().len() + tensor.data().len()).sum()
}

/// Approximate bytes that parameters take in memory.
fn parameters_size(parameters: &Parameters) -> usize {
    parameters.iter().map(|(name, value)| ENTRY + name.len() + value.as_str().map_or(0, str::len)).sum()
}

/// A request's id without the number of the times it was published again. It stays the same each time.
///
/// ```
/// assert_eq!(trireme_bus::original_id("5f0c~2"), "5f0c");
/// assert_eq!(trireme_bus::original_id("5f0c"), "5f0c");
/// ```
pub fn original_id(request_id: &str) -> &str {
    request_id.split_once(AGAIN).map_or(request_id, |(original, _)| original)
}

// === impl WorkMessage ===

impl WorkMessage {
    /// The id of the request when it is published again for the `time`th time; 0 is the first publish. The id has to
    /// differ, because the bus drops a message with the name of one in progress. A request whose answer was lost is not
    /// in progress.
    ///
    /// ```
    /// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
    /// # use trireme_bus::WorkMessage;
    /// # let message = trireme_bus::fixtures::message(&model, 7);
    /// let message = WorkMessage { request_id: "5f0c".into(), ..message };
    /// assert_eq!(message.id_when_sent_again(2), "5f0c~2");
    /// ```
    pub fn id_when_sent_again(&self, time: u32) -> Name {
        let original = original_id(&self.request_id);
        match time {
            0 => original.into(),
            time => format_name!("{original}{AGAIN}{time}"),
        }
    }

    /// The queue of its route's current step. `None` if the route is complete.
    pub fn queue(&self) -> Option<&ModelKey> {
        self.route.current().map(|step| &step.model)
    }

    /// The level at which it waits in that queue: a priority level, 1 highest, 0 if the queue has no levels; or that of the bulk
    /// lane.
    pub fn level(&self) -> u32 {
        self.route.current().map_or(0, |step| step.level)
    }

    /// The lane in which it waits.
    pub fn lane(&self) -> Lane {
        Lane::of_level(self.level())
    }

    /// Its unique name, the same each time the step is published: `request/step`, and `request/step/part` for a part of
    /// an answer.
    ///
    /// ```
    /// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
    /// # use trireme_bus::{AnswerForm, Part, WorkMessage};
    /// # let message = trireme_bus::fixtures::message(&model, 7);
    /// let whole = WorkMessage { request_id: "5f0c".into(), ..message };
    /// assert_eq!(whole.message_id(), "5f0c/0");
    /// let part = WorkMessage { answer: AnswerForm::Part(Part { sequence: 3, last: false }), ..whole };
    /// assert_eq!(part.message_id(), "5f0c/0/3");
    /// ```
    pub fn message_id(&self) -> Name {
        let (request, step) = (&self.request_id, self.route.step_number());
        match self.answer {
            AnswerForm::Whole | AnswerForm::InParts => format_name!("{request}/{step}"),
            AnswerForm::Part(part) => format_name!("{request}/{step}/{}", part.sequence),
        }
    }

    /// Approximate bytes that it takes in memory: tensors, parameters, route and all names.
    pub(crate) fn size(&self) -> u64 {
        let steps = self.route.remaining().iter().map(|step| {
            let inputs = step.inputs.iter().map(|input| ENTRY + input.name.len() + input.tensor.len());
            let outputs = step.outputs.iter().map(|output| ENTRY + output.name.len() + output.tensor.len());
            let dead = step.dead.iter().map(|name| ENTRY + name.len());
            let content = step.content.as_ref().map_or(0, |content| content.len());
            ENTRY + step.model.name.len() + content + inputs.chain(outputs).chain(dead).sum::<usize>()
        });
        let hops = self.ledger.0.iter().map(|hop| 2 * ENTRY + hop.model.len() + hop.worker.len());
        let callers = self.callers.models().iter().map(|model| ENTRY + model.name.len());
        let own = ENTRY + self.request_id.len() + self.gateway.len() + self.client_id.len();
        let own = own + self.job.as_ref().map_or(0, |job| job.len()) + self.owner.name.len();
        let lists = tensors_size(&self.tensors) + parameters_size(&self.parameters);
        (own + lists + steps.chain(hops).chain(callers).sum::<usize>()) as u64
    }

    /// The part of the answer that this message will become. If the answer is not in parts, it is the only part.
    pub fn part(&self) -> Part {
        match self.answer {
            AnswerForm::Whole | AnswerForm::InParts => Part { sequence: 0, last: true },
            AnswerForm::Part(part) => part,
        }
    }

    /// A reply to this request, with the number of this message's part. An error is always the last reply.
    pub fn reply(&self, outcome: Result<Output, InferError>) -> Reply {
        let part = self.part();
        Reply {
            request_id: self.request_id.clone(),
            gateway: self.gateway.clone(),
            sequence: part.sequence,
            last: part.last || outcome.is_err(),
            outcome,
            ledger: self.ledger.clone(),
            sent_at: UnixMicros::now(),
        }
    }
}

// === impl Reply ===

impl Reply {
    /// Approximate bytes that it takes in memory.
    pub(crate) fn size(&self) -> usize {
        let outcome = match &self.outcome {
            Ok(output) => tensors_size(&output.tensors) + parameters_size(&output.parameters),
            Err(error) => error.message.len(),
        };
        4 * ENTRY + self.request_id.len() + outcome
    }
}
