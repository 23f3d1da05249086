//! The shapes in which clients of other servers ask: one file per dialect, each a codec over the operations of
//! `handlers::operations`. No dialect knows a model, no model a dialect. A new one is a file and a line in [`DIALECTS`].
//!
//! Each route is there twice: as the dialect's own clients ask for it, and behind the dialect's name (`/tei/embed`), where no
//! other dialect claims it. Where several claim a path, the fields of the body say whose it is ([`Route::marks`]); where they do
//! not, it is that of the first in [`DIALECTS`].
//!
//! Not here: v2 (`routes`), which models there are.

mod answer;
mod cohere;
mod infinity;
mod input;
mod jina;
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
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::Response;
use axum::routing::{get as on_get, post as on_post};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use trireme_inference::{InferError, Parameters};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::body::{self, text};
use super::compression::Coding;
use super::openapi::Entry;
use super::openapi::schema::{self, Described};
use super::{HttpState, jobs, routes};
use crate::budget::Hold;
use crate::handlers::operations::{Ask, TextOptions};
use crate::handlers::{Category, Denied, SharedHandlers, Via, forward};
pub use openai_tokens::TokenInput;
use refusal::{Kind, Refusal};

/// Every dialect. Where a body does not say whose it is, the first that has the path answers.
const DIALECTS: [&Dialect; 6] =
    [&openai::DIALECT, &jina::DIALECT, &cohere::DIALECT, &tei::DIALECT, &infinity::DIALECT, &vllm::DIALECT];

/// How clients of another server ask.
struct Dialect {
    /// Its name, which is the prefix of its routes.
    name: &'static str,
    /// Its routes.
    routes: &'static [Route],
    /// Its table of errors: the status and the body of a refusal.
    refuse: fn(&Refusal) -> (u16, Bytes),
    /// The bodies of that table.
    refusals: fn() -> Schema,
    /// Whether a model may be named behind the prefix (`/tei/MODEL/embed`), because bodies do not name one.
    model_in_path: bool,
}

/// A route of a dialect.
struct Route {
    verb: Verb,
    /// Its path, as the dialect's clients ask for it.
    path: &'static str,
    /// Fields of a body that other dialects with this path do not have.
    marks: &'static [&'static str],
    /// A sentence about the route for the document.
    summary: &'static str,
    /// The shape of its bodies.
    takes: Option<fn() -> Described>,
    /// The shape of its answers, if they are JSON.
    gives: Option<fn() -> Schema>,
    /// Answers a request.
    run: Run,
}

/// How a route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "HTTP's own words")]
pub enum Verb {
    Get,
    Post,
    Delete,
}

/// Answers a request in a dialect.
type Run = fn(Call) -> BoxFuture<'static, Result<Response, Refusal>>;

/// A request in a dialect.
struct Call {
    handlers: SharedHandlers,
    /// The path behind the last `/`-terminated part of a route that ends with a wildcard; empty for other routes.
    rest: String,
    /// The model that the path names.
    model: Option<String>,
    /// Its body, without its coding.
    body: Bytes,
    /// The request's part of the memory for requests.
    hold: Hold,
    /// The parameters that models get of the headers.
    parameters: Parameters,
    traceparent: Option<String>,
    route: &'static str,
    /// The meaning of token ids in place of texts.
    token_input: TokenInput,
}

/// A dialect with one of its routes.
type Claim = (&'static Dialect, &'static Route);

/// The routes of all dialects.
pub fn routes() -> Router<HttpState> {
    table().into_iter().fold(Router::new(), |router, ((path, _), claims)| add(router, &path, claims))
}

/// Every path and method with the routes that claim it.
fn table() -> BTreeMap<(String, Verb), Vec<Claim>> {
    let mut table: BTreeMap<(String, Verb), Vec<Claim>> = BTreeMap::new();
    for dialect in DIALECTS {
        for route in dialect.routes {
            let path = if route.path == "/" { "" } else { route.path };
            let mut claim = |path: String| table.entry((path, route.verb)).or_default().push((dialect, route));
            claim(route.path.to_owned());
            claim(format!("/{}{path}", dialect.name));
            if dialect.model_in_path {
                claim(format!("/{}/{{model}}{path}", dialect.name));
            }
        }
    }
    table
}

/// The routes as the document has them.
pub fn entries() -> Vec<Entry> {
    let entry = |((path, verb), claims): ((String, Verb), Vec<Claim>)| {
        let summaries: Vec<&str> = claims.iter().map(|(_, route)| route.summary).collect();
        Entry {
            verb,
            // A wildcard is an ordinary parameter of the document.
            path: path.replace("{*", "{"),
            group: claims.first().map_or("", |(dialect, _)| dialect.name),
            summary: summaries
                .iter()
                .enumerate()
                .filter(|(at, it)| !summaries[..*at].contains(it))
                .map(|(_, it)| *it)
                .collect::<Vec<_>>()
                .join("; "),
            bodies: claims.iter().filter_map(|(_, route)| route.takes.map(|takes| takes())).collect(),
            answers: claims.iter().filter_map(|(_, route)| route.gives.map(|gives| gives())).collect(),
            errors: claims.iter().map(|(dialect, _)| (dialect.refusals)()).collect(),
        }
    };
    table().into_iter().map(entry).collect()
}

/// Whether a request to this path is work for a model, and not about the server.
pub fn is_work(method: &Method, path: &str) -> bool {
    let fits = |dialect: &Dialect, route: &Route| match route.path {
        "/" => path == "/" || path.strip_prefix('/').is_some_and(|path| path.split('/').next() == Some(dialect.name)),
        own => path.ends_with(own),
    };
    method == Method::POST
        && DIALECTS
            .iter()
            .any(|dialect| dialect.routes.iter().any(|route| route.verb == Verb::Post && fits(dialect, route)))
}

fn add(router: Router<HttpState>, path: &str, claims: Vec<Claim>) -> Router<HttpState> {
    let claims: Arc<[Claim]> = claims.into();
    let Some((_, route)) = claims.first().copied() else { return router };
    let handler = async move |State(http): State<HttpState>,
                              Path(path): Path<BTreeMap<String, String>>,
                              request: Request| { answer(&http, &claims, path, request).await };
    router.route(
        path,
        match route.verb {
            Verb::Get => on_get(handler),
            // Only GET and POST have something at the root.
            Verb::Post if path == "/" => on_post(handler).fallback(routes::not_found),
            Verb::Post => on_post(handler),
            Verb::Delete => axum::routing::delete(handler),
        },
    )
}

/// Answers a request that any of `claims` may be for.
async fn answer(http: &HttpState, claims: &[Claim], mut path: BTreeMap<String, String>, request: Request) -> Response {
    // Until the body is read it is the first one's.
    let (dialect, route) = claims[0];
    let category = match route.verb {
        Verb::Get if route.path == "/health" => Category::Health,
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
    let (dialect, route) = choose(claims, &body);
    let mut parameters = Parameters::new();
    let own = |name: &str| http.handlers.access.is_secret(name);
    if let Err(error) = forward::headers(&parts.headers, http.options.header_forward.as_ref(), own, &mut parameters) {
        return refused(dialect, &error.into());
    }
    let call = Call {
        handlers: http.handlers.clone(),
        rest: path.remove("rest").unwrap_or_default(),
        model: path.remove("model"),
        body,
        hold,
        parameters,
        traceparent: text(&parts.headers, "traceparent").map(str::to_owned),
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
    let too_large = |error: InferError| match body::is_too_large(&error) {
        true => Refusal::new(Kind::TooLarge, error.message),
        false => error.into(),
    };
    let limited = body::Limit::json(limit).within(http.handlers.budget.limit());
    let body = body::read(headers, body, limited).await.map_err(too_large)?;
    let body = coding.decode(body, limit, hold).await.map_err(too_large)?;
    hold.cover(input::memory(&body)).map_err(InferError::from)?;
    Ok(body)
}

/// The claim with the most marks in the body; the first of those.
fn choose(claims: &[Claim], body: &[u8]) -> Claim {
    if let [only] = claims {
        return *only;
    }
    let fields = input::fields(body);
    let marks =
        |(_, route): &Claim| route.marks.iter().filter(|&mark| fields.iter().any(|field| field == mark)).count();
    // The last of the greatest is the first of the table.
    *claims.iter().rev().max_by_key(|claim| marks(claim)).unwrap_or(&claims[0])
}

fn refused(dialect: &Dialect, refusal: &Refusal) -> Response {
    let (status, body) = (dialect.refuse)(refusal);
    let mut response = answer::json(body);
    *response.status_mut() = status.try_into().unwrap_or_default();
    let headers = response.headers_mut();
    match refusal.kind {
        // A queue usually has room within a second. Clients double their waits themselves.
        Kind::Overloaded | Kind::Unavailable => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        Kind::Key => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        _ => {}
    }
    response
}

// === impl Route ===

impl Route {
    const fn get(path: &'static str, summary: &'static str, run: Run) -> Route {
        Route { verb: Verb::Get, path, marks: &[], summary, takes: None, gives: None, run }
    }

    const fn post(path: &'static str, summary: &'static str, run: Run) -> Route {
        Route { verb: Verb::Post, path, marks: &[], summary, takes: None, gives: None, run }
    }

    /// The same with a body of this shape.
    const fn takes<T: ToSchema>(self) -> Route {
        Route { takes: Some(schema::of::<T>), ..self }
    }

    /// The same with a body of which two types read their own fields.
    const fn takes_both<A: ToSchema, B: ToSchema>(self) -> Route {
        Route { takes: Some(schema::of_both::<A, B>), ..self }
    }

    /// The same with answers of this shape.
    const fn gives(self, gives: fn() -> Schema) -> Route {
        Route { gives: Some(gives), ..self }
    }

    /// The same with these fields for marks.
    const fn marked(self, marks: &'static [&'static str]) -> Route {
        Route { marks, ..self }
    }
}

// === impl Call ===

impl Call {
    /// The request as operations take it. `model` is what the body names; a path that names one has the last word.
    fn ask(&self, model: Option<&str>, options: TextOptions) -> Ask {
        Ask {
            model: self.model.as_deref().or(model).map(str::to_owned),
            options,
            hold: self.hold.clone(),
            parameters: self.parameters.clone(),
            traceparent: self.traceparent.clone(),
            via: Via::Http(self.route),
        }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Refusal {
        match denied {
            Denied::Key => Refusal::new(
                Kind::Key,
                "a valid API key is required, as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'",
            ),
            Denied::Restricted(header) => {
                Refusal::new(Kind::Forbidden, format!("this API is restricted, expected header '{header}'"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(path: &str, body: &str) -> &'static str {
        let claims: Vec<Claim> = DIALECTS
            .iter()
            .flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)))
            .filter(|(_, route)| route.path == path)
            .collect();
        choose(&claims, body.as_bytes()).0.name
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
        assert_eq!(chosen("/classify", r#"{"input": ["a"]}"#), "infinity");
        assert_eq!(chosen("/classify", r#"{"input": ["a"], "use_activation": true}"#), "vllm");
    }

    #[test]
    fn a_body_that_is_no_json_is_the_first_ones() {
        assert_eq!(chosen("/v1/rerank", "{"), "jina");
        assert_eq!(chosen("/v1/embeddings", "[1]"), "openai");
    }

    #[test]
    fn every_route_can_be_asked_for_and_is_known_as_work() {
        let _: Router<HttpState> = routes();
        for dialect in DIALECTS {
            for route in dialect.routes.iter().filter(|route| route.verb == Verb::Post) {
                assert!(is_work(&Method::POST, route.path), "{}", route.path);
                let prefixed = format!("/{}{}", dialect.name, route.path.trim_end_matches('/'));
                assert!(is_work(&Method::POST, &prefixed), "{prefixed}");
            }
        }
        for path in ["/v2/repository/index", "/v2/models/m/config", "/v2/logging"] {
            assert!(!is_work(&Method::POST, path), "{path}");
        }
        assert!(!is_work(&Method::GET, "/embed"));
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
