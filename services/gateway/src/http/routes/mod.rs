//! The routes of this server: one file per resource, which has a line in [`RESOURCES`]. What a route says is in `trireme_server::http::route`.

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
use trireme_server::access::Category;
use trireme_server::http::route::Table;
use trireme_server::http::{HttpTransport, response};
use trireme_server::{Intake, RequestContext};

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
    let own = RESOURCES.iter().chain(pages).flat_map(|routes| routes());
    Table::new(own.chain(dialects::routes(dialect)).map(deferred::offered))
}

/// The router of the table. A request passes the limits of `intake` first, then the rules for its route.
pub fn router(state: HttpState, intake: &Arc<Intake<HttpTransport>>) -> Router {
    let routes = state.table.router(|route, handler| {
        let admit = from_fn_with_state((route.clone(), state.clone()), admit);
        intake.before(Some(route), handler.layer(admit))
    });
    let (unknown, method_unknown) = (intake.before(None, any(no_route)), intake.before(None, any(no_method)));
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

/// The handlers of the routes that execute models, for calls that were admitted before. They have their contexts.
pub fn work(state: HttpState) -> Router {
    let routes = state.table.routes().filter(|route| route.traffic.executes());
    let router = routes.fold(Router::new(), |router, route| {
        let name = from_fn_with_state(route.path.clone(), name_route);
        router.route(&route.path, route.handler.clone().layer(name))
    });
    router.fallback(no_route).with_state(state)
}

/// Tells the context of a call its route.
async fn name_route(State(path): State<Arc<str>>, request: Request, next: Next) -> Response {
    RequestContext::of(request.extensions()).is_for(path, None);
    next.run(request).await
}

/// No route has the path. Behind a dialect's name, and under `/v1`, the answer is the dialect's.
async fn no_route(method: Method, uri: Uri) -> Response {
    match trireme_dialects::no_route(&method, uri.path(), StatusCode::NOT_FOUND) {
        Some(refused) => refused,
        None => routing::not_found().await,
    }
}

/// No route has the path with the method.
async fn no_method(method: Method, uri: Uri) -> Response {
    match trireme_dialects::no_route(&method, uri.path(), StatusCode::METHOD_NOT_ALLOWED) {
        Some(refused) => refused,
        None => routing::method_not_allowed(uri).await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use trireme_server::Traffic;
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
            assert_eq!(route.changes, is_control && !shows, "{}", route.path);
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
