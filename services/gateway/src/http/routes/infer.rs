//! `/v2/models/{model}[/versions/{version}]/infer`.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::response::Response;
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_protocol::infer::{self, HEADER_LENGTH, RequestContext};

use super::{ModelPath, post};
use crate::handlers::Traced;
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    Router::new()
        .route("/v2/models/{model}/infer", post(run))
        .route("/v2/models/{model}/versions/{version}/infer", post(run))
}

async fn run(State(http): State<HttpState>, path: ModelPath, request: Request) -> Result<Response, HttpError> {
    let (parts, body) = request.into_parts();
    let (_, served) = http.handlers.find_model(&path.model, path.version)?;
    let encoding = text(&parts.headers, CONTENT_ENCODING.as_str());
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(InferError::unsupported("Unsupported compression type").into());
    }
    let body = read(&parts.headers, body, http.max_input_size).await?;

    let context = RequestContext {
        model: &path.model,
        inputs: &served.inputs,
        max_batch_size: served.config.max_batch_size,
    };
    let header_length = match parts.headers.get(HEADER_LENGTH) {
        Some(value) => Some(value.to_str().map_err(|_| {
            InferError::invalid_arg(format!("Unable to parse {HEADER_LENGTH}, got: {}", value.as_bytes().escape_ascii()))
        })?),
        None => None,
    };
    let mut decoded = infer::decode_infer_request(&context, &body, header_length)?;
    decoded.request.version = path.version;
    let traceparent = text(&parts.headers, "traceparent").map(str::to_owned);
    let response = http.handlers.infer(Traced { request: decoded.request, traceparent }).await?;
    let encoded = infer::encode_infer_response(&response, &decoded.output_format)?;
    Ok(response::infer(encoded, &response.ledger))
}

/// The whole body, unless it is larger than allowed: then as little of it as shows that.
async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, InferError> {
    let announced = text(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse::<u64>().ok());
    if let Some(announced) = announced.filter(|&length| length > limit as u64) {
        return Err(too_large(&format!("{announced}"), limit));
    }
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(cause) = source {
            if cause.is::<http_body_util::LengthLimitError>() {
                return too_large(&format!("more than {limit}"), limit);
            }
            source = cause.source();
        }
        InferError::invalid_arg(format!("request body could not be read: {error}"))
    })
}

fn too_large(size: &str, limit: usize) -> InferError {
    InferError::invalid_arg(format!(
        "request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use \
         --http-max-input-size to increase the limit."
    ))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
