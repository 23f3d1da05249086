//! The paths that clients ask for become the paths of routes, before the router looks at them. `--root-path` is the path under which a proxy
//! offers this server: requests are taken with it and without it, as proxies pass them on, and `Location` headers of answers have it. The
//! service knows the other paths for routes.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::Response;

/// The path that the routes know, where a request asks for another one.
pub type KnownPath = dyn Fn(&str) -> Option<String> + Send + Sync;

/// How paths are rewritten.
#[derive(Clone)]
pub struct Paths {
    /// The path of a proxy, empty for the server's own root.
    pub root: String,
    /// The other paths for routes.
    pub known: Arc<KnownPath>,
}

/// The path without a slash at its end; the empty one is the root itself.
pub fn parse(path: &str) -> Result<String, String> {
    let path = path.trim_end_matches('/');
    let is_path = path.is_empty() || (path.starts_with('/') && !path.starts_with("//"));
    match Uri::try_from(path).is_ok_and(|uri| uri.query().is_none()) || path.is_empty() {
        true if is_path => Ok(path.to_owned()),
        _ => Err(format!("'{path}' is no path, expected one such as /embeddings")),
    }
}

/// The layer that rewrites paths.
pub(crate) async fn lead(State(Paths { root, known }): State<Paths>, mut request: Request, next: Next) -> Response {
    let asked = request.uri().path();
    let inner = if root.is_empty() { None } else { inner(asked, &root) };
    if let Some(path) = known(inner.unwrap_or(asked)).or(inner.map(str::to_owned)) {
        let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
        let mut parts = request.uri().clone().into_parts();
        if let Ok(path) = PathAndQuery::try_from(format!("{path}{query}")) {
            parts.path_and_query = Some(path);
            *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        }
    }
    let mut response = next.run(request).await;
    if root.is_empty() {
        return response;
    }
    let place = response.headers().get(LOCATION).and_then(|place| outer(place.to_str().ok()?, &root));
    if let Some(place) = place.and_then(|place| HeaderValue::try_from(place).ok()) {
        response.headers_mut().insert(LOCATION, place);
    }
    response
}

/// The path behind the root, where it begins with that.
fn inner<'p>(path: &'p str, root: &str) -> Option<&'p str> {
    match path.strip_prefix(root)? {
        "" => Some("/"),
        rest if rest.starts_with('/') => Some(rest),
        _ => None,
    }
}

/// The place under the root, where it is one of this server.
fn outer(place: &str, root: &str) -> Option<String> {
    let is_own = place.starts_with('/') && !place.starts_with("//");
    is_own.then(|| format!("{root}{place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_a_path_without_a_slash_at_its_end() {
        assert_eq!(parse("/ai/embeddings/").unwrap(), "/ai/embeddings");
        assert_eq!(parse("/").unwrap(), "");
        for unfit in ["ai", "http://host/ai", "/ai?x=1", "//ai", "/a b"] {
            assert!(parse(unfit).unwrap_err().contains("expected one such as"), "{unfit}");
        }
    }

    #[test]
    fn requests_lose_the_root_and_places_get_it() {
        assert_eq!(inner("/ai/v1/models", "/ai"), Some("/v1/models"));
        assert_eq!((inner("/ai", "/ai"), inner("/ai/", "/ai")), (Some("/"), Some("/")));
        // A proxy that takes the root off passes the rest on.
        assert_eq!((inner("/v1/models", "/ai"), inner("/aim", "/ai")), (None, None));
        assert_eq!(outer("/ui", "/ai").as_deref(), Some("/ai/ui"));
        assert_eq!(outer("https://other/ui", "/ai"), None);
    }
}
