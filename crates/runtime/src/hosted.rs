//! One model version hosted by this worker: admits its work, executes it, and sends the results on.
//!
//! The path of a request through here: [`HostedModel::admit`] checks it and puts it into the queue; an instance thread
//! takes it with its batch, executes, and calls [`HostedModel::finish`]; the result goes to the next step in this process
//! ([`Worker::hand_over`]), to the bus, or back to the gateway. Only then is the delivery acknowledged.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use trireme_bus::{BusError, DeadLetter, Delivery, Output, WorkMessage};
use trireme_inference::{ErrorCode, Hop, InferError, ModelKey, Tensor, UnixMicros};
use trireme_model_repository::ModelConfig;

use crate::backend::{ExecuteRequest, ExecuteResponse, ModelInstance};
use crate::batching::Candidate;
use crate::disposition::{Disposition, disposition};
use crate::held::HeldAcker;
use crate::queue::{Permit, WorkQueue};
use crate::worker::Shared;

/// Pause before a result is offered again to a queue that its workers have to make anew.
const QUEUE_PAUSE: Duration = Duration::from_millis(50);

/// A model version with its queue.
pub(crate) struct HostedModel {
    pub key: ModelKey,
    pub config: Arc<ModelConfig>,
    pub queue: Arc<WorkQueue<Work>>,
    pub worker: Arc<Shared>,
}

/// A request in this worker's hands.
pub(crate) struct Work {
    request: ExecuteRequest,
    pending: Pending,
    received_at: UnixMicros,
    arrived: Instant,
}

/// What is left of a request while it is executed, and what settles it afterwards.
struct Pending {
    message: WorkMessage,
    delivery: Claim,
    permit: Permit<Work>,
}

/// The delivery that brought a request into this process. With a hand-over it goes along: acknowledging it says that the
/// work has left the process.
pub(crate) struct Claim {
    pub acker: HeldAcker,
    pub attempt: u32,
}

// === impl HostedModel ===

impl HostedModel {
    /// Takes in what the bus delivered.
    pub fn receive(self: &Arc<Self>, delivery: Delivery) {
        let claim = Claim { acker: self.worker.held.hold(delivery.acker), attempt: delivery.attempt };
        self.admit(delivery.message, claim, self.queue.permit());
    }

    /// Takes in a request that a step in this process made; gives it back when there is no room.
    pub fn hand_over(self: &Arc<Self>, message: WorkMessage, claim: Claim) -> Option<(WorkMessage, Claim)> {
        match self.queue.try_permit() {
            Some(permit) => {
                self.admit(message, claim, permit);
                None
            }
            None => Some((message, claim)),
        }
    }

    /// Checks a request and queues it, or settles it at once.
    fn admit(self: &Arc<Self>, message: WorkMessage, delivery: Claim, permit: Permit<Work>) {
        let received_at = UnixMicros::now();
        let cancelled = self.worker.cancellations.enter(&message.request_id);
        let checked = self.check(&message, &delivery, received_at);
        let pending = Pending { message, delivery, permit };
        let inputs = match checked {
            _ if cancelled.is_cancelled() => {
                return self.fail(pending, InferError::cancelled("cancelled by the client"));
            }
            Err(error) => return self.fail(pending, error),
            Ok(checked) => checked,
        };
        let message = &pending.message;
        let outputs = message.route.current().map_or(&[][..], |step| &step.outputs);
        let request = ExecuteRequest {
            request_id: message.request_id.clone(),
            outputs: outputs.iter().map(|output| output.name.clone()).collect(),
            parameters: message.parameters.clone(),
            deadline: message.deadline,
            cancelled,
            in_parts: false,
            inputs,
        };
        let arrived = Instant::now();
        let description = self.queue.describe(&request.inputs);
        let candidate = Candidate { arrived, priority: message.priority, description };
        self.queue.push(candidate, Work { request, pending, received_at, arrived });
    }

    fn check(&self, message: &WorkMessage, delivery: &Claim, now: UnixMicros) -> Result<Vec<Tensor>, InferError> {
        let max_deliver = self.worker.queue_options.max_deliver;
        if delivery.attempt > max_deliver {
            return Err(InferError::internal(format!(
                "request was given up after {max_deliver} attempts: each time the worker died or stopped responding"
            )));
        }
        if message.deadline <= now {
            return Err(expired());
        }
        let inputs = message.route.step_inputs(&message.tensors)?;
        self.config.check_tensors(&inputs)?;
        Ok(inputs)
    }

    /// The life of an instance's thread: take a batch, execute it, send the results on; until the queue is closed.
    pub fn run_instance(self: Arc<Self>, mut instance: Box<dyn ModelInstance>) {
        // Sending results on may need the runtime's timers and channels.
        let _runtime = self.worker.tasks.runtime().enter();
        while let Some(batch) = self.queue.take() {
            self.run_batch(instance.as_mut(), batch);
        }
    }

    fn run_batch(self: &Arc<Self>, instance: &mut dyn ModelInstance, batch: Vec<Work>) {
        let started = Instant::now();
        let now = UnixMicros::now();
        let (mut requests, mut waiting) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for work in batch {
            if work.request.cancelled.is_cancelled() {
                self.fail(work.pending, InferError::cancelled("cancelled by the client"));
            } else if work.request.deadline <= now {
                self.fail(work.pending, expired());
            } else {
                requests.push(work.request);
                waiting.push((work.pending, work.received_at, started.duration_since(work.arrived)));
            }
        }
        if requests.is_empty() {
            return;
        }
        let executed = std::panic::catch_unwind(AssertUnwindSafe(|| instance.execute(&requests)));
        let mut results = executed.unwrap_or_else(|_| {
            tracing::error!(model = %self.key, "model instance panicked");
            requests.iter().map(|_| Err(InferError::internal("model instance panicked while executing"))).collect()
        });
        // An instance that answers fewer requests than it was given must not leave the others waiting.
        results.resize_with(requests.len(), || Err(InferError::internal("model instance gave no result")));
        for ((pending, received_at, queued), result) in waiting.into_iter().zip(results) {
            match result {
                Ok(response) => self.finish(pending, response, received_at, queued),
                Err(error) => self.fail(pending, error),
            }
        }
    }

    /// A step is done: records the hop, applies the output map, sends the request on.
    fn finish(
        self: &Arc<Self>,
        pending: Pending,
        response: ExecuteResponse,
        received_at: UnixMicros,
        queued: Duration,
    ) {
        let Pending { mut message, delivery, permit } = pending;
        self.worker.cancellations.leave(&message.request_id);
        let timing = response.timing;
        message.ledger.0.push(Hop {
            model: self.key.name.clone(),
            worker: self.worker.name.clone(),
            transit_us: micros(received_at.since(message.sent_at)),
            queue_us: micros(queued),
            compute_input_us: micros(timing.compute_input),
            compute_infer_us: micros(timing.compute_infer),
            compute_output_us: micros(timing.compute_output),
            batch_size: timing.batch_size,
        });
        message.route.advance(&mut message.tensors, response.outputs);
        message.sent_at = UnixMicros::now();

        if message.route.current().is_some() {
            let Some((message, delivery)) = self.worker.hand_over(message, delivery) else { return };
            let this = self.clone();
            self.settle(async move { this.publish(message, delivery, permit).await });
        } else {
            let output = Output { tensors: std::mem::take(&mut message.tensors), parameters: Default::default() };
            let reply = message.reply(Ok(output));
            let this = self.clone();
            self.settle(async move {
                let _permit = permit;
                match this.worker.bus.reply(reply).await {
                    Ok(()) => this.report(&message, delivery.acker.ack().await),
                    Err(error) => this.settle_error(message, delivery, bus_error(&error)).await,
                }
            });
        }
    }

    /// A step failed.
    fn fail(self: &Arc<Self>, pending: Pending, error: InferError) {
        let Pending { message, delivery, permit } = pending;
        self.worker.cancellations.leave(&message.request_id);
        let this = self.clone();
        self.settle(async move {
            let _permit = permit;
            this.settle_error(message, delivery, error).await;
        });
    }

    /// Runs the sending on of a result. In process it completes on the spot, on the instance's own thread; where the
    /// broker's confirmation has to be awaited, it becomes a task. Permits bound how many there are.
    fn settle(&self, sending: impl Future<Output = ()> + Send + 'static) {
        let mut sending = Box::pin(sending);
        if sending.as_mut().now_or_never().is_none() {
            self.worker.tasks.spawn("forward", sending);
        }
    }

    async fn publish(self: Arc<Self>, message: WorkMessage, delivery: Claim, permit: Permit<Work>) {
        let _permit = permit;
        match self.publish_when_there_is_a_queue(&message).await {
            Ok(()) => self.report(&message, delivery.acker.ack().await),
            Err(error @ BusError::Full { .. }) => {
                // Running the step again would not empty the next one's queue: the request is refused, at once.
                self.answer(&message, bus_error(&error)).await;
                self.report(&message, delivery.acker.ack().await);
            }
            Err(error) => self.settle_error(message, delivery, bus_error(&error)).await,
        }
    }

    /// A broker that restarts loses its queues, and each worker makes its own anew: between the two, results wait here,
    /// because running their step again would not bring the next one's queue back.
    async fn publish_when_there_is_a_queue(&self, message: &WorkMessage) -> Result<(), BusError> {
        loop {
            let published = self.worker.bus.publish(message).await;
            let waits = matches!(published, Err(BusError::NoQueue { .. })) && message.deadline > UnixMicros::now();
            if !waits {
                return published;
            }
            tokio::time::sleep(QUEUE_PAUSE).await;
        }
    }

    async fn settle_error(&self, message: WorkMessage, delivery: Claim, error: InferError) {
        let max_deliver = self.worker.queue_options.max_deliver;
        let remaining = message.deadline.remaining(UnixMicros::now());
        let Claim { acker, attempt } = delivery;
        let settled = match disposition(error.code, attempt, max_deliver, remaining) {
            Disposition::Answer => {
                self.answer(&message, error).await;
                acker.ack().await
            }
            Disposition::Retry(delay) => {
                tracing::warn!(
                    request_id = message.request_id, model = %self.key, attempt, %error,
                    "step failed; it will be tried again"
                );
                acker.nak(delay).await
            }
            Disposition::GiveUp => {
                self.answer(&message, error.clone()).await;
                let reason = error.message.clone();
                let request_id = message.request_id.clone();
                let letter = DeadLetter { message, reason: error, attempts: attempt };
                if let Err(error) = self.worker.bus.dead_letter(letter).await {
                    tracing::error!(request_id, %error, "a message that was given up could not be set aside");
                }
                acker.term(&reason).await
            }
            Disposition::Drop => acker.ack().await,
        };
        if let Err(error) = settled {
            tracing::debug!(model = %self.key, %error, "delivery could not be settled; the bus delivers it again");
        }
    }

    async fn answer(&self, message: &WorkMessage, error: InferError) {
        let error = message.route.describe(error).at(&self.key, &self.worker.name);
        match error.code {
            ErrorCode::InvalidArg | ErrorCode::NotFound | ErrorCode::Unsupported => {
                tracing::debug!(request_id = message.request_id, model = %self.key, %error, "request refused");
            }
            _ => tracing::warn!(request_id = message.request_id, model = %self.key, %error, "request failed"),
        }
        if let Err(error) = self.worker.bus.reply(message.reply(Err(error))).await {
            tracing::warn!(request_id = message.request_id, %error, "an error could not be sent to its gateway");
        }
    }

    fn report(&self, message: &WorkMessage, acknowledged: Result<(), BusError>) {
        if let Err(error) = acknowledged {
            tracing::debug!(request_id = message.request_id, %error, "not acknowledged; the bus delivers it again");
        }
    }
}

/// Nobody waits for a request past its deadline: the gateway has answered it.
fn expired() -> InferError {
    InferError::cancelled("Request timeout expired")
}

fn bus_error(error: &BusError) -> InferError {
    InferError::new(error.code(), error.to_string())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
