//! Paths: those that name a model, also by another of its names, such as that of the Hugging Face hub (`/v2/models/org/name/infer`, and with
//! `org%2Fname`); those of dialects with a slash too many (`//v1/embeddings`, `/v1/embeddings/`), which clients make of a base URL; and the
//! answers where there is no route.

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use trireme_inference::InferError;
use trireme_server::http::describe::Describe;
use trireme_server::http::endpoint::{Endpoint, Work, endpoint};
use trireme_server::http::response::{self, HttpError};

use super::state::HttpState;

/// The path before a model's name.
const PLACES: [&str; 4] = ["/v2/models/", "/tei/", "/nim/", "/openai/deployments/"];

/// OpenAI's paths besides the routes of its dialect; clients also ask for them behind the dialect's name.
const OPENAI: [&str; 3] = ["/v1/files", "/v1/uploads", "/v1/batches"];

/// The path that the routes know, where a request asks for another one. `own` gives the own name of a known model.
pub fn known_path(path: &str, own: impl Fn(&str) -> Option<String>) -> Option<String> {
    let tidy = tidy(path);
    own_path(tidy.as_deref().unwrap_or(path), own).or(tidy)
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

/// No route has the path.
pub fn not_found() -> Response {
    response::plain_error(StatusCode::NOT_FOUND, "Not Found")
}

/// Triton matches a whole path before it looks at the method: a version that is no number is no path at all.
pub fn method_not_allowed(uri: &Uri) -> Response {
    const MESSAGE: &str = "Method Not Allowed";
    match ModelPath::parse(uri.path()) {
        Err(PathError::NoSuchPath) => not_found(),
        // Only GET and POST have something at the root.
        _ if uri.path() == "/" => not_found(),
        _ if ["/infer", "/ready", "/live"].iter().any(|end| uri.path().ends_with(end)) => {
            response::plain_error(StatusCode::METHOD_NOT_ALLOWED, MESSAGE)
        }
        _ => response::error(StatusCode::METHOD_NOT_ALLOWED, MESSAGE),
    }
}

/// The endpoint of a route under a model's path.
pub fn of_model<R>(run: fn(HttpState, ModelPath, Work) -> R) -> Endpoint<HttpState>
where
    R: Future<Output: IntoResponse> + Send + 'static,
{
    endpoint(move |http, work: Work| async move {
        let path = ModelPath::parse(&work.path)?;
        Ok::<_, PathError>(run(http, path, work).await)
    })
}

/// A model and, where the path names one, a version.
#[derive(Debug, PartialEq)]
pub struct ModelPath {
    /// The model's name.
    pub model: String,
    /// Its version, if the path names one.
    pub version: Option<i64>,
}

/// Why a path names no model version.
#[derive(Debug, PartialEq)]
pub enum PathError {
    /// Not a path of a model.
    NoSuchPath,
    /// The version is too large for any model to have it.
    Version(String),
}

// === impl PathError ===

impl IntoResponse for PathError {
    fn into_response(self) -> Response {
        match self {
            PathError::NoSuchPath => not_found(),
            PathError::Version(version) => HttpError::plain(InferError::invalid_arg(format!(
                "failed to get model version from specified version string '{version}' (details: stol), version should be \
                 an integral value > 0"
            )))
            .into_response(),
        }
    }
}

// === impl ModelPath ===

impl ModelPath {
    /// Reads `/v2/models/{model}[/versions/{version}]...`, taking the name as it stands: Triton decodes no `%20`. Paths that
    /// are not of this form are named by no model, which is no error of theirs.
    fn parse(path: &str) -> Result<ModelPath, PathError> {
        let mut segments = path.split('/').skip(3);
        let model = segments.next().unwrap_or_default().to_owned();
        let version = match (segments.next(), segments.next()) {
            (Some("versions"), Some(version)) => {
                if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(PathError::NoSuchPath);
                }
                Some(version.parse().map_err(|_| PathError::Version(version.to_owned()))?)
            }
            _ => None,
        };
        Ok(ModelPath { model, version })
    }
}

impl Describe for ModelPath {}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for ModelPath {
    type Rejection = PathError;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, PathError> {
        ModelPath::parse(parts.uri.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_as_they_stand() {
        let found = |model: &str, version| Ok(ModelPath { model: model.to_owned(), version });
        assert_eq!(ModelPath::parse("/v2/models/m"), found("m", None));
        assert_eq!(ModelPath::parse("/v2/models/a%20b/infer"), found("a%20b", None));
        assert_eq!(ModelPath::parse("/v2/models/m/versions/007/infer"), found("m", Some(7)));
        assert_eq!(ModelPath::parse("/v2/models/m/versions/7x/infer"), Err(PathError::NoSuchPath));
        assert_eq!(ModelPath::parse("/v2/models/m/versions/-1"), Err(PathError::NoSuchPath));
        assert_eq!(
            ModelPath::parse("/v2/models/m/versions/99999999999999999999"),
            Err(PathError::Version("99999999999999999999".to_owned()))
        );
    }

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
