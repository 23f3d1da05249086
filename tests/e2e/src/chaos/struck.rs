//! A fault that happened.

use std::time::Duration;

/// A fault that happened, or two at once, with times since the start of the load.
#[derive(Debug)]
pub(super) struct Struck {
    /// The fault, and the kind of process that it hit.
    pub kind: String,
    /// Number of faults.
    pub count: usize,
    pub begun: Duration,
    /// When the fault was undone.
    pub ended: Duration,
    /// When its effects were over, as far as the run waited for that.
    pub calm: Duration,
    /// When the brokers were in sync again, if they are a cluster.
    pub whole: Option<Duration>,
}
