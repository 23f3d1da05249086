//! The heartbeat of a process: one for all of its parts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use trireme_bus::{Bus, Connection, Heartbeat};
use trireme_inference::UnixMicros;
use trireme_tasks::TaskSet;

use super::Statistics;

/// A heartbeat comes up to this much before the end of [`Heartbeat::PERIOD`], so that processes which started together
/// do not send all heartbeats together.
const JITTER: Duration = Duration::from_millis(200);

// === impl Statistics ===

impl Statistics {
    /// Registers this process's worker. `entries` returns the number of its entries in the registry, and the sum of
    /// their `since`.
    pub(crate) fn worker(&self, entries: impl Fn() -> (u32, u64) + Send + Sync + 'static) {
        *self.0.entries.write() = Some(Box::new(entries));
    }

    /// The heartbeat with the current values.
    fn heartbeat(&self) -> Heartbeat {
        let (entries, since_sum) = self.0.entries.read().as_ref().map(|entries| entries()).unwrap_or_default();
        Heartbeat {
            process: self.0.process.clone(),
            started: self.0.started,
            number: self.0.heartbeats.fetch_add(1, Ordering::Relaxed),
            entries,
            since_sum,
            in_flight: self.0.in_flight.read().as_ref().map(|in_flight| in_flight()),
            clock_offset_us: UnixMicros::clock_offset(),
        }
    }

    /// Sends heartbeats for as long as `tasks` runs, and one at once when the connection comes back.
    pub(super) fn beat(&self, bus: &Arc<dyn Bus>, tasks: &TaskSet) {
        let (statistics, bus) = (self.clone(), bus.clone());
        tasks.spawn_until_stop("heartbeat", async move {
            let mut connection = bus.connection();
            connection.borrow_and_update();
            let mut ticks = tokio::time::interval(Heartbeat::PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    Ok(()) = connection.changed() => {
                        if *connection.borrow_and_update() == Connection::Down {
                            continue;
                        }
                    }
                }
                if let Err(error) = bus.beat(&statistics.heartbeat()).await {
                    tracing::debug!(%error, "a heartbeat could not be sent");
                }
                ticks.reset_at(Instant::now() + Heartbeat::PERIOD - JITTER.mul_f64(fastrand::f64()));
            }
        });
    }
}
