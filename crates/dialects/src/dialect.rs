//! The parts of a dialect: routes, and the request that a route gets.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use clap::ValueEnum;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use trireme_inference::Parameters;
use trireme_operations::{OperationRequest, Operations, TextOptions};
use trireme_server::RequestContext;
use trireme_server::access::Category;
use trireme_server::http::describe::Describe;
use trireme_server::http::query::{self, ParameterFault, Query};
use trireme_server::http::route::Verb;
use trireme_server::http::schema::{self, Described};
use trireme_server::http::shapes::Shapes;
use utoipa::openapi::schema::Schema;
use utoipa::{IntoParams, ToSchema};

use super::fields::{Field, Members, Others};
use super::input;
use super::refusal::{Kind, Refusal};

/// How clients of another server ask.
pub struct Dialect {
    /// Its name, which is the prefix of its routes.
    pub name: &'static str,
    /// Its routes.
    pub routes: &'static [DialectRoute],
    /// Its table of errors: the status and the body of a refusal.
    pub refuse: Refuse,
    /// The bodies of that table.
    pub refusals: fn() -> Schema,
    /// Whether fields that are in no table are refused; others are passed over.
    pub is_strict: bool,
    /// How a client has texts cut that are too long, for the error about such a text.
    pub cut: &'static str,
    /// Whether a model may be named behind the prefix (`/tei/MODEL/embed`), because bodies do not name one.
    pub model_in_path: bool,
}

/// A route of a dialect.
pub struct DialectRoute {
    pub verb: Verb,
    /// The category that access rules know its requests by.
    pub category: Category,
    /// Its path, as the dialect's clients ask for it.
    pub path: &'static str,
    /// Whether it is there behind the dialect's name only.
    pub is_behind_name: bool,
    /// Whether that holds also where its dialect comes first: its path without the name belongs to another dialect.
    pub is_never_bare: bool,
    /// The tables of the fields of its bodies.
    pub fields: &'static [&'static [Field]],
    /// A sentence about the route for the document.
    pub summary: &'static str,
    /// Describes the parameters of its query.
    pub query: Option<fn(&mut Shapes)>,
    /// The shape of its bodies.
    pub takes: Option<fn() -> Described>,
    /// The shape of its answers, if they are JSON.
    pub gives: Option<fn() -> Schema>,
    /// Whether a client may ask for its answers as bytes.
    pub gives_bytes: bool,
    /// Whether it answers as another route, which checks the other fields.
    pub is_another: bool,
    /// Its own table of errors and their bodies, where they are not the dialect's.
    pub refuse: Option<(Refuse, fn() -> Schema)>,
    /// Answers a request.
    pub run: Run,
}

/// The status and the body of a refusal.
pub type Refuse = fn(&Refusal) -> (u16, Bytes);

/// Answers a request in a dialect.
pub type Run = fn(DialectCall) -> BoxFuture<'static, Result<Response, Refusal>>;

/// A request in a dialect.
pub struct DialectCall {
    /// The operations, on the models of this server.
    pub operations: Operations,
    /// The path behind the last `/`-terminated part of a route that ends with a wildcard; empty for other routes.
    pub rest: String,
    /// The model that the path names.
    pub model: Option<String>,
    /// The query of the URL, behind `?`.
    pub query: Option<String>,
    /// Its body, without its coding.
    pub body: Bytes,
    /// The request that it is.
    pub context: Arc<RequestContext>,
    /// The parameters that models get of the headers.
    pub parameters: Parameters,
    /// The meaning of token ids in place of texts.
    pub token_input: TokenInput,
    /// The answer to an empty text in OpenAI's dialect.
    pub empty_text: EmptyText,
}

/// The meaning of token ids in place of texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TokenInput {
    /// Ids of OpenAI's vocabulary cl100k_base, which are turned back into texts
    #[default]
    #[value(name = "cl100k_base")]
    Cl100kBase,
    /// An error
    #[value(name = "reject")]
    Reject,
}

/// The answer to an empty text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EmptyText {
    /// The vector that the model makes of it
    #[default]
    #[value(name = "embed")]
    Embed,
    /// An error
    #[value(name = "reject")]
    Reject,
}

// === impl DialectRoute ===

impl DialectRoute {
    const fn new(verb: Verb, category: Category, path: &'static str, summary: &'static str, run: Run) -> DialectRoute {
        DialectRoute {
            verb,
            category,
            path,
            is_behind_name: false,
            is_never_bare: false,
            fields: &[],
            summary,
            query: None,
            takes: None,
            gives: None,
            gives_bytes: false,
            is_another: false,
            refuse: None,
            run,
        }
    }

    /// A route with GET that shows something of the server or its models.
    pub const fn get(path: &'static str, summary: &'static str, run: Run) -> DialectRoute {
        DialectRoute::new(Verb::Get, Category::Metadata, path, summary, run)
    }

    /// A route with POST that executes a model.
    pub const fn post(path: &'static str, summary: &'static str, run: Run) -> DialectRoute {
        DialectRoute::new(Verb::Post, Category::Inference, path, summary, run)
    }

    /// The same as a health check: it needs no key, its body is not read, and its refusals name no model.
    pub const fn checks_health(self) -> DialectRoute {
        DialectRoute { category: Category::Health, ..self }
    }

    /// The same with the parameters of a query that this type reads ([`DialectCall::query`]).
    pub const fn asks<T: IntoParams>(self) -> DialectRoute {
        DialectRoute { query: Some(Query::<T>::describe), ..self }
    }

    /// The same with a body of this shape and these fields.
    pub const fn takes<T: ToSchema>(self, fields: &'static [&'static [Field]]) -> DialectRoute {
        DialectRoute { takes: Some(schema::of::<T>), fields, ..self }
    }

    /// The same with a body of which two types read their own fields.
    pub const fn takes_both<A: ToSchema, B: ToSchema>(self, fields: &'static [&'static [Field]]) -> DialectRoute {
        DialectRoute { takes: Some(schema::of_both::<A, B>), fields, ..self }
    }

    /// The same with a body of which three types read their own fields.
    pub const fn takes_three<A: ToSchema, B: ToSchema, C: ToSchema>(
        self,
        fields: &'static [&'static [Field]],
    ) -> DialectRoute {
        DialectRoute { takes: Some(schema::of_three::<A, B, C>), fields, ..self }
    }

    /// The same with answers of this shape.
    pub const fn gives(self, gives: fn() -> Schema) -> DialectRoute {
        DialectRoute { gives: Some(gives), ..self }
    }

    /// The same, whose answers a client may ask for as bytes, too.
    pub const fn or_bytes(self) -> DialectRoute {
        DialectRoute { gives_bytes: true, ..self }
    }

    /// The same, which answers as another route.
    pub const fn into_another(self) -> DialectRoute {
        DialectRoute { is_another: true, ..self }
    }

    /// How the route treats fields that are in none of its tables. `is_alone`: no other dialect contends for the path.
    pub fn others(&self, dialect: &Dialect, is_alone: bool) -> Others {
        match dialect.is_strict && is_alone {
            _ if self.is_another => Others::PassedOver,
            true => Others::Refused,
            // On a path of several dialects a field that none knows is that of a proxy.
            false => Others::ByWords,
        }
    }

    /// The same, behind the dialect's name only.
    pub const fn behind_name(self) -> DialectRoute {
        DialectRoute { is_behind_name: true, ..self }
    }

    /// The same, behind the dialect's name also where the dialect comes first.
    pub const fn never_bare(self) -> DialectRoute {
        DialectRoute { is_never_bare: true, ..self.behind_name() }
    }

    /// The same with another table of errors than the dialect's, whose bodies have this shape.
    pub const fn refuses(self, refuse: Refuse, refusals: fn() -> Schema) -> DialectRoute {
        DialectRoute { refuse: Some((refuse, refusals)), ..self }
    }
}

// === impl DialectCall ===

impl DialectCall {
    /// The body, as a type reads it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        input::read(&self.body)
    }

    /// The query of the URL, as a type reads it.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let fault = |fault: ParameterFault| Refusal::new(Kind::Invalid, fault.0);
        query::read(self.query.as_deref().unwrap_or_default()).map_err(fault)
    }

    /// Answers as another route with POST of the same dialect, whose tables the body is checked by.
    pub async fn run_as(mut self, dialect: &Dialect, path: &str) -> Result<Response, Refusal> {
        let route = dialect.routes.iter().find(|route| route.path == path && route.verb == Verb::Post);
        let route = route.ok_or_else(|| Refusal::new(Kind::NoRoute, path))?;
        if let Some(body) = Members::of(&self.body).check(route.fields, route.others(dialect, true))? {
            self.body = body.into();
        }
        (route.run)(self).await
    }

    /// An error if some model is not ready.
    pub fn ready(&self) -> Result<(), Refusal> {
        match self.operations.ready() {
            true => Ok(()),
            false => Err(Refusal::new(Kind::Unavailable, "not every model is ready")),
        }
    }

    /// The request as operations take it. `model` is the model that the body names; a model that the path names comes before it.
    pub fn ask(&self, model: Option<&str>, options: TextOptions) -> OperationRequest {
        OperationRequest {
            model: self.model.as_deref().or(model).map(str::to_owned),
            options,
            context: self.context.clone(),
            parameters: self.parameters.clone(),
            request_id: self.context.id().to_str().unwrap_or_default().to_owned(),
        }
    }
}
