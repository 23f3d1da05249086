//! `/v2/logging`.

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use trireme_protocol::logging;

use super::get_and_post;
use crate::http::response::{self, HttpError};
use crate::http::{HttpState, body};

pub fn routes() -> Router<HttpState> {
    Router::new().route("/v2/logging", get_and_post(show, change))
}

async fn show(State(http): State<HttpState>) -> Response {
    response::json(logging::encode_log_settings(&http.handlers.log_settings()))
}

async fn change(State(http): State<HttpState>, request: Request) -> Result<Response, HttpError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, http.options.max_input_size).await?;
    http.handlers.set_log_settings(logging::decode_log_settings(http.handlers.log_settings(), &body)?).await?;
    Ok(show(State(http)).await)
}
