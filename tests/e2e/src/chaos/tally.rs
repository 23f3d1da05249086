//! The outcome of all requests.

use std::time::Duration;

/// The outcome of a load; times are since its start.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Requests that were answered as expected.
    pub right: Vec<Answered>,
    /// Number of them that were answered, as expected, that their own timeout had passed.
    pub expired: usize,
    /// Number of callers that left without waiting.
    pub left: usize,
    /// Everything that went wrong.
    pub complaints: Vec<Complaint>,
    /// Requests that were sent again.
    pub moved: Moved,
}

/// A request that went wrong.
#[derive(Debug)]
pub(super) struct Complaint {
    pub what: What,
    /// When it was first sent, and when it went wrong.
    pub when: Answered,
    pub text: String,
}

/// Kinds of complaints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Answered with a wrong result.
    Wrong,
    /// Not answered, or answered that the deadline has passed; or a stream that ended without all of its parts.
    Lost,
    /// A part came more than once. A whole answer cannot: HTTP and gRPC send only one.
    Doubled,
    /// Answered before the deadline that it cannot be served right now.
    Refused,
    /// Answered with another error before the deadline.
    Failed,
    /// Answered rightly, but after the deadline, or after the request's own timeout.
    Late,
    /// The connection broke although its gateway lived, or had accepted it before SIGTERM.
    Broken,
}

/// When a request was first sent, and when its answer arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub sent: Duration,
    pub answered: Duration,
}

/// Requests that were sent again to another gateway, by what happened to the first gateway.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// The gateway was killed.
    pub killed: usize,
    /// The longest time for which a request had waited by then.
    pub killed_after: Duration,
    /// The gateway got SIGTERM, and accepted no more connections.
    pub refused: usize,
    /// The gateway got SIGTERM while the connection waited to be accepted.
    pub reset: usize,
}

// === impl Tally ===

impl Tally {
    /// Number of requests that were sent.
    pub fn requests(&self) -> usize {
        self.right.len() + self.left + self.complaints.len()
    }

    /// Number of complaints of this kind.
    pub fn count(&self, what: What) -> usize {
        self.complaints.iter().filter(|one| one.what == what).count()
    }

    /// The complaints of each kind, as texts.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, Vec<&String>)> {
        What::ALL.into_iter().map(|(what, name)| {
            (name, self.complaints.iter().filter(|one| one.what == what).map(|one| &one.text).collect())
        })
    }
}

// === impl What ===

impl What {
    const ALL: [(What, &str); 7] = [
        (What::Wrong, "wrong"),
        (What::Lost, "lost"),
        (What::Doubled, "doubled (which only parts can be)"),
        (What::Refused, "refused before its deadline"),
        (What::Failed, "failed before its deadline"),
        (What::Late, "answered after its deadline"),
        (What::Broken, "connection broken"),
    ];
}
