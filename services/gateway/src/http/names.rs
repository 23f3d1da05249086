//! Paths that name a model by another of its names, such as that of the Hugging Face hub: `/v2/models/org/name/infer`, and with
//! `org%2Fname`; and paths of dialects with a slash too many (`//v1/embeddings`, `/v1/embeddings/`), which clients make of a base URL.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use axum::middleware::map_request_with_state;

use crate::registry::Registry;

/// The path before a model's name.
const PLACES: [&str; 4] = ["/v2/models/", "/tei/", "/nim/", "/openai/deployments/"];

/// OpenAI's paths besides the routes of its dialect; clients also ask for them behind the dialect's name.
const OPENAI: [&str; 3] = ["/v1/files", "/v1/uploads", "/v1/batches"];

/// The router, with every name of a model in paths.
pub fn by_every_name(router: Router, registry: Registry) -> Router {
    // A layer of the router itself would come after it has chosen the route.
    Router::new().fallback_service(router).layer(map_request_with_state(registry, with_own_name))
}

async fn with_own_name(State(registry): State<Registry>, mut request: Request) -> Request {
    let own = |name: &str| registry.catalog().own_name(name).map(str::to_owned);
    let tidy = tidy(request.uri().path());
    if let Some(path) = own_path(tidy.as_deref().unwrap_or(request.uri().path()), own).or(tidy) {
        let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
        let mut parts = request.uri().clone().into_parts();
        if let Ok(path) = PathAndQuery::try_from(format!("{path}{query}")) {
            parts.path_and_query = Some(path);
            *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        }
    }
    request
}

/// The path of a dialect without its empty parts, where it has some. Paths of v2 keep them, as in Triton, and paths of the console do.
fn tidy(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_kept = parts.first().is_none_or(|first| ["v2", "ui"].contains(first));
    let mut tidy = format!("/{}", parts.join("/"));
    let of_openai = tidy.strip_prefix("/openai").filter(|rest| OPENAI.iter().any(|place| rest.starts_with(place)));
    if let Some(rest) = of_openai.map(str::to_owned) {
        tidy = rest;
    }
    (!is_kept && tidy != path).then_some(tidy)
}

/// The path with a model's own name, where it has another one. `own` gives the own name of a known one.
fn own_path(path: &str, own: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (place, rest) = PLACES.into_iter().find_map(|place| Some((place, path.strip_prefix(place)?)))?;
    let (first, behind) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // As in Triton nothing else is decoded in a name.
    let whole = first.replace("%2F", "/").replace("%2f", "/");
    if let Some(name) = own(&whole) {
        return (name != first).then(|| format!("{place}{name}{behind}"));
    }
    let tail = behind.strip_prefix('/')?;
    let (second, behind) = tail.split_at(tail.find('/').unwrap_or(tail.len()));
    let name = own(&format!("{first}/{second}"))?;
    Some(format!("{place}{name}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_too_many_are_left_out_of_paths_of_dialects() {
        let found = |path: &str| tidy(path).unwrap_or_default();
        assert_eq!(found("//v1/embeddings"), "/v1/embeddings");
        assert_eq!(found("/v1//embeddings/"), "/v1/embeddings");
        assert_eq!(found("/openai/v1/files/a/content"), "/v1/files/a/content");
        assert_eq!(found("/openai/v1/embeddings"), "");
        for path in ["/", "//", "/v1/embeddings", "/v2/models/m/", "//v2/models/m", "/ui/", "/v1/models/org%2Fname"] {
            assert_eq!(found(path), "", "{path}");
        }
    }

    #[test]
    fn a_model_is_found_by_each_of_its_names() {
        let own = |name: &str| match name {
            "bge-m3" | "BAAI/bge-m3" | "alias" => Some("bge-m3".to_owned()),
            _ => None,
        };
        let found = |path: &str| own_path(path, own);
        for name in ["BAAI/bge-m3", "BAAI%2Fbge-m3", "BAAI%2fbge-m3", "alias"] {
            assert_eq!(found(&format!("/v2/models/{name}/infer")).unwrap(), "/v2/models/bge-m3/infer", "{name}");
            assert_eq!(found(&format!("/v2/models/{name}")).unwrap(), "/v2/models/bge-m3", "{name}");
            assert_eq!(found(&format!("/tei/{name}/embed")).unwrap(), "/tei/bge-m3/embed", "{name}");
        }
        for path in [
            "/v2/models/bge-m3/infer",
            "/v2/models/other/infer",
            "/v2/models/%62ge-m3/infer",
            "/v2/models/stats",
            "/tei/embed",
            "/v1/models/BAAI/bge-m3",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
