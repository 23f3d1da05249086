//! `/v2/trireme/status`.

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response;
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{flag, integer, list, nullable, number, object, object_with, plain, text};
use utoipa::openapi::schema::Schema;

use crate::http::state::{HttpState, Route};

/// The defaults of this route.
const RESOURCE: Resource = Resource { group: "control", category: Some(Category::Metadata), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![RESOURCE.get("/v2/trireme/status", "The state of the whole system", status).gives(schema)]
}

async fn status(State(http): State<HttpState>) -> Response {
    let mut response = response::json(http.handlers.status().await);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn schema() -> Schema {
    let model = object_with([("name", text()), ("version", nullable(integer())), ("ready", flag())], []);
    object([
        ("time", number()),
        ("ready", flag()),
        ("jobs", flag()),
        ("latencies_since_start", flag()),
        ("deployment", nullable(text())),
        ("models", list(model)),
        ("gateways", list(plain())),
        ("workers", list(plain())),
    ])
}
