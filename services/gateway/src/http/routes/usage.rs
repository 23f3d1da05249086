//! `/v2/trireme/usage`: what owners of keys have used.

use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::query;
use trireme_server::http::response;
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{integer, list, number, object, text};
use utoipa::openapi::schema::Schema;

use crate::http::state::{HttpState, Route};
use crate::usage::{Asked, Hour, Line, Query, WRITE_EVERY, time_text};

/// The defaults of this route.
const RESOURCE: Resource =
    Resource { group: "control", category: Some(Category::Statistics), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        RESOURCE.get("/v2/trireme/usage", "What owners of keys have used, by model, lane and day", usage).gives(schema),
    ]
}

/// A key shows its owner's usage; that of an administrator everybody's.
async fn usage(
    State(http): State<HttpState>,
    headers: HeaderMap,
    query::Query(asked): query::Query<Asked>,
) -> Response {
    let usage = &http.handlers.usage;
    let owner = http.handlers.access.owner(|name| headers.get(name).map(HeaderValue::as_bytes));
    let query = match Query::of(asked, Hour::of(usage.now()).0, owner) {
        Ok(query) => query,
        Err(why) => return response::error(StatusCode::BAD_REQUEST, &why),
    };
    let lines = match usage.read(&query).await {
        Ok(lines) => lines,
        Err(error) => return response::error(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let body = json!({
        "from": time_text(query.span.from),
        "until": time_text(query.span.until),
        "written_every_seconds": WRITE_EVERY.as_secs(),
        "usage": lines.iter().map(|line| shown(&query, line)).collect::<Vec<_>>(),
    });
    let mut response = response::json(body.to_string().into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn shown(query: &Query, Line { start, key, counts }: &Line) -> Value {
    json!({
        "start": time_text(*start),
        "end": time_text(query.end(*start)),
        "owner": key.owner.as_str(),
        "model": key.model.as_str(),
        "lane": key.lane.as_str(),
        "requests": counts.requests,
        "errors": counts.errors,
        "refused": counts.refused,
        "cached_requests": counts.cached,
        "rows": counts.rows,
        "tokens": counts.tokens,
        "cached_tokens": counts.cached_tokens,
        "model_seconds": counts.compute_us as f64 / 1e6,
    })
}

fn schema() -> Schema {
    let line = object([
        ("start", text()),
        ("end", text()),
        ("owner", text()),
        ("model", text()),
        ("lane", text()),
        ("requests", integer()),
        ("errors", integer()),
        ("refused", integer()),
        ("cached_requests", integer()),
        ("rows", integer()),
        ("tokens", integer()),
        ("cached_tokens", integer()),
        ("model_seconds", number()),
    ]);
    object([("from", text()), ("until", text()), ("written_every_seconds", integer()), ("usage", list(line))])
}
