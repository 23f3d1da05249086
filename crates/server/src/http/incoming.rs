//! The intake of a port for HTTP, with the route that each request is for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;
use trireme_inference::cut;
use trireme_tasks::TaskSet;

use super::response::{self, Refuse, Unanswered};
use super::route::Route;
use super::{body, route};
use crate::budget::{self, BytesPermit};
use crate::intake::{Intake, Transport};
use crate::{Port, RequestContext, Traffic};

/// The steps of the intake that are HTTP's own.
pub struct HttpTransport {
    /// Longest silence of a client that has a request to send.
    pub idle_timeout: Duration,
    /// Whether the port speaks TLS.
    pub is_tls: bool,
    /// The tasks that read bodies to their end, if a handler does not.
    pub tasks: TaskSet,
}

/// The intake in front of a route.
#[derive(Clone)]
struct Gate {
    intake: Arc<Intake<HttpTransport>>,
    route: Option<Arc<str>>,
    traffic: Traffic,
    refuse: Refuse,
}

// === impl Intake ===

impl Intake<HttpTransport> {
    /// Takes the requests of a route in before its handler; `None` stands for requests that are for no route.
    pub fn before<R, S>(self: &Arc<Self>, route: Option<&Route<R>>, handler: MethodRouter<S>) -> MethodRouter<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let traffic = route.map_or(Traffic::Server, |route| route.traffic);
        let refuse = route.map_or_else(|| Arc::new(response::unanswered) as Refuse, |route| route.refuse.clone());
        let gate = Gate { intake: self.clone(), route: route.map(|route| route.path.clone()), traffic, refuse };
        handler.layer(from_fn_with_state(gate, take_in))
    }
}

async fn take_in(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let Gate { intake, route, traffic, refuse } = gate;
    if let (Some(context), Some(route)) = (request.extensions().get::<Arc<RequestContext>>(), route) {
        let model = route::model(&route, request.uri().path());
        context.is_for(route, model);
    }
    intake.take_in(traffic, |error| refuse(Unanswered::Failed(error)), request, next).await
}

// === impl HttpTransport ===

impl Transport for HttpTransport {
    const PORT: Port = Port::Http;

    fn guard(&self, request: Request, traffic: Traffic, permit: &BytesPermit) -> Request {
        let (parts, body) = body::guard(request, self.idle_timeout, &self.tasks).into_parts();
        // An upload is written as it comes, and needs no room for the whole of it.
        let announced = body::announced(&parts.headers).filter(|_| traffic != Traffic::Upload).unwrap_or_default();
        let body = budget::count(body, announced, permit, |refusal| refusal.into());
        Request::from_parts(parts, body)
    }

    /// Adds the limits of the request's owner, if a model was asked.
    fn tell(&self, context: &RequestContext, answer: &mut Response) {
        let Some(account) = context.account().filter(|_| context.has_begun()) else { return };
        let requests = account.requests().map(|state| state.headers("requests"));
        let tokens = account.tokens().map(|state| state.headers("tokens"));
        for (name, value) in requests.into_iter().chain(tokens).flatten() {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                answer.headers_mut().insert(name, value);
            }
        }
    }

    fn describe(&self, span: &tracing::Span, path: &str, answer: &Response) {
        let scheme = if self.is_tls { "https" } else { "http" };
        let names = [("url.path", cut(path).to_string()), ("url.scheme", scheme.to_owned())];
        trireme_telemetry::set_attributes(span, names);
        trireme_telemetry::set_count(span, "http.response.status_code", answer.status().as_u16().into());
    }
}
