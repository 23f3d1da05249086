//! One model version hosted by this worker, and how work is admitted to it.
//!
//! The path of a request through the worker: [`HostedModel::admit`] checks it and puts it into the queue. An instance
//! thread takes it with its batch and executes it (`execute`). The result goes to the next step in this process, to the
//! bus, or back to the gateway. Only then is the delivery acknowledged (`settle`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use trireme_bus::{Acker, Answer, Delivery, MessageName, QueueOptions, WorkMessage, original_id};
use trireme_inference::{FailureReason, InferError, ModelKey, StepOutput, Tensor, UnixMicros};
use trireme_model_repository::ModelConfig;
use trireme_telemetry::steps::{Step, StepSpan};

use crate::backend::ExecuteRequest;
use crate::batching::{Candidate, Description};
use crate::calls::Calls;
use crate::canary::Canary;
use crate::cancel::CancelFlag;
use crate::held::Hold;
use crate::lateness::comes_too_late;
use crate::queue::{Permit, WorkQueue};
use crate::queue_policy::{self, Patience};
use crate::statistics::ModelStatistics;
use crate::step_cache::Missed;
use crate::suspects::Suspect;
use crate::watchdog::Executions;
use crate::worker::Shared;

/// A model version with its queue.
pub(crate) struct HostedModel {
    pub key: ModelKey,
    pub config: Arc<ModelConfig>,
    pub queue: Arc<WorkQueue<Work>>,
    pub worker: Arc<Shared>,
    /// Number of requests admitted so far.
    pub admitted: AtomicU64,
    pub statistics: Arc<ModelStatistics>,
    /// Whether the first dimension of its inputs is a batch; otherwise a request is one row.
    pub batched: bool,
    /// The states before the first request of a sequence, for requests that bring none.
    pub initial_states: Vec<Tensor>,
    /// Cancelled when the version holds no requests and gets no more: it was replaced or unloaded.
    pub gone: CancellationToken,
    /// Cancelled when the version takes no more work from the bus.
    pub intake: CancellationToken,
    /// The request that idle instances execute from time to time.
    pub canary: Option<Canary>,
    /// The executions of its instances that are under way.
    pub executions: Executions,
    /// Where its answers are cached: the number of the load that made it, which no other version has.
    pub cached: Option<u64>,
}

/// A request that waits in this worker's queue.
pub(crate) struct Work {
    pub request: ExecuteRequest,
    pub pending: Pending,
    pub arrived: Instant,
}

/// The rest of a request while an instance executes it; it is needed to settle the delivery afterwards.
pub(crate) struct Pending {
    pub message: WorkMessage,
    pub delivery: Claim,
    pub stay: Stay,
    pub received_at: UnixMicros,
    /// How long the request has waited in this worker's queue.
    pub queued: Duration,
    /// The description of its inputs, with `rows` set to 1 for a model without batches.
    pub description: Description,
    /// Its place in the response cache, if it was looked for there.
    pub missed: Option<Missed>,
}

/// Values that live as long as the request is in this worker.
pub(crate) struct Stay {
    _permit: Permit<Work>,
    pub span: StepSpan,
}

/// The delivery that brought a request into this process. When the request is handed over to a model in this process,
/// its delivery goes along: it is acknowledged when the work has left the process.
pub(crate) struct Claim {
    pub acker: Acker,
    pub hold: Hold,
    /// The name of the delivered message. It stays the same when the request moves on to later steps in this process.
    pub name: MessageName,
    /// Delivery count of the message, from 1.
    pub deliveries: u32,
    /// Number of attempts at the message. It includes this attempt once that has begun.
    pub attempts: u32,
    /// Whether this attempt has begun.
    pub begun: bool,
    /// Set for a redelivery, until it has been executed.
    pub suspect: Option<Suspect>,
    /// Sequence number of the reply if it is an error.
    pub sequence: u32,
}

// === impl HostedModel ===

impl HostedModel {
    /// Takes in a delivery from the bus.
    pub fn receive(self: &Arc<Self>, delivery: Delivery) {
        let (message, claim) = self.hold(delivery);
        if claim.deliveries > 1 {
            self.statistics.record(|counters| counters.redeliveries += 1);
            return self.suspect(message, claim, self.queue.permit());
        }
        self.admit(message, claim, self.queue.permit());
    }

    /// Starts to count a delivery as held.
    fn hold(&self, delivery: Delivery) -> (WorkMessage, Claim) {
        let claim = Claim {
            hold: self.worker.held.hold(&delivery.acker),
            acker: delivery.acker,
            name: delivery.message.name(&self.key),
            deliveries: delivery.attempt,
            attempts: 0,
            begun: false,
            suspect: None,
            sequence: delivery.message.part().sequence,
        };
        (delivery.message, claim)
    }

    /// Takes in a request from a step in this process. Gives it back if there is no room, or if the model has a queue
    /// policy: then the request has to wait in the shared queue.
    pub fn hand_over(self: &Arc<Self>, message: WorkMessage, claim: Claim) -> Option<(WorkMessage, Claim)> {
        match self.queue.try_permit().filter(|_| !self.config.has_queue_policy()) {
            Some(permit) => {
                self.admit(message, claim, permit);
                None
            }
            None => Some((message, claim)),
        }
    }

    /// Checks a request and puts it into the queue, or settles it at once.
    pub(crate) fn admit(self: &Arc<Self>, message: WorkMessage, delivery: Claim, permit: Permit<Work>) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        let received_at = UnixMicros::now();
        self.worker.taps.see(&self.key, &self.config.backend, &message, delivery.attempt());
        let cancelled = self.worker.cancellations.enter(&message.request_id);
        let checked = self.check(&message, &delivery, received_at);
        let pending = self.pending(message, delivery, permit, received_at);
        let inputs = match checked {
            _ if cancelled.is_cancelled() => {
                return self.fail(pending, cancelled_by_client(), FailureReason::Other);
            }
            Err(error) => return self.fail(pending, error, FailureReason::Other),
            Ok(checked) => checked,
        };
        let description = self.queue.describe(&inputs);
        if self.is_late(&pending.message, &description, received_at) {
            self.queue.came_late();
            return self.drop_late(pending);
        }
        if self.patience(&pending.message, received_at) == Patience::Over {
            return self.fail(pending, refused(), FailureReason::Rejected);
        }
        let message = &pending.message;
        let outputs = message.route.current().map_or(&[][..], |step| &step.outputs);
        let request = ExecuteRequest {
            request_id: original_id(&message.request_id).to_owned(),
            client_id: message.client_id.clone(),
            outputs: names(outputs),
            parameters: message.parameters.clone(),
            deadline: message.deadline,
            cancelled,
            in_parts: self.config.decoupled && message.answer == Answer::InParts,
            calls: Calls::of(self, message),
            inputs,
        };
        let Some(mut pending) = self.answer_from_cache(pending, &request) else { return };
        let message = &pending.message;
        let arrived = Instant::now();
        let delayed = self.patience(message, received_at) == Patience::Delayed;
        let priority = message.level().saturating_mul(2) | u32::from(delayed);
        let candidate = Candidate { arrived, priority, description };
        let rows = if self.batched { description.rows } else { 1 };
        pending.description = Description { rows, ..description };
        match pending.delivery.is_alone() {
            true => self.queue.push_alone(candidate, Work { request, pending, arrived }),
            false => self.queue.push(candidate, Work { request, pending, arrived }),
        }
    }

    /// The state of a request that has just arrived.
    fn pending(&self, message: WorkMessage, delivery: Claim, permit: Permit<Work>, received_at: UnixMicros) -> Pending {
        let step = Step {
            model: &self.key.name,
            version: self.key.version,
            worker: &self.worker.name,
            request_id: &message.request_id,
            attempt: delivery.attempt(),
            sent_at: message.sent_at.into(),
            received_at: received_at.into(),
        };
        let span = StepSpan::start(message.traceparent.as_deref(), &step);
        let stay = Stay { _permit: permit, span };
        let (queued, description) = (Duration::ZERO, Description::exact(&[]));
        Pending { message, delivery, stay, received_at, queued, description, missed: None }
    }

    fn check(&self, message: &WorkMessage, delivery: &Claim, now: UnixMicros) -> Result<Vec<Tensor>, InferError> {
        let attempts = delivery.attempts;
        if !delivery.begun && attempts >= self.worker.queue_options().max_deliver {
            return Err(given_up(attempts));
        }
        if message.deadline <= now {
            return Err(expired());
        }
        let mut inputs = message.route.step_inputs(&message.tensors)?;
        let missing =
            self.initial_states.iter().filter(|state| !inputs.iter().any(|input| input.name() == state.name()));
        inputs.extend(missing.cloned().collect::<Vec<_>>());
        let inputs = if message.route.is_ensemble() { self.config.fit_inputs(inputs) } else { inputs };
        self.config.check_tensors(&inputs)?;
        Ok(inputs)
    }

    /// Whether a request that arrives now cannot be answered before its deadline.
    fn is_late(&self, message: &WorkMessage, description: &Description, now: UnixMicros) -> bool {
        self.queue.outlook(description).is_some_and(|(run, wait)| comes_too_late(message, run, wait, now))
    }

    /// Drops a request that cannot be answered before its deadline; the gateway answers it at the deadline.
    pub(crate) fn drop_late(self: &Arc<Self>, pending: Pending) {
        self.fail(pending, expired(), FailureReason::Other);
    }

    /// The settings of the version's shared queue.
    pub fn queue_options(&self) -> QueueOptions {
        QueueOptions {
            levels: queue_policy::levels(&self.config),
            in_hand: self.queue.capacity() as u64,
            ..self.worker.queue_options().clone()
        }
    }

    pub fn patience(&self, message: &WorkMessage, now: UnixMicros) -> Patience {
        queue_policy::patience(&self.config, message.level(), now.since(message.sent_at))
    }

    /// Applies the model's queue policy to the requests that wait in this worker: refuses those that have waited too
    /// long, or lets all others pass them.
    pub fn apply_queue_policy(self: &Arc<Self>) {
        let now = UnixMicros::now();
        for work in self.queue.remove_where(|work| self.patience(&work.pending.message, now) == Patience::Over) {
            self.fail(work.pending, refused(), FailureReason::Rejected);
        }
        self.queue.delay_where(|work| self.patience(&work.pending.message, now) == Patience::Delayed);
    }

    /// Removes the cancelled requests from this worker's queue.
    pub fn drop_cancelled(self: &Arc<Self>) {
        for work in self.queue.remove_where(|work| work.request.cancelled.is_cancelled()) {
            self.fail(work.pending, cancelled_by_client(), FailureReason::Other);
        }
    }

    /// Refuses a request that waited too long in the shared queue.
    pub fn refuse(self: &Arc<Self>, delivery: Delivery) {
        let (message, claim) = self.hold(delivery);
        let permit = self.queue.permit();
        let received_at = UnixMicros::now();
        // Every request that is concluded leaves `cancellations`, so it has to enter them first.
        self.worker.cancellations.enter(&message.request_id);
        let pending = self.pending(message, claim, permit, received_at);
        self.fail(pending, refused(), FailureReason::Rejected);
    }
}

// === impl Claim ===

impl Claim {
    /// Number of this attempt at the message, or of the attempt that is about to begin; from 1.
    pub fn attempt(&self) -> u32 {
        self.attempts.saturating_add(u32::from(!self.begun))
    }

    /// Whether the request has to run in a batch of its own.
    pub fn is_alone(&self) -> bool {
        self.suspect.as_ref().is_some_and(Suspect::is_alone)
    }
}

/// The names of a step's outputs, each once: the client and the next request of a sequence may need the same one.
fn names(outputs: &[StepOutput]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(outputs.len());
    for output in outputs {
        if !names.contains(&output.name) {
            names.push(output.name.clone());
        }
    }
    names
}

/// Why a request need not be worked on any more: it was cancelled, or its deadline has passed.
pub(crate) fn unwanted(cancelled: &CancelFlag, deadline: UnixMicros) -> Option<InferError> {
    if cancelled.is_cancelled() {
        Some(cancelled_by_client())
    } else if deadline <= UnixMicros::now() {
        Some(expired())
    } else {
        None
    }
}

/// The text is Triton's.
const TIMEOUT_EXPIRED: &str = "Request timeout expired";

pub(crate) fn cancelled_by_client() -> InferError {
    InferError::cancelled("cancelled by the client")
}

/// The error of a message that has used up its attempts, none of which has reported how it ended.
pub(crate) fn given_up(attempts: u32) -> InferError {
    InferError::internal(format!(
        "request was given up after {attempts} attempts: each time the worker died or stopped responding"
    ))
}

/// The error of a request whose deadline has passed or will pass too soon: the gateway answers it.
fn expired() -> InferError {
    InferError::cancelled(TIMEOUT_EXPIRED)
}

/// The error of a request that waited longer than the queue policy allows.
pub(crate) fn refused() -> InferError {
    InferError::unavailable(TIMEOUT_EXPIRED)
}
