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
    /// The priority that the client asked for, 1 highest; 0 when it did not. The levels it comes to are in the route.
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
    /// How its answer comes: whole or in parts.
    pub answer: Answer,
}

/// How the answer to a request comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// As one reply.
    #[default]
    Whole,
    /// In as many replies as the models like: the caller takes them as they come.
    InParts,
    /// In parts, and this message is one of them: the step that makes parts has been made.
    Part(Part),
}

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Counts the parts of an answer from 0; the number of the reply that it becomes.
    pub sequence: u32,
    /// No more parts follow.
    pub last: bool,
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

/// What a message that waits in a queue is called there, for notes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageName {
    /// The queue's model.
    pub model: ModelKey,
    /// [`WorkMessage::message_id`].
    pub id: String,
    /// After this nobody is interested in it.
    pub deadline: UnixMicros,
}

/// How often a message was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// So often.
    pub begun: u32,
    /// Whether the last of them is known to have ended: its worker outlived it.
    pub ended: bool,
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

/// A dead letter where it is kept.
#[derive(Clone, Debug)]
pub struct StoredLetter {
    /// Its number among all that were ever set aside, in their order.
    pub number: u64,
    /// When it was set aside.
    pub at: UnixMicros,
    /// The letter.
    pub letter: DeadLetter,
}

/// What separates a request's id from the number of the time it was sent again.
const AGAIN: char = '~';

/// What an entry of a list takes in memory beside its texts and bytes, about.
const ENTRY: usize = 64;

/// Bytes that tensors take in memory, about.
fn tensors_size(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| 2 * ENTRY + tensor.name().len() + 8 * tensor.shape().len() + tensor.data().len()).sum()
}

/// Bytes that parameters take in memory, about.
fn parameters_size(parameters: &Parameters) -> usize {
    parameters.iter().map(|(name, value)| ENTRY + name.len() + value.as_str().map_or(0, str::len)).sum()
}

/// A request's id without the mark that it was sent again: the same each time.
pub fn original_id(request_id: &str) -> &str {
    request_id.split_once(AGAIN).map_or(request_id, |(original, _)| original)
}

// === impl WorkMessage ===

impl WorkMessage {
    /// The id of the request when it is sent again for the `time`th time; 0 is the first one. Of another name, because
    /// the bus takes a message whose name it knows for one that is under way: when the answer was lost, it is not.
    pub fn id_when_sent_again(&self, time: u32) -> String {
        let original = original_id(&self.request_id);
        match time {
            0 => original.to_owned(),
            time => format!("{original}{AGAIN}{time}"),
        }
    }

    /// The queue it belongs into: that of its route's current step. `None` when the route is complete.
    pub fn queue(&self) -> Option<&ModelKey> {
        self.route.current().map(|step| &step.model)
    }

    /// The priority level of that queue that it waits at, 1 highest; 0 where there are no levels.
    pub fn level(&self) -> u32 {
        self.route.current().map_or(0, |step| step.level)
    }

    /// Its name among all messages, the same each time the step is sent: `request/step`, and for a part of an answer
    /// `request/step/part`.
    pub fn message_id(&self) -> String {
        let (request, step) = (&self.request_id, self.route.step_number());
        match self.answer {
            Answer::Whole | Answer::InParts => format!("{request}/{step}"),
            Answer::Part(part) => format!("{request}/{step}/{}", part.sequence),
        }
    }

    /// What it is called in the queue of `model`, which it was taken from.
    pub fn name(&self, model: &ModelKey) -> MessageName {
        MessageName { model: model.clone(), id: self.message_id(), deadline: self.deadline }
    }

    /// Bytes that it takes in memory, about: tensors, parameters, route, and all that has names.
    pub(crate) fn size(&self) -> u64 {
        let steps = self.route.remaining().iter().map(|step| {
            let inputs = step.inputs.iter().map(|input| ENTRY + input.name.len() + input.tensor.len());
            let outputs = step.outputs.iter().map(|output| ENTRY + output.name.len() + output.tensor.len());
            let dead = step.dead.iter().map(|name| ENTRY + name.len());
            ENTRY + step.model.name.len() + inputs.chain(outputs).chain(dead).sum::<usize>()
        });
        let hops = self.ledger.0.iter().map(|hop| 2 * ENTRY + hop.model.len() + hop.worker.len());
        let own = ENTRY + self.request_id.len() + self.gateway.len() + self.client_id.len();
        let lists = tensors_size(&self.tensors) + parameters_size(&self.parameters);
        (own + lists + steps.chain(hops).sum::<usize>()) as u64
    }

    /// The part of the answer that this message is to become; the only one where no parts have been made.
    pub fn part(&self) -> Part {
        match self.answer {
            Answer::Whole | Answer::InParts => Part { sequence: 0, last: true },
            Answer::Part(part) => part,
        }
    }

    /// A reply to this request: the one that this part of the answer becomes, or the only one. An error is the last.
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
    /// Bytes that it takes in memory, about.
    pub(crate) fn size(&self) -> usize {
        let outcome = match &self.outcome {
            Ok(output) => tensors_size(&output.tensors) + parameters_size(&output.parameters),
            Err(error) => error.message.len(),
        };
        4 * ENTRY + self.request_id.len() + outcome
    }
}
