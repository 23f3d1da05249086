//! Access rules that are checked before a route runs.

use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::{response, routes};
use crate::crowd::Peer;
use crate::handlers::{Category, Credentials, Denied, SharedHandlers};

/// Runs the route, unless the rules for its category refuse the request.
pub async fn admit(
    State((category, handlers)): State<(Category, SharedHandlers)>,
    request: Request,
    next: Next,
) -> Response {
    if routes::is_admitted(request.extensions()) {
        return next.run(request).await;
    }
    let headers = request.headers();
    match handlers.access.check(category, |name| headers.get(name).map(HeaderValue::as_bytes)) {
        Ok(()) if changes_the_server(category, &request) => {
            let is_local =
                request.extensions().get::<Peer>().is_some_and(|peer| peer.is_local()) && !is_foreign(&request);
            let credentials = Credentials { is_local, is_proven: handlers.access.proves(category) };
            match handlers.access.check_control(credentials) {
                Ok(()) => next.run(request).await,
                Err(refusal) => response::error(StatusCode::FORBIDDEN, &refusal.to_string()),
            }
        }
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

/// Whether a request changes the server; the other requests of its category only show something.
fn changes_the_server(category: Category, request: &Request) -> bool {
    if request.method() != Method::POST {
        return false;
    }
    let path = request.uri().path();
    match category {
        Category::Logging | Category::Trace => true,
        Category::ModelRepository => !path.ends_with("/index"),
        Category::SharedMemory => !path.ends_with("/status"),
        Category::Health | Category::Metadata | Category::Inference | Category::ModelConfig | Category::Statistics => {
            false
        }
    }
}

/// Whether a browser sends the request for a page of another site: that page's author is not on this host, though the browser is.
fn is_foreign(request: &Request) -> bool {
    let site = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}
