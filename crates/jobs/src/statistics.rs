//! How much durable work a gateway has, for its metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::record::BatchState;

/// The durable work of a gateway, as the store names it for the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait for their turn.
    pub waiting: u64,
    /// Requests whose time has not come.
    pub scheduled: u64,
    /// Requests that run.
    pub running: u64,
    /// Batches that have not ended, by state.
    pub batches: Vec<(BatchState, u64)>,
    /// Batches whose time has not come. They are not among those in `batches`.
    pub scheduled_batches: u64,
    /// Lines of these batches that have not ended, as of their checkpoints.
    pub lines_left: u64,
}

/// A gateway's durable work: the load and the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The work that is there.
    pub load: Load,
    /// Calls in flight, and how many may be.
    pub in_flight: u64,
    /// The present limit of `in_flight`.
    pub limit: u64,
    /// Lines that have ended with an answer.
    pub completed: u64,
    /// Lines that have ended with an error.
    pub failed: u64,
    /// Calls of webhooks.
    pub webhooks: WebhookCounts,
}

/// Calls of webhooks, by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookCounts {
    /// The receiver has taken the event.
    pub delivered: u64,
    /// The call failed and is repeated later.
    pub retried: u64,
    /// The call failed and is not repeated.
    pub given_up: u64,
}

/// The counters behind them.
#[derive(Default)]
pub(crate) struct Counters {
    pub load: Mutex<Load>,
    in_flight: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    webhooks: Mutex<WebhookCounts>,
}

/// Counts a call as in flight until it is dropped.
pub(crate) struct InFlight<'a>(&'a Counters);

// === impl Counters ===

impl Counters {
    /// The present values, beside the limit of calls in flight.
    pub fn read(&self, limit: u64) -> Statistics {
        Statistics {
            load: self.load.lock().clone(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            limit,
            completed: self.completed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            webhooks: *self.webhooks.lock(),
        }
    }

    /// Counts a call.
    pub fn call(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self)
    }

    /// Counts calls of webhooks.
    pub fn webhook(&self, calls: WebhookCounts) {
        let mut counts = self.webhooks.lock();
        counts.delivered += calls.delivered;
        counts.retried += calls.retried;
        counts.given_up += calls.given_up;
    }

    /// Counts the end of a line.
    pub fn line(&self, is_error: bool) {
        let counter = if is_error { &self.failed } else { &self.completed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
