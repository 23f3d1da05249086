//! `/v2/systemsharedmemory` and `/v2/cudasharedmemory`, each `[/region/{region}]` and `/status`, `/register`, `/unregister`.

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

use super::{get, post};
use crate::handlers::SharedMemory;
use crate::http::HttpState;
use crate::http::response::{self, HttpError};

pub fn routes() -> Router<HttpState> {
    let kinds = [("/v2/systemsharedmemory", SharedMemory::System), ("/v2/cudasharedmemory", SharedMemory::Cuda)];
    let mut routes = Router::new();
    for (base, kind) in kinds {
        for base in [base.to_owned(), format!("{base}/region/{{region}}")] {
            let status = get(move |http: State<HttpState>, uri: Uri| status(kind, http, uri));
            routes = routes
                .route(&format!("{base}/status"), status)
                .route(&format!("{base}/register"), post(control))
                .route(&format!("{base}/unregister"), post(control));
        }
    }
    routes
}

async fn status(kind: SharedMemory, State(http): State<HttpState>, uri: Uri) -> Result<Response, HttpError> {
    let region = uri.path().split_once("/region/").and_then(|(_, rest)| rest.split('/').next());
    http.handlers.shared_memory_status(kind, region)?;
    Ok(response::json(bytes::Bytes::from_static(b"[]")))
}

async fn control(State(http): State<HttpState>) -> Result<(), HttpError> {
    Ok(http.handlers.shared_memory_control()?)
}
