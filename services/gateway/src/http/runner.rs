//! Runs durable work on this gateway: a call is given to the endpoint of its route.
//!
//! Not here: what a job is and when its calls run (`trireme-jobs`), the routes of jobs (`http::routes`).

use async_trait::async_trait;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use trireme_inference::Lane;
use trireme_jobs::{CallOf, Execute, Executed, JobAnswer, JobCall, WebhookAnswer, WebhookCall};
use trireme_server::RequestContext;
use trireme_server::budget::BytesPermit;
use trireme_server::http::endpoint::Work;
use trireme_server::http::response;

use super::routes;
use super::state::HttpState;

/// The beginning of the paths that name a model.
const MODELS: &str = "/v2/models/";

/// Runs calls by the endpoints of this gateway.
pub struct Runner {
    /// The state that endpoints share, with the table of routes.
    pub http: HttpState,
    /// The bytes of running batches.
    pub batches: BytesPermit,
}

// === impl Runner ===

#[async_trait]
impl Execute for Runner {
    async fn execute(&self, call: JobCall, CallOf { job, owner }: CallOf) -> Executed {
        let JobCall { path, headers, body } = call;
        let handlers = &self.http.handlers;
        let (account, permit) = (handlers.access.account_of(&owner, Lane::Bulk), handlers.budget.permit_in(Lane::Bulk));
        let headers = read(headers);
        let context = RequestContext::of_job(&headers, Some(job), account, permit);
        if let Err(no_room) = context.permit().take(body.len() as u64) {
            let refusal = response::error(StatusCode::SERVICE_UNAVAILABLE, &no_room.to_string());
            return executed(kept(refusal).await, &context);
        }
        let response = match self.http.table.endpoint(&path) {
            Some((route, run)) => {
                context.is_for(route.path.clone(), None);
                let (route, query) = (route.path.clone(), None);
                run(
                    self.http.clone(),
                    Work { context: context.clone(), route, path, query, headers, body: body.into() },
                )
                .await
            }
            // Another gateway has accepted it, which serves other routes.
            None => routes::no_route_at(&Method::POST, &path),
        };
        executed(kept(response).await, &context)
    }

    /// The model, with its version where the call names one; the route of a call that names no model.
    fn destination(&self, call: &JobCall) -> String {
        #[derive(Deserialize)]
        struct Named {
            model: String,
        }
        if let Some((model, _operation)) = call.path.strip_prefix(MODELS).and_then(|rest| rest.rsplit_once('/')) {
            return model.to_owned();
        }
        serde_json::from_slice(&call.body).map_or_else(|_| call.path.clone(), |Named { model }| model)
    }

    fn weight(&self, owner: &str) -> u32 {
        self.http.handlers.access.account_of(&owner.into(), Lane::Bulk).limits.share()
    }

    fn count_bytes(&self, before: u64, now: u64) {
        self.batches.add(now.saturating_sub(before));
        self.batches.give_back(before.saturating_sub(now));
    }

    async fn call(&self, call: WebhookCall) -> WebhookAnswer {
        match &self.http.webhooks {
            Some(webhooks) => webhooks.call(call).await,
            None => WebhookAnswer::failed("this gateway was started without --jobs-webhook-secret"),
        }
    }

    fn lives(&self, gateway: &str) -> bool {
        self.http.handlers.registry.lives(gateway)
    }
}

/// Whether an answer is one, or a refusal of a call that may be taken later. A refusal that is owed to what the client has set is an answer.
fn executed(answer: JobAnswer, context: &RequestContext) -> Executed {
    match answer.status {
        408 | 429 | 503 | 504 if !context.is_final() => Executed::Refused,
        _ => Executed::Answered(answer),
    }
}

/// The headers of a call. They were headers of a request, or are those of a batch.
fn read(headers: Vec<(String, Bytes)>) -> HeaderMap {
    let header = |(name, value): (String, Bytes)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_maybe_shared(value).ok()?))
    };
    headers.into_iter().filter_map(header).collect()
}

/// An answer as a job keeps it, read to its end.
async fn kept(response: Response) -> JobAnswer {
    let (parts, body) = response.into_parts();
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes()))
    };
    match axum::body::to_bytes(body, usize::MAX).await {
        Ok(body) => {
            JobAnswer { status: parts.status.as_u16(), headers: parts.headers.iter().map(header).collect(), body }
        }
        Err(error) => JobAnswer::error(500, &format!("the answer broke off: {error}")),
    }
}
