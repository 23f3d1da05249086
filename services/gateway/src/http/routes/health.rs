//! `/v2/health/live`, `/v2/health/ready`, `/v2/models/{model}[/versions/{version}]/ready`: the status says it all, bodies
//! are empty, because probes compare the whole output.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::{ModelPath, get};
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{model}/ready", get(model_ready))
        .route("/v2/models/{model}/versions/{version}/ready", get(model_ready))
}

async fn live(State(http): State<HttpState>) -> StatusCode {
    empty(http.handlers.server_live())
}

async fn ready(State(http): State<HttpState>) -> Result<StatusCode, HttpError> {
    Ok(empty(http.handlers.server_ready()?))
}

async fn model_ready(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    Ok(match http.handlers.model_ready(&path.model, path.version)? {
        true => StatusCode::OK.into_response(),
        false => response::error(StatusCode::BAD_REQUEST, "Model version not ready"),
    })
}

fn empty(yes: bool) -> StatusCode {
    match yes {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    }
}
