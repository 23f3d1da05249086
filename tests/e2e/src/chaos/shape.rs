//! The shape of the system under test.

use std::time::Duration;

use super::clock::Clocks;
use super::disk::SmallDisk;

/// Options of a system.
pub(super) struct Shape {
    /// The deadline that gateways give requests.
    pub deadline: Duration,
    /// Whether the workers' cables acknowledge the deliveries that pass.
    pub acknowledge_early: bool,
    /// Whether some workers host two stages.
    pub hand_over: bool,
    /// The disk for a single broker's queues; without it they are in memory.
    pub disk: Option<SmallDisk>,
    /// Brokers: one, or a cluster of three.
    pub brokers: usize,
    /// Whether brokers keep queues in files, with or without a disk of their own.
    pub files: bool,
    /// The clocks of members; without it they are right.
    pub clocks: Option<Clocks>,
}
