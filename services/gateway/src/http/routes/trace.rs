//! `/v2/trace/setting` and `/v2/models/{model}/trace/setting`. Versions have no settings of their own.

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use trireme_protocol::tracing;

use super::{ModelPath, get_and_post};
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/trace/setting", get_and_post(show_all, change_all))
        .route("/v2/models/{model}/trace/setting", get_and_post(show_model, change_model))
}

async fn show_all(State(http): State<HttpState>) -> Result<Response, HttpError> {
    show(&http, None)
}

async fn change_all(State(http): State<HttpState>, request: Request) -> Result<Response, HttpError> {
    change(&http, None, request).await
}

async fn show_model(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    show(&http, Some(&path.model))
}

async fn change_model(State(http): State<HttpState>, path: ModelPath, request: Request) -> Result<Response, HttpError> {
    change(&http, Some(&path.model), request).await
}

fn show(http: &HttpState, model: Option<&str>) -> Result<Response, HttpError> {
    let (settings, mode) = http.handlers.trace_settings(model)?;
    Ok(response::json(tracing::encode_trace_settings(&settings, mode)))
}

async fn change(http: &HttpState, model: Option<&str>, request: Request) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    http.handlers.change_trace_settings(model, &tracing::decode_trace_changes(&body)?)?;
    show(http, model)
}
