//! The options of a run.

use std::time::Duration;

/// The default of [`Options::prompt`].
pub const PROMPT: Duration = Duration::from_secs(10);

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of the random numbers.
    pub seed: u64,
    /// Number of faults.
    pub faults: usize,
    /// Only faults whose names begin with this; `None` for all.
    pub only: Option<&'static str>,
    /// The share of faults that happen together with another one.
    pub overlap: f64,
    /// Least number of answered requests; the load goes on after the last fault until then.
    pub requests: usize,
    /// With a cluster of brokers: how long a request may take after the end of the last fault that it met.
    pub prompt: Duration,
    /// Lines of each batch that runs beside the load, together with durable requests; 0 leaves both out.
    pub lines: usize,
    /// Requests in flight.
    pub concurrency: usize,
    /// The deadline of requests; a request that takes longer counts as lost.
    pub deadline: Duration,
    /// Whether some workers host two stages.
    pub hand_over: bool,
    /// Number of brokers: one, or a cluster of three.
    pub brokers: usize,
    /// Whether a cluster keeps queues in files.
    pub files: bool,
    /// How far the clocks of processes may be off, in either direction; the brokers' clocks are right.
    pub clocks: Duration,
    /// Whether deliveries are acknowledged before their work is done, which loses work.
    pub acknowledge_early: bool,
}
