//! Rules of HTTP itself: a request names its host, and no answer is taken for something else than its `Content-Type` says.

use axum::extract::Request;
use axum::http::header::{HOST, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode, Version};
use axum::middleware::Next;
use axum::response::Response;

use super::response;

/// The layer of these rules.
pub(crate) async fn require(request: Request, next: Next) -> Response {
    let mut response = match lacks_host(&request) {
        true => response::error(StatusCode::BAD_REQUEST, "header Host is missing"),
        false => next.run(request).await,
    };
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Whether a request names no host, as requests have to from HTTP/1.1 on (RFC 9112).
fn lacks_host(request: &Request) -> bool {
    request.version() >= Version::HTTP_11
        && request.uri().authority().is_none()
        && !request.headers().contains_key(HOST)
}
