//! Faults that keep a bus from taking work, and their beginnings.
//!
//! A bus watches this by itself ([`Bus::fault`](crate::Bus::fault)): over NATS by a pulse that one gateway makes for all
//! processes, in process by the writes to its disk.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A fault of a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusFault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// Whether no request can be sent. If not, only durable work is refused.
    pub stops_requests: bool,
    /// When this process had the last sign that the bus works.
    pub since: Instant,
    /// The error that showed it.
    pub reason: String,
}

/// The kinds of faults of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The broker does not answer, or its JetStream does not.
    Unreachable,
    /// The broker refuses writes to its disk because a limit is reached.
    StoreFull,
    /// The broker answers, but does not confirm writes to its disk.
    StoreSilent,
    /// The stores in the directory for durable work cannot be written.
    Disk,
}

// === impl BusFault ===

impl BusFault {
    /// A process whose bus takes no work counts as ready for this long. A broker that is restarted, or the election of a
    /// leader, often takes less.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// Whether a process has to say that it takes no work.
    pub fn is_grave(&self) -> bool {
        self.stops_requests && self.since.elapsed() >= BusFault::GRACE
    }
}

impl fmt::Display for BusFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::Unreachable => "the broker cannot be reached",
            FaultKind::StoreFull => "the broker's store is full",
            FaultKind::StoreSilent => "the broker confirms no writes to its disk, which may be full",
            FaultKind::Disk => "the store of durable work in --data-dir cannot be written",
        };
        write!(f, "{what}, since {} s: {}", self.since.elapsed().as_secs(), self.reason)?;
        match self.stops_requests {
            true => Ok(()),
            false => f.write_str("; durable work is refused, live requests go on"),
        }
    }
}

// === impl FaultKind ===

impl FaultKind {
    /// All kinds with their labels in metrics.
    pub const ALL: [(FaultKind, &'static str); 4] = [
        (FaultKind::Unreachable, "unreachable"),
        (FaultKind::StoreFull, "store_full"),
        (FaultKind::StoreSilent, "store_silent"),
        (FaultKind::Disk, "disk"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_said_at_once_and_grave_after_a_while() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).expect("the clock is older");
        let fault = |kind, stops_requests, seconds| BusFault {
            kind,
            stops_requests,
            since: ago(seconds),
            reason: "the connection is lost".to_owned(),
        };
        assert_eq!(
            fault(FaultKind::Unreachable, true, 12).to_string(),
            "the broker cannot be reached, since 12 s: the connection is lost"
        );
        assert!(!fault(FaultKind::Unreachable, true, 1).is_grave());
        assert!(fault(FaultKind::Unreachable, true, 6).is_grave());
        let full = fault(FaultKind::StoreFull, false, 60);
        assert!(!full.is_grave() && full.to_string().ends_with("live requests go on"), "{full}");
    }
}
