//! `/v2/models/{model}[/versions/{version}]/config`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;

use super::{ModelPath, get};
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/models/{model}/config", get(config))
        .route("/v2/models/{model}/versions/{version}/config", get(config))
}

async fn config(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    let (_, served) = http.handlers.find_model(&path.model, path.version)?;
    Ok(response::json(served.config.to_json().into()))
}
