//! `/v2/systemsharedmemory` and `/v2/cudasharedmemory`, each `[/region/{region}]` and `/status`, `/register`, `/unregister`.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_protocol::shared_memory::{decode_register_request, encode_status};

use super::{get, post};
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    ["", "/region/{region}"].iter().fold(Router::new(), |routes, region| {
        let (system, cuda) = (format!("/v2/systemsharedmemory{region}"), format!("/v2/cudasharedmemory{region}"));
        routes
            .route(&format!("{system}/status"), get(system_status))
            .route(&format!("{system}/register"), post(register_system))
            .route(&format!("{system}/unregister"), post(unregister_system))
            .route(&format!("{cuda}/status"), get(cuda_status))
            .route(&format!("{cuda}/register"), post(register_cuda))
            .route(&format!("{cuda}/unregister"), post(unregister_cuda))
    })
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
