//! `/v2/models/stats`, `/v2/models/{model}[/versions/{version}]/stats`.

use axum::extract::State;
use axum::response::Response;
use trireme_protocol::statistics;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{list, object, plain, text};
use utoipa::openapi::schema::Schema;

use crate::http::routing::ModelPath;
use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::Statistics), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE.get("/v2/models/stats", "The statistics of all models", all).gives(schema),
        RESOURCE.get("/v2/models/{model}/stats", "A model's statistics", model).of_versions().gives(schema),
    ]
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

fn schema() -> Schema {
    let counted = object([("name", text()), ("version", text()), ("inference_stats", plain())]);
    object([("model_stats", list(counted))])
}
