//! The parts of a dialect: routes, and the request that a route gets.

use axum::response::Response;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use trireme_inference::Parameters;
use trireme_server::budget::Hold;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::refusal::Refusal;
use crate::handlers::operations::{Ask, TextOptions};
use crate::handlers::{SharedHandlers, Waits};
use crate::http::args::TokenInput;
use crate::http::openapi::Verb;
use crate::http::openapi::schema::{self, Described};
use crate::via::Via;

/// How clients of another server ask.
pub struct Dialect {
    /// Its name, which is the prefix of its routes.
    pub name: &'static str,
    /// Its routes.
    pub routes: &'static [DialectRoute],
    /// Its table of errors: the status and the body of a refusal.
    pub refuse: fn(&Refusal) -> (u16, Bytes),
    /// The bodies of that table.
    pub refusals: fn() -> Schema,
    /// Whether a model may be named behind the prefix (`/tei/MODEL/embed`), because bodies do not name one.
    pub model_in_path: bool,
}

/// A route of a dialect.
pub struct DialectRoute {
    pub verb: Verb,
    /// Its path, as the dialect's clients ask for it.
    pub path: &'static str,
    /// Fields of a body that other dialects with this path do not have.
    pub marks: &'static [&'static str],
    /// A sentence about the route for the document.
    pub summary: &'static str,
    /// The shape of its bodies.
    pub takes: Option<fn() -> Described>,
    /// The shape of its answers, if they are JSON.
    pub gives: Option<fn() -> Schema>,
    /// Answers a request.
    pub run: Run,
}

/// Answers a request in a dialect.
pub type Run = fn(DialectCall) -> BoxFuture<'static, Result<Response, Refusal>>;

/// A request in a dialect.
pub struct DialectCall {
    pub handlers: SharedHandlers,
    /// The path behind the last `/`-terminated part of a route that ends with a wildcard; empty for other routes.
    pub rest: String,
    /// The model that the path names.
    pub model: Option<String>,
    /// Its body, without its coding.
    pub body: Bytes,
    /// The request's part of the memory for requests.
    pub hold: Hold,
    /// The parameters that models get of the headers.
    pub parameters: Parameters,
    pub traceparent: Option<String>,
    /// How it waits.
    pub waits: Waits,
    pub route: &'static str,
    /// The meaning of token ids in place of texts.
    pub token_input: TokenInput,
}

// === impl DialectRoute ===

impl DialectRoute {
    /// A route with GET.
    pub const fn get(path: &'static str, summary: &'static str, run: Run) -> DialectRoute {
        DialectRoute { verb: Verb::Get, path, marks: &[], summary, takes: None, gives: None, run }
    }

    /// A route with POST.
    pub const fn post(path: &'static str, summary: &'static str, run: Run) -> DialectRoute {
        DialectRoute { verb: Verb::Post, path, marks: &[], summary, takes: None, gives: None, run }
    }

    /// The same with a body of this shape.
    pub const fn takes<T: ToSchema>(self) -> DialectRoute {
        DialectRoute { takes: Some(schema::of::<T>), ..self }
    }

    /// The same with a body of which two types read their own fields.
    pub const fn takes_both<A: ToSchema, B: ToSchema>(self) -> DialectRoute {
        DialectRoute { takes: Some(schema::of_both::<A, B>), ..self }
    }

    /// The same with answers of this shape.
    pub const fn gives(self, gives: fn() -> Schema) -> DialectRoute {
        DialectRoute { gives: Some(gives), ..self }
    }

    /// The same with these fields for marks.
    pub const fn marked(self, marks: &'static [&'static str]) -> DialectRoute {
        DialectRoute { marks, ..self }
    }
}

// === impl DialectCall ===

impl DialectCall {
    /// The request as operations take it. `model` is what the body names; a path that names one has the last word.
    pub fn ask(&self, model: Option<&str>, options: TextOptions) -> Ask {
        Ask {
            model: self.model.as_deref().or(model).map(str::to_owned),
            options,
            hold: self.hold.clone(),
            parameters: self.parameters.clone(),
            traceparent: self.traceparent.clone(),
            waits: self.waits,
            via: Via::Http(self.route),
        }
    }
}
