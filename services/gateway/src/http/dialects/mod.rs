//! The shapes in which clients of other servers ask: one file per dialect, each a codec over the operations of
//! `handlers::operations`. No dialect knows a model, no model a dialect. A new one is a file and a line in [`DIALECTS`].
//!
//! Each route is there twice: as the dialect's own clients ask for it, and behind the dialect's name (`/tei/embed`), where no
//! other dialect contends for it. Where several contend for a path, the fields of the body say whose it is: it is that of the dialect whose
//! table ([`fields`]) knows most of them, the first in [`DIALECTS`] of these.
//!
//! Not here: v2 (`routes`), which models there are.

mod answer;
mod cohere;
mod dialect;
mod fields;
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
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{get as on_get, post as on_post};
use bytes::Bytes;
use trireme_inference::{InferError, Parameters};
use trireme_server::access::Category;
use trireme_server::budget::Hold;

use super::access_log::{AskedModel, REQUEST_ID};
use super::body::{self, text};
use super::compression::Coding;
use super::openapi::{Entry, Verb};
use super::state::HttpState;
use super::traffic::Traffic;
use super::{jobs, response, routing};
use crate::forward;
use dialect::{Dialect, DialectCall, DialectRoute};
use fields::Members;
use refusal::{Kind, Refusal};

/// Every dialect. Where a body does not say whose it is, the first one that has the path answers.
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

/// The names of all dialects.
pub fn names() -> impl Iterator<Item = &'static str> {
    DIALECTS.into_iter().map(|dialect| dialect.name)
}

/// The routes of all dialects, of which `first` answers where several could.
pub fn routes(first: &str) -> Router<HttpState> {
    table(first).into_iter().fold(Router::new(), |router, ((path, _), contenders)| add(router, &path, contenders))
}

/// Every path and method with the routes that contend for it. Those of the dialect `first` come first, and all of them are there without its
/// name, too, but for the root, which leads to the console.
fn table(first: &str) -> BTreeMap<(String, Verb), Vec<Contender>> {
    let mut table: BTreeMap<(String, Verb), Vec<Contender>> = BTreeMap::new();
    let is_first = |dialect: &&Dialect| dialect.name == first;
    let (chosen, others): (Vec<_>, Vec<_>) = DIALECTS.into_iter().partition(is_first);
    for dialect in chosen.into_iter().chain(others) {
        for route in dialect.routes {
            let path = if route.path == "/" { "" } else { route.path };
            let mut enter = |path: String| table.entry((path, route.verb)).or_default().push((dialect, route));
            if !route.is_behind_name || (is_first(&dialect) && route.path != "/") {
                enter(route.path.to_owned());
            }
            enter(format!("/{}{path}", dialect.name));
            if dialect.model_in_path {
                enter(format!("/{}/{{model}}{path}", dialect.name));
            }
        }
    }
    table
}

/// The routes as the document has them, of which the dialect `first` answers where several could.
pub fn entries(first: &str) -> Vec<Entry> {
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
            // Behind a name there is one dialect, whose fields these are.
            fields: match contenders.as_slice() {
                [(_, route)] if !route.fields.is_empty() => Some(fields::described(route.fields)),
                _ => None,
            },
            bodies: contenders.iter().filter_map(|(_, route)| route.takes.map(|takes| takes())).collect(),
            answers: contenders.iter().filter_map(|(_, route)| route.gives.map(|gives| gives())).collect(),
            gives_bytes: contenders.iter().any(|(_, route)| route.gives_bytes),
            errors: contenders
                .iter()
                .map(|(dialect, route)| route.refuse.map_or(dialect.refusals, |(_, refusals)| refusals)())
                .collect(),
        }
    };
    table(first).into_iter().map(entry).collect()
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
        return refused((dialect, route), &denied.into());
    }
    let hold = parts.extensions.get::<Hold>().cloned().unwrap_or_else(|| http.handlers.budget.hold());
    let body = match read(http, &parts.headers, body, &hold).await {
        Ok(body) => body,
        Err(refusal) => return refused((dialect, route), &refusal),
    };
    let Chosen { contender: (dialect, route), body, model } = match choose(contenders, body) {
        Ok(chosen) => chosen,
        Err((contender, refusal)) => return refused(contender, &refusal),
    };
    let mut parameters = Parameters::new();
    let own = |name: &str| http.handlers.access.is_secret(name);
    forward::headers(&parts.headers, http.options.header_forward.as_ref(), own, &mut parameters);
    if let Err(error) = forward::timeout(&parts.headers, &mut parameters) {
        return refused((dialect, route), &error.into());
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
        request_id: text(&parts.headers, REQUEST_ID.as_str()).unwrap_or_default().to_owned(),
        route: route.path,
        token_input: http.options.token_input,
        empty_text: http.options.empty_text,
    };
    let mut response = (route.run)(call).await.unwrap_or_else(|refusal| refused((dialect, route), &refusal));
    if let Some(model) = model {
        response.extensions_mut().insert(AskedModel(model));
    }
    response
}

/// The contender that a request is for.
struct Chosen {
    contender: Contender,
    /// The body as its route reads it.
    body: Bytes,
    /// The model that the body names.
    model: Option<String>,
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

/// The contender whose tables know most of the fields of a body, the first of those.
fn choose(contenders: &[Contender], body: Bytes) -> Result<Chosen, (Contender, Refusal)> {
    let members = Members::of(&body);
    let known = |(_, route): &&Contender| members.known(route.fields);
    // The last of the greatest is the first of the table.
    let (dialect, route) = *contenders.iter().rev().max_by_key(known).unwrap_or(&contenders[0]);
    let refused = |refusal| ((dialect, route), refusal);
    let others = contenders.iter().filter(|(other, _)| other.name != dialect.name);
    for (other, theirs) in others {
        if let Some(field) = members.unknown_but_to(route.fields, theirs.fields) {
            return Err(refused(Refusal::field(
                field,
                format!(
                    "is a field of {}, others of this request are of {}: choose one by the base URL, /{} or /{}",
                    other.name, dialect.name, other.name, dialect.name
                ),
            )));
        }
    }
    let model = members.text("model");
    // On a path of several dialects a field that none knows is that of a proxy, as for all but the strict one.
    let rewritten = members.check(route.fields, dialect.is_strict && contenders.len() == 1).map_err(refused)?;
    drop(members);
    Ok(Chosen { contender: (dialect, route), body: rewritten.map_or(body, Bytes::from), model })
}

fn refused((dialect, route): Contender, refusal: &Refusal) -> Response {
    let refusal = &Refusal { message: refusal.message.replace(UNCUT, dialect.cut), ..refusal.clone() };
    let (status, body) = route.refuse.map_or(dialect.refuse, |(refuse, _)| refuse)(refusal);
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

/// The answer where no route has the path, or the method, with this status: that of the dialect whose name the path begins with.
pub fn no_route(path: &str, status: StatusCode) -> Option<Response> {
    let name = path.split('/').nth(1)?;
    let dialect = DIALECTS.into_iter().find(|dialect| dialect.name == name)?;
    let routes: Vec<String> =
        dialect.routes.iter().map(|route| format!("{} {}", route.verb.name(), route.path)).collect();
    let refusal = Refusal::new(Kind::NoRoute, format!("there is no such route; /{name} has {}", routes.join(", ")));
    let mut response = answer::json((dialect.refuse)(&refusal).1);
    *response.status_mut() = status;
    Some(response)
}

/// How the tokenizer says to have a long text cut, for clients of v2.
const UNCUT: &str = "leave out parameter 'truncate'";

#[cfg(test)]
mod tests {
    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;

    use super::fields::{Effect, Field};
    use super::*;

    fn chosen(path: &str, body: &str) -> &'static str {
        let contenders: Vec<Contender> = DIALECTS
            .iter()
            .flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)))
            .filter(|(_, route)| route.path == path && !route.is_behind_name)
            .collect();
        match choose(&contenders, Bytes::from(body.to_owned())) {
            Ok(Chosen { contender: (dialect, _), .. }) | Err(((dialect, _), _)) => dialect.name,
        }
    }

    #[test]
    fn flags_know_every_dialect() {
        assert!(names().eq(crate::http::args::DIALECTS));
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
        let embeddings = |more: &str| chosen("/v1/embeddings", &format!(r#"{{"model": "m", "input": ["a"], {more}}}"#));
        assert_eq!(embeddings(r#""encoding_format": "float", "dimensions": 3, "user": "u""#), "openai");
        assert_eq!(embeddings(r#""truncate": "END""#), "nim");
        assert_eq!(embeddings(r#""encoding_type": "float""#), "jina");
        assert_eq!(embeddings(r#""truncate_prompt_tokens": 5"#), "vllm");
        assert_eq!(embeddings(r#""normalize": false"#), "vllm");
        assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": [{"text": "a"}]}"#), "jina");
        assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": [[1, 2]]}"#), "openai");
    }

    #[test]
    fn fields_of_two_dialects_are_refused_with_both() {
        let routes = |path: &str| -> Vec<Contender> {
            let all = DIALECTS.iter().flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)));
            all.filter(|(_, route)| route.path == path && !route.is_behind_name).collect()
        };
        let body =
            r#"{"model": "m", "input": "a", "normalize": false, "task": "text-matching", "late_chunking": false}"#;
        let (_, refusal) = choose(&routes("/v1/embeddings"), Bytes::from(body)).err().expect("a refusal");
        assert_eq!(refusal.field.as_deref(), Some("normalize"));
        assert!(refusal.message.contains("choose one by the base URL, /vllm or /jina"), "{}", refusal.message);
    }

    #[test]
    fn fields_of_proxies_are_passed_over_on_a_path_of_several_dialects() {
        let body =
            r#"{"model": "m", "query": "q", "documents": ["a"], "max_chunks_per_doc": 1024, "overlap_tokens": 80}"#;
        let check = |path: &str| {
            let contenders = table("openai").remove(&(path.to_owned(), Verb::Post)).expect("a path");
            choose(&contenders, Bytes::from(body))
                .map(|chosen| chosen.contender.0.name)
                .map_err(|(_, refusal)| refusal.field)
        };
        assert_eq!(check("/v1/rerank"), Ok("cohere"));
        assert_eq!(check("/cohere/v1/rerank"), Err(Some("overlap_tokens".to_owned())));
    }

    #[test]
    fn a_body_that_is_no_json_is_the_first_ones() {
        assert_eq!(chosen("/v1/rerank", "{"), "jina");
        assert_eq!(chosen("/v1/embeddings", "[1]"), "openai");
    }

    #[test]
    fn every_route_can_be_asked_for_and_those_with_a_body_are_work() {
        for first in names() {
            let _: Router<HttpState> = routes(first);
            for Entry { verb, path, traffic, .. } in entries(first) {
                assert_eq!(verb == Verb::Post, traffic == Traffic::Work, "{path}");
            }
        }
    }

    #[test]
    fn the_first_dialect_answers_where_the_body_does_not_say_whose_it_is() {
        let chosen = |first: &str, path: &str, body: &str| {
            let contenders = table(first).remove(&(path.to_owned(), Verb::Post)).expect("a path");
            let chosen = choose(&contenders, Bytes::from(body.to_owned()));
            chosen.map_or_else(|((dialect, _), _)| dialect.name, |chosen| chosen.contender.0.name)
        };
        let (plain, jinas) =
            (r#"{"model": "m", "input": "a"}"#, r#"{"model": "m", "input": ["a"], "task": "text-matching"}"#);
        for first in ["openai", "jina", "tei", "vllm", "nim", "ollama"] {
            assert_eq!(chosen(first, "/v1/embeddings", plain), first);
        }
        assert_eq!(chosen("vllm", "/v1/embeddings", jinas), "jina");
        assert_eq!(chosen("vllm", "/v1/embeddings", "no JSON"), "vllm");
        assert_eq!(chosen("vllm", "/v1/rerank", r#"{"query": "q", "documents": []}"#), "vllm");
        // Its other routes are there without its name.
        let gets =
            |first: &str, path: &str| table(first).remove(&(path.to_owned(), Verb::Get)).map(|all| all[0].0.name);
        assert_eq!((gets("tei", "/info"), gets("tei", "/health")), (Some("tei"), Some("tei")));
        assert_eq!((gets("vllm", "/v1/models"), gets("openai", "/v1/models")), (Some("vllm"), Some("openai")));
        assert_eq!((gets("openai", "/info"), gets("ollama", "/")), (Some("tei"), None));
    }

    /// The names of the members of a route's bodies, by the types that read them.
    fn members_of(route: &DialectRoute) -> Vec<String> {
        fn names(schema: &RefOr<Schema>, parts: &[(String, RefOr<Schema>)]) -> Vec<String> {
            match schema {
                RefOr::T(Schema::Object(object)) => object.properties.keys().cloned().collect(),
                RefOr::T(Schema::AllOf(all)) => all.items.iter().flat_map(|item| names(item, parts)).collect(),
                RefOr::T(_) => Vec::new(),
                RefOr::Ref(to) => {
                    let named = |(name, _): &&(String, RefOr<Schema>)| to.ref_location.ends_with(&format!("/{name}"));
                    parts.iter().find(named).map_or_else(Vec::new, |(_, part)| names(part, parts))
                }
            }
        }
        let Some(body) = route.takes.map(|takes| takes()) else { return Vec::new() };
        names(&body.schema, &body.parts)
    }

    #[test]
    fn what_types_read_is_in_the_tables_and_every_value_there_can_be_read() {
        for (dialect, route) in DIALECTS.iter().flat_map(|dialect| dialect.routes.iter().map(move |it| (dialect, it))) {
            let place = format!("{} {}", dialect.name, route.path);
            let fields = || route.fields.iter().copied().flatten();
            for name in members_of(route) {
                assert!(fields().any(|field| field.name == name), "{place}: '{name}' is in no table");
            }
            for field in fields() {
                for form in field.forms {
                    let body = format!(r#"{{"{}": {form}}}"#, field.name);
                    let checked = Members::of(body.as_bytes()).check(route.fields, true);
                    match (&field.effect, checked) {
                        (Effect::Only(values, _), Err(refusal)) if !values.contains(form) => {
                            assert_eq!(refusal.field.as_deref(), Some(field.name), "{place} {body}");
                        }
                        (_, checked) => assert_eq!(checked.map(|_| ()), Ok(()), "{place} {body}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_page_lists_the_fields() {
        const START: &str = "<!-- fields -->\n";
        const END: &str = "<!-- end of fields -->";
        let path = "../../docs/dialects.md";
        let text = std::fs::read_to_string(path).expect("the page is there");
        let (before, rest) = text.split_once(START).expect("the mark before the list");
        let (list, after) = rest.split_once(END).expect("the mark behind the list");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{before}{START}{}{END}{after}", listed())).expect("the page can be written");
        } else {
            assert_eq!(
                list,
                listed(),
                "renew it: UPDATE_DOCS=1 cargo test -p trireme-gateway the_page_lists_the_fields"
            );
        }
    }

    /// The fields of every route, as the page has them. Routes with the same fields have one row.
    fn listed() -> String {
        let mut page = String::new();
        for dialect in DIALECTS {
            let mut rows: Vec<(Vec<&str>, [String; 3])> = Vec::new();
            for route in dialect.routes.iter().filter(|route| !route.fields.is_empty()) {
                let all: Vec<&Field> = route.fields.iter().copied().flatten().collect();
                let first = |at: usize| !all[..at].iter().any(|field| field.name == all[at].name);
                let all: Vec<&Field> = (0..all.len()).filter(|&at| first(at)).map(|at| all[at]).collect();
                let joined = |words: Vec<String>, between: &str| {
                    if words.is_empty() { "—".to_owned() } else { words.join(between) }
                };
                let read = all.iter().filter_map(|field| match field.effect {
                    Effect::Read => Some(format!("`{}`", field.name)),
                    Effect::Ours => Some(format!("`{}` (ours)", field.name)),
                    Effect::Idle(_) | Effect::Only(..) => None,
                });
                let only = all.iter().filter_map(|field| match field.effect {
                    Effect::Only([], why) => Some(format!("`{}`: {why}", field.name)),
                    Effect::Only(values, why) => Some(format!("`{}` but `{}`: {why}", field.name, values.join("`, `"))),
                    _ => None,
                });
                let idle = all.iter().filter_map(|field| match field.effect {
                    Effect::Idle(why) => Some(format!("`{}`: {why}", field.name)),
                    _ => None,
                });
                let cells = [joined(read.collect(), ", "), joined(only.collect(), "; "), joined(idle.collect(), "; ")];
                match rows.iter_mut().find(|(_, other)| *other == cells) {
                    Some((paths, _)) => paths.push(route.path),
                    None => rows.push((vec![route.path], cells)),
                }
            }
            page +=
                &format!("\n**{}**\n\n| route | read | refused | without effect |\n|---|---|---|---|\n", dialect.name);
            for (paths, [read, only, idle]) in rows {
                page += &format!("| `{}` | {read} | {only} | {idle} |\n", paths.join("`, `"));
            }
        }
        page
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
