//! `/v2`, `/v2/models/{model}[/versions/{version}]`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use trireme_protocol::metadata;

use super::{ModelPath, get};
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/models/{model}", get(model))
        .route("/v2/models/{model}/versions/{version}", get(model))
}

async fn server(State(http): State<HttpState>) -> Response {
    let (version, extensions) = http.handlers.server_metadata();
    response::json(metadata::server_metadata(http.handlers.server_name(), version, &extensions))
}

async fn model(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    let (served, versions) = http.handlers.model_metadata(&path.model, path.version)?;
    let platform = served.platform();
    let body = metadata::model_metadata(&path.model, &versions, platform, &served.inputs, &served.outputs);
    Ok(response::json(body))
}
