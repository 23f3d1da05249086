//! One model version hosted by this worker: admits its work, executes it, and sends the results on.
//!
//! The path of a request through here: [`HostedModel::admit`] checks it and puts it into the queue; an instance thread
//! takes it with its batch, executes, and calls [`HostedModel::finish`]; the result goes to the next step in this process
//! ([`Shared::hand_over`]), to the bus, or back to the gateway, and only then is the delivery acknowledged: `settle`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use trireme_bus::{Answer, Delivery, Output, QueueOptions, WorkMessage, original_id};
use trireme_inference::{Completed, FailureReason, Hop, InferError, ModelKey, Tensor, UnixMicros};
use trireme_model_repository::ModelConfig;
use trireme_telemetry::steps::{Computed, Step, StepSpan, ran_together};

use crate::backend::{ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, ModelInstance, Stop};
use crate::batching::{Candidate, Description};
use crate::canary::Canary;
use crate::cancel::CancelFlag;
use crate::held::HeldAcker;
use crate::queue::{Permit, WorkQueue};
use crate::queue_policy::{self, Patience};
use crate::settle::bus_error;
use crate::statistics::ModelStatistics;
use crate::statistics::runs::{Runs, executed};
use crate::stepwise::Stepper;
use crate::watchdog::{Abort, Executions};
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
    /// How many requests all its workers take in together, once that is known.
    pub taken_in: Mutex<Option<u64>>,
}

/// A request in this worker's hands.
pub(crate) struct Work {
    request: ExecuteRequest,
    pending: Pending,
    arrived: Instant,
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
    pub attempt: u32,
    /// Number of the reply that an error becomes.
    pub sequence: u32,
}

// === impl HostedModel ===

impl HostedModel {
    /// Takes in what the bus delivered.
    pub fn receive(self: &Arc<Self>, delivery: Delivery) {
        let sequence = delivery.message.part().sequence;
        let claim = Claim { acker: self.worker.held.hold(delivery.acker), attempt: delivery.attempt, sequence };
        if claim.attempt > 1 {
            self.statistics.record(|counters| counters.redeliveries += 1);
        }
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
        self.admitted.fetch_add(1, Ordering::Relaxed);
        let received_at = UnixMicros::now();
        self.worker.taps.see(&self.key, &self.config.backend, &message, delivery.attempt);
        let cancelled = self.worker.cancellations.enter(&message.request_id);
        let checked = self.check(&message, &delivery, received_at);
        let mut pending = self.pending(message, delivery, permit, received_at);
        let inputs = match checked {
            _ if cancelled.is_cancelled() => {
                let error = InferError::cancelled("cancelled by the client");
                return self.fail(pending, error, FailureReason::Other);
            }
            Err(error) => return self.fail(pending, error, FailureReason::Other),
            Ok(_) if self.patience(&pending.message, received_at) == Patience::Over => {
                return self.fail(pending, refused(), FailureReason::Rejected);
            }
            Ok(checked) => checked,
        };
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
        let description = self.queue.describe(&request.inputs);
        let candidate = Candidate { arrived, priority: message.level().saturating_mul(2), description };
        let rows = if self.batched { description.rows } else { 1 };
        pending.description = Description { rows, ..description };
        self.queue.push(candidate, Work { request, pending, arrived });
    }

    /// A request that has just been received.
    fn pending(&self, message: WorkMessage, delivery: Claim, permit: Permit<Work>, received_at: UnixMicros) -> Pending {
        let step = Step {
            model: &self.key.name,
            version: self.key.version,
            worker: &self.worker.name,
            request_id: &message.request_id,
            attempt: delivery.attempt,
            sent_at: message.sent_at.into(),
            received_at: received_at.into(),
        };
        let span = StepSpan::start(message.traceparent.as_deref(), &step);
        let stay = Stay { _permit: permit, span };
        Pending { message, delivery, stay, received_at, queued: Duration::ZERO, description: Description::exact(&[]) }
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

    /// How its queue is to behave.
    pub fn queue_options(&self) -> QueueOptions {
        let levels = queue_policy::levels(&self.config, *self.taken_in.lock());
        QueueOptions { levels, ..self.worker.queue_options.clone() }
    }

    fn patience(&self, message: &WorkMessage, now: UnixMicros) -> Patience {
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

    /// Gives back what waits in this worker.
    pub async fn hand_back(&self) {
        for work in self.queue.remove_where(|_| true) {
            let _ = work.pending.delivery.acker.nak(Duration::ZERO).await;
        }
    }

    /// Refuses what waited too long in the shared queue.
    pub fn refuse(self: &Arc<Self>, delivery: Delivery) {
        let sequence = delivery.message.part().sequence;
        let claim = Claim { acker: self.worker.held.hold(delivery.acker), attempt: delivery.attempt, sequence };
        let (message, permit) = (delivery.message, self.queue.permit());
        let received_at = UnixMicros::now();
        let pending = self.pending(message, claim, permit, received_at);
        self.fail(pending, refused(), FailureReason::Rejected);
    }

    /// The life of an instance's thread, until the queue is closed.
    pub fn run_instance(self: Arc<Self>, instance: Instance) {
        // Sending results on may need the runtime's timers and channels.
        let runtime = self.worker.tasks.runtime().clone();
        let _runtime = runtime.enter();
        match instance {
            Instance::Batch(instance) => self.run_batches(instance),
            Instance::Stepwise(instance) => Stepper::new(self, instance).run(),
        }
    }

    /// Takes a batch, executes it, sends the results on.
    fn run_batches(self: Arc<Self>, mut instance: Box<dyn ModelInstance>) {
        let (stop, mut calls) = (instance.stop(), 0);
        while let Some((batch, mut run)) = self.queue.take_run(&mut calls) {
            match batch.is_empty() {
                true => self.run_canary(instance.as_mut()),
                false => run.executed = self.run_batch(instance.as_mut(), stop.as_ref(), batch),
            }
        }
    }

    /// A request that is about to be executed, unless nobody waits for it any more.
    pub(crate) fn begin(self: &Arc<Self>, work: Work, started: Instant) -> Option<(ExecuteRequest, Pending)> {
        let Work { request, mut pending, arrived } = work;
        if let Some(error) = request.unwanted() {
            self.fail(pending, error, FailureReason::Other);
            return None;
        }
        if self.patience(&pending.message, UnixMicros::now()) == Patience::Over {
            self.fail(pending, refused(), FailureReason::Rejected);
            return None;
        }
        pending.queued = started.duration_since(arrived);
        pending.stay.span.begin();
        Some((request, pending))
    }

    /// Executes those of a batch that somebody waits for, and says how many those were.
    fn run_batch(
        self: &Arc<Self>,
        instance: &mut dyn ModelInstance,
        stop: Option<&Arc<dyn Stop>>,
        batch: Vec<Work>,
    ) -> usize {
        let started = Instant::now();
        let wanted = batch.into_iter().filter_map(|work| self.begin(work, started));
        let (requests, mut waiting): (Vec<_>, Vec<_>) = wanted.unzip();
        if requests.is_empty() {
            return 0;
        }
        let slots = waiting.iter().map(|pending| pending.delivery.acker.slot()).collect();
        let callers = || requests.iter().map(|request| (request.cancelled.clone(), request.deadline)).collect();
        let abort = stop.map(|stop| Abort { callers: callers(), stop: stop.clone() });
        let execution = self.executions.begin(slots, abort);
        let executed = std::panic::catch_unwind(AssertUnwindSafe(|| instance.execute(&requests)));
        drop(execution);
        let mut results = executed.unwrap_or_else(|_| {
            tracing::error!(model = %self.key, "model instance panicked");
            requests.iter().map(|_| Err(panicked())).collect()
        });
        // An instance that answers fewer requests than it was given must not leave the others waiting.
        results.resize_with(requests.len(), || Err(InferError::internal("model instance gave no result")));
        ran_together(waiting.iter_mut().map(|pending| &mut pending.stay.span), requests.len());
        // Whatever is answered has been counted before.
        let timings = results.iter().map(|result| result.as_ref().ok().map(|response| response.timing));
        self.count(&Runs::of(waiting.iter().map(|pending| pending.description).zip(timings)));
        for ((request, pending), result) in requests.iter().zip(waiting).zip(results) {
            match result.is_err().then(|| request.unwanted()).flatten() {
                // It may have been stopped for that.
                Some(error) => self.fail(pending, error, FailureReason::Other),
                None => self.conclude(pending, result),
            }
        }
        requests.len()
    }

    /// A step has ended, with its result or without one.
    pub(crate) fn conclude(self: &Arc<Self>, pending: Pending, result: Result<ExecuteResponse, InferError>) {
        match result {
            Ok(response) => self.finish(pending, response),
            Err(error) => self.fail(pending, error, FailureReason::Backend),
        }
    }

    /// Counts what an instance has run.
    fn count(&self, runs: &Runs) {
        let (tokens, padding) = runs.tokens();
        self.statistics.record(|counters| {
            runs.executed().for_each(|run| counters.execute(&run));
            counters.tokens += tokens;
            counters.padding_tokens += padding;
        });
    }

    /// Counts what a stepwise instance has done for a request from beginning to end: that is one run.
    pub(crate) fn count_step(&self, timing: &ExecuteTiming) {
        self.statistics.record(|counters| counters.execute(&executed(timing)));
    }

    /// Counts a request whose step is done, before anybody hears of it. `first` is its only response; of several, the first
    /// was counted before.
    pub(crate) fn count_completed(&self, pending: &Pending, timing: &ExecuteTiming, first: bool) {
        let now = UnixMicros::now();
        let transit = pending.received_at.since(pending.message.sent_at);
        let completed = Completed {
            rows: pending.description.rows,
            transit,
            worker_queue: pending.queued,
            compute_input: timing.compute_input,
            compute_infer: timing.compute_infer,
            compute_output: timing.compute_output,
            total: transit + now.since(pending.received_at),
        };
        self.statistics.record(|counters| {
            counters.complete(&completed, now);
            if first {
                counters.first_response.record(completed.total);
            }
        });
    }

    /// A step is done: records the hop, applies the output map, sends the request on.
    fn finish(self: &Arc<Self>, mut pending: Pending, response: ExecuteResponse) {
        self.worker.cancellations.leave(&pending.message.request_id);
        pending.stay.span.computed(computed(&response.timing));
        self.count_completed(&pending, &response.timing, true);
        let hop = self.hop(&pending, &response.timing);
        let Pending { mut message, delivery, stay, .. } = pending;
        advance(&mut message, hop, response.outputs);

        if message.route.current().is_some() {
            let Some((message, delivery)) = self.worker.hand_over(message, delivery) else { return };
            let this = self.clone();
            self.settle(async move { this.publish(message, delivery, stay).await });
        } else {
            let output = Output { tensors: std::mem::take(&mut message.tensors), parameters: Default::default() };
            let reply = message.reply(Ok(output));
            let this = self.clone();
            self.settle(async move {
                let mut stay = stay;
                match this.worker.bus.reply(reply).await {
                    Ok(()) => this.report(&message, delivery.acker.ack().await),
                    Err(error) => {
                        let error = bus_error(&error);
                        stay.span.fail(&error.message);
                        this.settle_error(message, delivery, error, FailureReason::Other).await;
                    }
                }
            });
        }
    }

    /// The ledger's entry for a step that was made here.
    pub(crate) fn hop(&self, pending: &Pending, timing: &ExecuteTiming) -> Hop {
        Hop {
            model: self.key.name.clone(),
            worker: self.worker.name.clone(),
            transit_us: micros(pending.received_at.since(pending.message.sent_at)),
            queue_us: micros(pending.queued),
            compute_input_us: micros(timing.compute_input),
            compute_infer_us: micros(timing.compute_infer),
            compute_output_us: micros(timing.compute_output),
            batch_size: timing.batch_size,
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
}

/// Moves a message past the step that made `outputs`.
pub(crate) fn advance(message: &mut WorkMessage, hop: Hop, outputs: Vec<Tensor>) {
    message.ledger.0.push(hop);
    message.route.advance(&mut message.tensors, outputs);
    message.sent_at = UnixMicros::now();
}

/// Why a request need not be worked on any more, if so.
pub(crate) fn unwanted(cancelled: &CancelFlag, deadline: UnixMicros) -> Option<InferError> {
    if cancelled.is_cancelled() {
        Some(InferError::cancelled("cancelled by the client"))
    } else if deadline <= UnixMicros::now() {
        Some(expired())
    } else {
        None
    }
}

/// The instance has panicked.
pub(crate) fn panicked() -> InferError {
    InferError::internal("model instance panicked while executing")
}

/// Triton's text.
const TIMEOUT_EXPIRED: &str = "Request timeout expired";

/// Nobody waits for a request past its deadline: the gateway has answered it.
fn expired() -> InferError {
    InferError::cancelled(TIMEOUT_EXPIRED)
}

/// The queue policy refuses a request that waited too long.
fn refused() -> InferError {
    InferError::unavailable(TIMEOUT_EXPIRED)
}

/// What a response's span says of its batch.
pub(crate) fn computed(timing: &ExecuteTiming) -> Computed {
    Computed {
        batch_size: timing.batch_size,
        input: timing.compute_input,
        infer: timing.compute_infer,
        output: timing.compute_output,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
