//! Every call on its way in: how it is counted, what a spare connection may ask, and a handler that panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::FutureExt;
use http_body_util::Limited;
use tonic::Status;
use trireme_inference::InferError;
use trireme_protocol::grpc::status;
use trireme_server::access::{Access, Category};
use trireme_server::budget::{self, Budget};
use trireme_server::connections::Spare;
use trireme_server::http::access_log::MessageIds;

use super::access;
use super::body::{self, Rules};

/// Most bytes of a health check's body: a client needs no key for it.
const HEALTH: usize = 16 << 10;

/// The header that names the coding of a call's messages.
const ENCODING: &str = "grpc-encoding";

/// In the paths of the services of TEI.
const TEI: &str = "/tei.v1.";

/// Whether calls of this path execute a model; other calls are about the server.
fn infers(path: &str) -> bool {
    path.ends_with("/ModelInfer")
        || path.ends_with("/ModelStreamInfer")
        || (path.starts_with(TEI) && !path.ends_with("/Info"))
}

/// The limits that calls are counted against.
#[derive(Clone)]
pub struct Counting {
    pub budget: Budget,
    /// Knows the lane and the owner of a call.
    pub access: Arc<Access>,
    /// Most bytes of a message.
    pub largest: usize,
    /// Longest silence of a client within a message.
    pub pause: Duration,
}

/// Counts the bytes of a call in the budget until it is answered. A stream's messages are counted until each is answered.
pub async fn count(State(counting): State<Counting>, request: Request, next: Next) -> Response {
    let Counting { budget, access: rules, largest, pause } = counting;
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path();
    let account = || rules.account(|name| parts.headers.get(name).map(HeaderValue::as_bytes));
    let permit = if infers(path) { budget.permit_of(account()) } else { budget.permit_about_server() };
    let is_health = access::category(path) == Some(Category::Health);
    if !is_health && parts.extensions.get::<Spare>().is_some() {
        return status(&InferError::unavailable("there are too many connections (--max-connections)")).into_http();
    }
    let streams = path.ends_with("/ModelStreamInfer") || (path.starts_with(TEI) && path.ends_with("Stream"));
    // The body is decompressed here, so the gRPC library has to find no coding. It refuses the codings that are not handled here.
    let coded = parts.headers.get(ENCODING).is_some_and(|coding| coding == "gzip" || coding == "deflate");
    if coded {
        parts.headers.remove(ENCODING);
    }
    let body = if is_health { Body::new(Limited::new(body, HEALTH)) } else { body };
    let body = body::guard(body, Rules { streams, coded, largest, pause }, &permit);
    parts.extensions.insert(permit.clone());
    let answer = AssertUnwindSafe(next.run(Request::from_parts(parts, body))).catch_unwind().await;
    let answer = answer.unwrap_or_else(|_| {
        tracing::error!("the handler of a call panicked");
        Status::internal("internal error").into_http()
    });
    // A call that fails has its status in the headers; others have it behind the answer.
    let code = answer.headers().get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok()).unwrap_or(0);
    for span in permit.followed() {
        trireme_telemetry::set_count(&span, "rpc.grpc.status_code", code);
    }
    let mut answer = answer;
    answer.extensions_mut().insert(MessageIds(permit.messages()));
    budget::until_sent(answer, permit)
}
