//! Endpoints: they answer a route's requests for a model. The router gives an endpoint the requests of its port, and durable work gives
//! it its calls; neither is known to the endpoint.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use percent_encoding::percent_decode_str;

use crate::RequestContext;

/// Answers the requests of a route. `S` is the state that routes share.
pub type Endpoint<S> = Arc<dyn Fn(S, Work) -> BoxFuture<'static, Response> + Send + Sync>;

/// A request as an endpoint gets it.
pub struct Work {
    /// Its id, owner, lane, trace context and bytes permit. It is taken in.
    pub context: Arc<RequestContext>,
    /// The path of its route, parameters in braces.
    pub route: Arc<str>,
    /// The path that it asks for.
    pub path: String,
    /// The query of its URL, behind `?`; durable work has no query.
    pub query: Option<String>,
    /// The headers of its body, and those that become parameters of models.
    pub headers: HeaderMap,
    /// Its body, in the coding that its headers name.
    pub body: Body,
}

/// The endpoint that this function is.
pub fn endpoint<S, F, R>(run: F) -> Endpoint<S>
where
    F: Fn(S, Work) -> R + Send + Sync + 'static,
    R: Future<Output: IntoResponse> + Send + 'static,
{
    Arc::new(move |state, work| {
        let answer = run(state, work);
        Box::pin(async move { answer.await.into_response() })
    })
}

// === impl Work ===

impl Work {
    /// A request of a port for this route.
    pub(super) fn of(request: Request, route: Arc<str>) -> Work {
        let (parts, body) = request.into_parts();
        Work {
            context: RequestContext::of(&parts.extensions).clone(),
            route,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().map(str::to_owned),
            headers: parts.headers,
            body,
        }
    }

    /// The part of its path that has this name in the route, without percent-encoding. The last part of a route with a wildcard is all the rest.
    pub fn part(&self, name: &str) -> Option<String> {
        let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let mut rest = &*self.path;
        for part in self.route.split('/') {
            let (first, behind) = rest.split_once('/').unwrap_or((rest, ""));
            match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(own) if own == name => return Some(decoded(first)),
                Some(own) if own.strip_prefix('*') == Some(name) => return Some(decoded(rest)),
                _ => rest = behind,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn parts_of_a_path_have_the_names_of_the_route() {
        let part = |route: &str, path: &str, name: &str| {
            let (context, route) = (RequestContext::of_process(Budget::new(0).permit()), route.into());
            let (query, headers, body) = (None, HeaderMap::new(), Body::empty());
            Work { context, route, path: path.to_owned(), query, headers, body }.part(name)
        };
        let versions = "/v2/models/{model}/versions/{version}/infer";
        assert_eq!(part(versions, "/v2/models/a%20b/versions/2/infer", "model").as_deref(), Some("a b"));
        assert_eq!(part(versions, "/v2/models/a%20b/versions/2/infer", "version").as_deref(), Some("2"));
        assert_eq!(part(versions, "/v2/models/m/versions/2/infer", "rest"), None);
        assert_eq!(
            part("/v1/models/{*rest}", "/v1/models/org%2Fname/ready", "rest").as_deref(),
            Some("org/name/ready")
        );
        assert_eq!(part("/tei/{model}", "/tei/%FF", "model").as_deref(), Some("\u{fffd}"));
        assert_eq!(part("/tei/embed", "/tei/embed", "model"), None);
    }
}
