//! Answers in parts: each part that a step makes travels the rest of the route as a message of its own, numbered in order.
//!
//! Parts go out one after the other, in a task per request, and always by the bus: each is then a delivery of its own, and
//! the one that brought the request here is acknowledged when the last part is on its way. A worker that dies before that
//! has its request run again, and the same parts get the same numbers.

use std::sync::Arc;

use tokio::sync::mpsc;
use trireme_bus::{Answer, BusError, Output, Part, WorkMessage};
use trireme_inference::{FailureReason, InferError, UnixMicros};

use crate::backend::{ExecuteResponse, ExecuteTiming};
use crate::execute::computed;
use crate::hosted::{Claim, HostedModel, Pending};
use crate::settle::advance;

/// Parts of one request that wait to be sent before its instance waits, too.
const BACKLOG: usize = 64;

/// Takes the parts of one request's answer.
pub(crate) struct Parts(mpsc::Sender<Made>);

/// What comes from the instance.
enum Made {
    /// A part; more follow.
    Part(ExecuteResponse),
    /// The last one, or why there is none.
    End(Result<ExecuteResponse, InferError>),
}

/// Starts to send the parts of a request's answer.
pub(crate) fn start(model: &Arc<HostedModel>, pending: Pending) -> Parts {
    let (sender, made) = mpsc::channel(BACKLOG);
    model.worker.tasks.spawn("parts", forward(model.clone(), pending, made));
    Parts(sender)
}

/// The error of a request that takes one answer from a model that gives another number of them. The text is Triton's. It
/// is the request's fault, which asks in the wrong place: trying again would not help.
pub fn one_response() -> InferError {
    InferError::invalid_arg(
        "generate expects model to produce exactly 1 response, use generate stream for model that may generate various \
         number of responses",
    )
}

// === impl Parts ===

impl Parts {
    /// Sends a part on; waits while too many of them wait already. `false` when the request has ended meanwhile.
    pub fn send(&self, part: ExecuteResponse) -> bool {
        self.0.blocking_send(Made::Part(part)).is_ok()
    }

    /// Ends the answer.
    pub fn end(self, last: Result<ExecuteResponse, InferError>) {
        // A task that is gone has settled the request.
        let _ = self.0.blocking_send(Made::End(last));
    }
}

async fn forward(model: Arc<HostedModel>, mut pending: Pending, mut made: mpsc::Receiver<Made>) {
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
        let sent = send(&model, &pending, Part { sequence, last }, part).await;
        pending.stay.span.part(sequence);
        match sent {
            Ok(()) if last => break Ok(()),
            Ok(()) => sequence += 1,
            Err(error) => break Err(Failure::Bus(error)),
        }
    };
    model.worker.cancellations.leave(&pending.message.request_id);
    let Pending { message, delivery, mut stay, .. } = pending;
    // An error comes after all parts that were made before.
    let delivery = Claim { sequence, ..delivery };
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

async fn send(model: &HostedModel, pending: &Pending, part: Part, made: ExecuteResponse) -> Result<(), BusError> {
    count(model, pending, part, &made.timing);
    let mut message = WorkMessage { answer: Answer::Part(part), ..pending.message.clone() };
    // With nothing in it, it says that nothing follows, and no step has anything to do with it.
    let empty = part.last && made.outputs.is_empty();
    advance(&mut message, model.hop(pending, &made.timing), made.outputs);
    if message.route.current().is_some() && !empty {
        return model.publish_when_there_is_a_queue(&message).await;
    }
    let tensors = if empty { Vec::new() } else { std::mem::take(&mut message.tensors) };
    model.worker.bus.reply(message.reply(Ok(Output { tensors, parameters: Default::default() }))).await
}

/// Counts a part before anybody hears of it: the first for how long it took, the last for the whole request.
fn count(model: &HostedModel, pending: &Pending, part: Part, timing: &ExecuteTiming) {
    if part.sequence == 0 {
        let took = UnixMicros::now().since(pending.message.sent_at);
        model.statistics.record(|counters| counters.first_response.record(took));
    }
    if part.last {
        model.count_completed(pending, timing, false);
    }
}
