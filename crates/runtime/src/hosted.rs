//! One model version hosted by this worker, and how work is admitted to it.
//!
//! The path of a request through here: [`HostedModel::admit`] checks it and puts it into the queue; an instance thread
//! takes it with its batch and executes (`execute`); the result goes to the next step in this process, to the bus, or back to
//! the gateway, and only then is the delivery acknowledged (`settle`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use trireme_bus::{Answer, Delivery, MessageName, QueueOptions, WorkMessage, original_id};
use trireme_inference::{FailureReason, InferError, ModelKey, Tensor, UnixMicros};
use trireme_model_repository::ModelConfig;
use trireme_telemetry::steps::{Step, StepSpan};

use crate::backend::ExecuteRequest;
use crate::batching::{Candidate, Description};
use crate::canary::Canary;
use crate::cancel::CancelFlag;
use crate::held::HeldAcker;
use crate::lateness::comes_too_late;
use crate::queue::{Permit, WorkQueue};
use crate::queue_policy::{self, Patience};
use crate::statistics::ModelStatistics;
use crate::suspects::Suspect;
use crate::watchdog::Executions;
use crate::worker::Shared;

/// A model version with its queue.
pub(crate) struct HostedModel {
    pub key: ModelKey,
    pub config: Arc<ModelConfig>,
    pub queue: Arc<WorkQueue<Work>>,
    pub worker: Arc<Shared>,
    /// Requests that have come in so far.
    pub admitted: AtomicU64,
    pub statistics: Arc<ModelStatistics>,
    /// Whether the first dimension of its inputs is a batch; otherwise a request is one row.
    pub batched: bool,
    /// Cancelled when nothing is in hand for it and nothing will be: another has taken its place, or it is unloaded.
    pub gone: CancellationToken,
    /// Cancelled when it shall take no more work from the bus.
    pub intake: CancellationToken,
    /// What idle instances execute now and then.
    pub canary: Option<Canary>,
    /// What its instances execute.
    pub executions: Executions,
}

/// A request in this worker's hands.
pub(crate) struct Work {
    pub request: ExecuteRequest,
    pub pending: Pending,
    pub arrived: Instant,
}

/// What is left of a request while it is executed, and what settles it afterwards.
pub(crate) struct Pending {
    pub message: WorkMessage,
    pub delivery: Claim,
    pub stay: Stay,
    pub received_at: UnixMicros,
    /// How long it has waited in this worker's queue.
    pub queued: Duration,
    /// What its inputs are like; `rows` is what it counts as.
    pub description: Description,
}

/// What lasts as long as a request is in this worker's hands.
pub(crate) struct Stay {
    _permit: Permit<Work>,
    pub span: StepSpan,
}

/// The delivery that brought a request into this process. With a hand-over it goes along: acknowledging it says that the
/// work has left the process.
pub(crate) struct Claim {
    pub acker: HeldAcker,
    /// Its message, whatever step the work is at.
    pub name: MessageName,
    /// Which delivery of its message it is, counted from 1.
    pub deliveries: u32,
    /// How often the message was begun, this time included once it was.
    pub attempts: u32,
    /// Whether it has begun this time.
    pub begun: bool,
    /// For one that is not the first, until it has been executed.
    pub suspect: Option<Suspect>,
    /// Number of the reply that an error becomes.
    pub sequence: u32,
}

// === impl HostedModel ===

impl HostedModel {
    /// Takes in what the bus delivered.
    pub fn receive(self: &Arc<Self>, delivery: Delivery) {
        let (message, claim) = self.hold(delivery);
        if claim.deliveries > 1 {
            self.statistics.record(|counters| counters.redeliveries += 1);
            return self.suspect(message, claim, self.queue.permit());
        }
        self.admit(message, claim, self.queue.permit());
    }

    /// Keeps a delivery alive from now on.
    fn hold(&self, delivery: Delivery) -> (WorkMessage, Claim) {
        let claim = Claim {
            acker: self.worker.held.hold(delivery.acker),
            name: delivery.message.name(&self.key),
            deliveries: delivery.attempt,
            attempts: 0,
            begun: false,
            suspect: None,
            sequence: delivery.message.part().sequence,
        };
        (delivery.message, claim)
    }

    /// Takes in a request that a step in this process made; gives it back when there is no room, and where it has to wait its
    /// turn among others.
    pub fn hand_over(self: &Arc<Self>, message: WorkMessage, claim: Claim) -> Option<(WorkMessage, Claim)> {
        match self.queue.try_permit().filter(|_| !self.config.has_queue_policy()) {
            Some(permit) => {
                self.admit(message, claim, permit);
                None
            }
            None => Some((message, claim)),
        }
    }

    /// Checks a request and queues it, or settles it at once.
    pub(crate) fn admit(self: &Arc<Self>, message: WorkMessage, delivery: Claim, permit: Permit<Work>) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        let received_at = UnixMicros::now();
        self.worker.taps.see(&self.key, &self.config.backend, &message, delivery.attempt());
        let cancelled = self.worker.cancellations.enter(&message.request_id);
        let checked = self.check(&message, &delivery, received_at);
        let mut pending = self.pending(message, delivery, permit, received_at);
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
            outputs: outputs.iter().map(|output| output.name.clone()).collect(),
            parameters: message.parameters.clone(),
            deadline: message.deadline,
            cancelled,
            in_parts: self.config.decoupled && message.answer == Answer::InParts,
            inputs,
        };
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

    /// A request that has just been received.
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
        Pending { message, delivery, stay, received_at, queued: Duration::ZERO, description: Description::exact(&[]) }
    }

    fn check(&self, message: &WorkMessage, delivery: &Claim, now: UnixMicros) -> Result<Vec<Tensor>, InferError> {
        let attempts = delivery.attempts;
        if !delivery.begun && attempts >= self.worker.queue_options.max_deliver {
            return Err(given_up(attempts));
        }
        if message.deadline <= now {
            return Err(expired());
        }
        let inputs = message.route.step_inputs(&message.tensors)?;
        self.config.check_tensors(&inputs)?;
        Ok(inputs)
    }

    /// Whether a request that comes now will not be answered before its deadline.
    fn is_late(&self, message: &WorkMessage, description: &Description, now: UnixMicros) -> bool {
        self.queue.outlook(description).is_some_and(|(run, wait)| comes_too_late(message, run, wait, now))
    }

    /// Lets go of a request that would not be answered before its deadline; the gateway answers it then.
    pub(crate) fn drop_late(self: &Arc<Self>, pending: Pending) {
        self.fail(pending, expired(), FailureReason::Other);
    }

    /// How its queue is to behave.
    pub fn queue_options(&self) -> QueueOptions {
        QueueOptions { levels: queue_policy::levels(&self.config), ..self.worker.queue_options.clone() }
    }

    pub fn patience(&self, message: &WorkMessage, now: UnixMicros) -> Patience {
        queue_policy::patience(&self.config, message.level(), now.since(message.sent_at))
    }

    /// Looks at what waits in this worker by the model's queue policy: refuses what has waited too long, or lets all others
    /// before it.
    pub fn apply_queue_policy(self: &Arc<Self>) {
        let now = UnixMicros::now();
        for work in self.queue.remove_where(|work| self.patience(&work.pending.message, now) == Patience::Over) {
            self.fail(work.pending, refused(), FailureReason::Rejected);
        }
        self.queue.delay_where(|work| self.patience(&work.pending.message, now) == Patience::Delayed);
    }

    /// Lets go of what waits in this worker and was cancelled.
    pub fn drop_cancelled(self: &Arc<Self>) {
        for work in self.queue.remove_where(|work| work.request.cancelled.is_cancelled()) {
            self.fail(work.pending, cancelled_by_client(), FailureReason::Other);
        }
    }

    /// Refuses what waited too long in the shared queue.
    pub fn refuse(self: &Arc<Self>, delivery: Delivery) {
        let (message, claim) = self.hold(delivery);
        let permit = self.queue.permit();
        let received_at = UnixMicros::now();
        // As all that is in hand: whatever ends leaves.
        self.worker.cancellations.enter(&message.request_id);
        let pending = self.pending(message, claim, permit, received_at);
        self.fail(pending, refused(), FailureReason::Rejected);
    }
}

// === impl Claim ===

impl Claim {
    /// Which attempt at the message this is, or is about to be, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempts.saturating_add(u32::from(!self.begun))
    }

    /// Whether nothing else may run in one batch with it.
    pub fn is_alone(&self) -> bool {
        self.suspect.as_ref().is_some_and(Suspect::is_alone)
    }
}

/// Why a request need not be worked on any more, if so.
pub(crate) fn unwanted(cancelled: &CancelFlag, deadline: UnixMicros) -> Option<InferError> {
    if cancelled.is_cancelled() {
        Some(cancelled_by_client())
    } else if deadline <= UnixMicros::now() {
        Some(expired())
    } else {
        None
    }
}

/// Triton's text.
const TIMEOUT_EXPIRED: &str = "Request timeout expired";

pub(crate) fn cancelled_by_client() -> InferError {
    InferError::cancelled("cancelled by the client")
}

/// A message has been begun as often as it may be, and nobody has said how that ended.
pub(crate) fn given_up(attempts: u32) -> InferError {
    InferError::internal(format!(
        "request was given up after {attempts} attempts: each time the worker died or stopped responding"
    ))
}

/// Nobody waits for a request past its deadline: the gateway has answered it.
fn expired() -> InferError {
    InferError::cancelled(TIMEOUT_EXPIRED)
}

/// The queue policy refuses a request that waited too long.
pub(crate) fn refused() -> InferError {
    InferError::unavailable(TIMEOUT_EXPIRED)
}
