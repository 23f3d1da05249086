//! What became of all requests.

use std::time::Duration;

/// The outcome of a load, in times since its start.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Answered as they should be.
    pub right: Vec<Answered>,
    /// Those of them that were answered, as they should be, that their own timeout had passed.
    pub expired: usize,
    /// Callers that left without waiting.
    pub left: usize,
    /// Answered with something else, as a success.
    pub wrong: Vec<String>,
    /// Not answered, or answered that their deadline has passed; streams that ended without all of their parts.
    pub lost: Vec<String>,
    /// A part more than once. A whole answer comes once whatever happens: what serves HTTP and gRPC sends no other.
    pub doubled: Vec<String>,
    /// Answered with an error before their deadline.
    pub failed: Vec<String>,
    /// Answered rightly, but after their deadline, or after their own timeout.
    pub late: Vec<String>,
    /// Connections that broke although their gateway lived, or had taken them before it was told to stop.
    pub broken: Vec<String>,
    /// Sent again.
    pub moved: Moved,
}

/// When a request was sent first, and when its answer was there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub sent: Duration,
    pub answered: Duration,
}

/// Requests that were sent again, to another gateway, by what had become of the first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// It was killed.
    pub killed: usize,
    /// The longest that one of those had waited by then.
    pub killed_after: Duration,
    /// It was told to stop, and took no connection any more.
    pub refused: usize,
    /// It was told to stop while the connection waited to be accepted.
    pub reset: usize,
}

// === impl Tally ===

impl Tally {
    /// Requests that were sent.
    pub fn requests(&self) -> usize {
        self.right.len() + self.left + self.complaints().map(|(_, list)| list.len()).sum::<usize>()
    }

    /// Everything that must not be, by kind.
    pub fn complaints(&self) -> impl Iterator<Item = (&'static str, &Vec<String>)> {
        let Tally { wrong, lost, doubled, failed, late, broken, .. } = self;
        [
            ("wrong", wrong),
            ("lost", lost),
            ("doubled (which only parts can be)", doubled),
            ("failed before its deadline", failed),
            ("answered after its deadline", late),
            ("connection broken", broken),
        ]
        .into_iter()
    }
}
