//! `/openapi.json`: every HTTP route with its bodies and answers. `/docs`: a page that shows this document to people.
//!
//! The dialects' routes describe themselves (`dialects::entries`); those of v2 and of control are in [`v2`]. A test holds the
//! document against the routers, another one asks a server for every route in it.
//!
//! Not here: keys, which each route asks for by its own category.

mod entry;
mod jobs;
pub mod schema;
mod v2;

use std::sync::OnceLock;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::openapi::content::Content;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathsBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, RefOr, Required, ResponseBuilder};

use super::HttpState;
use super::dialects::{self, Verb};
use super::routes::{self, page};
pub use entry::Entry;

/// The route of the document.
pub fn routes() -> Router<HttpState> {
    Router::new().route("/openapi.json", routes::get(openapi))
}

/// The routes of the page.
pub fn page() -> Router<HttpState> {
    Router::new()
        .route("/docs", routes::get(async || page::file("text/html; charset=utf-8", PAGE)))
        .route("/docs/docs.css", routes::get(async || page::file("text/css; charset=utf-8", STYLE)))
        .route("/docs/docs.js", routes::get(async || page::file("text/javascript; charset=utf-8", SCRIPT)))
}

const PAGE: &str = include_str!("../../../console/docs.html");
const STYLE: &str = include_str!("../../../console/docs.css");
const SCRIPT: &str = include_str!("../../../console/docs.js");

async fn openapi() -> Response {
    static JSON: OnceLock<Bytes> = OnceLock::new();
    let json = JSON.get_or_init(|| Bytes::from(serde_json::to_vec(&document()).unwrap_or_default()));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        // A gateway of another version has other routes.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, json.clone()).into_response()
}

/// All routes.
fn entries() -> Vec<Entry> {
    v2::entries().into_iter().chain(jobs::entries()).chain(dialects::entries()).collect()
}

/// The document.
fn document() -> OpenApi {
    let (mut paths, mut components) = (PathsBuilder::new(), ComponentsBuilder::new());
    for entry in entries() {
        for (name, part) in entry.bodies.iter().flat_map(|body| &body.parts) {
            components = components.schema(name, part.clone());
        }
        let method = match entry.verb {
            Verb::Get => HttpMethod::Get,
            Verb::Post => HttpMethod::Post,
            Verb::Delete => HttpMethod::Delete,
        };
        paths = paths.path(entry.path.clone(), PathItem::new(method, entry.operation()));
    }
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("a key of --api-key, where the server asks for one"));
    let components = components.security_scheme(KEY, SecurityScheme::Http(bearer.build())).build();
    let info = InfoBuilder::new()
        .title("Trireme")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("The v2 inference protocol, control, and the routes of other servers' clients."));
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components))
        // Either with a key or, where the server asks for none, without.
        .security(Some([SecurityRequirement::default(), SecurityRequirement::new(KEY, Vec::<String>::new())]))
        .build()
}

/// The name of the way in which keys are sent.
const KEY: &str = "api_key";

// === impl Entry ===

impl Entry {
    fn operation(&self) -> utoipa::openapi::path::Operation {
        let verb = match self.verb {
            Verb::Get => "get",
            Verb::Post => "post",
            Verb::Delete => "delete",
        };
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let end = self.path.ends_with('/').then_some("index");
        let id = std::iter::once(verb).chain(words).chain(end).collect::<Vec<_>>().join("_");
        let parameters: Vec<_> = parameters(&self.path).map(parameter).collect();
        let body = (!self.bodies.is_empty()).then(|| {
            let schemas = self.bodies.iter().map(|body| body.schema.clone());
            let content = Content::new(Some(one_of(schemas.collect())));
            let required = self.bodies.iter().all(|body| !is_empty(&body.schema));
            let required = if required { Required::True } else { Required::False };
            RequestBodyBuilder::new().content(JSON, content).required(Some(required)).build()
        });
        let answer = ResponseBuilder::new().description("the answer");
        let answer = match self.answers.as_slice() {
            [] => answer,
            answers => {
                answer.content(JSON, Content::new(Some(one_of(answers.iter().cloned().map(RefOr::T).collect()))))
            }
        };
        let refusal = ResponseBuilder::new().description("why the request is refused");
        let refusal = match self.errors.as_slice() {
            [] => refusal,
            errors => refusal.content(JSON, Content::new(Some(one_of(errors.iter().cloned().map(RefOr::T).collect())))),
        };
        OperationBuilder::new()
            .operation_id(Some(id))
            .tag(self.group)
            .summary(Some(&self.summary))
            .parameters((!parameters.is_empty()).then_some(parameters))
            .request_body(body)
            .response("200", answer)
            .response("default", refusal)
            .build()
    }
}

const JSON: &str = "application/json";

fn is_empty(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if object.required.is_empty() && object.additional_properties.is_none())
}

fn one_of(mut schemas: Vec<RefOr<Schema>>) -> RefOr<Schema> {
    let mut known = Vec::new();
    schemas.retain(|schema| {
        let new = !known.contains(schema);
        if new {
            known.push(schema.clone());
        }
        new
    });
    match schemas.len() {
        1 => schemas.swap_remove(0),
        _ => RefOr::T(schema::any_of_refs(schemas)),
    }
}

/// The names in braces of a path.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn parameter(name: &str) -> utoipa::openapi::path::Parameter {
    let schema = ObjectBuilder::new();
    let schema = match name {
        "version" => schema.schema_type(SchemaType::Type(Type::Integer)).minimum(Some(1)),
        _ => schema.schema_type(SchemaType::Type(Type::String)).min_length(Some(1)),
    };
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
    parameter.schema(Some(schema.build())).build()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The paths that a router knows, as its debug output has them.
    fn routed() -> BTreeSet<String> {
        let known = format!("{:?}", routes::all());
        let places = known.match_indices("RouteId(").map(|(at, _)| &known[at..]);
        let path = |text: &str| {
            let (_, rest) = text.split_once("): \"")?;
            let (path, _) = rest.split_once('"')?;
            // The fallback is a route to axum.
            let own = path.starts_with('/') && !path.contains("__private");
            own.then(|| path.replace("{*", "{"))
        };
        places.filter(|text| text.find("): \"").is_some_and(|at| at < 24)).filter_map(path).collect()
    }

    #[test]
    fn every_route_is_in_the_document_and_nothing_else() {
        let document: BTreeSet<String> = document().paths.paths.into_keys().collect();
        let routed = routed();
        assert!(routed.len() > 80, "{routed:?}");
        assert_eq!(routed.difference(&document).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the document");
        assert_eq!(document.difference(&routed).collect::<Vec<_>>(), Vec::<&String>::new(), "no route");
    }

    #[test]
    fn names_of_schemas_and_operations_are_unique_and_known() {
        let (mut parts, mut ids): (BTreeMap<String, RefOr<Schema>>, BTreeSet<String>) = Default::default();
        for entry in entries() {
            for (name, part) in entry.bodies.iter().flat_map(|body| body.parts.clone()) {
                let known = parts.entry(name.clone()).or_insert_with(|| part.clone());
                assert!(*known == part, "two schemas '{name}'");
            }
            let id = entry.operation().operation_id.expect("an id");
            assert!(ids.insert(id.clone()), "two operations '{id}'");
            assert!(!entry.summary.is_empty(), "{id}");
        }
        let text = serde_json::to_string(&document()).expect("JSON");
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name = text[at..].split(['/', '"']).nth(3).expect("a name");
            assert!(parts.contains_key(name), "no schema '{name}'");
        }
    }
}
