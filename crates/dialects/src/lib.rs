//! The shapes in which clients of other servers ask: one file per dialect, each a codec over the operations of
//! `trireme_operations`. No dialect knows a model, no model a dialect. A new one is a file and a line in [`DIALECTS`].
//!
//! Each route is there twice: as the dialect's own clients ask for it, and behind the dialect's name (`/tei/embed`), where no
//! other dialect contends for it. Where several contend for a path, the fields of the body decide: the dialect answers whose table ([`fields`])
//! knows most of them, and of several such dialects the first in [`DIALECTS`]. A field that only other servers have is read by its name here,
//! or refused ([`words`]).
//!
//! Not here: listeners and keys, v2 (the gateway), which models there are.

mod answer;
mod cohere;
mod dialect;
mod extras;
mod fields;
mod infinity;
mod input;
mod jina;
mod mistral;
mod nim;
mod ollama;
mod openai;
mod openai_tokens;
mod quantize;
mod refusal;
mod tei;
mod together;
mod token_rows;
mod vllm;
mod voyage;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use trireme_inference::InferError;
use trireme_server::RequestContext;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::body::work;
use trireme_server::http::endpoint::Endpoint;
use trireme_server::http::response::{self, Unanswered};
use trireme_server::http::route::{Resource, Route, Verb};
use trireme_server::http::shapes::Shapes;

use dialect::{Dialect, DialectRoute};
use fields::Members;
use refusal::UNCUT;

pub use dialect::{DialectCall, EmptyText, TokenInput};
pub use refusal::{Kind, Refusal};

/// Every dialect. Where the body does not decide between them, the first dialect that has the path answers.
const DIALECTS: [&Dialect; 11] = [
    &openai::DIALECT,
    &jina::DIALECT,
    &cohere::DIALECT,
    &tei::DIALECT,
    &infinity::DIALECT,
    &vllm::DIALECT,
    &nim::DIALECT,
    &ollama::DIALECT,
    &voyage::DIALECT,
    &mistral::DIALECT,
    &together::DIALECT,
];

/// How health checks refuse, which need no key.
const NOT_READY: &str = "it is not ready";

/// A dialect with one of its routes, which contends with those of others for a path.
type Contender = (&'static Dialect, &'static DialectRoute);

/// The names of all dialects.
pub fn names() -> impl Iterator<Item = &'static str> {
    DIALECTS.into_iter().map(|dialect| dialect.name)
}

/// A path and a method, with the routes that contend for it.
#[derive(Clone)]
pub struct DialectPath {
    /// The path, parameters in braces.
    pub path: String,
    /// How it is asked for.
    pub verb: Verb,
    contenders: Arc<[Contender]>,
}

/// The route that a request is for.
struct Chosen {
    contender: Contender,
    /// Others that it may as well be for: they know as much of the body.
    also: Vec<Contender>,
    /// The body as its route reads it.
    body: Result<Bytes, Refusal>,
    /// The model that the body names.
    model: Option<String>,
}

/// Every path and method of all dialects, of which `first` answers where several could.
fn paths(first: &str) -> Vec<DialectPath> {
    let path = |((path, verb), contenders): (_, Vec<_>)| DialectPath { path, verb, contenders: contenders.into() };
    table(first).into_iter().map(path).collect()
}

/// Every path and method with the routes that contend for it. The routes of the dialect `first` come first, and all of them have a path
/// without its name, too, except the root, which leads to the console.
fn table(first: &str) -> BTreeMap<(String, Verb), Vec<Contender>> {
    let mut table: BTreeMap<(String, Verb), Vec<Contender>> = BTreeMap::new();
    let is_first = |dialect: &&Dialect| dialect.name == first;
    let (chosen, others): (Vec<_>, Vec<_>) = DIALECTS.into_iter().partition(is_first);
    for dialect in chosen.into_iter().chain(others) {
        for route in dialect.routes {
            let path = if route.path == "/" { "" } else { route.path };
            let mut enter = |path: String| table.entry((path, route.verb)).or_default().push((dialect, route));
            if !route.is_behind_name || (is_first(&dialect) && route.path != "/" && !route.is_never_bare) {
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

/// Every route of all dialects, of which `first` answers where several could. `answer` makes the endpoint of a path.
pub fn routes<S: 'static>(first: &str, answer: impl Fn(DialectPath) -> Endpoint<S>) -> Vec<Route<S>> {
    paths(first).into_iter().map(|path| route(path.clone(), answer(path))).collect()
}

fn route<S: 'static>(path: DialectPath, endpoint: Endpoint<S>) -> Route<S> {
    let category = path.category();
    let traffic = match category {
        Category::Inference => Traffic::Work,
        Category::Health => Traffic::Watch,
        _ => Traffic::Server,
    };
    let group = path.contenders.first().map_or("", |(dialect, _)| dialect.name);
    let mut summaries = Vec::new();
    for (_, route) in &*path.contenders {
        if !summaries.contains(&route.summary) {
            summaries.push(route.summary);
        }
    }
    let of = Resource { group, category: Some(category), traffic };
    let mut route = of.endpoint(path.verb, &path.path, &summaries.join("; "), endpoint);
    let contenders = path.contenders.clone();
    route.shapes = Arc::new(move || shapes(&contenders));
    route.refuse = Arc::new(move |why| {
        path.refused(&match why {
            Unanswered::Denied(denied) => denied.clone().into(),
            Unanswered::Failed(error) => error.clone().into(),
        })
    });
    route
}

/// The shapes of a path for which these routes contend.
fn shapes(contenders: &[Contender]) -> Shapes {
    let mut shapes = Shapes {
        // Behind a name there is one dialect, whose fields these are.
        fields: match contenders {
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
        ..Shapes::default()
    };
    contenders.iter().filter_map(|(_, route)| route.query).for_each(|describe| describe(&mut shapes));
    shapes
}

// === impl DialectPath ===

impl DialectPath {
    /// The category that access rules know its requests by.
    pub fn category(&self) -> Category {
        category(&self.contenders)
    }

    /// The answer to a request whose body is not read: in the first dialect.
    pub fn refused(&self, refusal: &Refusal) -> Response {
        refused(self.contenders[0], &self.contenders[1..], refusal)
    }

    /// Answers a request with this body, which the permit of `context` has to cover as it is read. `call` makes the call of the route that the
    /// request is for, of the body as the route reads it. A large body is read, and a large answer written, beside the runtime's threads.
    /// `context` learns which model the body names.
    pub async fn answer(
        &self,
        body: Bytes,
        context: &RequestContext,
        call: impl FnOnce(Bytes) -> Result<DialectCall, InferError>,
    ) -> Response {
        work::aside(body.len(), self.answer_here(body, context, call)).await
    }

    async fn answer_here(
        &self,
        body: Bytes,
        context: &RequestContext,
        call: impl FnOnce(Bytes) -> Result<DialectCall, InferError>,
    ) -> Response {
        if let Err(refusal) = context.permit().cover(input::memory(&body)) {
            return self.refused(&InferError::from(refusal).into());
        }
        let Chosen { contender, also, body, model } = choose(&self.contenders, body);
        if let Some(model) = model {
            context.asks(model);
        }
        let (_, route) = contender;
        let answered = match body.and_then(|body| Ok(call(body)?)) {
            Ok(call) => (route.run)(call).await,
            Err(refusal) => Err(refusal),
        };
        let answered = answered.map_err(|refusal| match route.category {
            Category::Health => Refusal { message: NOT_READY.to_owned(), ..refusal },
            _ => refusal,
        });
        answered.unwrap_or_else(|refusal| refused(contender, &also, &refusal))
    }
}

/// The category of the routes that contend for a path. They have the same one.
fn category(contenders: &[Contender]) -> Category {
    contenders[0].1.category
}

/// The contender whose tables know most of the fields of a body, the first of those.
fn choose(contenders: &[Contender], body: Bytes) -> Chosen {
    let members = Members::of(&body);
    let known = |(_, route): &&Contender| members.known(route.fields);
    // The last of the greatest is the first of the table.
    let (dialect, route) = *contenders.iter().rev().max_by_key(known).unwrap_or(&contenders[0]);
    let others = || contenders.iter().filter(|(other, _)| other.name != dialect.name);
    let most = members.known(route.fields);
    let also = others().filter(|(_, route)| members.known(route.fields) == most).copied().collect();
    let of_two = others().find_map(|(other, theirs)| {
        let field = members.unknown_but_to(route.fields, theirs.fields)?;
        let (name, own) = (other.name, dialect.name);
        let why = format!(
            "is a field of {name}, others of this request are of {own}: choose one by the base URL, /{name} or /{own}"
        );
        Some(Refusal::field(field, why))
    });
    let model = members.text("model");
    let checked = match of_two {
        Some(refusal) => Err(refusal),
        None => members.check(route.fields, route.others(dialect, contenders.len() == 1)),
    };
    drop(members);
    let body = checked.map(|rewritten| rewritten.map_or(body, Bytes::from));
    Chosen { contender: (dialect, route), also, body, model }
}

/// The answer to a refused request. Where the request may as well be of other dialects, it has the members of their errors, too, so that
/// each client finds its own.
fn refused(contender: Contender, also: &[Contender], refusal: &Refusal) -> Response {
    let (status, body) = error(contender, refusal);
    let body = with_members(body, also.iter().map(|&other| error(other, refusal).1));
    let mut response = response::json(body);
    *response.status_mut() = status.try_into().unwrap_or_default();
    let headers = response.headers_mut();
    match refusal.kind {
        // Clients double their waits themselves.
        Kind::Overloaded | Kind::OwnerLimit | Kind::Unavailable => {
            drop(headers.insert(RETRY_AFTER, response::retry_after(refusal.retry_after)));
        }
        Kind::Key => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        _ => {}
    }
    response
}

/// The status and the body of a refusal.
fn error((dialect, route): Contender, refusal: &Refusal) -> (u16, Bytes) {
    let refusal = &Refusal { message: refusal.message.replace(UNCUT, dialect.cut), ..refusal.clone() };
    route.refuse.map_or(dialect.refuse, |(refuse, _)| refuse)(refusal)
}

/// The answer where no route has the path, or the method, with this status: that of the dialect whose name the path begins with. Under `/v1`, which
/// several dialects have, it has the members of all their errors.
pub fn no_route(method: &Method, path: &str, status: StatusCode) -> Option<Response> {
    let mut parts = path.split('/').skip(1);
    let name = parts.next()?;
    if name == "v1" && parts.next().is_none() && method != Method::POST {
        // The word alone is a path of none of them, but clients post there whose URL lacks its end.
        return None;
    }
    let kind = if status == StatusCode::METHOD_NOT_ALLOWED { Kind::NoMethod } else { Kind::NoRoute };
    let is_at = |route: &&DialectRoute| !route.is_behind_name && route.path.starts_with("/v1/");
    let of = |routes: &mut dyn Iterator<Item = &DialectRoute>| {
        let routes: Vec<String> =
            routes.map(|route| format!("{} {}", route.verb.name(), route.path.replace("*rest", "model"))).collect();
        Refusal::new(kind, format!("there is no such route; /{name} has {}", routes.join(", ")))
    };
    let (body, also, refusal) = match DIALECTS.into_iter().find(|dialect| dialect.name == name) {
        Some(dialect) => (dialect, Vec::new(), of(&mut dialect.routes.iter())),
        None if name == "v1" => {
            let all: Vec<_> =
                DIALECTS.into_iter().filter(|dialect| dialect.routes.iter().any(|it| is_at(&it))).collect();
            let mut routes: Vec<_> = all.iter().flat_map(|dialect| dialect.routes.iter().filter(is_at)).collect();
            routes.sort_by_key(|route| (route.path, route.verb));
            routes.dedup_by_key(|route| (route.path, route.verb));
            (*all.first()?, all[1..].to_vec(), of(&mut routes.into_iter()))
        }
        None => return None,
    };
    let others = also.into_iter().map(|dialect| (dialect.refuse)(&refusal).1);
    let mut response = response::json(with_members((body.refuse)(&refusal).1, others));
    *response.status_mut() = status;
    Some(response)
}

/// The body of an error with the members that only `others` have.
fn with_members(body: Bytes, others: impl Iterator<Item = Bytes>) -> Bytes {
    let members = |body: &Bytes| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body);
    let mut others = others.filter_map(|other| members(&other).ok()).peekable();
    let (Some(_), Ok(mut all)) = (others.peek(), members(&body)) else { return body };
    for (name, value) in others.flatten() {
        all.entry(name).or_insert(value);
    }
    serde_json::Value::Object(all).to_string().into()
}
