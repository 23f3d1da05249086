//! The table of HTTP routes: one file per resource, merged here.

mod health;
mod infer;
mod metadata;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodRouter, get as on_get, post as on_post};

use super::{HttpState, response};

/// All routes.
pub fn router(state: HttpState) -> Router {
    Router::new()
        .merge(health::routes())
        .merge(metadata::routes())
        .merge(infer::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state)
}

/// A GET route. HEAD is refused, as Triton refuses it.
fn get<H, T>(handler: H) -> MethodRouter<HttpState>
where
    H: axum::handler::Handler<T, HttpState>,
    T: 'static,
{
    on_get(handler).head(method_not_allowed)
}

/// A POST route.
fn post<H, T>(handler: H) -> MethodRouter<HttpState>
where
    H: axum::handler::Handler<T, HttpState>,
    T: 'static,
{
    on_post(handler)
}

async fn not_found() -> Response {
    response::error(StatusCode::NOT_FOUND, "Not Found")
}

async fn method_not_allowed() -> Response {
    response::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

/// A model and, where the path names one, a version.
struct ModelPath {
    model: String,
    version: Option<i64>,
}

// === impl ModelPath ===

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for ModelPath {
    type Rejection = Response;

    /// A version that is no number is no route: 404.
    async fn from_request_parts(parts: &mut axum::http::request::Parts, state: &S) -> Result<Self, Response> {
        let path = axum::extract::RawPathParams::from_request_parts(parts, state).await;
        let Ok(path) = path else { return Err(not_found().await) };
        let mut found = ModelPath { model: String::new(), version: None };
        for (name, value) in &path {
            match name {
                "model" => found.model = value.to_owned(),
                _ if value.bytes().all(|b| b.is_ascii_digit()) => {
                    let Ok(version) = value.parse() else { return Err(not_found().await) };
                    found.version = Some(version);
                }
                _ => return Err(not_found().await),
            }
        }
        Ok(found)
    }
}
