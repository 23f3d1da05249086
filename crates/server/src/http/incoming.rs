//! Every request on its way in: how it is counted, what a spare connection may ask, and a handler that panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;
use futures_util::FutureExt;
use trireme_inference::cut;
use trireme_tasks::TaskSet;

use super::access_log::MessageIds;
use super::route::Route;
use super::traffic::Traffic;
use super::{body, response, route};
use crate::RequestContext;
use crate::access::Access;
use crate::budget::{self, Budget, BytesPermit};
use crate::connections::Spare;

/// The limits that requests are held to.
pub struct Intake {
    /// Longest silence of a client that has a request to send.
    pub idle_timeout: Duration,
    /// The budget for the bytes of requests and answers.
    pub budget: Budget,
    /// Whether the port speaks TLS.
    pub is_tls: bool,
    /// Knows the lane and the owner of a request.
    pub access: Arc<Access>,
    /// The tasks that read on what a handler refuses.
    pub tasks: TaskSet,
}

/// The limits with the route that they are before.
#[derive(Clone)]
struct Gate {
    intake: Arc<Intake>,
    route: Option<Arc<str>>,
    traffic: Traffic,
}

// === impl Intake ===

impl Intake {
    /// Holds the requests of a route to the limits; `None` stands for requests that are for no route.
    pub fn guard<S>(self: &Arc<Intake>, route: Option<&Route<S>>, handler: MethodRouter<S>) -> MethodRouter<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let traffic = route.map_or(Traffic::Server, |route| route.traffic);
        let gate = Gate { intake: self.clone(), route: route.map(|route| route.path.clone()), traffic };
        handler.layer(from_fn_with_state(gate, answer))
    }
}

async fn answer(State(Gate { intake, route, traffic }): State<Gate>, request: Request, next: Next) -> Response {
    if let (Some(context), Some(route)) = (RequestContext::of(request.extensions()), route) {
        let model = route::model(&route, request.uri().path());
        context.is_for(route, model);
    }
    if traffic != Traffic::Watch && request.extensions().get::<Spare>().is_some() {
        let message = "there are too many connections (--max-connections)";
        return response::error(StatusCode::SERVICE_UNAVAILABLE, message);
    }
    let budget = &intake.budget;
    let permit = match traffic.executes() {
        true => budget.permit_of(intake.access.account(|name| request.headers().get(name).map(HeaderValue::as_bytes))),
        false => budget.permit_about_server(),
    };
    let path = request.uri().path().to_owned();
    let (mut parts, body) = body::guard(request, intake.idle_timeout, &intake.tasks).into_parts();
    // An upload is written as it comes, and needs no room for the whole of it.
    let announced = body::announced(&parts.headers).filter(|_| traffic != Traffic::Upload).unwrap_or_default();
    let body = budget::count(body, announced, &permit, |refusal| refusal.into());
    parts.extensions.insert(permit.clone());
    let answer = AssertUnwindSafe(next.run(Request::from_parts(parts, body))).catch_unwind().await;
    let answer = answer.unwrap_or_else(|_| {
        tracing::error!("the handler of a request panicked");
        response::error(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    });
    let mut answer = answer;
    tell_limits(&permit, answer.headers_mut());
    answer.extensions_mut().insert(MessageIds(permit.messages()));
    for span in permit.followed() {
        let scheme = if intake.is_tls { "https" } else { "http" };
        let names = [("url.path", cut(&path).to_string()), ("url.scheme", scheme.to_owned())];
        trireme_telemetry::set_attributes(&span, names);
        trireme_telemetry::set_count(&span, "http.response.status_code", answer.status().as_u16().into());
    }
    budget::until_sent(answer, permit)
}

/// Adds the limits of a request's owner to the answer's headers, if a model was asked.
fn tell_limits(permit: &BytesPermit, headers: &mut HeaderMap) {
    let Some(account) = permit.account().filter(|_| permit.has_begun()) else { return };
    let requests = account.requests().map(|state| state.headers("requests"));
    let tokens = account.tokens().map(|state| state.headers("tokens"));
    for (name, value) in requests.into_iter().chain(tokens).flatten() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
}
