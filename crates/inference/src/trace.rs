//! The W3C trace context of a request.

use serde::{Deserialize, Serialize};

use crate::Name;

/// Most bytes of a `tracestate` that are passed on. W3C asks for 512 at least.
const LONGEST_STATE: usize = 4096;

/// The span that a request belongs to, as W3C's Trace Context has it in the headers `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceParent {
    /// `traceparent`, as the client has sent it. It may be malformed: no trace follows it then.
    pub parent: Name,
    /// `tracestate`, the entries of tracing systems on the way. `None` where there are none.
    pub state: Option<Name>,
}

// === impl TraceParent ===

impl TraceParent {
    /// A span with the entries of tracing systems. A `state` that is empty, or has more than 4096 bytes, is dropped: W3C
    /// lets a `traceparent` travel without it.
    pub fn new(parent: impl Into<Name>, state: Option<impl Into<Name>>) -> TraceParent {
        let state = state.map(Into::into).filter(|state| (1..=LONGEST_STATE).contains(&state.len()));
        TraceParent { parent: parent.into(), state }
    }

    /// The two headers that name the span, with their names.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &Name)> {
        [("traceparent", &self.parent)].into_iter().chain(self.state.iter().map(|state| ("tracestate", state)))
    }
}

impl From<&str> for TraceParent {
    fn from(parent: &str) -> TraceParent {
        TraceParent { parent: parent.into(), state: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_empty_or_too_long_is_left_out() {
        let headers = |state: &str| TraceParent::new("00-1", Some(state)).headers().count();
        assert_eq!((headers(""), headers("a=1"), headers(&"a".repeat(4096)), headers(&"a".repeat(4097))), (1, 2, 2, 1));
    }
}
