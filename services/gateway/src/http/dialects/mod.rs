//! The shapes in which clients of other servers ask: one file per dialect, each a codec over the operations of
//! `handlers::operations`. No dialect knows a model, no model a dialect. A new one is a file and a line in [`DIALECTS`].
//!
//! Each route is there twice: as the dialect's own clients ask for it, and behind the dialect's name (`/tei/embed`), where no
//! other dialect contends for it. Where several contend for a path, the fields of the body say whose it is
//! ([`marks`](dialect::DialectRoute::marks)); where they do not, it is that of the first in [`DIALECTS`].
//!
//! Not here: v2 (`routes`), which models there are.

mod answer;
mod cohere;
mod dialect;
mod infinity;
mod input;
mod jina;
mod nim;
mod ollama;
mod openai;
mod openai_tokens;
mod quantize;
mod refusal;
mod tei;
mod vllm;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use axum::routing::{get as on_get, post as on_post};
use bytes::Bytes;
use trireme_inference::{InferError, Parameters};
use trireme_server::access::Category;
use trireme_server::budget::Hold;

use super::body::{self, text};
use super::compression::Coding;
use super::openapi::{Entry, Verb};
use super::state::HttpState;
use super::traffic::Traffic;
use super::{jobs, response, routing};
use crate::forward;
use dialect::{Dialect, DialectCall, DialectRoute};
use refusal::{Kind, Refusal};

/// Every dialect. Where a body does not say whose it is, the first that has the path answers.
const DIALECTS: [&Dialect; 8] = [
    &openai::DIALECT,
    &jina::DIALECT,
    &cohere::DIALECT,
    &tei::DIALECT,
    &infinity::DIALECT,
    &vllm::DIALECT,
    &nim::DIALECT,
    &ollama::DIALECT,
];

/// In the paths at which dialects say whether all models are ready.
const HEALTH: &str = "/health";

/// A dialect with one of its routes, which contends with those of others for a path.
type Contender = (&'static Dialect, &'static DialectRoute);

/// The routes of all dialects.
pub fn routes() -> Router<HttpState> {
    table().into_iter().fold(Router::new(), |router, ((path, _), contenders)| add(router, &path, contenders))
}

/// Every path and method with the routes that contend for it.
fn table() -> BTreeMap<(String, Verb), Vec<Contender>> {
    let mut table: BTreeMap<(String, Verb), Vec<Contender>> = BTreeMap::new();
    for dialect in DIALECTS {
        for route in dialect.routes {
            let path = if route.path == "/" { "" } else { route.path };
            let mut enter = |path: String| table.entry((path, route.verb)).or_default().push((dialect, route));
            enter(route.path.to_owned());
            enter(format!("/{}{path}", dialect.name));
            if dialect.model_in_path {
                enter(format!("/{}/{{model}}{path}", dialect.name));
            }
        }
    }
    table
}

/// The routes as the document has them.
pub fn entries() -> Vec<Entry> {
    let entry = |((path, verb), contenders): ((String, Verb), Vec<Contender>)| {
        let summaries: Vec<&str> = contenders.iter().map(|(_, route)| route.summary).collect();
        Entry {
            verb,
            traffic: match verb {
                Verb::Post => Traffic::Work,
                _ if path.contains(HEALTH) => Traffic::Watch,
                _ => Traffic::Server,
            },
            path,
            group: contenders.first().map_or("", |(dialect, _)| dialect.name),
            summary: summaries
                .iter()
                .enumerate()
                .filter(|(at, it)| !summaries[..*at].contains(it))
                .map(|(_, it)| *it)
                .collect::<Vec<_>>()
                .join("; "),
            bodies: contenders.iter().filter_map(|(_, route)| route.takes.map(|takes| takes())).collect(),
            answers: contenders.iter().filter_map(|(_, route)| route.gives.map(|gives| gives())).collect(),
            errors: contenders.iter().map(|(dialect, _)| (dialect.refusals)()).collect(),
        }
    };
    table().into_iter().map(entry).collect()
}

fn add(router: Router<HttpState>, path: &str, contenders: Vec<Contender>) -> Router<HttpState> {
    let contenders: Arc<[Contender]> = contenders.into();
    let Some((_, route)) = contenders.first().copied() else { return router };
    let handler = async move |State(http): State<HttpState>,
                              Path(path): Path<BTreeMap<String, String>>,
                              request: Request| { answer(&http, &contenders, path, request).await };
    router.route(
        path,
        match route.verb {
            Verb::Get => on_get(handler),
            // Only GET and POST have something at the root.
            Verb::Post if path == "/" => on_post(handler).fallback(routing::not_found),
            Verb::Post => on_post(handler),
            Verb::Delete => axum::routing::delete(handler),
        },
    )
}

/// Answers a request that any of `contenders` may be for.
async fn answer(
    http: &HttpState,
    contenders: &[Contender],
    mut path: BTreeMap<String, String>,
    request: Request,
) -> Response {
    // Until the body is read it is the first one's.
    let (dialect, route) = contenders[0];
    let category = match route.verb {
        Verb::Get if route.path.contains(HEALTH) => Category::Health,
        Verb::Get => Category::Metadata,
        Verb::Delete | Verb::Post => Category::Inference,
    };
    let (parts, body) = request.into_parts();
    let header = |name: &str| parts.headers.get(name).map(HeaderValue::as_bytes);
    if !jobs::is_admitted(&parts.extensions)
        && let Err(denied) = http.handlers.access.check(category, header)
    {
        return refused(dialect, &denied.into());
    }
    let hold = parts.extensions.get::<Hold>().cloned().unwrap_or_else(|| http.handlers.budget.hold());
    let body = match read(http, &parts.headers, body, &hold).await {
        Ok(body) => body,
        Err(refusal) => return refused(dialect, &refusal),
    };
    let (dialect, route) = choose(contenders, &body);
    let mut parameters = Parameters::new();
    let own = |name: &str| http.handlers.access.is_secret(name);
    forward::headers(&parts.headers, http.options.header_forward.as_ref(), own, &mut parameters);
    if let Err(error) = forward::timeout(&parts.headers, &mut parameters) {
        return refused(dialect, &error.into());
    }
    let call = DialectCall {
        handlers: http.handlers.clone(),
        rest: path.remove("rest").unwrap_or_default(),
        model: path.remove("model"),
        body,
        hold,
        parameters,
        traceparent: text(&parts.headers, "traceparent").map(str::to_owned),
        waits: http.waits(&parts.headers),
        route: route.path,
        token_input: http.options.token_input,
    };
    match (route.run)(call).await {
        Ok(response) => response,
        Err(refusal) => refused(dialect, &refusal),
    }
}

async fn read(http: &HttpState, headers: &HeaderMap, body: axum::body::Body, hold: &Hold) -> Result<Bytes, Refusal> {
    let limit = http.options.max_input_size;
    let Some(coding) = Coding::of_request(headers) else {
        let message = format!("Content-Encoding is not supported, expected one of {}", Coding::SUPPORTED);
        return Err(Refusal::new(Kind::Unsupported, message));
    };
    let limited = body::Limit::json(limit).within(http.handlers.budget.limit());
    let body = body::read(headers, body, limited).await?;
    let body = coding.decode(body, limit, hold).await?;
    hold.cover(input::memory(&body)).map_err(InferError::from)?;
    Ok(body)
}

/// The contender with the most marks in the body; the first of those.
fn choose(contenders: &[Contender], body: &[u8]) -> Contender {
    if let [only] = contenders {
        return *only;
    }
    let fields = input::fields(body);
    let marks =
        |(_, route): &Contender| route.marks.iter().filter(|&mark| fields.iter().any(|field| field == mark)).count();
    // The last of the greatest is the first of the table.
    *contenders.iter().rev().max_by_key(|contender| marks(contender)).unwrap_or(&contenders[0])
}

fn refused(dialect: &Dialect, refusal: &Refusal) -> Response {
    let (status, body) = (dialect.refuse)(refusal);
    let mut response = answer::json(body);
    *response.status_mut() = status.try_into().unwrap_or_default();
    let headers = response.headers_mut();
    match refusal.kind {
        // Clients double their waits themselves.
        Kind::Overloaded | Kind::Unavailable => {
            drop(headers.insert(RETRY_AFTER, response::retry_after(refusal.retry_after)));
        }
        Kind::Key => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        _ => {}
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(path: &str, body: &str) -> &'static str {
        let contenders: Vec<Contender> = DIALECTS
            .iter()
            .flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)))
            .filter(|(_, route)| route.path == path)
            .collect();
        choose(&contenders, body.as_bytes()).0.name
    }

    #[test]
    fn fields_say_whose_a_body_is() {
        assert_eq!(chosen("/rerank", r#"{"query": "q", "texts": []}"#), "tei");
        assert_eq!(chosen("/rerank", r#"{"query": "q", "documents": []}"#), "infinity");
        assert_eq!(chosen("/rerank", r#"{"query": "q", "documents": [], "truncate_prompt_tokens": 5}"#), "vllm");
        assert_eq!(chosen("/v1/rerank", r#"{"query": "q", "documents": []}"#), "jina");
        assert_eq!(chosen("/v1/rerank", r#"{"query": "q", "documents": [], "rank_fields": ["a"]}"#), "cohere");
        assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": "a"}"#), "openai");
        assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": ["a"], "task": "text-matching"}"#), "jina");
        assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": "a", "input_type": "query"}"#), "nim");
        assert_eq!(
            chosen("/v1/embeddings", r#"{"model": "m", "input": "a", "input_type": "query", "truncate": "END"}"#),
            "nim"
        );
        assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": ["a"], "truncate": true}"#), "jina");
        assert_eq!(chosen("/classify", r#"{"input": ["a"]}"#), "infinity");
        assert_eq!(chosen("/classify", r#"{"input": ["a"], "use_activation": true}"#), "vllm");
    }

    #[test]
    fn a_body_that_is_no_json_is_the_first_ones() {
        assert_eq!(chosen("/v1/rerank", "{"), "jina");
        assert_eq!(chosen("/v1/embeddings", "[1]"), "openai");
    }

    #[test]
    fn every_route_can_be_asked_for_and_those_with_a_body_are_work() {
        let _: Router<HttpState> = routes();
        for Entry { verb, path, traffic, .. } in entries() {
            assert_eq!(verb == Verb::Post, traffic == Traffic::Work, "{path}");
        }
    }

    #[test]
    fn each_dialect_has_a_body_for_every_kind_of_refusal() {
        for dialect in DIALECTS {
            for kind in Kind::ALL {
                let refusal = Refusal::new(kind, "what \"it\" was");
                let (status, body) = (dialect.refuse)(&refusal);
                assert!((400..600).contains(&status), "{}: {kind:?}", dialect.name);
                let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                assert!(body.to_string().contains(r#"what \"it\" was"#), "{}: {body}", dialect.name);
            }
        }
    }
}
