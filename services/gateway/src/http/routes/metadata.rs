//! `/v2`, `/v2/models/{model}[/versions/{version}]`.

use axum::extract::State;
use axum::response::Response;
use trireme_protocol::metadata;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{integer, list, object, object_with, text};
use utoipa::openapi::schema::Schema;

use crate::handlers::ModelMetadata;
use crate::http::routing::ModelPath;
use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::Metadata), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE.get("/v2", "The server's name, version and extensions", server).gives(server_schema),
        RESOURCE.get("/v2/models/{model}", "A model's inputs and outputs", model).of_versions().gives(model_schema),
    ]
}

async fn server(State(http): State<HttpState>) -> Response {
    let (version, extensions) = http.handlers.server_metadata();
    response::json(metadata::server_metadata(http.handlers.server_name(), version, &extensions))
}

async fn model(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    let ModelMetadata { served, versions, properties } = http.handlers.model_metadata(&path.model, path.version)?;
    let body = metadata::model_metadata(
        &path.model,
        &versions,
        served.platform(),
        &served.inputs,
        &served.outputs,
        &properties,
    );
    Ok(response::json(body))
}

fn tensor_schema() -> Schema {
    object([("name", text()), ("datatype", text()), ("shape", list(integer()))])
}

fn model_schema() -> Schema {
    let always = [
        ("name", text()),
        ("versions", list(text())),
        ("platform", text()),
        ("inputs", list(tensor_schema())),
        ("outputs", list(tensor_schema())),
    ];
    object_with(always, [("properties", object_with([], [("space", text()), ("equivalent_spaces", text())]))])
}

fn server_schema() -> Schema {
    object([("name", text()), ("version", text()), ("extensions", list(text()))])
}
