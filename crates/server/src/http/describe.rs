//! The parameters of a handler describe its route: an extractor names the parts of a request that it reads, so `/openapi.json` cannot miss
//! them. A handler with a parameter that does not describe itself does not compile as a route's:
//!
//! ```compile_fail
//! use axum::extract::RawQuery;
//! use trireme_server::access::Category;
//! use trireme_server::Traffic;
//! use trireme_server::http::route::{Resource, Route};
//!
//! const LISTS: Resource = Resource { group: "lists", category: Some(Category::Metadata), traffic: Traffic::Server };
//! let route: Route<()> = LISTS.get("/list", "A list", async |_: RawQuery| ());
//! ```

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, Uri};
use utoipa::openapi::Required;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Schema;

use super::shapes::Shapes;

/// A parameter of a handler, or all of them, which may say something about its route.
pub trait Describe {
    /// Adds the parts of a request that it reads to the shapes of its route. By default it adds nothing: the route describes the path.
    fn describe(_shapes: &mut Shapes) {}
}

/// A header that a request may have.
pub fn header(name: &str, description: &str, schema: Schema) -> Parameter {
    let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).required(Required::False);
    header.description(Some(description)).schema(Some(schema)).build()
}

impl<S> Describe for State<S> {}
impl<P> Describe for Path<P> {}
impl Describe for Request {}
impl Describe for HeaderMap {}
impl Describe for Method {}
impl Describe for Uri {}

impl<T: Describe, E> Describe for Result<T, E> {
    fn describe(shapes: &mut Shapes) {
        T::describe(shapes);
    }
}

/// All parameters of a handler, behind axum's mark for the way in which it takes the last one.
macro_rules! describe_all {
    ($($parameter:ident),*) => {
        impl<Mark, $($parameter: Describe),*> Describe for (Mark, $($parameter,)*) {
            fn describe(_shapes: &mut Shapes) {
                $($parameter::describe(_shapes);)*
            }
        }
    };
}

describe_all!();
describe_all!(A);
describe_all!(A, B);
describe_all!(A, B, C);
describe_all!(A, B, C, D);
