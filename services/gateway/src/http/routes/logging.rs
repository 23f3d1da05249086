//! `/v2/logging`.

use axum::extract::{Request, State};
use axum::response::Response;
use trireme_protocol::logging;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema::plain;

use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "control", category: Some(Category::Logging), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE.get("/v2/logging", "Log settings", show).gives(plain),
        RESOURCE.post("/v2/logging", "Changes log settings", change).takes(plain).gives(plain).changes_the_server(),
    ]
}

async fn show(State(http): State<HttpState>) -> Response {
    response::json(logging::encode_log_settings(&http.handlers.log_settings()))
}

async fn change(State(http): State<HttpState>, request: Request) -> Result<Response, HttpError> {
    let body = http.read(request).await?;
    http.handlers.set_log_settings(logging::decode_log_settings(http.handlers.log_settings(), &body)?).await?;
    Ok(show(State(http)).await)
}
