//! The state that routes share.

use std::sync::{Arc, OnceLock};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method};
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_jobs::Jobs;

use super::args::HttpOptions;
use super::body;
use super::openapi::Entry;
use super::prefer::Preference;
use super::traffic::Traffic;
use super::webhooks::Webhooks;
use crate::handlers::{SharedHandlers, Waits};

/// The state that routes share.
#[derive(Clone)]
pub struct HttpState {
    pub handlers: SharedHandlers,
    pub options: Arc<HttpOptions>,
    /// The traffic that a request to a path belongs to.
    pub traffic: fn(&Method, &str) -> Traffic,
    /// Every route as the document has it.
    pub entries: fn(&str) -> Vec<Entry>,
    /// The document of the routes, once somebody has asked for it.
    pub document: Arc<OnceLock<Bytes>>,
    /// Durable work, if this gateway keeps jobs.
    pub jobs: Option<Jobs>,
    /// Calls webhooks, if this gateway does.
    pub webhooks: Option<Webhooks>,
}

// === impl HttpState ===

impl HttpState {
    /// How a request with these headers waits.
    pub fn waits(&self, headers: &HeaderMap) -> Waits {
        let lane = self.handlers.access.lane(|name| headers.get(name).map(HeaderValue::as_bytes));
        Waits { lane, patience: Preference::of(headers).wait }
    }

    /// The whole body of a request, unless it is larger than allowed.
    pub async fn read(&self, request: Request) -> Result<Bytes, InferError> {
        let (parts, body) = request.into_parts();
        body::read(&parts.headers, body, body::Limit::json(self.options.max_input_size)).await
    }
}
