//! The table of HTTP routes: one file per resource, merged here.

mod batches;
mod config;
mod deferred;
mod files;
mod generate;
mod health;
mod infer;
mod logging;
mod metadata;
pub(super) mod page;
mod repository;
mod shared_memory;
mod statistics;
mod status;
mod trace;
mod ui;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get as on_get, post as on_post};
use trireme_inference::InferError;

use super::response::HttpError;
use super::{HttpState, access, dialects, openapi, response};
use crate::handlers::Category;

/// All routes, each with the category that access rules know it by.
pub fn router(state: HttpState) -> Router {
    // What is refused there has the dialect's own shape.
    let later = || middleware::from_fn_with_state(state.clone(), deferred::defer);
    let dialects = dialects::routes().route_layer(later());
    // The pages themselves say nothing; what they show they ask for like any client.
    let open = if state.options.ui { ui::routes().merge(openapi::page()) } else { Router::new() };
    let open = open.merge(openapi::routes());
    let routes = table().into_iter().fold(open, |all, (category, routes)| {
        let rules = (category, state.handlers.clone());
        // What is deferred is checked when it is accepted, and not again.
        let routes = if category == Category::Inference { routes.route_layer(later()) } else { routes };
        all.merge(routes.route_layer(middleware::from_fn_with_state(rules, access::admit)))
    });
    let full_queue_is_429 = state.options.full_queue_is_429;
    let routes =
        routes.merge(dialects).fallback(not_found).method_not_allowed_fallback(method_not_allowed).with_state(state);
    match full_queue_is_429 {
        true => routes.layer(middleware::map_response(response::full_queue_as_429)),
        false => routes,
    }
}

/// The routes that execute models, for calls that were admitted before.
pub fn work(state: HttpState) -> Router {
    infer::routes().merge(generate::routes()).merge(dialects::routes()).fallback(not_found).with_state(state)
}

/// Whether a body to this path is written to the store as it comes.
pub fn is_upload(path: &str) -> bool {
    files::is_upload(path)
}

/// Every route, without the rules of who may ask.
#[cfg(test)]
pub(super) fn all() -> Router<HttpState> {
    let open = ui::routes().merge(openapi::page()).merge(openapi::routes()).merge(dialects::routes());
    table().into_iter().fold(open, |all, (_, routes)| all.merge(routes))
}

/// The routes of v2 and of control.
fn table() -> [(Category, Router<HttpState>); 14] {
    [
        (Category::Health, health::routes()),
        (Category::Metadata, metadata::routes()),
        (Category::Metadata, status::routes()),
        (Category::ModelConfig, config::routes()),
        (Category::Inference, infer::routes()),
        (Category::Inference, generate::routes()),
        (Category::ModelRepository, repository::routes()),
        (Category::Statistics, statistics::routes()),
        (Category::Logging, logging::routes()),
        (Category::Trace, trace::routes()),
        (Category::SharedMemory, shared_memory::routes()),
        (Category::Inference, deferred::routes()),
        (Category::Inference, files::routes()),
        (Category::Inference, batches::routes()),
    ]
}

/// A GET route. HEAD gets the same answer without its body; Triton refuses HEAD.
pub(super) fn get<H, T>(handler: H) -> MethodRouter<HttpState>
where
    H: axum::handler::Handler<T, HttpState>,
    T: 'static,
{
    on_get(handler)
}

/// A POST route.
fn post<H, T>(handler: H) -> MethodRouter<HttpState>
where
    H: axum::handler::Handler<T, HttpState>,
    T: 'static,
{
    on_post(handler)
}

/// A route that shows with GET and changes with POST.
fn get_and_post<G, TG, P, TP>(show: G, change: P) -> MethodRouter<HttpState>
where
    G: axum::handler::Handler<TG, HttpState>,
    TG: 'static,
    P: axum::handler::Handler<TP, HttpState>,
    TP: 'static,
{
    get(show).post(change)
}

pub(super) async fn not_found() -> Response {
    response::plain_error(StatusCode::NOT_FOUND, "Not Found")
}

/// Triton matches a whole path before it looks at the method: a version that is no number is no path at all.
async fn method_not_allowed(uri: Uri) -> Response {
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
struct ModelPath {
    model: String,
    version: Option<i64>,
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
