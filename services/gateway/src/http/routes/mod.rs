//! The routes of this server: one file per resource, which has a line in [`RESOURCES`]. The type of a route is in `trireme_server::http::route`.

mod batches;
mod config;
mod deferred;
mod docs;
mod files;
mod generate;
mod health;
mod infer;
mod logging;
mod metadata;
mod organization;
mod page;
mod repository;
mod shared_memory;
mod statistics;
mod status;
mod trace;
mod ui;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::any;
use trireme_server::Intake;
use trireme_server::access::Category;
use trireme_server::http::route::Table;
use trireme_server::http::{HttpTransport, response};

use super::args::HttpOptions;
use super::state::{HttpState, Route};
use super::{dialects, routing};

/// The routes of every resource but the pages and the dialects.
const RESOURCES: &[fn() -> Vec<Route>] = &[
    health::routes,
    metadata::routes,
    status::routes,
    config::routes,
    infer::routes,
    generate::routes,
    repository::routes,
    statistics::routes,
    usage::routes,
    organization::routes,
    logging::routes,
    trace::routes,
    shared_memory::routes,
    deferred::routes,
    files::routes,
    batches::routes,
    docs::routes,
];

/// Pages for people. They hold no data of the server; they send requests for it like any client.
const PAGES: &[fn() -> Vec<Route>] = &[ui::routes, docs::pages];

/// The table of all routes: resources, pages where they are wanted, and dialects, of which the chosen one comes first.
pub fn table(options: &HttpOptions) -> Table<HttpState> {
    table_of(if options.ui { PAGES } else { &[] }, &options.dialect)
}

fn table_of(pages: &[fn() -> Vec<Route>], dialect: &str) -> Table<HttpState> {
    Table::new(rows(pages, dialect).map(deferred::offered))
}

fn rows(pages: &[fn() -> Vec<Route>], dialect: &str) -> impl Iterator<Item = Route> {
    RESOURCES.iter().chain(pages).flat_map(|routes| routes()).chain(dialects::routes(dialect))
}

/// The router of the table. A request passes the limits of `intake` first, then the rules for its route.
pub fn router(state: HttpState, intake: &Arc<Intake<HttpTransport>>) -> Router {
    let routes = state.table.router(|route, handler| {
        let admit = from_fn_with_state((route.clone(), state.clone()), admit);
        intake.before(Some(route), handler.layer(admit))
    });
    let (unknown, method_unknown) =
        (intake.before(None::<&Route>, any(no_route)), intake.before(None::<&Route>, any(no_method)));
    routes.fallback(unknown).method_not_allowed_fallback(method_unknown).with_state(state)
}

/// Runs a route, unless the rules for its category refuse the request or the request is to be answered later. One middleware for
/// all, because each takes memory for every request.
async fn admit(State((route, http)): State<(Arc<Route>, HttpState)>, request: Request, next: Next) -> Response {
    let response = match route.refusal(&http.handlers.access, &request) {
        Some(refusal) => refusal,
        None if route.category == Some(Category::Inference) => {
            deferred::accept_or_pass(&http, route.traffic, request, next).await
        }
        None => next.run(request).await,
    };
    match http.options.full_queue_is_429 {
        true => response::full_queue_as_429(response),
        false => response,
    }
}

/// No route has the path. Behind a dialect's name, and under `/v1`, the answer is the dialect's.
async fn no_route(method: Method, uri: Uri) -> Response {
    no_route_at(&method, uri.path())
}

/// The answer to a request with this method where no route has the path.
pub fn no_route_at(method: &Method, path: &str) -> Response {
    trireme_dialects::no_route(method, path, StatusCode::NOT_FOUND).unwrap_or_else(routing::not_found)
}

/// No route has the path with the method.
async fn no_method(method: Method, uri: Uri) -> Response {
    match trireme_dialects::no_route(&method, uri.path(), StatusCode::METHOD_NOT_ALLOWED) {
        Some(refused) => refused,
        None => routing::method_not_allowed(&uri),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use axum::body::Body;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use serde_json::Value;
    use trireme_runtime::TaskSet;
    use trireme_server::Traffic;
    use trireme_server::access::Changes;
    use trireme_server::budget::Budget;
    use trireme_server::connections::Spare;
    use trireme_server::http::document;
    use trireme_server::http::route::Verb;

    use super::*;

    /// The traffic of the route with this method and path.
    fn traffic(verb: Verb, path: &str) -> Option<Traffic> {
        let table = table_of(PAGES, "openai");
        table.routes().find(|route| route.verb == verb && &*route.path == path).map(|route| route.traffic)
    }

    #[test]
    fn the_router_takes_every_path_whichever_dialect_is_first() {
        for first in trireme_dialects::names() {
            assert!(table_of(PAGES, first).router(|_, handler| handler).has_routes(), "{first}");
        }
    }

    /// Whether a value has the members that a schema requires, each of its type.
    fn is_of(value: &Value, schema: &Value) -> bool {
        if let Some(several) = schema["anyOf"].as_array() {
            return several.iter().any(|one| is_of(value, one));
        }
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let is_of_type = |own: &Value| own == name || own.as_array().is_some_and(|all| all.iter().any(|it| it == name));
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let has = |member: &str| value.get(member).is_some_and(|own| is_of(own, &schema["properties"][member]));
        schema.get("type").is_none_or(is_of_type) && required.into_iter().all(has)
    }

    /// Asks the routes of a port whose handlers panic. `is_spare`: by a connection above the limit.
    async fn refused(route: &Arc<Route>, is_spare: bool) -> (StatusCode, Value) {
        let doomed = async || -> Response { panic!("the handler's fault") };
        let tasks = TaskSet::new();
        let transport = HttpTransport { idle_timeout: Duration::from_secs(9), is_tls: false, tasks };
        let intake = Arc::new(Intake { budget: Budget::new(1 << 20), access: Arc::default(), transport });
        let port = Router::new().route("/", intake.before(Some(&**route), any(doomed))).with_state(());
        let mut request = Request::new(Body::empty());
        if is_spare {
            request.extensions_mut().insert(Spare);
        }
        let (parts, body) = TowerToHyperService::new(port).call(request).await.unwrap().into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, serde_json::from_slice(&body).expect("JSON"))
    }

    /// An answer that a layer gives in place of the handler has the form of the route's errors, as `/openapi.json` has it.
    #[tokio::test]
    async fn what_a_handler_does_not_answer_is_refused_in_the_form_of_its_route() {
        let mut forms = BTreeSet::new();
        for first in trireme_dialects::names() {
            for route in Table::new(rows(PAGES, first)).routes() {
                let mut errors = (route.shapes)().errors;
                if errors.is_empty() {
                    errors.push(response::error_schema());
                }
                let errors = serde_json::to_value(&errors).unwrap();
                for is_spare in [false, true] {
                    if is_spare && route.traffic == Traffic::Watch {
                        continue;
                    }
                    let (status, body) = refused(route, is_spare).await;
                    let at = format!("{} {} {is_spare} with {first}: {status} {body}", route.verb.name(), route.path);
                    // TEI has a status of clients' errors for faults of its models.
                    assert!(status.is_server_error() || status.as_u16() == 424, "{at}");
                    assert!(errors.as_array().unwrap().iter().any(|schema| is_of(&body, schema)), "{at}, not {errors}");
                    let message = if is_spare { "--max-connections" } else { "internal error" };
                    assert!(body.to_string().contains(message), "{at}");
                    forms.insert(errors.to_string());
                }
            }
        }
        assert!(forms.len() > 5, "there are several forms: {forms:?}");
    }

    #[test]
    fn names_of_schemas_and_operations_are_unique_and_known() {
        let document = serde_json::to_value(document(&table_of(PAGES, "openai"), "")).expect("JSON");
        let mut ids = BTreeSet::new();
        for operation in
            document["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object()).flatten()
        {
            let (_, operation) = operation;
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "two operations '{id}'");
            assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{id}");
        }
        let mut parts = std::collections::BTreeMap::new();
        for route in table_of(PAGES, "openai").routes() {
            for (name, part) in (route.shapes)().bodies.into_iter().flat_map(|body| body.parts) {
                let known = parts.entry(name.clone()).or_insert_with(|| part.clone());
                assert!(*known == part, "two schemas '{name}'");
            }
        }
        let text = document.to_string();
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name = text[at..].split(['/', '"']).nth(3).expect("a name");
            assert!(parts.contains_key(name), "no schema '{name}'");
        }
    }

    #[test]
    fn routes_that_change_the_server_say_so() {
        for route in table_of(PAGES, "openai").routes() {
            let is_control = matches!(
                route.category,
                Some(Category::Logging | Category::Trace | Category::ModelRepository | Category::SharedMemory)
            );
            let shows = route.verb == Verb::Get || route.path.ends_with("/index");
            assert_eq!(route.changes == Changes::Always, is_control && !shows, "{}", route.path);
        }
    }

    #[test]
    fn requests_that_execute_models_are_told_from_those_about_the_server() {
        let posts = |path| traffic(Verb::Post, path);
        let infer = "/v2/models/{model}/infer";
        for path in [infer, "/v2/models/{model}/versions/{version}/generate", "/v1/embeddings", "/tei/{model}/embed"] {
            assert_eq!(posts(path), Some(Traffic::Work), "{path}");
        }
        assert_eq!(posts("/v2/models/{model}/versions/{version}/generate_stream"), Some(Traffic::Stream));
        for path in ["/v2/health/live", "/v2/models/{model}/ready", "/health", "/tei/health"] {
            assert_eq!(traffic(Verb::Get, path), Some(Traffic::Watch), "{path}");
        }
        for path in ["/v1/files", "/v1/uploads/{id}/parts"] {
            assert_eq!(posts(path), Some(Traffic::Upload), "{path}");
        }
        for path in ["/v2/repository/index", "/v2/logging", "/v1/uploads"] {
            assert_eq!(posts(path), Some(Traffic::Server), "{path}");
        }
    }

    #[test]
    fn a_batch_goes_to_routes_that_execute_models() {
        let table = table_of(PAGES, "openai");
        for path in
            ["/v1/embeddings", "/v2/models/m/infer", "/tei/embed", "/tei/m/embed", "/v2/models/m/versions/1/generate"]
        {
            assert!(table.executes(path), "{path}");
        }
        for path in
            ["", "v1/embeddings", "/v1/batches", "/v1/files", "/v2/repository/index", "/v2/models/m/load", "/infer"]
        {
            assert!(!table.executes(path), "{path}");
        }
    }
}
