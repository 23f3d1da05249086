//! Usage of the owners of keys: tokens, rows, requests, errors and seconds of model time, by owner, model and lane, hour by hour.
//!
//! A gateway counts where it has an answer, and writes the counts of an hour into the store of usage as one record under its own name. The
//! usage of a deployment is the sum of the records. A record is replaced by a larger one, so writing it twice changes nothing.
//!
//! Invariants:
//! - A gateway that is stopped in order has written everything. A gateway that is killed loses at most the counts of the last
//!   [`WRITE_EVERY`].
//! - The tokens are those of the answers: the sum of their `usage`, or of their header `trireme-tokens`.
//!
//! Not here: limits (`trireme_server::owners`), prices (the cli), which requests count (`handlers::metering`).

mod counts;
mod query;
mod store;
mod totals;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use trireme_bus::{Bus, BusError};
use trireme_inference::UnixMicros;
use trireme_runtime::TaskSet;

use counts::Hours;
pub use counts::{Counts, Hour, Key, Line, Used};
pub use query::{Asked, Piece, Query, Span, text as time_text};
pub use totals::Totals;

/// How often counts are written that have changed.
pub const WRITE_EVERY: Duration = Duration::from_secs(2);

/// The usage that this gateway counts. Clones are the same.
#[derive(Clone)]
pub struct Usage(Arc<Shared>);

struct Shared {
    bus: Arc<dyn Bus>,
    /// The name of this process, which no other one has or had.
    own: String,
    hours: Mutex<Hours>,
    totals: Mutex<Totals>,
    /// Held while records are written, so that an older one never replaces a newer one.
    writing: tokio::sync::Mutex<()>,
}

// === impl Usage ===

impl Usage {
    /// Begins with empty counts, and writes them for as long as `tasks` runs. `own` is the name of this process.
    pub fn keep(bus: Arc<dyn Bus>, own: &str, tasks: &TaskSet) -> Usage {
        // A name may come again after a long time; a record with another start does not.
        let own = format!("{own}-{}", bus.now().0);
        let (hours, totals) = (Mutex::default(), Mutex::default());
        let usage = Usage(Arc::new(Shared { bus, own, hours, totals, writing: Default::default() }));
        let kept = usage.clone();
        tasks.spawn_until_stop("usage", async move {
            let mut has_failed = false;
            loop {
                tokio::time::sleep(WRITE_EVERY).await;
                let written = kept.write().await;
                if let Err(error) = &written
                    && !has_failed
                {
                    tracing::warn!(%error, "usage cannot be written; it is kept in memory meanwhile");
                }
                has_failed = written.is_err();
            }
        });
        usage
    }

    /// Counts a request that has ended.
    pub fn count(&self, used: &Used<'_>, counts: &Counts) {
        let hour = Hour::of(self.0.bus.now());
        self.0.hours.lock().add(hour, used, counts);
        self.0.totals.lock().add(used, counts);
    }

    /// The counts since this process began, for metrics.
    pub fn totals(&self) -> Totals {
        self.0.totals.lock().clone()
    }

    /// Writes the counts that have changed.
    pub async fn write(&self) -> Result<(), BusError> {
        let _writing = self.0.writing.lock().await;
        let changed = self.0.hours.lock().changed();
        for (hour, counts) in changed {
            store::write(self.0.bus.as_ref(), &self.0.own, hour, &counts).await?;
            self.0.hours.lock().written(hour, &counts, Hour::of(self.0.bus.now()));
        }
        Ok(())
    }

    /// The usage of all gateways within a span, those counts of this one that are not written among it. Errors when the store cannot be read.
    pub async fn read(&self, query: &Query) -> Result<Vec<Line>, BusError> {
        self.write().await?;
        let lines = store::read(self.0.bus.as_ref(), query.span).await?;
        Ok(query.sum(lines))
    }

    /// The time by the clock of the bus.
    pub fn now(&self) -> UnixMicros {
        self.0.bus.now()
    }
}

#[cfg(test)]
mod tests;
