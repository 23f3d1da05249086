//! Answers in parts: each part that a step makes travels the rest of the route as a message of its own, with a sequence
//! number.
//!
//! A task per request sends its parts one after the other, always over the bus, so each part is a delivery of its own.
//! The delivery that brought the request here is acknowledged when the last part has been sent. If a worker dies before
//! that, its request is run again, and the same parts get the same numbers.

use std::sync::Arc;

use tokio::sync::mpsc;
use trireme_bus::{AnswerForm, BusError, Output, Part, WorkMessage};
use trireme_engine::{ExecuteResponse, SendParts};
use trireme_inference::{FailureReason, InferError, UnixMicros};

use super::counts::computed;
use super::results::advance;
use crate::hosted::{HeldDelivery, HostedModel, Pending};

/// Parts of one request that may wait to be sent; when there are more, the request's instance waits, too.
const BACKLOG: usize = 64;

/// Sends the parts of one request's answer.
pub(crate) struct PartSender(mpsc::Sender<Made>);

/// A message from the instance thread to the sending task.
enum Made {
    /// A part; more follow.
    Part(ExecuteResponse),
    /// The last part, or the error that ends the answer.
    End(Result<ExecuteResponse, InferError>),
}

/// Starts to send the parts of a request's answer.
pub(crate) fn start(pending: Box<Pending>) -> PartSender {
    let (sender, made) = mpsc::channel(BACKLOG);
    let model = pending.model.clone();
    model.worker.tasks.spawn("parts", forward(model.clone(), pending, made));
    PartSender(sender)
}

// === impl PartSender ===

impl SendParts for PartSender {
    fn send(&self, part: ExecuteResponse) -> bool {
        self.0.blocking_send(Made::Part(part)).is_ok()
    }

    fn end(self, last: Result<ExecuteResponse, InferError>) {
        // If the task has ended, it has settled the request.
        let _ = self.0.blocking_send(Made::End(last));
    }
}

async fn forward(model: Arc<HostedModel>, mut pending: Box<Pending>, mut made: mpsc::Receiver<Made>) {
    let mut sequence = 0;
    let outcome = loop {
        let (part, last) = match made.recv().await {
            Some(Made::Part(part)) => (part, false),
            Some(Made::End(Ok(part))) => (part, true),
            Some(Made::End(Err(error))) => break Err(Failure::Step(error)),
            None => break Err(Failure::Step(InferError::internal("model instance gave no result"))),
        };
        if last {
            pending.delivery.suspect = None;
            pending.stay.span.computed(computed(&part.timing));
        }
        let sent = send(&model, &mut pending, Part { sequence, last }, part).await;
        pending.stay.span.part(sequence);
        match sent {
            Ok(()) if last => break Ok(()),
            Ok(()) => sequence += 1,
            Err(error) => break Err(Failure::Bus(error)),
        }
    };
    model.worker.cancellations.leave(&pending.message.request_id);
    let Pending { message, delivery, mut stay, .. } = *pending;
    // An error gets the next number, so it comes after all parts that were sent.
    let delivery = HeldDelivery { sequence, ..delivery };
    match outcome {
        Ok(()) => model.report(&message, delivery.acker.ack().await),
        Err(Failure::Step(error)) => {
            stay.span.fail(&error.message);
            model.settle_error(message, delivery, error, FailureReason::Backend).await;
        }
        Err(Failure::Bus(error)) => {
            stay.span.fail(&error.to_string());
            model.settle_unpublished(message, delivery, error).await;
        }
    }
}

/// Why an answer ends before its last part.
enum Failure {
    Step(InferError),
    Bus(BusError),
}

async fn send(model: &HostedModel, pending: &mut Pending, part: Part, made: ExecuteResponse) -> Result<(), BusError> {
    count(model, pending, part, &made);
    let mut message = WorkMessage { answer: AnswerForm::Part(part), ..pending.message.clone() };
    // An empty last part only says that no more parts follow, so it skips the remaining steps.
    let empty = part.last && made.outputs.is_empty();
    let hop = model.hop(pending, &made);
    advance(&mut message, hop, made.outputs);
    if message.route.current().is_some() && !empty {
        return model.publish_when_there_is_a_queue(&message).await;
    }
    let tensors = if empty { Vec::new() } else { std::mem::take(&mut message.tensors) };
    let reply = message.reply(Ok(Output { tensors, parameters: made.parameters }));
    model.reply_when_there_is_room(&message, reply).await
}

/// Counts a part before it is sent: the first part for its latency, the last one for the whole request.
fn count(model: &HostedModel, pending: &Pending, part: Part, made: &ExecuteResponse) {
    if part.sequence == 0 {
        let took = UnixMicros::now().since(pending.message.sent_at);
        model.statistics.record(|counters| counters.first_response.record(took));
    }
    if part.last {
        model.count_completed(pending, made, false);
    }
}
