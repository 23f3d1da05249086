//! How a step ends: its result goes to the next queue or to the gateway, or an error goes to the gateway. Only then is
//! the delivery settled.
//!
//! Not here: admission (`intake`), execution (`engine`), and the table that maps errors to dispositions
//! (`disposition`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use trireme_bus::{BusError, DeadLetter, First, Output, Reply, WorkMessage, queue_pause, room_pause};
use trireme_engine::{ExecuteResponse, cancelled_by_client};
use trireme_inference::{Cause, DropReason, ErrorCode, FailureReason, Hop, InferError, Tensor, UnixMicros};
use trireme_telemetry::trace_id;

use super::counts::computed;
use super::disposition::{Disposition, disposition};
use crate::hosted::{HeldDelivery, HostedModel, Pending, Stay};

/// How often a result waits for a queue that does not exist, about half a minute in all: a queue's workers have it
/// created again when they notice that it is lost.
const QUEUE_WAITS: u32 = 34;

/// How often a result waits for room among the large bodies, some seconds in all: there may never be enough room for
/// it.
const CLAIM_WAITS: u32 = 8;

/// How often a result in a waiting room looks whether its request is still wanted.
const WANTED_PERIOD: Duration = Duration::from_millis(500);

/// Pause before a message is redelivered for which no dead letter could be written.
const LETTER_PAUSE: Duration = Duration::from_secs(1);

// === impl HostedModel ===

impl HostedModel {
    /// A step was executed: counts it and sends the request on.
    pub(crate) fn finish(self: &Arc<Self>, pending: Box<Pending>, response: ExecuteResponse) {
        self.count_completed(&pending, &response, true);
        self.pass_on(pending, response);
    }

    /// A step has its result: records the hop, applies the output map, sends the request on.
    pub(crate) fn pass_on(self: &Arc<Self>, mut pending: Box<Pending>, response: ExecuteResponse) {
        self.worker.cancellations.leave(&pending.message.request_id);
        pending.stay.span.computed(computed(&response.timing));
        let hop = self.hop(&pending, &response);
        // A dead letter has the message as it was received.
        let Pending { message: received, mut delivery, stay, .. } = *pending;
        let mut message = received.clone();
        advance(&mut message, hop, response.outputs);
        let parameters = response.parameters;

        if message.route.current().is_some() {
            let Some((message, mut delivery)) = self.worker.hand_over(message, delivery) else { return };
            delivery.suspect = None;
            let this = self.clone();
            let publishing = async move { this.publish(received, message, delivery, stay).await };
            // The broker's confirmation has to be waited for. A future that was polled here first would wake two threads of the
            // runtime: one for the connection, and one for itself.
            match self.worker.bus.is_shared() {
                true => self.worker.tasks.spawn("forward", publishing),
                false => self.settle(publishing),
            }
        } else {
            delivery.suspect = None;
            let output = Output { tensors: std::mem::take(&mut message.tensors), parameters };
            let reply = message.reply(Ok(output));
            let this = self.clone();
            self.settle(async move {
                let mut stay = stay;
                match this.reply_when_there_is_room(&received, reply).await {
                    Ok(()) => this.report(&received, delivery.acker.ack().await),
                    Err(error) => {
                        stay.span.fail(&error.to_string());
                        this.settle_unpublished(received, delivery, error).await;
                    }
                }
            });
        }
    }

    /// A step has failed.
    pub(crate) fn fail(self: &Arc<Self>, pending: Box<Pending>, error: InferError, reason: FailureReason) {
        let Pending { message, delivery, mut stay, .. } = *pending;
        self.worker.cancellations.leave(&message.request_id);
        stay.span.fail(&error.message);
        let this = self.clone();
        self.settle(async move {
            let _stay = stay;
            this.settle_error(message, delivery, error, reason).await;
        });
    }

    /// Runs a future that sends a result. With an in-process bus it completes at once, on the instance's own thread. If
    /// it has to wait for the broker's confirmation, it becomes a task. Permits bound the number of these tasks.
    pub(crate) fn settle(&self, sending: impl Future<Output = ()> + Send + 'static) {
        let mut sending = Box::pin(sending);
        if sending.as_mut().now_or_never().is_none() {
            self.worker.tasks.spawn("forward", sending);
        }
    }

    /// Sends a result, `message`, to the next step's queue.
    async fn publish(
        self: Arc<Self>,
        received: WorkMessage,
        message: WorkMessage,
        delivery: HeldDelivery,
        mut stay: Stay,
    ) {
        match self.publish_when_there_is_a_queue(&message).await {
            Ok(()) => self.report(&received, delivery.acker.ack().await),
            Err(error) => {
                stay.span.fail(&error.to_string());
                self.settle_unpublished(received, delivery, error).await;
            }
        }
    }

    /// Handles an error of the bus: the next step's queue did not take the result, or the reply could not be sent.
    pub(crate) async fn settle_unpublished(&self, message: WorkMessage, delivery: HeldDelivery, error: BusError) {
        if matches!(error, BusError::ClaimsFull { .. }) {
            return self.settle_error(message, delivery, InferError::from(&error), FailureReason::Rejected).await;
        }
        // If the queue was full, or out of reach, until the deadline, the request itself is not at fault: its gateway has
        // answered it.
        let is_late = matches!(error, BusError::Full { .. } | BusError::Unreachable(_));
        let error = match is_late || self.worker.cancellations.is_cancelled(&message.request_id) {
            true => cancelled_by_client(),
            false => InferError::from(&error),
        };
        self.settle_error(message, delivery, error, FailureReason::Other).await;
    }

    /// Publishes to the next queue. Waits if the queue is full, does not exist, or cannot be reached, because running the
    /// step again would not change that. The request keeps its permit meanwhile, so this worker takes less work. Then the
    /// queues before it fill up, and the first one refuses new requests. Results get room in the order in which they came.
    pub(crate) async fn publish_when_there_is_a_queue(&self, message: &WorkMessage) -> Result<(), BusError> {
        let (mut first, mut waits) = (None, 0);
        if self.worker.waiting_rooms.is_occupied(message) {
            first = self.wait_behind_others(message).await;
        }
        loop {
            let published = self.worker.bus.publish(message).await.map(drop);
            if matches!(published, Err(BusError::Full { .. })) && first.is_none() {
                first = self.wait_behind_others(message).await;
            }
            if !self.waits_for_room(message, &published, &mut waits).await {
                return published;
            }
        }
    }

    /// Waits until all results that came before have got room in the next queue. `None` if nobody wants this one any more.
    async fn wait_behind_others(&self, message: &WorkMessage) -> Option<First> {
        let mut first = pin!(self.worker.waiting_rooms.enter(message));
        loop {
            tokio::select! {
                first = &mut first => return Some(first),
                () = tokio::time::sleep(WANTED_PERIOD) => if !self.is_wanted(message) { return None },
            }
        }
    }

    /// Replies. Waits if there is no room for a large answer, or the broker cannot be reached.
    pub(crate) async fn reply_when_there_is_room(&self, message: &WorkMessage, reply: Reply) -> Result<(), BusError> {
        let mut waits = 0;
        loop {
            let replied = self.worker.bus.reply(reply.clone()).await;
            if !self.waits_for_room(message, &replied, &mut waits).await {
                return replied;
            }
        }
    }

    /// Waits for a moment if the bus may take the result later and the request is still wanted. Returns whether it waited.
    async fn waits_for_room(&self, message: &WorkMessage, sent: &Result<(), BusError>, waits: &mut u32) -> bool {
        let may_wait = match sent {
            Err(BusError::NoQueue { .. }) => *waits < QUEUE_WAITS,
            Err(BusError::ClaimsFull { .. }) => *waits < CLAIM_WAITS,
            // A broker that elects a leader, restarts or makes a stream again.
            Err(BusError::Full { .. } | BusError::Unreachable(_)) => true,
            _ => false,
        };
        let waits_for_room = may_wait && self.is_wanted(message);
        if waits_for_room {
            let pause = if matches!(sent, Err(BusError::Full { .. })) { room_pause } else { queue_pause };
            tokio::time::sleep(pause(*waits)).await;
            *waits += 1;
        }
        waits_for_room
    }

    /// Whether somebody still waits for the answer to a request.
    fn is_wanted(&self, message: &WorkMessage) -> bool {
        message.deadline > UnixMicros::now() && !self.worker.cancellations.is_cancelled(&message.request_id)
    }

    /// Settles a failed request by its error and the reason of the failure.
    pub(crate) async fn settle_error(
        &self,
        message: WorkMessage,
        mut delivery: HeldDelivery,
        error: InferError,
        failure: FailureReason,
    ) {
        // Lets the next suspect have its turn.
        delivery.suspect = None;
        let max_attempts = self.worker.queue_options().max_attempts;
        let remaining = message.deadline.remaining(UnixMicros::now());
        let attempt = delivery.attempt();
        if failure == FailureReason::Rejected {
            // A retry could only refuse it later.
            self.count_failure(&message, failure);
            return self.answer(&message, delivery, error).await;
        }
        // A model may say of itself that a request was cancelled, for which a client waits.
        let waits = remaining.is_some() && !self.worker.cancellations.is_cancelled(&message.request_id);
        let disposition = match disposition(&error, attempt, max_attempts, remaining) {
            Disposition::Drop if error.of_model && waits => Disposition::Answer,
            disposition => disposition,
        };
        let settled = match disposition {
            Disposition::Answer => {
                self.count_failure(&message, failure);
                return self.answer(&message, delivery, error).await;
            }
            Disposition::Retry(delay) => {
                let (request_id, id, trace_id) = ids(&message);
                tracing::warn!(
                    request_id, id, trace_id, model = %self.key, attempt, %error,
                    "step failed; it will be tried again"
                );
                self.note_end(&delivery).await;
                delivery.acker.nak(delay).await
            }
            Disposition::GiveUp => {
                let reason = error.clone().at(&self.key, &self.worker.name);
                let letter = DeadLetter { message: message.clone(), reason, attempts: delivery.attempts };
                // Written before the answer, because a client that has the error may look for the dead letter.
                if let Err(error) = self.worker.bus.dead_letter(letter).await {
                    let (request_id, id, trace_id) = ids(&message);
                    tracing::error!(request_id, id, trace_id, %error, "a message that was given up could not be set aside");
                    // There may be room for the dead letter later, so try again until the deadline.
                    let later = UnixMicros::now().after(LETTER_PAUSE) < message.deadline;
                    if later && delivery.deliveries < self.worker.queue_options().max_deliveries() {
                        return self.report(&message, delivery.acker.nak(LETTER_PAUSE).await);
                    }
                }
                self.count_failure(&message, failure);
                self.statistics.record(|counters| counters.dead_letters += 1);
                return self.answer(&message, delivery, error).await;
            }
            Disposition::Drop => {
                // A request that cannot be answered in time is dropped before its deadline passes.
                let in_time = message.deadline > UnixMicros::now();
                let reason = match in_time && self.worker.cancellations.is_cancelled(&message.request_id) {
                    true => DropReason::Cancelled,
                    false => DropReason::Deadline,
                };
                self.statistics.record(|counters| counters.drop_request(reason));
                delivery.acker.ack().await
            }
        };
        self.report(&message, settled);
    }

    /// Counts a request that is answered with an error: once, however many attempts it had.
    pub(crate) fn count_failure(&self, message: &WorkMessage, reason: FailureReason) {
        let took = UnixMicros::now().since(message.sent_at);
        self.statistics.record(|counters| counters.fail(reason, took));
    }

    /// Answers a request with an error and so ends its delivery.
    pub(crate) async fn answer(&self, message: &WorkMessage, delivery: HeldDelivery, error: InferError) {
        let error = message.route.describe(error).at(&self.key, &self.worker.name);
        let (request_id, id, trace_id) = ids(message);
        match error.code {
            // Its gateway admits it anew.
            _ if error.cause == Some(Cause::OtherContent) => {
                tracing::debug!(request_id, id, trace_id, model = %self.key, %error, "request declined");
            }
            ErrorCode::InvalidArg | ErrorCode::NotFound | ErrorCode::Unsupported => {
                tracing::debug!(request_id, id, trace_id, model = %self.key, %error, "request refused");
            }
            _ => tracing::warn!(request_id, id, trace_id, model = %self.key, %error, "request failed"),
        }
        let reply = Reply { sequence: delivery.sequence, ..message.reply(Err(error)) };
        let replied = self.worker.bus.reply(reply).await;
        if let Err(error) = &replied {
            tracing::warn!(request_id, id, trace_id, %error, "an error could not be sent to its gateway");
        }
        // A delivery that is not acknowledged comes again, and the request is answered then.
        if !matches!(replied, Err(BusError::Unreachable(_))) {
            self.report(message, delivery.acker.ack().await);
        }
    }

    pub(crate) fn report(&self, message: &WorkMessage, acknowledged: Result<(), BusError>) {
        if let Err(error) = acknowledged {
            let (request_id, id, trace_id) = ids(message);
            tracing::debug!(request_id, id, trace_id, %error, "not acknowledged; the bus delivers it again");
        }
    }
}

/// Moves a message past the step that made `outputs`.
pub(crate) fn advance(message: &mut WorkMessage, hop: Hop, outputs: Vec<Tensor>) {
    message.ledger.0.push(hop);
    message.route.advance(&mut message.tensors, outputs);
    message.sent_at = UnixMicros::now();
}

/// The error of a message that has used up its attempts, none of which has reported how it ended.
pub(crate) fn given_up(attempts: u32) -> InferError {
    InferError::internal(format!(
        "request was given up after {attempts} attempts: each time the worker died or stopped responding"
    ))
}

/// The names of a request in log lines: its id, the client's id, and the id of its trace.
pub(crate) fn ids(message: &WorkMessage) -> (&str, &str, Option<&str>) {
    (&message.request_id, &message.client_id, trace_id(message.traceparent.as_ref().map(|trace| trace.parent.as_str())))
}
