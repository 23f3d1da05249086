//! The state that routes share.

use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_jobs::{Client, Jobs};
use trireme_server::RequestContext;
use trireme_server::http::coding::Coding;
use trireme_server::http::describe::Describe;
use trireme_server::http::route::{self, Table};
use trireme_server::http::{body, json};

use super::args::HttpOptions;
use super::jobs::refused::{NoJobs, Refused};
use super::jobs::webhooks::Webhooks;
use crate::handlers::SharedHandlers;

/// The state that routes share.
#[derive(Clone)]
pub struct HttpState {
    pub handlers: SharedHandlers,
    pub options: Arc<HttpOptions>,
    /// Every route of the port.
    pub table: Arc<Table<HttpState>>,
    /// The document of the routes, once somebody has asked for it.
    pub document: Arc<OnceLock<Bytes>>,
    /// Durable work, if this gateway keeps jobs.
    pub jobs: Option<Jobs>,
    /// Calls webhooks, if this gateway does.
    pub webhooks: Option<Webhooks>,
}

/// A route of the port.
pub type Route = route::Route<HttpState>;

/// The durable work that the sender of a request sees.
pub struct Own(pub Jobs);

// === impl HttpState ===

impl HttpState {
    /// The durable work that the sender of a request with these headers sees: that of the owner of its API key, and everybody's with the
    /// administrator's key. The refusal names the flags, if the gateway keeps no jobs.
    pub fn own_jobs(&self, headers: &HeaderMap) -> Result<Jobs, NoJobs> {
        let owner = self.handlers.access.owner(|name| headers.get(name).map(HeaderValue::as_bytes));
        let client = owner.map_or(Client::Everybody, Client::Owner);
        Ok(self.jobs.as_ref().ok_or(NoJobs)?.of(client))
    }

    /// The whole JSON of a request, without its coding and a byte order mark, unless it is larger than allowed.
    pub async fn read(&self, request: Request) -> Result<Bytes, InferError> {
        let (parts, body) = request.into_parts();
        // Triton looks at the coding of infer requests alone; JSON that is none says so. Routes that are not Triton's refuse it before.
        let coding = Coding::of_request(&parts.headers).unwrap_or(Coding::Identity);
        let (limit, permit) = (self.options.max_input_size, RequestContext::of(&parts.extensions).permit());
        let body = body::read(&parts.headers, body, body::Limit::json(limit)).await?;
        Ok(json::without_mark(coding.decode(body, limit, permit).await?))
    }
}

// === impl Own ===

impl Describe for Own {}

impl FromRequestParts<HttpState> for Own {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, http: &HttpState) -> Result<Own, Refused> {
        Ok(Own(http.own_jobs(&parts.headers)?))
    }
}
