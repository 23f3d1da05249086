//! Kinds of requests that a port treats differently, before a route runs.

/// A kind of requests, by the load that they are for the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// It executes a model, for one answer.
    Work,
    /// It executes a model, and its answer comes as events.
    Stream,
    /// It is about the server, and is answered even without room for work.
    Server,
    /// It is for monitoring, and is answered even on connections above the limit.
    Watch,
    /// Its body is written to the store as it comes, and so is not held in memory.
    Upload,
}

// === impl Traffic ===

impl Traffic {
    /// Whether it executes a model.
    pub fn executes(self) -> bool {
        matches!(self, Traffic::Work | Traffic::Stream)
    }
}
