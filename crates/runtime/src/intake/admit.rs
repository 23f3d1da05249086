//! How work is admitted to a model: a delivery from the bus, or a request from a step in this process. It is checked, and put
//! into the model's queue or settled at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trireme_bus::{AnswerForm, Delivery, QueueOptions, WorkMessage, original_id};
use trireme_engine::{
    Calls, Candidate, Description, ExecuteRequest, Origin, Permit, cancelled_by_client, expired, refused,
};
use trireme_inference::{Cause, FailureReason, InferError, Lane, ModelKey, Name, StepOutput, Tensor, UnixMicros};
use trireme_telemetry::steps::{StepRun, StepSpan};

use super::lateness::comes_too_late;
use super::queue_policy::{self, QueueDecision};
use crate::hosted::{HeldDelivery, HostedModel, Pending, Stay, Work};
use crate::settle::given_up;

// === impl HostedModel ===

impl HostedModel {
    /// Takes in a delivery from the bus. A short request may be executed `here`, on this thread.
    pub fn receive(self: &Arc<Self>, delivery: Delivery, here: bool) {
        let permit = self.queue.permit(delivery.message.lane(), delivery.more);
        let (message, held) = self.hold(delivery);
        if self.is_for_other_content(&message) {
            return self.decline(message, held, permit);
        }
        if held.deliveries > 1 {
            self.statistics.record(|counters| counters.redeliveries += 1);
            let this = self.clone();
            return self.worker.tasks.spawn("suspect", async move {
                if let Some((message, held)) = this.take_turn(message, held).await {
                    this.admit(message, held, permit, false);
                }
            });
        }
        self.admit(message, held, permit, here);
    }

    /// Whether a message is for another content of the version than this one.
    fn is_for_other_content(&self, message: &WorkMessage) -> bool {
        let wanted = message.route.current().and_then(|step| step.content.as_ref());
        wanted.zip(self.standing.as_ref()).is_some_and(|(wanted, standing)| *wanted != standing.content.digest)
    }

    /// Tells the gateway of a message for another content, which admits the request anew. Asks a gateway which content is served: this
    /// worker, or the request, may come from the time before it was chosen.
    fn decline(self: &Arc<Self>, message: WorkMessage, held: HeldDelivery, permit: Permit<Work>) {
        self.standing.iter().for_each(|standing| standing.recheck.notify_one());
        let this = self.clone();
        self.settle(async move {
            let error = other_content(&this.key);
            this.answer(&message, held, error).await;
            drop(permit);
        });
    }

    /// Starts to count a delivery as held.
    fn hold(&self, delivery: Delivery) -> (WorkMessage, HeldDelivery) {
        let held = HeldDelivery {
            guard: self.worker.held.hold(&delivery.acker),
            acker: delivery.acker,
            name: delivery.message.name(),
            deliveries: delivery.deliveries,
            attempts: 0,
            begun: false,
            suspect: None,
            sequence: delivery.message.part().sequence,
        };
        (delivery.message, held)
    }

    /// Checks a request and puts it into the queue, or settles it at once. A short one may be executed `here`, on this thread.
    pub(crate) fn admit(
        self: &Arc<Self>,
        message: WorkMessage,
        delivery: HeldDelivery,
        permit: Permit<Work>,
        here: bool,
    ) {
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
        let described = self.queue.describe(&inputs);
        let description = Description { rows: if self.batched { described.rows } else { 1 }, ..described };
        if self.is_late(&pending.message, &description, received_at) {
            self.queue.came_late();
            return self.drop_late(pending);
        }
        if self.decide(&pending.message, received_at) == QueueDecision::Over {
            return self.fail(pending, refused(), FailureReason::Rejected);
        }
        let message = &pending.message;
        let outputs = message.route.current().map_or(&[][..], |step| &step.outputs);
        let request = ExecuteRequest {
            request_id: original_id(&message.request_id).into(),
            client_id: message.client_id.clone(),
            outputs: names(outputs),
            parameters: message.parameters.clone(),
            deadline: message.deadline,
            cancelled,
            in_parts: self.config.decoupled && message.answer == AnswerForm::InParts,
            calls: Calls::of(self.clone(), origin(message)),
            owner: message.owner.clone(),
            inputs,
        };
        let Some(mut pending) = self.answer_from_cache(pending, &request) else { return };
        let message = &pending.message;
        let arrived = Instant::now();
        let delayed = self.decide(message, received_at) == QueueDecision::Delayed;
        let level = match message.lane() {
            Lane::Live => message.level(),
            Lane::Bulk => self.config.priority_level(message.priority),
        };
        let (lane, priority) = (message.lane(), level.saturating_mul(2) | u32::from(delayed));
        let candidate = Candidate { arrived, priority, description };
        pending.description = description;
        // Attempts of a suspect are noted before it begins, and parts of an answer wait for their reader: both would block here.
        let here = here && pending.delivery.suspect.is_none() && !request.in_parts;
        let alone = pending.delivery.is_alone();
        let work = Work { request, pending, arrived };
        match (alone, here) {
            (true, _) => self.queue.push_alone(candidate, work),
            (false, true) => self.enter(lane, candidate, work),
            (false, false) => self.wait(lane, candidate, work),
        }
    }

    /// The state of a request that has just arrived.
    fn pending(
        self: &Arc<Self>,
        message: WorkMessage,
        delivery: HeldDelivery,
        permit: Permit<Work>,
        received_at: UnixMicros,
    ) -> Box<Pending> {
        let step = StepRun {
            model: &self.key.name,
            version: self.key.version,
            worker: &self.worker.name,
            request_id: &message.request_id,
            attempt: delivery.attempt(),
            sent_at: message.sent_at.into(),
            received_at: received_at.into(),
        };
        let span = StepSpan::start(
            message.traceparent.as_ref().map(|trace| (trace.parent.as_str(), trace.state.as_deref())),
            &step,
        );
        let stay = Stay { _permit: permit, span };
        let (queued, description) = (Duration::ZERO, Description::exact(&[]));
        let model = self.clone();
        Box::new(Pending { model, message, delivery, stay, received_at, queued, description, missed: None })
    }

    fn check(
        &self,
        message: &WorkMessage,
        delivery: &HeldDelivery,
        now: UnixMicros,
    ) -> Result<Vec<Tensor>, InferError> {
        let attempts = delivery.attempts;
        if !delivery.begun && attempts >= self.worker.queue_options().max_attempts {
            return Err(given_up(attempts));
        }
        if message.deadline <= now {
            return Err(expired());
        }
        let mut inputs = message.route.step_inputs(&message.tensors)?;
        let missing =
            self.initial_states.iter().filter(|state| !inputs.iter().any(|input| input.name() == state.name()));
        inputs.extend(missing.cloned().collect::<Vec<_>>());
        if let Some(step) = message.route.current() {
            inputs = self.config.fit_inputs(step, inputs);
        }
        self.config.check_tensors(&inputs)?;
        Ok(inputs)
    }

    /// Whether a request that arrives now cannot be answered before its deadline.
    fn is_late(&self, message: &WorkMessage, description: &Description, now: UnixMicros) -> bool {
        self.queue
            .outlook(message.lane(), description)
            .is_some_and(|(run, wait)| comes_too_late(message, run, wait, now))
    }

    /// Drops a request that cannot be answered before its deadline; the gateway answers it at the deadline.
    pub(crate) fn drop_late(self: &Arc<Self>, pending: Box<Pending>) {
        self.fail(pending, expired(), FailureReason::Other);
    }

    /// The settings of the version's shared queue.
    pub fn queue_options(&self) -> QueueOptions {
        QueueOptions {
            levels: queue_policy::levels(&self.config),
            in_hand: self.allowance as u64,
            ..self.worker.queue_options().clone()
        }
    }

    pub fn decide(&self, message: &WorkMessage, now: UnixMicros) -> QueueDecision {
        queue_policy::decide(&self.config, message.level(), &message.parameters, now.since(message.sent_at))
    }

    /// Applies the model's queue policy to the requests that wait in this worker: refuses those that have waited too
    /// long, or lets all others pass them.
    pub fn apply_queue_policy(self: &Arc<Self>) {
        let now = UnixMicros::now();
        for work in self.queue.remove_where(|work| self.decide(&work.pending.message, now) == QueueDecision::Over) {
            self.fail(work.pending, refused(), FailureReason::Rejected);
        }
        self.queue.delay_where(|work| self.decide(&work.pending.message, now) == QueueDecision::Delayed);
    }

    /// Removes the cancelled requests from this worker's queue.
    pub fn drop_cancelled(self: &Arc<Self>) {
        for work in self.queue.remove_where(|work| work.request.cancelled.is_cancelled()) {
            self.fail(work.pending, cancelled_by_client(), FailureReason::Other);
        }
    }

    /// Refuses a request that waited too long in the shared queue. No worker has begun it, however often it was delivered.
    pub fn refuse(self: &Arc<Self>, delivery: Delivery) {
        let delivery = Delivery { deliveries: 1, ..delivery };
        let permit = self.queue.permit(delivery.message.lane(), delivery.more);
        let (message, held) = self.hold(delivery);
        let received_at = UnixMicros::now();
        // Every request that is concluded leaves `cancellations`, so it has to enter them first.
        self.worker.cancellations.enter(&message.request_id);
        let pending = self.pending(message, held, permit, received_at);
        self.fail(pending, refused(), FailureReason::Rejected);
    }
}

/// The error of a request that was admitted for another content of this model than its worker's.
fn other_content(model: &ModelKey) -> InferError {
    let text = format!(
        "model '{model}' is served with other files, flags or packages than when the request was admitted: send the request again"
    );
    InferError::unavailable(text).because(Cause::OtherContent)
}

/// Takes a request of a step in this process into a model. Returns it if it is for another content of the model, if there is no room,
/// if older requests wait in the shared queue, or if the model has a queue policy: then the request has to wait in the shared queue.
pub(crate) fn hand_over(
    model: &Arc<HostedModel>,
    message: WorkMessage,
    held: HeldDelivery,
) -> Option<(WorkMessage, HeldDelivery)> {
    let stays = model.config.has_queue_policy() || model.is_for_other_content(&message);
    let permit = if stays { None } else { model.queue.try_permit(message.lane()) };
    match permit {
        Some(permit) => {
            model.admit(message, held, permit, true);
            None
        }
        None => Some((message, held)),
    }
}

/// The names of a step's outputs, each once: the client and the next request of a sequence may need the same one.
fn names(outputs: &[StepOutput]) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::with_capacity(outputs.len());
    for output in outputs {
        if !names.contains(&output.name) {
            names.push(output.name.clone());
        }
    }
    names
}

/// The request on whose behalf the model's code sends requests to other models.
fn origin(message: &WorkMessage) -> Origin {
    Origin {
        callers: message.callers.clone(),
        deadline: message.deadline,
        priority: message.priority,
        lane: message.lane(),
        traceparent: message.traceparent.clone(),
        owner: message.owner.clone(),
    }
}
