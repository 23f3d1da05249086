//! `Prefer: respond-async` (RFC 7240): a request for a model is stored and answered later, under `/v1/requests/{id}`.

use axum::extract::{Path, Request, State};
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use trireme_inference::IF_SPACE_HEADER;
use trireme_jobs::{JobAnswer, JobCall, JobError, RequestState};
use trireme_server::access::{Category, Sender};
use trireme_server::http::body;
use trireme_server::http::describe::Describe;
use trireme_server::http::response::{self, HttpError};
use trireme_server::http::route::Resource;
use trireme_server::http::schema;
use trireme_server::{RequestContext, Traffic};
use utoipa::openapi::schema::Schema;

use crate::http::jobs::idempotency::IdempotencyKey;
use crate::http::jobs::options;
use crate::http::jobs::refused::{Refused, status};
use crate::http::jobs::shown::ShownRequest;
use crate::http::prefer::Preference;
use crate::http::state::{HttpState, Own, Route};

/// The headers of a request that its endpoint reads, and that are kept with it. Others are about the connection, or secrets.
const KEPT: [&str; 7] = [
    "content-type",
    "content-encoding",
    "inference-header-content-length",
    "traceparent",
    "tracestate",
    "trireme-timeout-ms",
    IF_SPACE_HEADER,
];

const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "jobs", category: Some(Category::Inference), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE
            .get("/v1/requests/{id}", "The state of a durable request", show)
            .gives(schema::answer::<ShownRequest<'_>>)
            .shows(|shapes| shapes.errors = refusals()),
        RESOURCE
            .delete("/v1/requests/{id}", "Cancels a durable request, or deletes one that has ended", cancel)
            .gives(schema::answer::<ShownRequest<'_>>)
            .or_gives(StatusCode::NO_CONTENT, "the request had ended, and is deleted", None)
            .shows(|shapes| shapes.errors = refusals()),
        RESOURCE
            .get("/v1/requests/{id}/response", "The answer to a durable request", answer)
            .or_gives(StatusCode::ACCEPTED, "there is no answer yet", Some(schema::answer::<ShownRequest<'_>>))
            // The answer may be a refusal of the route that the request was for.
            .shows(|shapes| shapes.errors.push(schema::anything())),
    ]
}

/// A route of the table, which says so if its requests may be answered later.
pub fn offered(route: Route) -> Route {
    if route.category != Some(Category::Inference) || !route.traffic.executes() {
        return route;
    }
    let accepted = "with respond-async: the request is kept, and answered later";
    route.or_gives(StatusCode::ACCEPTED, accepted, Some(schema::answer::<ShownRequest<'_>>)).shows(|shapes| {
        Preference::describe(shapes);
        IdempotencyKey::describe(shapes);
        options::describe(shapes);
        // These headers are the same in all dialects, and so are the errors about them.
        if !shapes.errors.is_empty() {
            shapes.errors.push(response::error_schema());
        }
    })
}

/// Accepts a request of this traffic that prefers to be answered later; lets others pass.
pub async fn accept_or_pass(http: &HttpState, traffic: Traffic, request: Request, next: Next) -> Response {
    let preference = Preference::of(request.headers());
    // Other routes have no answer that is worth waiting for: they are answered at once.
    if !preference.is_async || !traffic.executes() {
        if request.method() == Method::POST && options::are_in(request.headers()) {
            let message =
                "Not-Before and Webhook-Url are headers of durable requests: send 'Prefer: respond-async' with them";
            return response::error(StatusCode::BAD_REQUEST, message);
        }
        RequestContext::of(request.extensions()).waits(preference.wait);
        return next.run(request).await;
    }
    // Boxed, because its state is much larger than that of a request which is answered now.
    match Box::pin(accept(http, request, preference)).await {
        Ok(response) | Err(response) => response,
    }
}

async fn accept(http: &HttpState, request: Request, preference: Preference) -> Result<Response, Response> {
    let (parts, body) = request.into_parts();
    let sender = Sender::of(&parts.uri, &parts.headers, &parts.extensions);
    let jobs = http.own_jobs(&parts.headers)?;
    let IdempotencyKey(key) =
        IdempotencyKey::of(&parts.headers).map_err(|why| response::error(StatusCode::BAD_REQUEST, &why))?;
    let terms = options::of_headers(&parts.headers, http.webhooks.as_ref())
        .map_err(|why| response::error(StatusCode::BAD_REQUEST, &why))?;
    let limit = body::Limit::binary(http.options.max_input_size);
    let body = body::read(&parts.headers, body, limit).await.map_err(|error| HttpError::from(error).into_response())?;
    let headers = KEPT.iter().filter_map(|&name| Some((name.to_owned(), sender.header(name)?.to_vec().into())));
    let call = JobCall { path: parts.uri.path().to_owned(), headers: headers.collect(), body };
    let accepted = jobs.accept_on(call, key.as_deref(), terms).await.map_err(|error| refused(&error))?;
    let mut request = accepted.request;
    if !preference.wait.is_zero() {
        request = jobs.wait(&accepted.id, preference.wait).await.map_err(|error| refused(&error))?;
        if let Some(answer) = jobs.answer(&request).await.map_err(|error| refused(&error))? {
            return Ok(replay(answer));
        }
    }
    let mut response = state(http, &accepted.id, &request);
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/requests/{}", accepted.id)) {
        headers.insert(LOCATION, location);
    }
    headers.insert(APPLIED, HeaderValue::from_static("respond-async"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    Ok(response)
}

async fn show(State(http): State<HttpState>, Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Response> {
    let request = jobs.request(&id).await.map_err(|error| refused(&error))?;
    Ok(state(&http, &id, &request))
}

/// The answer as the route gave it; 202 while there is none.
async fn answer(State(http): State<HttpState>, Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Response> {
    let request = jobs.request(&id).await.map_err(|error| refused(&error))?;
    if let Some(answer) = jobs.answer(&request).await.map_err(|error| refused(&error))? {
        return Ok(replay(answer));
    }
    match request.state {
        RequestState::Queued => {
            let mut response = state(&http, &id, &request);
            *response.status_mut() = StatusCode::ACCEPTED;
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            Ok(response)
        }
        _ => {
            let message = format!("request '{id}' was cancelled or has expired, so it has no answer");
            Err(response::error(StatusCode::GONE, &message))
        }
    }
}

/// Cancels a request that waits or runs; deletes one that has ended.
async fn cancel(State(http): State<HttpState>, Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Response> {
    let before = jobs.cancel_request(&id).await.map_err(|error| refused(&error))?;
    if before.state != RequestState::Queued {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let request = jobs.request(&id).await.map_err(|error| refused(&error))?;
    Ok(state(&http, &id, &request))
}

/// The answer that shows a request.
fn state(http: &HttpState, id: &str, request: &trireme_jobs::Request) -> Response {
    response::written(&ShownRequest::of(id, request, &http.options.root_path))
}

/// An answer, as it was given.
fn replay(answer: JobAnswer) -> Response {
    let mut headers = HeaderMap::new();
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, headers, answer.body).into_response()
}

fn refused(error: &JobError) -> Response {
    response::error(status(error), &error.to_string())
}

/// The shapes of refusals: of these routes, and of a gateway that keeps no jobs.
fn refusals() -> Vec<Schema> {
    vec![response::error_schema(), Refused::schema()]
}
