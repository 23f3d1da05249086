//! `/v2/trireme/status`.

use axum::Router;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;

use super::get;
use crate::http::HttpState;
use crate::http::response;

pub fn routes() -> Router<HttpState> {
    Router::new().route("/v2/trireme/status", get(status))
}

async fn status(State(http): State<HttpState>) -> Response {
    let mut response = response::json(http.handlers.status().await);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
