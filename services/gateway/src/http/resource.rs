//! A resource: routes of one category and group, each with its entry in `/openapi.json`. A file of `routes` has one.

use axum::Router;
use axum::routing::MethodRouter;
use trireme_server::access::Category;
use trireme_server::http::Traffic;
use trireme_server::http::openapi::schema::Described;
use trireme_server::http::openapi::{Entry, Verb};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::state::HttpState;

/// Routes that belong together.
pub struct Resource {
    /// The category that access rules know them by; `None` for pages, which say nothing themselves.
    pub category: Option<Category>,
    /// The traffic that requests to them belong to, if an endpoint does not say otherwise.
    pub traffic: Traffic,
    /// Their group in the document.
    pub group: &'static str,
    /// The routes.
    pub endpoints: &'static [Endpoint],
}

/// The facts about a route that access rules need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// The category of its requests.
    pub category: Category,
    /// Whether they change the server; the other requests of a category only show something.
    pub changes: bool,
}

/// A route with one method.
pub struct Endpoint {
    verb: Verb,
    path: &'static str,
    /// Makes the other path at which it is there, too.
    variant: Option<fn(&str) -> String>,
    traffic: Option<Traffic>,
    changes: bool,
    summary: &'static str,
    takes: Option<fn() -> Schema>,
    gives: Option<fn() -> Schema>,
    route: fn() -> MethodRouter<HttpState>,
}

// === impl Resource ===

impl Resource {
    /// The router of all endpoints.
    pub fn router(&self) -> Router<HttpState> {
        self.guarded_router(|_, route| route)
    }

    /// The router of all endpoints, of which `guard` holds those to the access rules that have a category.
    pub fn guarded_router(
        &self,
        guard: impl Fn(Guarded, MethodRouter<HttpState>) -> MethodRouter<HttpState>,
    ) -> Router<HttpState> {
        let paths = self.endpoints.iter().flat_map(|endpoint| endpoint.paths().map(move |path| (path, endpoint)));
        paths.fold(Router::new(), |router, (path, endpoint)| {
            let route = (endpoint.route)();
            router.route(
                &path,
                match self.category {
                    Some(category) => guard(Guarded { category, changes: endpoint.changes }, route),
                    None => route,
                },
            )
        })
    }

    /// The entries of all endpoints in the document.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let entries = move |endpoint: &'static Endpoint| endpoint.paths().map(move |path| endpoint.entry(self, path));
        self.endpoints.iter().flat_map(entries)
    }
}

// === impl Endpoint ===

impl Endpoint {
    const fn new(
        verb: Verb,
        path: &'static str,
        summary: &'static str,
        route: fn() -> MethodRouter<HttpState>,
    ) -> Endpoint {
        Endpoint { verb, path, variant: None, traffic: None, changes: false, summary, takes: None, gives: None, route }
    }

    /// A route with GET. `summary` is one sentence about it.
    pub const fn get(path: &'static str, summary: &'static str, route: fn() -> MethodRouter<HttpState>) -> Endpoint {
        Endpoint::new(Verb::Get, path, summary, route)
    }

    /// A route with POST.
    pub const fn post(path: &'static str, summary: &'static str, route: fn() -> MethodRouter<HttpState>) -> Endpoint {
        Endpoint::new(Verb::Post, path, summary, route)
    }

    /// A route with DELETE.
    pub const fn delete(path: &'static str, summary: &'static str, route: fn() -> MethodRouter<HttpState>) -> Endpoint {
        Endpoint::new(Verb::Delete, path, summary, route)
    }

    /// The same, there with `/versions/{version}` behind the model, too.
    pub const fn of_versions(self) -> Endpoint {
        Endpoint { variant: Some(|path| path.replacen("{model}", "{model}/versions/{version}", 1)), ..self }
    }

    /// The same, there with `/region/{region}` before the last word, too.
    pub const fn of_regions(self) -> Endpoint {
        let with_region = |path: &str| {
            let (all, word) = path.rsplit_once('/').unwrap_or_default();
            format!("{all}/region/{{region}}/{word}")
        };
        Endpoint { variant: Some(with_region), ..self }
    }

    /// The same with requests that ask for something else than those of its resource.
    pub const fn asks(self, traffic: Traffic) -> Endpoint {
        Endpoint { traffic: Some(traffic), ..self }
    }

    /// The same with requests that change the server.
    pub const fn changes_the_server(self) -> Endpoint {
        Endpoint { changes: true, ..self }
    }

    /// The same with bodies of this shape.
    pub const fn takes(self, takes: fn() -> Schema) -> Endpoint {
        Endpoint { takes: Some(takes), ..self }
    }

    /// The same with answers of this shape.
    pub const fn gives(self, gives: fn() -> Schema) -> Endpoint {
        Endpoint { gives: Some(gives), ..self }
    }

    fn paths(&self) -> impl Iterator<Item = String> {
        [Some(self.path.to_owned()), self.variant.map(|variant| variant(self.path))].into_iter().flatten()
    }

    fn entry(&self, resource: &Resource, path: String) -> Entry {
        let body = self.takes.map(|takes| Described { schema: RefOr::T(takes()), parts: Vec::new() });
        Entry {
            verb: self.verb,
            path,
            category: resource.category,
            changes: self.changes,
            traffic: self.traffic.unwrap_or(resource.traffic),
            group: resource.group,
            summary: self.summary.to_owned(),
            bodies: body.into_iter().collect(),
            fields: None,
            answers: self.gives.map(|gives| gives()).into_iter().collect(),
            gives_bytes: false,
            // Some refusals are plain text, as Triton has them.
            errors: Vec::new(),
        }
    }
}
