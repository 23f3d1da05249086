//! `/openapi.json` as data: the document of a table of routes.

use utoipa::openapi::content::Content;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathsBuilder};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, RefOr, Required, ResponseBuilder, Server};

use crate::access::Category;
use crate::http::route::{Route, Table, Verb};
use crate::http::shapes::Shapes;
use crate::http::{response, schema};

/// The document of these routes, which are under the path `root`; empty for the server's own root.
pub fn document<S: Clone + Send + Sync + 'static>(table: &Table<S>, root: &str) -> OpenApi {
    let (mut paths, mut components) = (PathsBuilder::new(), ComponentsBuilder::new());
    for route in table.routes() {
        let shapes = (route.shapes)();
        for (name, part) in shapes.bodies.iter().chain(&shapes.form).flat_map(|body| &body.parts) {
            components = components.schema(name, part.clone());
        }
        let method = match route.verb {
            Verb::Get => HttpMethod::Get,
            Verb::Post => HttpMethod::Post,
            Verb::Delete => HttpMethod::Delete,
        };
        // A wildcard is an ordinary parameter of the document.
        let path = route.path.replace("{*", "{");
        let item = PathItem::new(method, operation(route, &path, &shapes));
        paths = paths.path(path, item);
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
        .servers((!root.is_empty()).then(|| [Server::new(root)]))
        // Either with a key or, where the server asks for none, without.
        .security(Some([SecurityRequirement::default(), SecurityRequirement::new(KEY, Vec::<String>::new())]))
        .build()
}

/// The name of the way in which keys are sent.
const KEY: &str = "api_key";

/// A route as the document has it.
fn operation<S>(route: &Route<S>, path: &str, shapes: &Shapes) -> utoipa::openapi::path::Operation {
    let verb = route.verb.name().to_ascii_lowercase();
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let end = path.ends_with('/').then_some("index");
    let id = std::iter::once(&*verb).chain(words).chain(end).collect::<Vec<_>>().join("_");
    let parameters: Vec<_> = parameters(path).map(parameter).chain(shapes.parameters.iter().cloned()).collect();
    let answer = ResponseBuilder::new().description("the answer");
    let answer = match shapes.answers.as_slice() {
        [] => answer,
        answers => answer.content(JSON, any_of(answers)),
    };
    let answer = match shapes.gives_bytes {
        true => answer.content(BYTES, Content::new(None::<RefOr<Schema>>)),
        false => answer,
    };
    let refusal = ResponseBuilder::new().description("why the request is refused");
    let refusal = match shapes.errors.as_slice() {
        // Triton names JSON in an error's content type only once it has begun to read the body.
        [] => refusal.content(JSON, any_of(&[response::error_schema()])).content(TEXT, any_of(&[schema::text()])),
        errors => refusal.content(JSON, any_of(errors)),
    };
    // Pages and health checks need no key.
    let is_open = matches!(route.category, None | Some(Category::Health));
    let operation = OperationBuilder::new()
        .operation_id(Some(id))
        .tag(route.group)
        .summary(Some(&route.summary))
        .parameters((!parameters.is_empty()).then_some(parameters))
        .request_body(body(shapes))
        .securities(is_open.then(Vec::<SecurityRequirement>::new))
        .response("200", answer)
        .response("default", refusal)
        .extensions(shapes.fields.clone().map(|fields| Extensions::builder().add("x-fields", fields).build()));
    let others = shapes.others.iter().map(|other| {
        let answer = ResponseBuilder::new().description(other.description);
        let answer = match &other.schema {
            Some(schema) => answer.content(JSON, any_of(std::slice::from_ref(schema))),
            None => answer,
        };
        (other.status.as_str().to_owned(), answer)
    });
    others.fold(operation, |operation, (status, answer)| operation.response(status, answer)).build()
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";
const FORM: &str = "multipart/form-data";
const TEXT: &str = "text/plain";

/// The body of a route's requests: JSON or a form.
fn body(shapes: &Shapes) -> Option<RequestBody> {
    let required = shapes.bodies.iter().chain(&shapes.form).all(|body| !is_empty(&body.schema));
    let body = RequestBodyBuilder::new().required(Some(if required { Required::True } else { Required::False }));
    let body = match shapes.bodies.as_slice() {
        [] if shapes.form.is_none() => return None,
        [] => body,
        bodies => {
            body.content(JSON, Content::new(Some(one_of(bodies.iter().map(|body| body.schema.clone()).collect()))))
        }
    };
    let body = match &shapes.form {
        Some(form) => body.content(FORM, Content::new(Some(form.schema.clone()))),
        None => body,
    };
    Some(body.build())
}

fn any_of(schemas: &[Schema]) -> Content {
    Content::new(Some(one_of(schemas.iter().cloned().map(RefOr::T).collect())))
}

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
