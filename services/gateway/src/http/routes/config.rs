//! `/v2/models/{model}[/versions/{version}]/config`.

use axum::extract::State;
use axum::response::Response;
use trireme_server::access::Category;
use trireme_server::http::Traffic;
use trireme_server::http::openapi::schema::anything;
use trireme_server::http::response::{self, HttpError};

use crate::http::resource::{Endpoint, Resource};
use crate::http::routing::{ModelPath, get};
use crate::http::state::HttpState;

/// The routes.
pub const RESOURCE: Resource = Resource {
    category: Some(Category::ModelConfig),
    traffic: Traffic::Server,
    group: "v2",
    endpoints: &[Endpoint::get("/v2/models/{model}/config", "A model's configuration", || get(config))
        .of_versions()
        .gives(anything)],
};

async fn config(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    let (_, served) = http.handlers.find_model(&path.model, path.version)?;
    Ok(response::json(served.config.to_json().into()))
}
