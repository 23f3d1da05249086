//! Requests that the code of a model sends to other models while it executes requests.
//!
//! They end with the requests on whose behalf they were sent: at the latest of their deadlines, or when the caller drops the
//! guard.
//!
//! Not here: how they travel. The worker implements [`Caller`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::DropGuard;
use trireme_inference::{
    Action, Callers, InferError, Lane, ModelKey, Owner, Parameters, Tensor, TraceParent, UnixMicros,
};

/// A request's way to other models. The default leads nowhere, and refuses every request.
#[derive(Clone, Default)]
pub struct Calls(Option<(Arc<dyn Caller>, Origin)>);

/// The request that is executed.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The models whose instances wait for its answer.
    pub callers: Callers,
    /// Its deadline.
    pub deadline: UnixMicros,
    /// The client's priority, 1 highest; 0 if the client set none.
    pub priority: u64,
    /// Its lane.
    pub lane: Lane,
    /// W3C trace context of its span.
    pub traceparent: Option<TraceParent>,
    /// The owner of the request.
    pub owner: Owner,
}

/// The way to other models of a model's code that executes no request, such as while it is loaded. The default leads nowhere.
#[derive(Clone, Default)]
pub struct IdleCalls(Option<Arc<dyn Caller>>);

/// A request to another model.
#[derive(Clone, Debug, Default)]
pub struct Nested {
    /// The wanted action.
    pub action: Action,
    /// The model or ensemble.
    pub model: String,
    /// Its version; `None` is the latest ready one.
    pub version: Option<i64>,
    /// The id that the model's code gave the request; may be empty.
    pub id: String,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The outputs that are wanted; none means all.
    pub outputs: Vec<String>,
    /// The request's parameters.
    pub parameters: Parameters,
    /// Whether the answer may come in parts.
    pub in_parts: bool,
}

/// A response to a [`Nested`] request.
#[derive(Clone, Debug, PartialEq)]
pub struct NestedResponse {
    /// The outputs and the response's parameters, or the error.
    pub outcome: Result<(Vec<Tensor>, Parameters), InferError>,
    /// Whether no more responses follow.
    pub last: bool,
}

/// Gets each response to a nested request, on a thread that may block.
pub type Answered = Box<dyn Fn(NestedResponse) + Send + Sync>;

/// Sends the requests of a hosted model's code to other models.
///
/// A caller that answers by itself:
///
/// ```
/// # use std::sync::Arc;
/// # use tokio_util::sync::{CancellationToken, DropGuard};
/// # use trireme_engine::{Answered, Caller, Calls, Nested, NestedResponse, Origin};
/// # use trireme_inference::{Callers, Lane, ModelKey, Owner, UnixMicros};
/// struct Echo(ModelKey);
///
/// impl Caller for Echo {
///     fn model(&self) -> &ModelKey {
///         &self.0
///     }
///
///     fn send(&self, nested: Nested, _: &Origin, _: Callers, answered: Answered) -> DropGuard {
///         answered(NestedResponse { outcome: Ok((nested.inputs, nested.parameters)), last: true });
///         CancellationToken::new().drop_guard()
///     }
/// }
///
/// # let (callers, deadline) = (Callers::default(), UnixMicros::NEVER);
/// # let origin = Origin { callers, deadline, priority: 0, lane: Lane::Live, traceparent: None, owner: Owner::default() };
/// # let (sender, answers) = std::sync::mpsc::sync_channel(1);
/// let calls = Calls::of(Arc::new(Echo(ModelKey { name: "router".into(), version: 1 })), origin);
/// let nested = Nested { model: "encoder".to_owned(), ..Nested::default() };
/// let guard = Calls::send([&calls], nested, move |response| drop(sender.send(response)))?;
/// assert!(answers.recv()?.last);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Caller: Send + Sync {
    /// The model whose code sends the requests.
    fn model(&self) -> &ModelKey;

    /// Sends a request on behalf of `origin`; `callers` are the models that wait for its answer. When the guard is dropped,
    /// the request is cancelled and `answered` gets no more responses.
    fn send(&self, nested: Nested, origin: &Origin, callers: Callers, answered: Answered) -> DropGuard;
}

// === impl Calls ===

impl Calls {
    /// The way of the request `origin` through `caller`.
    pub fn of(caller: Arc<dyn Caller>, origin: Origin) -> Calls {
        Calls(Some((caller, origin)))
    }

    /// Sends a request on behalf of the requests whose ways these are. `answered` gets each response on a thread that may
    /// block. When the guard is dropped, the request is cancelled and `answered` gets no more responses.
    pub fn send<'a>(
        of: impl IntoIterator<Item = &'a Calls>,
        nested: Nested,
        answered: impl Fn(NestedResponse) + Send + Sync + 'static,
    ) -> Result<DropGuard, InferError> {
        let origins: Vec<_> = of.into_iter().filter_map(|calls| calls.0.as_ref()).collect();
        let Some((caller, last)) = origins.iter().max_by_key(|(_, origin)| origin.deadline) else {
            return Err(InferError::unavailable(format!(
                "a request to model '{}' can be sent only while the model executes a request that somebody waits for",
                nested.model
            )));
        };
        let callers = Callers::joined(origins.iter().map(|(_, origin)| &origin.callers), caller.model());
        Ok(caller.send(nested, last, callers, Box::new(answered)))
    }
}

// === impl IdleCalls ===

impl IdleCalls {
    /// The way through `caller`.
    pub fn of(caller: Arc<dyn Caller>) -> IdleCalls {
        IdleCalls(Some(caller))
    }

    /// The way of requests that have to be answered within `limit` from now.
    pub fn within(&self, limit: Duration) -> Calls {
        let deadline = UnixMicros::now().after(limit);
        let origin = Origin {
            callers: Callers::default(),
            deadline,
            priority: 0,
            lane: Lane::Live,
            traceparent: None,
            owner: Owner::default(),
        };
        Calls(self.0.clone().map(|caller| (caller, origin)))
    }
}

impl fmt::Debug for IdleCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IdleCalls").field(&self.0.as_ref().map(|caller| caller.model())).finish()
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers = self.0.as_ref().map(|(_, origin)| origin.callers.to_string());
        f.debug_tuple("Calls").field(&callers).finish()
    }
}
