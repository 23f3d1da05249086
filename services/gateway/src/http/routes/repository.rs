//! `/v2/repository/index` and `/v2/repository/models/{model}/load` or `/unload`. Triton's paths have room for the name of a
//! repository, and no repository has one.

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_protocol::repository;

use super::post;
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .route("/v2/repository/{repository}/index", post(index))
        .route("/v2/repository/{repository}/models/{model}/load", post(named))
        .route("/v2/repository/{repository}/models/{model}/unload", post(named))
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
    http.handlers.load_model(&model, repository::decode_load_request(&body)?).await?;
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
