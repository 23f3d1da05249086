//! The header `Prefer` (RFC 7240), which no crate in use reads: a request that is answered later, and how long a client waits.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use trireme_server::http::describe::{Describe, header};
use trireme_server::http::shapes::Shapes;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// The longest wait that a client may prefer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a client wants to be answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    /// Later, if the request was accepted.
    pub is_async: bool,
    /// How long the client waits: for the answer itself if it may come later, else for room in a full queue.
    pub wait: Duration,
}

// === impl Preference ===

impl Preference {
    /// The preference in a request's headers: `Prefer: respond-async, wait=10`.
    pub fn of(headers: &HeaderMap) -> Preference {
        let values = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        let mut found = Preference::default();
        for preference in values.flat_map(|value| value.split([',', ';'])) {
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            match name.trim() {
                name if name.eq_ignore_ascii_case("respond-async") => found.is_async = true,
                name if name.eq_ignore_ascii_case("wait") => {
                    let seconds = value.trim().trim_matches('"').parse().unwrap_or(0);
                    found.wait = Duration::from_secs(seconds).min(LONGEST_WAIT);
                }
                _ => {}
            }
        }
        found
    }
}

impl Describe for Preference {
    fn describe(shapes: &mut Shapes) {
        let about = "respond-async: the request is kept and answered later; wait=SECONDS: how long the client waits for the answer \
                     itself, or for room in a full queue";
        let prefer = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
        let prefer = Schema::Object(prefer.examples(["respond-async, wait=10"]).build());
        shapes.parameters.push(header("Prefer", about, prefer));
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn preference(values: &[&'static str]) -> (bool, u64) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(PREFER, HeaderValue::from_static(value));
        }
        let Preference { is_async, wait } = Preference::of(&headers);
        (is_async, wait.as_secs())
    }

    #[test]
    fn a_preference_is_read_as_rfc_7240_writes_it() {
        assert_eq!(preference(&[]), (false, 0));
        assert_eq!(preference(&["return=minimal"]), (false, 0));
        assert_eq!(preference(&["wait=10"]), (false, 10));
        assert_eq!(preference(&["respond-async"]), (true, 0));
        assert_eq!(preference(&["Respond-Async, wait=10"]), (true, 10));
        assert_eq!(preference(&["wait=\"5\"", "respond-async"]), (true, 5));
        assert_eq!(preference(&["respond-async; wait=100000"]), (true, LONGEST_WAIT.as_secs()));
        assert_eq!(preference(&["respond-async, wait=soon"]), (true, 0));
    }
}
