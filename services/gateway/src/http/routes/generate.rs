//! `/v2/models/{model}[/versions/{version}]/generate` and `/generate_stream`.
//!
//! A stream has one event for each response, which for the models served here is one.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use trireme_inference::InferError;
use trireme_protocol::generate::{decode_generate_request, encode_generate_response};

use super::{ModelPath, post};
use crate::handlers::Traced;
use crate::http::HttpState;
use crate::http::compression::Coding;
use crate::http::response::{self, HttpError};
use crate::http::{body, forward};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/models/{model}/generate", post(generate))
        .route("/v2/models/{model}/versions/{version}/generate", post(generate))
        .route("/v2/models/{model}/generate_stream", post(generate_stream))
        .route("/v2/models/{model}/versions/{version}/generate_stream", post(generate_stream))
}

async fn generate(State(http): State<HttpState>, path: ModelPath, request: Request) -> Result<Response, HttpError> {
    run(&http, path, request).await.map(response::json)
}

async fn generate_stream(
    State(http): State<HttpState>,
    path: ModelPath,
    request: Request,
) -> Result<Response, HttpError> {
    let event = run(&http, path, request).await?;
    let mut body = BytesMut::with_capacity(event.len() + 8);
    body.put_slice(b"data: ");
    // JSON has no line ends but escaped ones, so it is one line of the event.
    body.put_slice(&event);
    body.put_slice(b"\n\n");
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    Ok(([(CONTENT_TYPE, content_type)], body.freeze()).into_response())
}

/// The response, in JSON.
async fn run(http: &HttpState, path: ModelPath, request: Request) -> Result<Bytes, HttpError> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let (_, served) = http.handlers.find_model(&path.model, path.version)?;
    if served.config.decoupled {
        return Err(InferError::unsupported("models with decoupled transaction policy are not supported").into());
    }
    if Coding::of_request(headers) != Some(Coding::Identity) {
        return Err(InferError::invalid_arg("Unsupported content-encoding, only 'identity' is supported.").into());
    }
    let body = body::read(headers, body, http.options.max_input_size).await?;
    let mut request = decode_generate_request(&path.model, &served.inputs, &body)?;
    request.version = path.version;
    forward::headers(headers, http.options.header_forward.as_ref(), &mut request.parameters)?;
    let traceparent = body::text(headers, "traceparent").map(str::to_owned);
    let response = http.handlers.infer(Traced { request, traceparent }).await?;
    Ok(encode_generate_response(&response)?)
}
