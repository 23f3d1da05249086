//! Requests that the code of a model sends to other models while it executes requests or is loaded: a gateway runs them
//! ([`trireme_bus::CallReplies`]).

use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};
use trireme_bus::{AnswerForm, CallReplies, LATEST, Reply, WorkMessage};
use trireme_engine::{Answered, Caller, Nested, NestedResponse, Origin};
use trireme_inference::{
    Action, Callers, InferError, Ledger, ModelKey, Route, Step, StepOutput, UnixMicros, request_timeout,
};

use crate::hosted::{HostedModel, WorkerState};

// === impl HostedModel ===

impl Caller for HostedModel {
    fn model(&self) -> &ModelKey {
        &self.key
    }

    fn send(&self, nested: Nested, origin: &Origin, callers: Callers, answered: Answered) -> DropGuard {
        send(&self.worker, nested, origin, callers, answered)
    }
}

/// A model version whose code executes no request, such as while it is loaded.
pub(crate) struct IdleModel {
    pub key: ModelKey,
    pub worker: Arc<WorkerState>,
}

impl Caller for IdleModel {
    fn model(&self) -> &ModelKey {
        &self.key
    }

    fn send(&self, nested: Nested, origin: &Origin, callers: Callers, answered: Answered) -> DropGuard {
        send(&self.worker, nested, origin, callers, answered)
    }
}

fn send(worker: &WorkerState, nested: Nested, origin: &Origin, callers: Callers, answered: Answered) -> DropGuard {
    let action = nested.action;
    let message = message(nested, origin, callers, &worker.name);
    let guard = CancellationToken::new();
    let stop = guard.clone();
    let bus = worker.bus.clone();
    worker.tasks.spawn("nested request", async move {
        let exchange = exchange(bus, action, message, answered.into());
        tokio::select! {
            () = exchange => {}
            () = stop.cancelled() => {}
        }
    });
    guard.drop_guard()
}

/// Sends a request and gives its replies to `answered`.
async fn exchange(
    bus: Arc<dyn trireme_bus::Bus>,
    action: Action,
    message: WorkMessage,
    answered: Arc<dyn Fn(NestedResponse) + Send + Sync>,
) {
    let deliver = async |reply: Reply| {
        let answered = answered.clone();
        // A panic has been reported by the thread.
        let _ = tokio::task::spawn_blocking(move || answered(response(reply))).await;
    };
    let mut replies = match CallReplies::open(bus, action, message.clone()).await {
        Ok(replies) => replies,
        Err(error) => return deliver(message.reply(Err(InferError::from(&error)))).await,
    };
    while let Some(reply) = replies.next().await {
        deliver(reply).await;
    }
}

/// A reply as the model's code gets it.
fn response(reply: Reply) -> NestedResponse {
    let outcome = reply.outcome.map(|output| (output.tensors, output.parameters));
    NestedResponse { outcome, last: reply.last }
}

fn message(nested: Nested, origin: &Origin, callers: Callers, worker: &str) -> WorkMessage {
    let now = UnixMicros::now();
    let deadline =
        request_timeout(&nested.parameters).map_or(origin.deadline, |timeout| origin.deadline.min(now.after(timeout)));
    let model = ModelKey { name: nested.model.into(), version: nested.version.unwrap_or(LATEST) };
    let output = |name: &String| StepOutput { name: name.as_str().into(), tensor: name.as_str().into() };
    let step = Step {
        model: model.clone(),
        inputs: Vec::new(),
        outputs: nested.outputs.iter().map(output).collect(),
        dead: Vec::new(),
        // It says the lane only: the gateway makes the route.
        level: origin.lane.level(0),
        content: None,
    };
    WorkMessage {
        request_id: format!("{worker}-call-{:016x}", fastrand::u64(..)).into(),
        gateway: worker.into(),
        deadline,
        priority: origin.priority,
        traceparent: origin.traceparent.clone(),
        client_id: nested.id.into(),
        sent_at: now,
        route: Route::resume(model, false, 0, vec![step]),
        tensors: nested.inputs,
        parameters: Arc::new(nested.parameters),
        ledger: Ledger::default(),
        answer: if nested.in_parts { AnswerForm::InParts } else { AnswerForm::Whole },
        callers,
        job: None,
        owner: origin.owner.clone(),
    }
}
