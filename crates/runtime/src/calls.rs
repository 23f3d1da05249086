//! Requests that the code of a model sends to other models while it executes requests.
//!
//! A gateway runs them ([`trireme_bus::CallReplies`]). They end with the requests on whose behalf they were sent: at the latest
//! of their deadlines, or when the caller drops the guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use trireme_bus::{Action, Answer, CallReplies, LATEST, Reply, WorkMessage};
use trireme_inference::{
    Callers, InferError, Ledger, ModelKey, Parameters, Route, Step, StepOutput, Tensor, UnixMicros,
};

use crate::hosted::HostedModel;

/// A request's way to other models. The default has none, and refuses.
#[derive(Clone, Default)]
pub struct Calls(Option<Origin>);

/// The request that is executed.
#[derive(Clone)]
struct Origin {
    model: Arc<HostedModel>,
    callers: Callers,
    deadline: UnixMicros,
    priority: u64,
    traceparent: Option<String>,
}

/// A request to another model.
#[derive(Clone, Debug, Default)]
pub struct Nested {
    /// What it asks for.
    pub action: Action,
    /// The model or ensemble.
    pub model: String,
    /// Its version; `None` is the latest ready one.
    pub version: Option<i64>,
    /// What the model's code calls the request; may be empty.
    pub id: String,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The outputs that are wanted; none means all.
    pub outputs: Vec<String>,
    /// The request's parameters.
    pub parameters: Parameters,
    /// The time limit; `None` is that of the requests on whose behalf it is sent.
    pub timeout: Option<Duration>,
    /// Whether the answer may come in parts.
    pub in_parts: bool,
}

// === impl Calls ===

impl Calls {
    pub(crate) fn of(model: &Arc<HostedModel>, message: &WorkMessage) -> Calls {
        Calls(Some(Origin {
            model: model.clone(),
            callers: message.callers.clone(),
            deadline: message.deadline,
            priority: message.priority,
            traceparent: message.traceparent.clone(),
        }))
    }

    /// Sends a request on behalf of the requests whose ways these are. `answered` gets each reply on a thread that may
    /// block. When the guard is dropped, the request is cancelled and `answered` gets no more replies.
    pub fn send<'a>(
        of: impl IntoIterator<Item = &'a Calls>,
        nested: Nested,
        answered: impl Fn(Reply) + Send + Sync + 'static,
    ) -> Result<DropGuard, InferError> {
        let origins: Vec<&Origin> = of.into_iter().filter_map(|calls| calls.0.as_ref()).collect();
        let Some(last) = origins.iter().max_by_key(|origin| origin.deadline) else {
            return Err(InferError::unavailable(format!(
                "a request to model '{}' can be sent only while the model executes a request that somebody waits for",
                nested.model
            )));
        };
        let hosted = &last.model;
        let callers = Callers::joined(origins.iter().map(|origin| &origin.callers), &hosted.key);
        let action = nested.action;
        let message = message(nested, last, callers);
        let guard = CancellationToken::new();
        let stop = guard.clone();
        let (tasks, bus, answered) = (hosted.worker.tasks.clone(), hosted.worker.bus.clone(), Arc::new(answered));
        tasks.spawn("nested request", async move {
            let exchange = exchange(bus, action, message, answered);
            tokio::select! {
                () = exchange => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(guard.drop_guard())
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers = self.0.as_ref().map(|origin| origin.callers.to_string());
        f.debug_tuple("Calls").field(&callers).finish()
    }
}

/// Sends a request and gives its replies to `answered`.
async fn exchange(
    bus: Arc<dyn trireme_bus::Bus>,
    action: Action,
    message: WorkMessage,
    answered: Arc<impl Fn(Reply) + Send + Sync + 'static>,
) {
    let deliver = async |reply: Reply| {
        let answered = answered.clone();
        // A panic has been reported by the thread.
        let _ = tokio::task::spawn_blocking(move || answered(reply)).await;
    };
    let mut replies = match CallReplies::open(bus, action, message.clone()).await {
        Ok(replies) => replies,
        Err(error) => return deliver(message.reply(Err(InferError::new(error.code(), error.to_string())))).await,
    };
    while let Some(reply) = replies.next().await {
        deliver(reply).await;
    }
}

fn message(nested: Nested, origin: &Origin, callers: Callers) -> WorkMessage {
    let hosted = &origin.model;
    let now = UnixMicros::now();
    let deadline = nested.timeout.map_or(origin.deadline, |timeout| origin.deadline.min(now.after(timeout)));
    let model = ModelKey { name: nested.model, version: nested.version.unwrap_or(LATEST) };
    let output = |name: &String| StepOutput { name: name.clone(), tensor: name.clone() };
    let step = Step {
        model: model.clone(),
        inputs: Vec::new(),
        outputs: nested.outputs.iter().map(output).collect(),
        dead: Vec::new(),
        level: 0,
    };
    WorkMessage {
        request_id: format!("{}-call-{:016x}", hosted.worker.name, fastrand::u64(..)),
        gateway: hosted.worker.name.clone(),
        deadline,
        priority: origin.priority,
        traceparent: origin.traceparent.clone(),
        client_id: nested.id,
        sent_at: now,
        route: Route::resume(model, false, 0, vec![step]),
        tensors: nested.inputs,
        parameters: Arc::new(nested.parameters),
        ledger: Ledger::default(),
        answer: if nested.in_parts { Answer::InParts } else { Answer::Whole },
        callers,
    }
}
