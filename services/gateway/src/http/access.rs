//! Access rules that are checked before a route runs.

use axum::extract::Request;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use trireme_server::access::{Credentials, Denied, Sender};
use trireme_server::http::response;

use super::jobs;
use super::resource::Guarded;
use crate::handlers::SharedHandlers;

/// The answer to a request that the rules for its route refuse; `None` if the route may run.
pub fn refusal(
    Guarded { category, changes }: Guarded,
    handlers: &SharedHandlers,
    request: &Request,
) -> Option<Response> {
    if jobs::is_admitted(request.extensions()) {
        return None;
    }
    let sender = Sender::of(request.uri(), request.headers(), request.extensions());
    match handlers.access.check(category, &sender) {
        Ok(()) if changes => {
            let is_proven = handlers.access.proves(category, |name| sender.header(name));
            let refused = handlers.access.check_control(Credentials { is_local: sender.is_local(), is_proven }).err();
            refused.map(|refused| response::error(StatusCode::FORBIDDEN, &refused.to_string()))
        }
        Ok(()) => None,
        Err(denied) => Some(refuse(&denied)),
    }
}

/// The answer to a request that is not admitted.
pub fn refuse(denied: &Denied) -> Response {
    match denied {
        Denied::Key => {
            let message = "a valid API key is required, as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'";
            let mut response = response::error(StatusCode::UNAUTHORIZED, message);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Denied::Restricted(header) => {
            let message = format!("This API is restricted, expecting header '{header}'");
            response::plain_error(StatusCode::FORBIDDEN, &message)
        }
        Denied::Foreign(foreign) => response::error(StatusCode::FORBIDDEN, &foreign.to_string()),
    }
}
