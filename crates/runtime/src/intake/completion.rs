//! The way of a request out of the engine: each decision of [`Completion`] by the request's delivery and message.

use std::time::Duration;

use trireme_engine::{Completion, Description, ExecuteRequest, ExecuteResponse};
use trireme_inference::{FailureReason, InferError, UnixMicros};
use trireme_telemetry::steps::ran_together;

use super::lateness::begins_too_late;
use super::queue_policy::QueueDecision;
use crate::hosted::Pending;
use crate::hosted::held::{Holding, give_back};
use crate::settle::{PartSender, start_parts};

/// How long the bus may take for giving back the deliveries of an execution that does not end.
const LET_GO_LIMIT: Duration = Duration::from_secs(1);

/// Pause before a delivery that was given back is delivered again.
const AGAIN: Duration = Duration::from_millis(100);

// === impl Pending ===

impl Completion for Box<Pending> {
    type Holding = Holding;
    type PartSender = PartSender;

    fn description(&self) -> Description {
        self.description
    }

    fn complete(mut self, response: ExecuteResponse) {
        let model = self.model.clone();
        model.keep_answer(&mut self, &response);
        model.finish(self, response);
    }

    fn fail(self, error: InferError, reason: FailureReason) {
        self.model.clone().fail(self, error, reason);
    }

    fn into_parts(self) -> PartSender {
        start_parts(self)
    }

    fn is_alone(&self) -> bool {
        self.delivery.is_alone()
    }

    fn is_too_late(&self, run: Duration) -> bool {
        begins_too_late(&self.message, run, UnixMicros::now())
    }

    fn has_waited_too_long(&self) -> bool {
        self.model.decide(&self.message, UnixMicros::now()) == QueueDecision::Over
    }

    fn begin(&mut self, queued: Duration) {
        self.queued = queued;
        self.stay.span.begin();
    }

    fn begin_batch(batch: Vec<(ExecuteRequest, Self)>) -> Vec<(ExecuteRequest, Self)> {
        let Some(model) = batch.first().map(|(_, pending)| pending.model.clone()) else { return batch };
        let batch = model.count_attempts(batch);
        model.count_time_left(batch.iter().map(|(_, pending)| &**pending));
        batch
    }

    fn ran_together(batch: &mut [Self]) {
        let requests = batch.len();
        ran_together(batch.iter_mut().map(|pending| &mut pending.stay.span), requests);
    }

    fn held(&self) -> Option<Holding> {
        Some(self.delivery.guard.holding())
    }

    async fn release(held: Vec<Holding>) {
        give_back(&held, LET_GO_LIMIT).await;
    }

    fn give_back(batch: Vec<Self>) {
        let Some(model) = batch.first().map(|pending| pending.model.clone()) else { return };
        model.clone().settle(async move { model.give_back_work(batch, AGAIN).await });
    }
}
