//! `/v2/models/{model}[/versions/{version}]/config`.

use axum::extract::State;
use axum::response::Response;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::anything;

use crate::http::routing::ModelPath;
use crate::http::state::{HttpState, Route};

/// The defaults of this route.
const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::ModelConfig), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![RESOURCE.get("/v2/models/{model}/config", "A model's configuration", config).of_versions().gives(anything)]
}

async fn config(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    let (_, served) = http.handlers.find_model(&path.model, path.version)?;
    Ok(response::json(served.config.to_json().into()))
}
