//! `/v2/systemsharedmemory` and `/v2/cudasharedmemory`, each `[/region/{region}]` and `/status`, `/register`, `/unregister`.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_protocol::shared_memory::{decode_register_request, encode_status};
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{integer, list, object, object_with, plain, text};
use utoipa::openapi::schema::Schema;

use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource =
    Resource { group: "control", category: Some(Category::SharedMemory), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE
            .get("/v2/systemsharedmemory/status", "Regions of system memory that clients share", system_status)
            .of_regions()
            .gives(regions_schema),
        RESOURCE
            .post("/v2/systemsharedmemory/register", "Shares a region of system memory", register_system)
            .of_regions()
            .changes_the_server()
            .takes(region_schema),
        RESOURCE
            .post("/v2/systemsharedmemory/unregister", "Ends the sharing of system memory", unregister_system)
            .of_regions()
            .changes_the_server(),
        RESOURCE
            .get("/v2/cudasharedmemory/status", "Regions of CUDA memory that clients share", cuda_status)
            .of_regions()
            .gives(regions_schema),
        RESOURCE
            .post("/v2/cudasharedmemory/register", "Always refused: CUDA memory is not shared", register_cuda)
            .of_regions()
            .changes_the_server()
            .takes(plain),
        RESOURCE
            .post("/v2/cudasharedmemory/unregister", "Ends the sharing of CUDA memory", unregister_cuda)
            .of_regions()
            .changes_the_server(),
    ]
}

async fn system_status(State(http): State<HttpState>, uri: Uri) -> Result<Response, HttpError> {
    let regions = http.handlers.system_regions(named(&uri))?;
    Ok(response::json(encode_status(regions.iter().map(|(name, region)| (name.as_str(), region)))))
}

async fn register_system(State(http): State<HttpState>, uri: Uri, request: Request) -> Result<Response, HttpError> {
    http.handlers.check_client_shm()?;
    let name = to_register(&uri, "system")?;
    let body = http.read(request).await?;
    http.handlers.register_system_region(name, decode_register_request(&body)?)?;
    Ok(done())
}

async fn unregister_system(State(http): State<HttpState>, uri: Uri) -> Result<Response, HttpError> {
    http.handlers.unregister_system_regions(named(&uri))?;
    Ok(done())
}

async fn cuda_status(State(http): State<HttpState>, uri: Uri) -> Result<Response, HttpError> {
    http.handlers.cuda_regions(named(&uri))?;
    Ok(response::json(Bytes::from_static(b"[]")))
}

async fn register_cuda(State(http): State<HttpState>, uri: Uri) -> Result<Response, HttpError> {
    http.handlers.check_client_shm()?;
    http.handlers.register_cuda_region(to_register(&uri, "cuda")?)?;
    Ok(done())
}

async fn unregister_cuda(State(http): State<HttpState>) -> Result<Response, HttpError> {
    http.handlers.unregister_cuda_regions()?;
    Ok(done())
}

/// The region that a path names, taken as it stands.
fn named(uri: &Uri) -> Option<&str> {
    uri.path().split_once("/region/").and_then(|(_, rest)| rest.split('/').next())
}

fn to_register<'a>(uri: &'a Uri, kind: &str) -> Result<&'a str, InferError> {
    named(uri).ok_or_else(|| {
        InferError::invalid_arg(format!("'region name' is necessary to register {kind} shared memory region"))
    })
}

/// The answer that says nothing but that it worked.
fn done() -> Response {
    response::json(Bytes::new())
}

fn region_schema() -> Schema {
    object_with([("key", text()), ("byte_size", integer())], [("offset", integer())])
}

fn regions_schema() -> Schema {
    list(object([("name", text()), ("key", text()), ("offset", integer()), ("byte_size", integer())]))
}
