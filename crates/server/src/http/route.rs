//! The table of routes. A route says once how it is asked for, the category that access rules know it by, the traffic that its requests are,
//! its shapes in `/openapi.json`, and its handler. The router, the document and the layers before a handler read this table; nothing else
//! knows a path.
//!
//! Not here: which routes there are.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodRouter, delete as on_delete, get as on_get, post as on_post};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::describe::Describe;
use super::endpoint::{Endpoint, Work};
use super::response::{self, Refuse, Unanswered};
use super::schema::{self, Described};
use super::shapes::{OtherAnswer, Shapes};
use crate::Traffic;
use crate::access::{Access, Category, Changes, PortRules, Rule, Sender};

/// How a route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "HTTP's own words")]
pub enum Verb {
    Get,
    Post,
    Delete,
}

/// The common properties of routes that belong together; a single route may say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// Their group in the document, such as a dialect.
    pub group: &'static str,
    /// The category that access rules know them by; `None` for pages, which say nothing themselves.
    pub category: Option<Category>,
    /// The traffic that requests to them belong to.
    pub traffic: Traffic,
}

/// A route with one method.
pub struct Route<S> {
    /// How it is asked for.
    pub verb: Verb,
    /// Its path, parameters in braces, as the router has it.
    pub path: Arc<str>,
    /// The category that access rules know it by; `None` for pages, which say nothing themselves.
    pub category: Option<Category>,
    /// Whether it changes the server.
    pub changes: Changes,
    /// The traffic that requests to it belong to.
    pub traffic: Traffic,
    /// The group of routes that it belongs to, such as a dialect.
    pub group: &'static str,
    /// Its purpose, in a few words.
    pub summary: String,
    /// Makes its shapes for the document.
    pub shapes: Arc<dyn Fn() -> Shapes + Send + Sync>,
    /// The answer to a request that its handler does not answer, in the form of its errors.
    pub refuse: Refuse,
    answerer: Answerer<S>,
    /// Makes the other path at which it is there, too.
    variant: Option<fn(&str) -> String>,
}

/// Answers the requests of a route.
#[derive(Clone)]
enum Answerer<S> {
    /// For requests of the port only.
    Handler(Box<MethodRouter<S>>),
    /// For durable work, too.
    Endpoint(Endpoint<S>),
}

/// All routes of a port.
pub struct Table<S>(Vec<Arc<Route<S>>>);

// === impl Verb ===

impl Verb {
    /// HTTP's word.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Delete => "DELETE",
        }
    }

    /// A handler that answers this method.
    fn on<S, H, T>(self, handler: H) -> MethodRouter<S>
    where
        H: Handler<T, S>,
        T: 'static,
        S: Clone + Send + Sync + 'static,
    {
        match self {
            Verb::Get => on_get(handler),
            Verb::Post => on_post(handler),
            Verb::Delete => on_delete(handler),
        }
    }
}

// === impl Resource ===

impl Resource {
    /// A route with GET, which answers HEAD, too. `summary` is one sentence about it.
    pub fn get<S, H, T>(self, path: &str, summary: &str, handler: H) -> Route<S>
    where
        H: Handler<T, S>,
        T: Describe + 'static,
        S: Clone + Send + Sync + 'static,
    {
        self.route(Verb::Get, path, summary, handler)
    }

    /// A route with POST.
    pub fn post<S, H, T>(self, path: &str, summary: &str, handler: H) -> Route<S>
    where
        H: Handler<T, S>,
        T: Describe + 'static,
        S: Clone + Send + Sync + 'static,
    {
        self.route(Verb::Post, path, summary, handler)
    }

    /// A route with DELETE.
    pub fn delete<S, H, T>(self, path: &str, summary: &str, handler: H) -> Route<S>
    where
        H: Handler<T, S>,
        T: Describe + 'static,
        S: Clone + Send + Sync + 'static,
    {
        self.route(Verb::Delete, path, summary, handler)
    }

    /// A route with this method.
    pub fn route<S, H, T>(self, verb: Verb, path: &str, summary: &str, handler: H) -> Route<S>
    where
        H: Handler<T, S>,
        T: Describe + 'static,
        S: Clone + Send + Sync + 'static,
    {
        let shapes = || {
            let mut shapes = Shapes::default();
            T::describe(&mut shapes);
            shapes
        };
        Route {
            shapes: Arc::new(shapes),
            ..self.with(verb, path, summary, Answerer::Handler(Box::new(verb.on(handler))))
        }
    }

    /// A route with this method and endpoint. Its shapes are those that the route says.
    pub fn endpoint<S>(self, verb: Verb, path: &str, summary: &str, endpoint: Endpoint<S>) -> Route<S> {
        self.with(verb, path, summary, Answerer::Endpoint(endpoint))
    }

    fn with<S>(self, verb: Verb, path: &str, summary: &str, answerer: Answerer<S>) -> Route<S> {
        Route {
            verb,
            path: path.into(),
            category: self.category,
            changes: Changes::Never,
            traffic: self.traffic,
            group: self.group,
            summary: summary.to_owned(),
            shapes: Arc::new(Shapes::default),
            refuse: Arc::new(response::unanswered),
            answerer,
            variant: None,
        }
    }
}

// === impl Route ===

impl<S: 'static> Route<S> {
    /// The same, there with `/versions/{version}` behind the model, too.
    pub fn of_versions(self) -> Route<S> {
        Route { variant: Some(|path| path.replacen("{model}", "{model}/versions/{version}", 1)), ..self }
    }

    /// The same, there with `/region/{region}` before the last word, too.
    pub fn of_regions(self) -> Route<S> {
        let with_region = |path: &str| {
            let (all, word) = path.rsplit_once('/').unwrap_or_default();
            format!("{all}/region/{{region}}/{word}")
        };
        Route { variant: Some(with_region), ..self }
    }

    /// The same with requests that ask for something else than those of its resource.
    pub fn asks(self, traffic: Traffic) -> Route<S> {
        Route { traffic, ..self }
    }

    /// The same with requests that change the server.
    pub fn changes_the_server(self) -> Route<S> {
        Route { changes: Changes::Always, ..self }
    }

    /// The same with further shapes in the document, which `add` adds.
    pub fn shows(self, add: impl Fn(&mut Shapes) + Send + Sync + 'static) -> Route<S> {
        let before = self.shapes;
        let shapes = move || {
            let mut shapes = before();
            add(&mut shapes);
            shapes
        };
        Route { shapes: Arc::new(shapes), ..self }
    }

    /// The same with bodies of this shape.
    pub fn takes(self, takes: fn() -> Schema) -> Route<S> {
        self.shows(move |shapes| shapes.bodies.push(Described::alone(takes())))
    }

    /// The same with bodies that this type reads.
    pub fn reads<T: ToSchema>(self) -> Route<S> {
        self.shows(|shapes| shapes.bodies.push(schema::of::<T>()))
    }

    /// The same with forms (multipart/form-data): `file` is the field with the file's bytes, and this type reads the fields beside it.
    pub fn reads_form<T: ToSchema>(self, file: &'static str) -> Route<S> {
        self.shows(move |shapes| shapes.form = Some(schema::form::<T>(file)))
    }

    /// The same with answers of this shape.
    pub fn gives(self, gives: fn() -> Schema) -> Route<S> {
        self.shows(move |shapes| shapes.answers.push(gives()))
    }

    /// The same, whose answers are bytes, or may be.
    pub fn gives_bytes(self) -> Route<S> {
        self.shows(|shapes| shapes.gives_bytes = true)
    }

    /// The same with answers of another status than 200, too.
    pub fn or_gives(self, status: StatusCode, description: &'static str, gives: Option<fn() -> Schema>) -> Route<S> {
        self.shows(move |shapes| {
            shapes.others.push(OtherAnswer { status, description, schema: gives.map(|gives| gives()) });
        })
    }

    /// The same, which refuses in another shape than Triton's: also requests that its handler does not answer.
    pub fn refuses(self, refuse: fn(Unanswered<'_>) -> Response, refusals: fn() -> Schema) -> Route<S> {
        let route = self.shows(move |shapes| shapes.errors.push(refusals()));
        Route { refuse: Arc::new(refuse), ..route }
    }

    /// The answer to a request that the rules for this route refuse; `None` if its handler may run.
    pub fn refusal(&self, access: &Access, request: &Request) -> Option<Response> {
        let rule = Rule { category: Some(self.category?), changes: self.changes };
        let sender = Sender::of(request.uri(), request.headers(), request.extensions());
        let denied = access.admit(rule, &sender, PortRules { restrictions: access, has_pages: true }).err()?;
        Some((self.refuse)(Unanswered::Denied(&denied)))
    }

    /// The handler that answers its requests, for the router.
    fn handler(&self) -> MethodRouter<S>
    where
        S: Clone + Send + Sync,
    {
        match &self.answerer {
            Answerer::Handler(handler) => MethodRouter::clone(handler),
            Answerer::Endpoint(run) => {
                let (run, path) = (run.clone(), self.path.clone());
                self.verb
                    .on(move |State(state): State<S>, request: Request| run(state, Work::of(request, path.clone())))
            }
        }
    }

    /// Which parts of its path are words (0), parameters (1) and the rest (2).
    fn openness(&self) -> Vec<u8> {
        let openness = |part: &str| u8::from(part.starts_with('{')) + u8::from(part.starts_with("{*"));
        self.path.split('/').map(openness).collect()
    }

    /// Whether a path is one of this route.
    fn is_at(&self, path: &str) -> bool {
        let (mut names, mut parts) = (self.path.split('/'), path.split('/'));
        loop {
            match (names.next(), parts.next()) {
                (None, None) => return true,
                (Some(name), Some(_)) if name.starts_with("{*") => return true,
                (Some(name), Some(part)) if name == part || (name.starts_with('{') && !part.is_empty()) => {}
                _ => return false,
            }
        }
    }
}

/// The model that a path of this route names.
pub(super) fn model(route: &str, path: &str) -> Option<String> {
    let (_, model) = route.split('/').zip(path.split('/')).find(|(name, _)| *name == "{model}")?;
    Some(model.to_owned())
}

// === impl Table ===

impl<S: Clone + Send + Sync + 'static> Table<S> {
    /// The table of these routes, each at both of its paths where it has two.
    pub fn new(routes: impl IntoIterator<Item = Route<S>>) -> Table<S> {
        let mut all = Vec::new();
        for route in routes {
            let other = route.variant.map(|variant| Route {
                path: variant(&route.path).into(),
                summary: route.summary.clone(),
                shapes: route.shapes.clone(),
                refuse: route.refuse.clone(),
                answerer: route.answerer.clone(),
                ..route
            });
            all.extend([Some(route), other].into_iter().flatten().map(Arc::new));
        }
        Table(all)
    }

    /// All routes.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route<S>>> {
        self.0.iter()
    }

    /// The router of all routes, each with the layers that `layer` puts around its handler.
    pub fn router(&self, layer: impl Fn(&Arc<Route<S>>, MethodRouter<S>) -> MethodRouter<S>) -> Router<S> {
        self.0.iter().fold(Router::new(), |router, route| router.route(&route.path, layer(route, route.handler())))
    }

    /// The route that executes a model for a path with POST, with its endpoint. A client names the path elsewhere than in its URL. Of several
    /// routes it is the one that the router would take: that with words where the others have parameters.
    pub fn endpoint(&self, path: &str) -> Option<(&Route<S>, &Endpoint<S>)> {
        let executing = self.0.iter().filter_map(|route| match &route.answerer {
            Answerer::Endpoint(run) if route.verb == Verb::Post && route.traffic.executes() => Some((&**route, run)),
            _ => None,
        });
        executing.filter(|(route, _)| route.is_at(path)).min_by_key(|(route, _)| route.openness())
    }

    /// Whether a request with POST to this path executes a model for one answer.
    pub fn executes(&self, path: &str) -> bool {
        self.endpoint(path).is_some_and(|(route, _)| route.traffic == Traffic::Work)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::HeaderMap;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::RequestContext;
    use crate::budget::Budget;
    use crate::http::endpoint::endpoint;

    const RESOURCE: Resource = Resource { group: "v2", category: Some(Category::Inference), traffic: Traffic::Work };

    fn table() -> Table<()> {
        let runs = |path: &str| {
            RESOURCE.endpoint(Verb::Post, path, "", endpoint(async |(), work: Work| work.route.to_string()))
        };
        Table::new([
            runs("/v2/models/{model}/infer").of_versions(),
            RESOURCE.get("/v1/models/{*rest}", "", async || ()),
            RESOURCE.post("/v1/files", "", async || ()).asks(Traffic::Upload),
            runs("/tei/{model}"),
            runs("/tei/{model}/embed"),
            runs("/tei/embed"),
            runs("/v2/models/{model}/generate_stream").asks(Traffic::Stream),
        ])
    }

    #[test]
    fn a_route_with_two_paths_is_there_twice() {
        let paths: Vec<_> = table().routes().map(|route| route.path.to_string()).collect();
        let versions = "/v2/models/{model}/versions/{version}/infer";
        assert_eq!(paths[..4], ["/v2/models/{model}/infer", versions, "/v1/models/{*rest}", "/v1/files"]);
    }

    #[test]
    fn a_path_is_found_part_by_part() {
        let table = table();
        assert!(table.executes("/v2/models/m/infer") && table.executes("/v2/models/m/versions/1/infer"));
        for path in
            ["", "/", "v2/models/m/infer", "/v2/models//infer", "/v2/models/m/infer/", "/v1/files", "/v1/models/m"]
        {
            assert!(!table.executes(path), "{path}");
        }
        let [infer, _, listed, ..] = table.0.as_slice() else { panic!("four routes") };
        assert_eq!(model(&infer.path, "/v2/models/a%20b/infer").as_deref(), Some("a%20b"));
        assert!(listed.is_at("/v1/models/org/name") && model(&listed.path, "/v1/models/org/name").is_none());
    }

    #[tokio::test]
    async fn a_path_has_the_endpoint_that_the_router_takes() {
        let table = table();
        for (path, expected) in [
            ("/v2/models/m/infer", "/v2/models/{model}/infer"),
            ("/tei/embed", "/tei/embed"),
            ("/tei/other", "/tei/{model}"),
            ("/tei/embed/embed", "/tei/{model}/embed"),
            ("/v2/models/m/generate_stream", "/v2/models/{model}/generate_stream"),
        ] {
            let (route, run) = table.endpoint(path).expect("a route");
            assert_eq!(&*route.path, expected, "{path}");
            let context = RequestContext::of_process(Budget::new(0).permit());
            let (query, headers, body) = (None, HeaderMap::new(), Body::empty());
            let work = Work { context, route: route.path.clone(), path: path.to_owned(), query, headers, body };
            let answer = run((), work).await;
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("it is whole");
            assert_eq!(body, expected.as_bytes());
            let router = table.router(|_, handler| handler);
            let mut request = Request::post(path).body(Body::empty()).expect("a request");
            request.extensions_mut().insert(RequestContext::of_process(Budget::new(0).permit()));
            let Ok(routed) = TowerToHyperService::new(router).call(request).await;
            let routed = axum::body::to_bytes(routed.into_body(), usize::MAX).await.expect("it is whole");
            assert_eq!(routed, body, "{path} by the router");
        }
        assert!(!table.executes("/v2/models/m/generate_stream"), "its answer comes as events");
    }
}
