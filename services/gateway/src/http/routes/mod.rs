//! The table of HTTP routes: one file per resource, which has a line in [`RESOURCES`].

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
mod page;
mod repository;
mod shared_memory;
mod statistics;
mod status;
mod trace;
mod ui;
mod usage;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::MethodRouter;
use axum::{Router, middleware};
use trireme_server::access::Category;
use trireme_server::http::Traffic;
use trireme_server::http::access_log::Place;
use trireme_server::http::openapi::{Entry, Verb};
use trireme_server::http::response;

use super::resource::{Guarded, Resource};
use super::routing;
use super::state::HttpState;
use super::{access, dialects};

/// Every resource but the pages and those of the dialects.
const RESOURCES: &[&Resource] = &[
    &health::RESOURCE,
    &metadata::RESOURCE,
    &status::RESOURCE,
    &config::RESOURCE,
    &infer::RESOURCE,
    &generate::RESOURCE,
    &repository::RESOURCE,
    &statistics::RESOURCE,
    &usage::RESOURCE,
    &logging::RESOURCE,
    &trace::RESOURCE,
    &shared_memory::RESOURCE,
    &deferred::RESOURCE,
    &files::RESOURCE,
    &batches::RESOURCE,
    &docs::RESOURCE,
];

/// Pages for people. They hold no data of the server; they send requests for it like any client.
const PAGES: &[&Resource] = &[&ui::RESOURCE, &docs::PAGES];

/// All routes, each with the category that access rules know it by.
pub fn router(state: HttpState) -> Router {
    // The middleware's refusals have the dialect's own shape.
    let dialects = dialects::routes(&state.options.dialect)
        .route_layer(middleware::from_fn_with_state(state.clone(), deferred::defer));
    let pages = if state.options.ui { PAGES } else { &[] };
    let guard = |guarded: Guarded, route: MethodRouter<HttpState>| {
        route.route_layer(middleware::from_fn_with_state((guarded, state.clone()), admit))
    };
    let resources = RESOURCES.iter().chain(pages);
    let routes = resources.fold(Router::new(), |all, resource| all.merge(resource.guarded_router(guard)));
    let full_queue_is_429 = state.options.full_queue_is_429;
    let routes = routes.merge(dialects).fallback(no_route).method_not_allowed_fallback(no_method).with_state(state);
    match full_queue_is_429 {
        true => routes.layer(middleware::map_response(response::full_queue_as_429)),
        false => routes,
    }
}

/// Runs a route, unless the rules for its category refuse the request or the request is to be answered later. One middleware for
/// both, because each takes memory for every request.
async fn admit(State((guarded, http)): State<(Guarded, HttpState)>, request: Request, next: Next) -> Response {
    if let Some(refusal) = access::refusal(guarded, &http.handlers, &request) {
        return refusal;
    }
    match guarded.category {
        Category::Inference => deferred::accept_or_pass(&http, request, next).await,
        _ => next.run(request).await,
    }
}

/// The routes that execute models, for calls that were admitted before.
pub fn work(state: HttpState) -> Router {
    let own = RESOURCES.iter().filter(|resource| resource.traffic.executes());
    let own = own.fold(Router::new(), |all, resource| all.merge(resource.router()));
    own.merge(dialects::routes(&state.options.dialect)).fallback(no_route).with_state(state)
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

/// Every route by its path, with its path and its traffic.
fn matched<'p>(method: &Method, path: &'p str) -> Option<matchit::Match<'static, 'p, &'static (String, Traffic)>> {
    static ROUTES: LazyLock<BTreeMap<Verb, matchit::Router<(String, Traffic)>>> = LazyLock::new(|| {
        let mut routes = BTreeMap::<Verb, matchit::Router<(String, Traffic)>>::new();
        for Entry { verb, path, traffic, .. } in trireme_dialects::names().flat_map(entries) {
            let routes = routes.entry(verb).or_default();
            // A path is there once for each dialect that may be the first.
            let _ = routes.insert(path.clone(), (path, traffic));
        }
        routes
    });
    let verb = match *method {
        Method::POST => Verb::Post,
        Method::DELETE => Verb::Delete,
        _ => Verb::Get,
    };
    ROUTES.get(&verb)?.at(path).ok()
}

/// The traffic that a request to this path belongs to.
pub fn traffic(method: &Method, path: &str) -> Traffic {
    matched(method, path).map_or(Traffic::Server, |found| found.value.1)
}

/// The route of a path, and the model that the path names.
pub fn place(method: &Method, path: &str) -> Option<Place> {
    let found = matched(method, path)?;
    Some(Place { route: &found.value.0, model: found.params.get("model").map(str::to_owned) })
}

/// Every route as the document has it, with this dialect for the first one.
pub fn entries(dialect: &str) -> Vec<Entry> {
    let own = RESOURCES.iter().chain(PAGES).flat_map(|resource| resource.entries());
    own.chain(trireme_dialects::entries(dialect)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;

    use super::*;
    use trireme_server::http::openapi::document;

    #[test]
    fn names_of_schemas_and_operations_are_unique_and_known() {
        let (mut parts, mut ids): (BTreeMap<String, RefOr<Schema>>, BTreeSet<String>) = Default::default();
        for entry in entries("openai") {
            for (name, part) in entry.bodies.iter().flat_map(|body| body.parts.clone()) {
                let known = parts.entry(name.clone()).or_insert_with(|| part.clone());
                assert!(*known == part, "two schemas '{name}'");
            }
            let id = entry.operation().operation_id.expect("an id");
            assert!(ids.insert(id.clone()), "two operations '{id}'");
            assert!(!entry.summary.is_empty(), "{id}");
        }
        let text = serde_json::to_string(&document(entries("openai"), "")).expect("JSON");
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name = text[at..].split(['/', '"']).nth(3).expect("a name");
            assert!(parts.contains_key(name), "no schema '{name}'");
        }
    }

    #[test]
    fn routes_that_change_the_server_say_so() {
        for Entry { verb, path, category, changes, .. } in entries("openai") {
            let is_control = matches!(
                category,
                Some(Category::Logging | Category::Trace | Category::ModelRepository | Category::SharedMemory)
            );
            let shows = verb == Verb::Get || path.ends_with("/index");
            assert_eq!(changes, is_control && !shows, "{path}");
        }
    }

    #[test]
    fn requests_that_execute_models_are_told_from_those_about_the_server() {
        let asks = |path| traffic(&Method::POST, path);
        for path in
            ["/v2/models/m/infer", "/v2/models/m/versions/1/generate", "/v1/embeddings", "/tei/embed", "/tei/m/embed"]
        {
            assert_eq!(asks(path), Traffic::Work, "{path}");
        }
        assert_eq!(asks("/v2/models/m/versions/1/generate_stream"), Traffic::Stream);
        for path in ["/v2/health/live", "/v2/models/m/ready", "/health", "/tei/health"] {
            assert_eq!(traffic(&Method::GET, path), Traffic::Watch, "{path}");
        }
        assert!(!traffic(&Method::GET, "/tei/embed").executes(), "nothing answers it");
        for path in ["/v1/files", "/v1/uploads/u/parts"] {
            assert_eq!(asks(path), Traffic::Upload, "{path}");
        }
        for path in ["/v2/repository/index", "/v2/models/m/config", "/v2/logging", "/v1/uploads", "/infer"] {
            assert_eq!(asks(path), Traffic::Server, "{path}");
        }
    }
}
