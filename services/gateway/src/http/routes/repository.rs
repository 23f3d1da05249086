//! `/v2/repository/index` and `/v2/repository/models/{model}/load` or `/unload`. Triton's paths have room for the name of a
//! repository, and no repository has one.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_protocol::repository;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::body::work;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{flag, list, object_with, plain, text};
use utoipa::openapi::schema::Schema;

use crate::http::state::{HttpState, Route};

/// Summary of the routes with a repository in their path.
const NAMED: &str = "Always refused: repositories have no names";

/// The defaults of these routes.
const RESOURCE: Resource =
    Resource { group: "control", category: Some(Category::ModelRepository), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE
            .post("/v2/repository/index", "All models and versions", index)
            .takes(index_schema)
            .gives(indexed_schema),
        RESOURCE
            .post("/v2/repository/models/{model}/load", "Loads a model", load)
            .takes(load_schema)
            .changes_the_server(),
        RESOURCE
            .post("/v2/repository/models/{model}/unload", "Unloads a model", unload)
            .takes(unload_schema)
            .changes_the_server(),
        RESOURCE.post("/v2/repository/{repository}/index", NAMED, index).takes(index_schema),
        RESOURCE
            .post("/v2/repository/{repository}/models/{model}/load", NAMED, named)
            .takes(load_schema)
            .changes_the_server(),
        RESOURCE
            .post("/v2/repository/{repository}/models/{model}/unload", NAMED, named)
            .takes(unload_schema)
            .changes_the_server(),
    ]
}

async fn index(State(http): State<HttpState>, request: Request) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    let ready_only = repository::decode_index_request(&body)?;
    Ok(response::json(repository::encode_index(&http.handlers.repository_index(ready_only))))
}

async fn load(
    State(http): State<HttpState>,
    Path(model): Path<String>,
    request: Request,
) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    // It may have the files of a model.
    let request = work::convert(body.len(), || repository::decode_load_request(&body)).await?;
    http.handlers.load_model(&model, request).await?;
    Ok(response::json(Bytes::new()))
}

async fn unload(
    State(http): State<HttpState>,
    Path(model): Path<String>,
    request: Request,
) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    http.handlers.unload_model(&model, repository::decode_unload_request(&body)).await?;
    Ok(response::json(Bytes::new()))
}

async fn named() -> HttpError {
    InferError::unsupported("'repository_name' specification is not supported").into()
}

fn index_schema() -> Schema {
    object_with([], [("ready", flag())])
}

fn indexed_schema() -> Schema {
    list(object_with([("name", text())], [("version", text()), ("state", text()), ("reason", text())]))
}

fn load_schema() -> Schema {
    object_with([], [("parameters", plain())])
}

fn unload_schema() -> Schema {
    object_with([], [("parameters", object_with([], [("unload_dependents", flag())]))])
}
