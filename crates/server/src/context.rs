//! The facts about a request on its way, from the first layer on.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::time::Instant;
use trireme_inference::{Lane, Owner, TraceParent};

use crate::budget::BytesPermit;
use crate::owners::Account;
use crate::request_times::RequestTimes;

/// The header with a request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken, in bytes.
const LONGEST_ID: usize = 128;

/// Most messages of a request whose ids are kept.
const MOST_MESSAGES: usize = 8;

/// The kind of port that a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// HTTP. Durable work has come by it, too.
    Http,
    /// gRPC.
    Grpc,
}

/// The facts about a request on its way. The first layer of a port makes the context and puts it in the request's extensions, and each layer
/// adds its part. Requests that come by no port have a constructor of their own.
///
/// The bytes, the owner and the lane of a request are known once it is taken in. Its handler runs only then; to ask before is a panic.
#[derive(Debug)]
pub struct RequestContext {
    id: HeaderValue,
    /// Whether the client has given the id.
    is_given: bool,
    /// `None`: the request is a model's, or this process's own.
    port: Option<Port>,
    traceparent: Option<TraceParent>,
    /// The job that the request belongs to, and the line in a batch.
    job: Option<String>,
    times: Arc<RequestTimes>,
    route: OnceLock<Arc<str>>,
    /// Also that of the call whose message the request is.
    model: Arc<OnceLock<String>>,
    /// The request's sender, and its bytes of the budget, once it is taken in.
    taken_in: OnceLock<(Whose, BytesPermit)>,
    /// How long the request waits for room in a full queue.
    patience: OnceLock<Duration>,
    /// When the time is over that the client gave the request.
    deadline: OnceLock<Instant>,
    /// Bytes of its body that have come.
    received: AtomicU64,
    /// Whether a model was asked for the request.
    has_begun: AtomicBool,
    /// The ids under which processes know what runs for the request.
    messages: Mutex<Vec<String>>,
    /// The spans of what runs for the request, until its answer is there.
    spans: Mutex<Vec<tracing::Span>>,
    /// Values that are dropped when the answer is sent.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

/// The sender of a request.
#[derive(Clone, Debug)]
enum Whose {
    /// A client's.
    Client(Account),
    /// A model's, which works for a request of this owner and lane.
    Model(Owner, Lane),
    /// Nobody's: it is about the server, or this process's own.
    Nobody,
}

// === impl RequestContext ===

impl RequestContext {
    /// The context of a request with these headers, which came by a port. Its id is the client's, or made.
    pub fn begin(port: Port, headers: &HeaderMap) -> Arc<RequestContext> {
        let given = taken(headers);
        let (is_given, id) = (given.is_some(), given.unwrap_or_else(made));
        Arc::new(RequestContext { id, is_given, ..RequestContext::new(Some(port), traceparent(headers)) })
    }

    /// The context of a request of durable work, whose headers are those that were kept. `job` names the job, and the line in a batch.
    pub fn of_job(
        headers: &HeaderMap,
        job: Option<String>,
        account: Account,
        permit: BytesPermit,
    ) -> Arc<RequestContext> {
        let context = RequestContext { job, ..RequestContext::new(Some(Port::Http), traceparent(headers)) };
        context.take_in(Some(account), permit);
        Arc::new(context)
    }

    /// The context of a model's request to another model. It has the turn of `owner`, whose request the model works for, and counts for nobody.
    pub fn of_model(
        traceparent: Option<TraceParent>,
        owner: Owner,
        lane: Lane,
        permit: BytesPermit,
    ) -> Arc<RequestContext> {
        let context = RequestContext::new(None, traceparent);
        let _ = context.taken_in.set((Whose::Model(owner, lane), permit));
        Arc::new(context)
    }

    /// The context of a request of this process itself, which has no client.
    pub fn of_process(permit: BytesPermit) -> Arc<RequestContext> {
        let context = RequestContext::new(None, None);
        context.take_in(None, permit);
        Arc::new(context)
    }

    fn new(port: Option<Port>, traceparent: Option<TraceParent>) -> RequestContext {
        RequestContext {
            id: HeaderValue::from_static(""),
            is_given: false,
            port,
            traceparent,
            job: None,
            times: RequestTimes::begin(),
            route: OnceLock::new(),
            model: Arc::default(),
            taken_in: OnceLock::new(),
            patience: OnceLock::new(),
            deadline: OnceLock::new(),
            received: AtomicU64::new(0),
            has_begun: AtomicBool::new(false),
            messages: Mutex::default(),
            spans: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The context of a message of a stream, which is a request of its own. The bytes that have come for the stream become the message's, and
    /// the call learns which model its first message asks for.
    pub fn of_message(&self) -> Arc<RequestContext> {
        let context = RequestContext {
            id: self.id.clone(),
            is_given: self.is_given,
            job: self.job.clone(),
            route: self.route.clone(),
            model: self.model.clone(),
            patience: self.patience.clone(),
            deadline: self.deadline.clone(),
            ..RequestContext::new(self.port, self.traceparent.clone())
        };
        if let Some((whose, permit)) = self.taken_in.get() {
            let _ = context.taken_in.set((whose.clone(), permit.split()));
        }
        Arc::new(context)
    }

    /// The context in a request's extensions.
    ///
    /// # Panics
    /// The request has passed no layers of a port, and nobody has given it a context.
    pub fn of(extensions: &Extensions) -> &Arc<RequestContext> {
        extensions.get().expect("the first layer of a port gives each request its context")
    }

    /// The id: the client's, or one that was made for it. Empty for a request that came by no port, and of durable work.
    pub fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// The id that the client has given; empty where it gave none.
    pub fn given_id(&self) -> &str {
        self.id.to_str().ok().filter(|_| self.is_given).unwrap_or_default()
    }

    /// The port that it came by; `None`: it is a model's, or this process's own.
    pub fn port(&self) -> Option<Port> {
        self.port
    }

    /// The client's W3C trace context.
    pub fn traceparent(&self) -> Option<&TraceParent> {
        self.traceparent.as_ref()
    }

    /// The job that it belongs to, and the line in a batch.
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// When it came and its answer goes.
    pub fn times(&self) -> &Arc<RequestTimes> {
        &self.times
    }

    /// The request is for this route, and names this model in its path.
    pub fn is_for(&self, route: Arc<str>, model: Option<String>) {
        // The router finds one route.
        let _ = self.route.set(route);
        if let Some(model) = model {
            self.asks(model);
        }
    }

    /// The request asks for this model. The first word counts: that of the path.
    pub fn asks(&self, model: String) {
        let _ = self.model.set(model);
    }

    /// The route, with its parameters in braces; `None` until the router has found it, and where there is none.
    pub fn route(&self) -> Option<&Arc<str>> {
        self.route.get()
    }

    /// The model that it asks for, where that is known.
    pub fn model(&self) -> Option<&str> {
        self.model.get().map(String::as_str)
    }

    /// Takes the request in with its bytes of the budget, for this account; `None`: it is nobody's.
    pub fn take_in(&self, account: Option<Account>, permit: BytesPermit) {
        // A request is taken in once.
        let _ = self.taken_in.set((account.map_or(Whose::Nobody, Whose::Client), permit));
    }

    fn taken_in(&self) -> &(Whose, BytesPermit) {
        self.taken_in.get().expect("a request is taken in before its handler runs")
    }

    /// Its bytes of the budget.
    pub fn permit(&self) -> &BytesPermit {
        &self.taken_in().1
    }

    /// Its client's account; `None` for a request about the server, of a model, or of this process itself.
    pub fn account(&self) -> Option<&Account> {
        match &self.taken_in().0 {
            Whose::Client(account) => Some(account),
            Whose::Model(..) | Whose::Nobody => None,
        }
    }

    /// Its lane.
    pub fn lane(&self) -> Lane {
        match &self.taken_in().0 {
            Whose::Client(account) => account.lane,
            Whose::Model(_, lane) => *lane,
            Whose::Nobody => Lane::Live,
        }
    }

    /// The owner whose turn it takes where requests wait.
    pub fn share(&self) -> Owner {
        match &self.taken_in().0 {
            Whose::Client(account) => account.share(),
            Whose::Model(owner, _) => owner.clone(),
            Whose::Nobody => Owner::default(),
        }
    }

    /// Has it wait so long for room in a full queue before it is refused.
    pub fn waits(&self, patience: Duration) {
        // The client says it once.
        let _ = self.patience.set(patience);
    }

    /// How long it waits for room in a full queue before it is refused.
    pub fn patience(&self) -> Duration {
        self.patience.get().copied().unwrap_or_default()
    }

    /// Notes when the time is over that the client itself gave the request. The first limit counts: that of the call.
    pub fn ends_at(&self, deadline: Instant) {
        let _ = self.deadline.set(deadline);
    }

    /// When the time is over that the client itself gave the request, where it gave one.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.get().copied()
    }

    /// Whether a refusal is due to the client's deadline or the request's size, so that another try would end in the same way.
    pub fn is_final(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now()) || self.permit().is_too_large()
    }

    /// So many more bytes of its body have come.
    pub fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.times.receive();
    }

    /// The bytes of its body that have come.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Asks a model; whether this is the first time.
    pub fn begin_part(&self) -> bool {
        !self.has_begun.swap(true, Ordering::Relaxed)
    }

    /// Whether a model was asked for the request.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Notes the id of a message that runs for the request; of many only the first ones.
    pub fn note_message(&self, id: &str) {
        let mut messages = self.messages.lock();
        if messages.len() < MOST_MESSAGES {
            messages.push(id.to_owned());
        }
    }

    /// The ids of the messages that have run for the request so far.
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().clone()
    }

    /// Has a span open until the answer is there, so that it gets the answer's status.
    pub fn follow(&self, span: &tracing::Span) {
        if !span.is_disabled() {
            self.spans.lock().push(span.clone());
        }
    }

    /// The spans of what ran for the request; they end when they are dropped.
    pub fn followed(&self) -> Vec<tracing::Span> {
        std::mem::take(&mut self.spans.lock())
    }

    /// Keeps a value, such as an open trace, until the answer is sent.
    pub fn keep(&self, value: Arc<dyn Any + Send + Sync>) {
        self.kept.lock().push(value);
    }

    /// The attributes of the spans of what runs for it, by OpenTelemetry's conventions.
    pub fn attributes(&self) -> Vec<(&'static str, String)> {
        let names = match (self.port, self.route()) {
            (Some(Port::Http), Some(route)) => vec![("http.request.method", "POST"), ("http.route", &**route)],
            (Some(Port::Grpc), Some(path)) => {
                let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
                vec![("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method)]
            }
            _ => Vec::new(),
        };
        names.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
    }
}

/// The id that the client gives: printable ASCII without spaces.
fn taken(headers: &HeaderMap) -> Option<HeaderValue> {
    let given = headers.get(REQUEST_ID)?;
    let is_fit = (1..=LONGEST_ID).contains(&given.len()) && given.as_bytes().iter().all(u8::is_ascii_graphic);
    is_fit.then(|| given.clone())
}

fn made() -> HeaderValue {
    let id = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("-"))
}

/// The W3C trace context of a request: `traceparent`, and all its headers `tracestate` as one list. `None` without `traceparent`.
fn traceparent(headers: &HeaderMap) -> Option<TraceParent> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let states: Vec<&str> = headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok()).collect();
    Some(TraceParent::new(parent, Some(states.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::budget::Budget;

    #[test]
    fn ids_are_printable_and_not_too_long() {
        let context = |id: &[u8]| {
            RequestContext::begin(
                Port::Http,
                &HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(id).unwrap())]),
            )
        };
        assert_eq!((context(b"a-1/b").id().as_bytes(), context(b"a-1/b").given_id()), (&b"a-1/b"[..], "a-1/b"));
        for unfit in [&b""[..], b"a b", b"\xc3\xa9", &[b'a'; LONGEST_ID + 1]] {
            let context = context(unfit);
            assert_eq!((context.id().len(), context.given_id()), (32, ""), "{unfit:?}");
        }
        assert_ne!(made(), made());
    }

    #[test]
    fn the_model_of_the_path_has_the_last_word() {
        let context = RequestContext::begin(Port::Http, &HeaderMap::new());
        assert!(context.route().is_none() && context.model().is_none());
        context.is_for("/tei/{model}/embed".into(), Some("m".to_owned()));
        context.asks("other".to_owned());
        assert_eq!((context.route().map(|route| &**route), context.model()), (Some("/tei/{model}/embed"), Some("m")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_of_a_stream_is_a_request_of_its_own_within_the_call() {
        let budget = Budget::new(100);
        let call = RequestContext::begin(Port::Grpc, &HeaderMap::from_iter([(REQUEST_ID, "id-1".parse().unwrap())]));
        call.is_for("/service/Stream".into(), None);
        call.ends_at(Instant::now() + Duration::from_secs(1));
        let account = Access::default().account(|name| (name == "priority").then_some(&b"u=7"[..]));
        call.take_in(Some(account), budget.permit_in(Lane::Bulk));
        call.permit().take(30).unwrap();
        call.receive(30);
        assert!(call.begin_part());
        call.note_message("g-1");

        let message = call.of_message();
        assert_eq!((message.given_id(), message.lane(), message.deadline()), ("id-1", Lane::Bulk, call.deadline()));
        let names = [("rpc.system", "grpc"), ("rpc.service", "service"), ("rpc.method", "Stream")];
        assert_eq!(message.attributes(), names.map(|(name, value)| (name, value.to_owned())));
        assert!(message.begin_part() && message.messages().is_empty(), "it counts by itself");
        drop(call);
        assert_eq!(budget.used(), 30, "what has come is the message's");
        assert!(!message.is_final());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(message.is_final(), "the call's time is over");
        drop(message);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn requests_that_come_by_no_port_say_whose_they_are() {
        let budget = Budget::new(100);
        let model = RequestContext::of_model(None, Owner::new("alice", 3), Lane::Bulk, budget.permit());
        assert_eq!((model.share(), model.lane()), (Owner::new("alice", 3), Lane::Bulk));
        assert!(model.account().is_none() && model.attributes().is_empty() && model.id().is_empty());
        let process = RequestContext::of_process(budget.permit());
        assert_eq!((process.share(), process.lane()), (Owner::default(), Lane::Live));
        let account = Access::default().account_of(&"bob".into(), Lane::Bulk);
        let headers = HeaderMap::from_iter([("traceparent".parse().unwrap(), "00-a-b-01".parse().unwrap())]);
        let job = RequestContext::of_job(&headers, Some("job/1".to_owned()), account, budget.permit_in(Lane::Bulk));
        let parent = job.traceparent().map(|traceparent| traceparent.parent.to_string());
        assert_eq!((job.job(), parent.as_deref(), job.lane()), (Some("job/1"), Some("00-a-b-01"), Lane::Bulk));
        assert_eq!(&**job.account().expect("it is bob's").owner.name(), "bob");
    }
}
