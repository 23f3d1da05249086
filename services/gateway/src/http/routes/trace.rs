//! `/v2/trace/setting` and `/v2/models/{model}/trace/setting`. Versions have no settings of their own.

use axum::extract::{Request, State};
use axum::response::Response;
use trireme_protocol::tracing;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::plain;

use crate::http::routing::ModelPath;
use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "control", category: Some(Category::Trace), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE.get("/v2/trace/setting", "Trace settings", show_all).gives(plain),
        RESOURCE
            .post("/v2/trace/setting", "Changes trace settings", change_all)
            .takes(plain)
            .gives(plain)
            .changes_the_server(),
        RESOURCE.get("/v2/models/{model}/trace/setting", "Trace settings of a model", show_model).gives(plain),
        RESOURCE
            .post("/v2/models/{model}/trace/setting", "Changes trace settings of a model", change_model)
            .takes(plain)
            .gives(plain)
            .changes_the_server(),
    ]
}

async fn show_all(State(http): State<HttpState>) -> Result<Response, HttpError> {
    show(&http, None)
}

async fn change_all(State(http): State<HttpState>, request: Request) -> Result<Response, HttpError> {
    change(&http, None, request).await
}

async fn show_model(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    show(&http, Some(&path.model))
}

async fn change_model(State(http): State<HttpState>, path: ModelPath, request: Request) -> Result<Response, HttpError> {
    change(&http, Some(&path.model), request).await
}

fn show(http: &HttpState, model: Option<&str>) -> Result<Response, HttpError> {
    let (settings, mode) = http.handlers.trace_settings(model)?;
    Ok(response::json(tracing::encode_trace_settings(&settings, mode)))
}

async fn change(http: &HttpState, model: Option<&str>, request: Request) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    http.handlers.change_trace_settings(model, &tracing::decode_trace_changes(&body)?)?;
    show(http, model)
}
