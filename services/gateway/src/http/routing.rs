//! Parts of routes: methods as Triton takes them, paths of models, and the answers where there is no route.

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get as on_get, post as on_post};
use trireme_inference::InferError;
use trireme_server::http::response::{self, HttpError};

use super::state::HttpState;

/// A GET route. HEAD gets the same answer without its body; Triton refuses HEAD.
pub fn get<H, T>(handler: H) -> MethodRouter<HttpState>
where
    H: axum::handler::Handler<T, HttpState>,
    T: 'static,
{
    on_get(handler)
}

/// A POST route.
pub fn post<H, T>(handler: H) -> MethodRouter<HttpState>
where
    H: axum::handler::Handler<T, HttpState>,
    T: 'static,
{
    on_post(handler)
}

/// No route has the path.
pub async fn not_found() -> Response {
    response::plain_error(StatusCode::NOT_FOUND, "Not Found")
}

/// Triton matches a whole path before it looks at the method: a version that is no number is no path at all.
pub async fn method_not_allowed(uri: Uri) -> Response {
    const MESSAGE: &str = "Method Not Allowed";
    match ModelPath::parse(uri.path()) {
        Err(PathError::NoSuchPath) => not_found().await,
        _ if ["/infer", "/ready", "/live"].iter().any(|end| uri.path().ends_with(end)) => {
            response::plain_error(StatusCode::METHOD_NOT_ALLOWED, MESSAGE)
        }
        _ => response::error(StatusCode::METHOD_NOT_ALLOWED, MESSAGE),
    }
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
enum PathError {
    /// Not a path of a model.
    NoSuchPath,
    /// The version is too large for any model to have it.
    Version(String),
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

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for ModelPath {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, Response> {
        match ModelPath::parse(parts.uri.path()) {
            Ok(path) => Ok(path),
            Err(PathError::NoSuchPath) => Err(not_found().await),
            Err(PathError::Version(version)) => Err(HttpError::plain(InferError::invalid_arg(format!(
                "failed to get model version from specified version string '{version}' (details: stol), version should be \
                 an integral value > 0"
            )))
            .into_response()),
        }
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
}
