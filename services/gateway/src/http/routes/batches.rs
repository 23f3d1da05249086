//! `/v1/batches`, as OpenAI's clients send them: every line of a file is a request to one route.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use trireme_inference::AskedSpaces;
use trireme_jobs::{NewBatch, RowRequest};
use trireme_server::access::Category;
use trireme_server::http::query::Query;
use trireme_server::http::route::Resource;
use trireme_server::http::{response, schema};
use trireme_server::{RequestContext, Traffic};
use utoipa::ToSchema;

use super::files::{parse, read_body};
use crate::forward;
use crate::http::jobs::form::ExpiresAfter;
use crate::http::jobs::idempotency::IdempotencyKey;
use crate::http::jobs::lists::{Asked, Limit, ListPage, PageQuery};
use crate::http::jobs::options::{self, Time};
use crate::http::jobs::refused::Refused;
use crate::http::jobs::shown::ShownBatch;
use crate::http::state::{HttpState, Own, Route};

/// The page of batches that a query asks for.
type BatchesPage = PageQuery<Limit<20, 100>>;

/// Most pairs of `metadata`, and most characters of a key and of a value, as OpenAI has them: each record of a batch has them, too.
const METADATA: (usize, usize, usize) = (16, 64, 512);

/// Most bytes of `body` and `columns` as JSON, for the same reason.
const LONGEST_ROWS: usize = 64 << 10;

/// The body of `POST /v1/batches`.
#[derive(Deserialize, ToSchema)]
struct CreateBatch {
    input_file_id: String,
    /// The path of a route that executes a model, such as /v1/embeddings.
    endpoint: String,
    /// Hours or days, such as 24h or 7d.
    completion_window: String,
    #[serde(default)]
    #[schema(inline)]
    output_expires_after: Option<ExpiresAfter>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    /// The time before which it does not begin.
    #[serde(default)]
    #[schema(inline)]
    not_before: Option<Time>,
    /// The URL that is called when it has ended.
    #[serde(default)]
    webhook: Option<String>,
    /// For files of columns: the fields that all bodies have.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    body: Option<serde_json::Map<String, Value>>,
    /// For files of columns: the column of each further field.
    #[serde(default)]
    columns: Option<BTreeMap<String, String>>,
}

/// The defaults of these routes.
const RESOURCE: Resource = Resource { group: "jobs", category: Some(Category::Inference), traffic: Traffic::Server };

/// The routes.
pub fn routes() -> Vec<Route> {
    let routes = [
        RESOURCE.get("/v1/batches", "All batches", list).gives(schema::answer::<ListPage<'_, ShownBatch<'_>>>),
        RESOURCE
            .post("/v1/batches", "Begins a batch: every line of a file is a request", begin)
            .reads::<CreateBatch>()
            .gives(schema::answer::<ShownBatch<'_>>),
        RESOURCE.get("/v1/batches/{id}", "The state of a batch", show).gives(schema::answer::<ShownBatch<'_>>),
        RESOURCE.post("/v1/batches/{id}/cancel", "Cancels a batch", cancel).gives(schema::answer::<ShownBatch<'_>>),
    ];
    routes.into_iter().map(|route| route.refuses(Refused::unanswered, Refused::schema)).collect()
}

async fn begin(
    State(http): State<HttpState>,
    Own(jobs): Own,
    IdempotencyKey(key): IdempotencyKey,
    request: Request,
) -> Result<Response, Refused> {
    let traceparent = RequestContext::of(request.extensions()).traceparent().cloned();
    let if_space = forward::asked_spaces(request.headers());
    if let Some(Err(error)) = if_space.as_deref().map(str::parse::<AskedSpaces>) {
        return Err(Refused::invalid(&error.message));
    }
    let sent = read_body(&http, request).await?;
    let asked: CreateBatch = parse(&sent)?;
    if !http.table.executes(&asked.endpoint) {
        return Err(Refused::invalid(&format!(
            "'endpoint' is '{}', expected the path of a route that executes a model, such as /v1/embeddings or \
             /v2/models/NAME/infer",
            asked.endpoint
        )));
    }
    let window = window(&asked.completion_window).ok_or_else(|| {
        Refused::invalid(&format!(
            "'completion_window' is '{}', expected hours or days, such as 24h or 7d",
            asked.completion_window
        ))
    })?;
    let terms = options::of_fields(asked.not_before, asked.webhook.as_deref(), http.webhooks.as_ref())
        .map_err(|why| Refused::invalid(&why))?;
    let output_lapse = asked.output_expires_after.map(|after| after.lapse());
    let metadata = asked.metadata.unwrap_or_default();
    check_metadata(&metadata).map_err(|why| Refused::invalid(&why))?;
    let rows = RowRequest { body: asked.body.unwrap_or_default(), columns: asked.columns };
    let bytes = json!([rows.body, rows.columns]).to_string().len();
    if bytes > LONGEST_ROWS {
        return Err(Refused::invalid(&format!(
            "'body' and 'columns' have {bytes} bytes, expected at most {LONGEST_ROWS}"
        )));
    }
    let (input, endpoint) = (asked.input_file_id, asked.endpoint);
    let new = NewBatch { input, endpoint, window, output_lapse, traceparent, if_space, metadata, rows };
    let (id, batch) = jobs.begin_batch_on(new, terms, key.as_deref().map(|key| (key, sent.as_ref()))).await?;
    Ok(response::written(&ShownBatch::of(&id, &batch)))
}

async fn list(Own(jobs): Own, page: Asked<BatchesPage>) -> Result<Response, Refused> {
    let Query(page) = page?;
    let batches = jobs.batches(&page.page(None)).await?;
    Ok(response::written(&ListPage::of(&batches, ShownBatch::of)))
}

async fn show(Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Refused> {
    let batch = jobs.batch(&id).await?;
    Ok(response::written(&ShownBatch::of(&id, &batch)))
}

async fn cancel(Own(jobs): Own, Path(id): Path<String>) -> Result<Response, Refused> {
    let batch = jobs.cancel_batch(&id).await?;
    Ok(response::written(&ShownBatch::of(&id, &batch)))
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), String> {
    let (pairs, key_length, value_length) = METADATA;
    if metadata.len() > pairs {
        return Err(format!("'metadata' has {} pairs, expected at most {pairs}", metadata.len()));
    }
    for (key, value) in metadata {
        let (key_characters, value_characters) = (key.chars().count(), value.chars().count());
        if key_characters > key_length {
            return Err(format!("'metadata' has a key of {key_characters} characters, expected at most {key_length}"));
        }
        if value_characters > value_length {
            return Err(format!("'metadata.{key}' has {value_characters} characters, expected at most {value_length}"));
        }
    }
    Ok(())
}

/// A time such as `24h` or `7d`.
fn window(text: &str) -> Option<Duration> {
    const HOUR: u64 = 3600;
    let unit = match text.chars().last()? {
        'h' => HOUR,
        'd' => 24 * HOUR,
        _ => return None,
    };
    let count: u64 = text[..text.len() - 1].parse().ok().filter(|count| (1..=365 * 24).contains(count))?;
    Some(Duration::from_secs(count * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_hours_or_days() {
        assert_eq!(window("24h"), Some(Duration::from_secs(24 * 3600)));
        assert_eq!(window("7d"), Some(Duration::from_secs(7 * 24 * 3600)));
        for text in ["", "h", "24", "0h", "-1h", "24é", "99999999999999999999h"] {
            assert_eq!(window(text), None, "{text}");
        }
    }

    #[test]
    fn metadata_is_as_small_as_openais() {
        let refusal = |pairs: Vec<(String, String)>| check_metadata(&pairs.into_iter().collect()).err();
        let pair = |key: usize, value: usize| ("k".repeat(key), "é".repeat(value));
        assert_eq!(refusal(vec![pair(64, 512)]), None);
        assert!(refusal(vec![pair(65, 1)]).unwrap().contains("a key of 65 characters"));
        assert_eq!(refusal(vec![pair(1, 513)]).unwrap(), "'metadata.k' has 513 characters, expected at most 512");
        assert!(refusal((0..17).map(|at| (at.to_string(), String::new())).collect()).unwrap().contains("17 pairs"));
    }
}
