//! `/v2/models/stats`, `/v2/models/{model}[/versions/{version}]/stats`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use trireme_protocol::statistics;

use super::{ModelPath, get};
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/models/stats", get(all))
        .route("/v2/models/{model}/stats", get(model))
        .route("/v2/models/{model}/versions/{version}/stats", get(model))
}

async fn all(State(http): State<HttpState>) -> Result<Response, HttpError> {
    answer(&http, None, None).await
}

async fn model(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    answer(&http, Some(&path.model), path.version).await
}

async fn answer(http: &HttpState, model: Option<&str>, version: Option<i64>) -> Result<Response, HttpError> {
    let models = http.handlers.statistics(model, version).await?;
    Ok(response::json(statistics::encode_statistics(models.iter().map(|(key, counters)| (key, counters)))))
}
