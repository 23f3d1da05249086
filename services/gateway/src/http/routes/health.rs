//! `/v2/health/live`, `/v2/health/ready`, `/v2/models/{model}[/versions/{version}]/ready`: the status says it all, and
//! bodies are empty, because probes compare the whole output.
//!
//! The Open Inference Protocol has JSON bodies here, which KServe's client reads. They come with `--oip-health-bodies`
//! only: a switch of the server and not of the request, since that client asks with `Accept: */*` like every probe.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use trireme_protocol::metadata;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;

use crate::http::routing::ModelPath;
use crate::http::state::{HttpState, Route};

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::Health), traffic: Traffic::Watch };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE.get("/v2/health/live", "Whether the server lives", live),
        RESOURCE.get("/v2/health/ready", "Whether all models are ready", ready),
        RESOURCE.get("/v2/models/{model}/ready", "Whether a model is ready", model_ready).of_versions(),
    ]
}

async fn live(State(http): State<HttpState>) -> Response {
    let live = http.handlers.server_live();
    answer(&http, live, || metadata::server_live(live))
}

async fn ready(State(http): State<HttpState>) -> Result<Response, HttpError> {
    let ready = http.handlers.server_ready().map_err(HttpError::plain)?;
    Ok(answer(&http, ready, || metadata::server_ready(http.handlers.server_live(), ready)))
}

async fn model_ready(State(http): State<HttpState>, path: ModelPath) -> Result<Response, HttpError> {
    let ready = http.handlers.model_ready(&path.model, path.version).map_err(HttpError::plain)?;
    Ok(match ready || http.options.oip_health_bodies {
        true => answer(&http, ready, || metadata::model_ready(&path.model, ready)),
        false => response::plain_error(StatusCode::BAD_REQUEST, "Model version not ready"),
    })
}

fn answer(http: &HttpState, yes: bool, body: impl FnOnce() -> bytes::Bytes) -> Response {
    let status = match yes {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    };
    match http.options.oip_health_bodies {
        true => (status, response::json(body())).into_response(),
        // Plain and empty, with `Content-Length: 0`: without that header some clients wait for the end of the body.
        false => (status, "").into_response(),
    }
}
