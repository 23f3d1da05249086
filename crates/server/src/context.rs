//! What is known of a request on its way, from the first layer on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};

/// The header with a request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken, in bytes.
const LONGEST_ID: usize = 128;

/// What is known of a request on its way. The first layer makes it and puts it in the request's extensions; each layer adds its part.
#[derive(Debug)]
pub struct RequestContext {
    id: HeaderValue,
    /// Whether the client has given the id.
    is_given: bool,
    route: OnceLock<Arc<str>>,
    model: OnceLock<String>,
    /// Bytes of its body that have come.
    received: AtomicU64,
}

// === impl RequestContext ===

impl RequestContext {
    /// The context of a request with these headers, whose id is the client's, or made.
    pub fn begin(headers: &HeaderMap) -> Arc<RequestContext> {
        let given = taken(headers);
        let is_given = given.is_some();
        let (route, model, received) = Default::default();
        Arc::new(RequestContext { id: given.unwrap_or_else(made), is_given, route, model, received })
    }

    /// The context in a request's extensions. Requests that came through no listener, such as those of durable work, have none.
    pub fn of(extensions: &Extensions) -> Option<&Arc<RequestContext>> {
        extensions.get()
    }

    /// The id that the client has given a request with these extensions; empty where it gave none.
    pub fn given_id_in(extensions: &Extensions) -> String {
        RequestContext::of(extensions).map_or_else(String::new, |context| context.given_id().to_owned())
    }

    /// The id: the client's, or one that was made for it.
    pub fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// The id that the client has given; empty where it gave none.
    pub fn given_id(&self) -> &str {
        self.id.to_str().ok().filter(|_| self.is_given).unwrap_or_default()
    }

    /// The request is for this route, and names this model in its path.
    pub fn is_for(&self, route: Arc<str>, model: Option<String>) {
        // The router finds one route.
        let _ = self.route.set(route);
        if let Some(model) = model {
            self.asks(model);
        }
    }

    /// The request asks for this model. The first word counts: that of the path.
    pub fn asks(&self, model: String) {
        let _ = self.model.set(model);
    }

    /// The route, with its parameters in braces; `None` until the router has found it, and where there is none.
    pub fn route(&self) -> Option<&Arc<str>> {
        self.route.get()
    }

    /// So many more bytes of its body have come.
    pub fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes of its body that have come.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The model that it asks for, where that is known.
    pub fn model(&self) -> Option<&str> {
        self.model.get().map(String::as_str)
    }
}

/// The id that the client gives: printable ASCII without spaces.
fn taken(headers: &HeaderMap) -> Option<HeaderValue> {
    let given = headers.get(REQUEST_ID)?;
    let is_fit = (1..=LONGEST_ID).contains(&given.len()) && given.as_bytes().iter().all(u8::is_ascii_graphic);
    is_fit.then(|| given.clone())
}

fn made() -> HeaderValue {
    let id = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_printable_and_not_too_long() {
        let context = |id: &[u8]| {
            RequestContext::begin(&HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(id).unwrap())]))
        };
        assert_eq!((context(b"a-1/b").id().as_bytes(), context(b"a-1/b").given_id()), (&b"a-1/b"[..], "a-1/b"));
        for unfit in [&b""[..], b"a b", b"\xc3\xa9", &[b'a'; LONGEST_ID + 1]] {
            let context = context(unfit);
            assert_eq!((context.id().len(), context.given_id()), (32, ""), "{unfit:?}");
        }
        assert_ne!(made(), made());
    }

    #[test]
    fn the_model_of_the_path_has_the_last_word() {
        let context = RequestContext::begin(&HeaderMap::new());
        assert!(context.route().is_none() && context.model().is_none());
        context.is_for("/tei/{model}/embed".into(), Some("m".to_owned()));
        context.asks("other".to_owned());
        assert_eq!((context.route().map(|route| &**route), context.model()), (Some("/tei/{model}/embed"), Some("m")));
    }
}
