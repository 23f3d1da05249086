//! `/v2/logging`.

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use trireme_protocol::logging;

use super::get_and_post;
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new().route("/v2/logging", get_and_post(show, change))
}

async fn show(State(http): State<HttpState>) -> Response {
    response::json(logging::encode_log_settings(&http.handlers.log_settings()))
}

async fn change(State(http): State<HttpState>, request: Request) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    http.handlers.set_log_settings(logging::decode_log_settings(http.handlers.log_settings(), &body)?).await?;
    Ok(show(State(http)).await)
}
