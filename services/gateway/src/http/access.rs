//! Access rules that are checked before a route runs.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use trireme_server::access::{Category, Credentials, Denied};
use trireme_server::connections::Peer;
use trireme_server::http::response;

use super::jobs;
use crate::handlers::SharedHandlers;

/// The answer to a request that the rules for its category refuse; `None` if its route may run.
pub fn refusal(category: Category, handlers: &SharedHandlers, request: &Request) -> Option<Response> {
    if jobs::is_admitted(request.extensions()) {
        return None;
    }
    let headers = request.headers();
    let header = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    match handlers.access.check(category, header) {
        Ok(()) if changes_the_server(category, request) => {
            let is_local =
                request.extensions().get::<Peer>().is_some_and(|peer| peer.is_local()) && !is_foreign(request);
            let credentials = Credentials { is_local, is_proven: handlers.access.proves(category, header) };
            let refused = handlers.access.check_control(credentials).err();
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

/// Whether a browser may have sent the request for a page of another site: that page's author is not on this host, though the browser is.
fn is_foreign(request: &Request) -> bool {
    let header = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    if header("sec-fetch-site").is_some_and(|site| site != b"same-origin" && site != b"none") {
        return true;
    }
    let host =
        request.uri().authority().map(|authority| authority.as_str().as_bytes()).or_else(|| header(HOST.as_str()));
    // A page may let its own name lead to this host, and is of the same origin then (DNS rebinding).
    if host.is_some_and(|host| !is_of_this_host(host)) {
        return true;
    }
    // Browsers that do not send `Sec-Fetch-Site` send this.
    let origin = header(ORIGIN.as_str()).map(after_scheme);
    origin.is_some_and(|origin| Some(origin) != host)
}

fn after_scheme(origin: &[u8]) -> &[u8] {
    let scheme = origin.windows(3).position(|window| window == b"://");
    scheme.map_or(origin, |at| &origin[at + 3..])
}

/// Whether no other site can have the name of an authority, which may have a port: it is an address, or a name that every host has for
/// itself.
fn is_of_this_host(authority: &[u8]) -> bool {
    let Ok(authority) = std::str::from_utf8(authority) else { return false };
    let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let name = bracketed.map_or_else(|| authority.split(':').next().unwrap_or_default(), |(address, _)| address);
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn foreign(headers: &[(&str, &str)]) -> bool {
        let mut request = Request::post("/v2/logging");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        is_foreign(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn pages_of_other_sites_are_told_from_programs_of_this_host() {
        for host in ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "ui.localhost:80", "10.1.2.3"] {
            assert!(!foreign(&[("host", host)]), "{host}");
            assert!(!foreign(&[("host", host), ("origin", &format!("http://{host}"))]), "the console at {host}");
            assert!(foreign(&[("host", host), ("origin", "https://evil.example")]), "{host}");
            assert!(foreign(&[("host", host), ("origin", "null")]), "{host}");
            assert!(foreign(&[("host", host), ("sec-fetch-site", "cross-site")]), "{host}");
        }
        assert!(!foreign(&[]), "HTTP/1.0 has no Host");
        // Its name leads to this host now.
        for host in ["evil.example:8000", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", ""] {
            assert!(foreign(&[
                ("host", host),
                ("origin", &format!("http://{host}")),
                ("sec-fetch-site", "same-origin")
            ]));
            assert!(foreign(&[("host", host)]), "{host}");
        }
    }
}
