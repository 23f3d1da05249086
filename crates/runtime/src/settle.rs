//! How a step ends: its result goes to the next queue, or an error to the gateway, and only then is the delivery settled.
//!
//! Not here: what leads up to it (`hosted`, `execute`), and which error does what to a delivery (`disposition`, the one
//! table).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use trireme_bus::{BusError, DeadLetter, Output, Reply, WorkMessage, queue_pause};
use trireme_inference::{DropReason, ErrorCode, FailureReason, Hop, InferError, Tensor, UnixMicros};
use trireme_telemetry::trace_id;

use crate::backend::ExecuteResponse;
use crate::disposition::{Disposition, disposition};
use crate::execute::computed;
use crate::hosted::{Claim, HostedModel, Pending, Stay, cancelled_by_client};

/// Longest that a result waits for a queue that is not there: its workers make it anew when they see that it is lost.
const QUEUE_LIMIT: Duration = Duration::from_secs(30);

/// Pause before a message that is given up, and could not be set aside, is delivered again for that.
const LETTER_PAUSE: Duration = Duration::from_secs(1);

// === impl HostedModel ===

impl HostedModel {
    /// A step is done: records the hop, applies the output map, sends the request on.
    pub(crate) fn finish(self: &Arc<Self>, mut pending: Pending, response: ExecuteResponse) {
        self.worker.cancellations.leave(&pending.message.request_id);
        pending.stay.span.computed(computed(&response.timing));
        self.count_completed(&pending, &response.timing, true);
        let hop = self.hop(&pending, &response.timing);
        // What is given up is set aside as it came.
        let Pending { message: received, mut delivery, stay, .. } = pending;
        let mut message = received.clone();
        advance(&mut message, hop, response.outputs);

        if message.route.current().is_some() {
            let Some((message, mut delivery)) = self.worker.hand_over(message, delivery) else { return };
            delivery.suspect = None;
            let this = self.clone();
            self.settle(async move { this.publish(received, message, delivery, stay).await });
        } else {
            delivery.suspect = None;
            let output = Output { tensors: std::mem::take(&mut message.tensors), parameters: Default::default() };
            let reply = message.reply(Ok(output));
            let this = self.clone();
            self.settle(async move {
                let mut stay = stay;
                match this.worker.bus.reply(reply).await {
                    Ok(()) => this.report(&received, delivery.acker.ack().await),
                    Err(error) => {
                        stay.span.fail(&error.to_string());
                        this.settle_unpublished(received, delivery, error).await;
                    }
                }
            });
        }
    }

    /// A step failed.
    pub(crate) fn fail(self: &Arc<Self>, pending: Pending, error: InferError, reason: FailureReason) {
        let Pending { message, delivery, mut stay, .. } = pending;
        self.worker.cancellations.leave(&message.request_id);
        stay.span.fail(&error.message);
        let this = self.clone();
        self.settle(async move {
            let _stay = stay;
            this.settle_error(message, delivery, error, reason).await;
        });
    }

    /// Runs the sending on of a result. In process it completes on the spot, on the instance's own thread; where the
    /// broker's confirmation has to be awaited, it becomes a task. Permits bound how many there are.
    pub(crate) fn settle(&self, sending: impl Future<Output = ()> + Send + 'static) {
        let mut sending = Box::pin(sending);
        if sending.as_mut().now_or_never().is_none() {
            self.worker.tasks.spawn("forward", sending);
        }
    }

    /// Sends a result, `message`, to the next step's queue.
    async fn publish(self: Arc<Self>, received: WorkMessage, message: WorkMessage, delivery: Claim, mut stay: Stay) {
        match self.publish_when_there_is_a_queue(&message).await {
            Ok(()) => self.report(&received, delivery.acker.ack().await),
            Err(error) => {
                stay.span.fail(&error.to_string());
                self.settle_unpublished(received, delivery, error).await;
            }
        }
    }

    /// The next step's queue did not take the result of this message, or its answer could not be sent.
    pub(crate) async fn settle_unpublished(&self, message: WorkMessage, delivery: Claim, error: BusError) {
        if self.worker.cancellations.is_cancelled(&message.request_id) {
            return self.settle_error(message, delivery, cancelled_by_client(), FailureReason::Other).await;
        }
        match error {
            BusError::Full { .. } | BusError::ClaimsFull { .. } => {
                // Running the step again would not make room: the request is refused, at once.
                match message.route.remaining().get(1) {
                    Some(next) => {
                        let next = self.worker.statistics.model(&next.model);
                        next.record(|counters| counters.fail(FailureReason::Rejected, Duration::ZERO));
                    }
                    None => self.count_failure(&message, FailureReason::Rejected),
                }
                self.answer(&message, delivery.sequence, bus_error(&error)).await;
                self.report(&message, delivery.acker.ack().await);
            }
            error => self.settle_error(message, delivery, bus_error(&error), FailureReason::Other).await,
        }
    }

    /// A broker that restarts loses its queues, and each worker makes its own anew: between the two, results wait here,
    /// because running their step again would not bring the next one's queue back.
    pub(crate) async fn publish_when_there_is_a_queue(&self, message: &WorkMessage) -> Result<(), BusError> {
        let (begun, mut time) = (Instant::now(), 0);
        loop {
            let published = self.worker.bus.publish(message).await.map(drop);
            let over = message.deadline <= UnixMicros::now()
                || begun.elapsed() >= QUEUE_LIMIT
                || self.worker.cancellations.is_cancelled(&message.request_id);
            if over || !matches!(published, Err(BusError::NoQueue { .. })) {
                return published;
            }
            tokio::time::sleep(queue_pause(time)).await;
            time += 1;
        }
    }

    /// A request has failed, for this reason. What becomes of it depends on the error.
    pub(crate) async fn settle_error(
        &self,
        message: WorkMessage,
        mut delivery: Claim,
        error: InferError,
        failure: FailureReason,
    ) {
        // Others may have their turn.
        delivery.suspect = None;
        let max_deliver = self.worker.queue_options.max_deliver;
        let remaining = message.deadline.remaining(UnixMicros::now());
        let attempt = delivery.attempt();
        let Claim { attempts, deliveries, sequence, .. } = delivery;
        let (request_id, traceparent) = (message.request_id.clone(), message.traceparent.clone());
        if failure == FailureReason::Rejected {
            // Trying again would only make it later.
            self.count_failure(&message, failure);
            self.answer(&message, sequence, error).await;
            return self.report(&message, delivery.acker.ack().await);
        }
        let settled = match disposition(error.code, attempt, max_deliver, remaining) {
            Disposition::Answer => {
                self.count_failure(&message, failure);
                self.answer(&message, sequence, error).await;
                delivery.acker.ack().await
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
                let reason = error.message.clone();
                let reason_there = error.clone().at(&self.key, &self.worker.name);
                let letter = DeadLetter { message: message.clone(), reason: reason_there, attempts };
                // Before the answer: who is told looks for it.
                if let Err(error) = self.worker.bus.dead_letter(letter).await {
                    let trace_id = trace_id(traceparent.as_deref());
                    tracing::error!(request_id, trace_id, %error, "a message that was given up could not be set aside");
                    // There may be room for it later, until nobody waits any more.
                    let later = UnixMicros::now().after(LETTER_PAUSE) < message.deadline;
                    if later && deliveries < self.worker.queue_options.max_deliveries() {
                        return self.report(&message, delivery.acker.nak(LETTER_PAUSE).await);
                    }
                }
                self.count_failure(&message, failure);
                self.statistics.record(|counters| counters.dead_letters += 1);
                self.answer(&message, sequence, error).await;
                delivery.acker.term(&reason).await
            }
            Disposition::Drop => {
                // What cannot be answered in time is dropped before its deadline passes.
                let in_time = message.deadline > UnixMicros::now();
                let reason = match in_time && self.worker.cancellations.is_cancelled(&message.request_id) {
                    true => DropReason::Cancelled,
                    false => DropReason::Deadline,
                };
                self.statistics.record(|counters| counters.drop_request(reason));
                delivery.acker.ack().await
            }
        };
        if let Err(error) = settled {
            let trace_id = trace_id(traceparent.as_deref());
            tracing::debug!(
                request_id, trace_id, model = %self.key, %error,
                "delivery could not be settled; the bus delivers it again"
            );
        }
    }

    /// A request is answered with an error: counted here, once, however often it was tried.
    pub(crate) fn count_failure(&self, message: &WorkMessage, reason: FailureReason) {
        let took = UnixMicros::now().since(message.sent_at);
        self.statistics.record(|counters| counters.fail(reason, took));
    }

    pub(crate) async fn answer(&self, message: &WorkMessage, sequence: u32, error: InferError) {
        let error = message.route.describe(error).at(&self.key, &self.worker.name);
        let (request_id, id, trace_id) = ids(message);
        match error.code {
            ErrorCode::InvalidArg | ErrorCode::NotFound | ErrorCode::Unsupported => {
                tracing::debug!(request_id, id, trace_id, model = %self.key, %error, "request refused");
            }
            _ => tracing::warn!(request_id, id, trace_id, model = %self.key, %error, "request failed"),
        }
        let reply = Reply { sequence, ..message.reply(Err(error)) };
        if let Err(error) = self.worker.bus.reply(reply).await {
            tracing::warn!(request_id, id, trace_id, %error, "an error could not be sent to its gateway");
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

/// What log lines call a request: our id, the client's, and the trace it belongs to.
pub(crate) fn ids(message: &WorkMessage) -> (&str, &str, Option<&str>) {
    (&message.request_id, &message.client_id, trace_id(message.traceparent.as_deref()))
}

pub(crate) fn bus_error(error: &BusError) -> InferError {
    InferError::new(error.code(), error.to_string())
}
