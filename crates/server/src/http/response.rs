//! Answers over HTTP: tensors without copying them together, errors in Triton's shape, timings.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use trireme_inference::{Cause, InferError, Ledger};
use trireme_protocol::infer::{EncodedResponse, HEADER_LENGTH};
use trireme_protocol::{metadata, status};
use utoipa::openapi::schema::Schema;

use super::coding::Coding;
use super::schema;
use crate::access::Denied;
use crate::answer_headers::answer_headers;

/// An error as a response. Triton always sends errors as JSON, but names JSON in `Content-Type` only once it has begun to read
/// the body.
#[derive(Debug)]
pub struct HttpError {
    error: InferError,
    plain: bool,
}

/// Marks the answer to a request that found a queue full.
#[derive(Clone, Copy, Debug)]
struct QueueFull;

/// Makes the answer to a request that the handler of a route does not answer.
pub type Refuse = Arc<dyn Fn(Unanswered<'_>) -> Response + Send + Sync>;

/// Why the handler of a route does not answer a request.
#[derive(Clone, Copy, Debug)]
pub enum Unanswered<'a> {
    /// The rules for its category do not admit it.
    Denied(&'a Denied),
    /// The server has no connection for it, or the handler panicked.
    Failed(&'a InferError),
}

/// Answers 429 for a full queue, instead of Triton's 503.
pub fn full_queue_as_429(mut response: Response) -> Response {
    if response.extensions().get::<QueueFull>().is_some() {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    response
}

/// The value of `Retry-After`: whole seconds, one if it is not known how long a queue is.
pub fn retry_after(after: Option<Duration>) -> HeaderValue {
    after.map_or(1, |after| after.as_secs_f64().ceil() as u64).max(1).into()
}

/// A body of several pieces that are sent one after the other, as they are.
struct Pieces(VecDeque<Bytes>);

/// A JSON body with status 200.
pub fn json(body: Bytes) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// An answer that this value writes as JSON, with status 200.
pub fn written(value: &impl Serialize) -> Response {
    json(serde_json::to_vec(value).expect("names and plain values are JSON").into())
}

/// The answer to an infer request in `coding`: JSON, then the binary tensors; with the request's times in its headers.
pub async fn infer(encoded: EncodedResponse, ledger: &Ledger, coding: Coding) -> Result<Response, InferError> {
    let content_type = HeaderValue::from_static(encoded.content_type());
    let header_length = encoded.header_length;
    let body = match (coding.name(), encoded.binary.is_empty()) {
        (Some(_), _) => {
            let pieces = std::iter::once(encoded.json).chain(encoded.binary).collect();
            Body::from(coding.encode(pieces).await?)
        }
        (None, true) => Body::from(encoded.json),
        (None, false) => Body::new(Pieces(std::iter::once(encoded.json).chain(encoded.binary).collect())),
    };
    let mut response = ([(CONTENT_TYPE, content_type)], body).into_response();
    let headers = response.headers_mut();
    if let Some(length) = header_length {
        headers.insert(HEADER_LENGTH, length.into());
    }
    if let Some(name) = coding.name() {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
    }
    tell(ledger, headers);
    Ok(response)
}

/// Adds the request's times, and the counts of its texts, to an answer's headers.
pub fn tell(ledger: &Ledger, headers: &mut HeaderMap) {
    for (name, value) in answer_headers(ledger) {
        if let Ok(value) = value.parse() {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// An error with its status; `{"error": message}`.
pub fn error(status: StatusCode, message: &str) -> Response {
    let body = metadata::error_body(message);
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// The shape of [`error`].
pub fn error_schema() -> Schema {
    schema::object([("error", schema::text())])
}

/// As [`error`], with the content type `text/plain`.
pub fn plain_error(status: StatusCode, message: &str) -> Response {
    let body = metadata::error_body(message);
    (status, [(CONTENT_TYPE, HeaderValue::from_static("text/plain"))], body).into_response()
}

/// The answer to a request that the handler of a route does not answer, in Triton's shape.
pub fn unanswered(why: Unanswered<'_>) -> Response {
    match why {
        Unanswered::Denied(why) => denied(why),
        Unanswered::Failed(error) => HttpError::from(error.clone()).into_response(),
    }
}

/// The answer to a request that is not admitted.
fn denied(denied: &Denied) -> Response {
    match denied {
        Denied::Key => {
            let mut response = error(StatusCode::UNAUTHORIZED, &denied.to_string());
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Denied::Restricted(header) => {
            // Triton's words.
            let message = format!("This API is restricted, expecting header '{header}'");
            plain_error(StatusCode::FORBIDDEN, &message)
        }
        Denied::Foreign(_) | Denied::Control(_) => error(StatusCode::FORBIDDEN, &denied.to_string()),
    }
}

// === impl HttpError ===

impl HttpError {
    /// An error that occurred before the body was read.
    pub fn plain(error: InferError) -> HttpError {
        HttpError { error, plain: true }
    }
}

impl From<InferError> for HttpError {
    fn from(error: InferError) -> Self {
        HttpError { error, plain: false }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let status = status::http_status(&self.error);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = match self.plain {
            true => plain_error(status, &self.error.message),
            false => error(status, &self.error.message),
        };
        match self.error.cause {
            Some(Cause::QueueFull) => drop(response.extensions_mut().insert(QueueFull)),
            Some(Cause::OwnerLimit) => *response.status_mut() = StatusCode::TOO_MANY_REQUESTS,
            _ => return response,
        }
        response.headers_mut().insert(RETRY_AFTER, retry_after(self.error.retry_after));
        response
    }
}

// === impl Pieces ===

impl axum::body::HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(http_body::Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}
