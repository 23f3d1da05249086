//! Access rules, asked before a route runs.

use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::response;
use crate::handlers::{Category, Denied, SharedHandlers};

/// Runs the route, unless the rules for its category refuse the request.
pub async fn admit(
    State((category, handlers)): State<(Category, SharedHandlers)>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    match handlers.access.check(category, |name| headers.get(name).map(HeaderValue::as_bytes)) {
        Ok(()) => next.run(request).await,
        Err(Denied::Key) => {
            let message = "a valid API key is required, as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'";
            let mut response = response::error(StatusCode::UNAUTHORIZED, message);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Err(Denied::Restricted(header)) => {
            let message = format!("This API is restricted, expecting header '{header}'");
            response::plain_error(StatusCode::FORBIDDEN, &message)
        }
    }
}
