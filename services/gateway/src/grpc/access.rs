//! API keys, asked for before a call runs.

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use tonic::Status;

use crate::handlers::SharedHandlers;

/// Calls that need no key: whoever watches over the server has none.
const OPEN: [&str; 4] = [
    "/grpc.health.v1.Health/Check",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
];

/// Runs the call, unless it needs a key that its metadata does not hold.
pub async fn admit(State(handlers): State<SharedHandlers>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_open = OPEN.contains(&request.uri().path());
    match handlers.access.check_key(|name| headers.get(name).map(HeaderValue::as_bytes)) {
        Err(_) if !is_open => {
            let text = "a valid API key is required, as 'authorization: Bearer <key>' or 'x-api-key: <key>'";
            Status::unauthenticated(text).into_http()
        }
        _ => next.run(request).await,
    }
}
