//! How statistics and log levels travel: a gateway asks, and every process answers. A process that shuts down in order
//! sends its last snapshot without a question, so that none of its counts are lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use trireme_bus::{Bus, BusError, decode_body};
use trireme_tasks::TaskSet;
use trireme_telemetry::LogLevels;

use super::{Snapshot, Statistics};

/// The topic on which gateways ask for snapshots.
pub const STATISTICS: &str = "statistics";

/// The topic on which a process that shuts down publishes its last snapshot.
pub const STATISTICS_TOLD: &str = "statistics_told";

/// The topic on which log levels are sent to all processes.
const LOGGING: &str = "logging";

impl Statistics {
    /// Sends heartbeats and answers questions for this process, for as long as `tasks` runs. If two parts of a process
    /// share statistics, the second call does nothing.
    pub fn report<'a>(&'a self, bus: &'a Arc<dyn Bus>, tasks: &'a TaskSet) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async move {
            if self.0.reporting.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            let _ = self.0.bus.set(bus.fault());
            let mut questions = bus.subscribe(STATISTICS).await?;
            self.beat(bus, tasks);
            let statistics = self.clone();
            tasks.spawn_until_stop("statistics", async move {
                while let Some(question) = questions.recv().await {
                    if let Err(error) = question.answer(encode(&statistics.snapshot())).await {
                        tracing::debug!(%error, "statistics could not be sent");
                    }
                }
            });
            Ok(())
        })
    }

    /// Publishes the current statistics: the last snapshot of a process that shuts down.
    pub async fn publish(&self, bus: &dyn Bus) {
        if let Err(error) = bus.publish_to(STATISTICS_TOLD, encode(&self.snapshot())).await {
            tracing::debug!(%error, "statistics could not be sent");
        }
    }
}

/// A snapshot as MessagePack.
pub(super) fn encode(snapshot: &Snapshot) -> Bytes {
    rmp_serde::to_vec(snapshot).expect("numbers and texts become MessagePack").into()
}

/// Reads the snapshot of a process.
pub fn decode(body: &[u8]) -> Result<Snapshot, String> {
    decode_body(body).map_err(|error| error.to_string())
}

/// The log levels for all processes.
#[derive(Debug, Serialize, Deserialize)]
struct LogOrder {
    /// The process that sends the levels; it has already applied them.
    by: String,
    levels: LogLevels,
}

/// Sends log levels to all processes; `by` is the name of this one.
pub async fn publish_log_levels(bus: &dyn Bus, by: &str, levels: LogLevels) -> Result<(), BusError> {
    let order = LogOrder { by: by.to_owned(), levels };
    let body = serde_json::to_vec(&order).expect("texts, switches and numbers become JSON");
    bus.request(LOGGING, body.into()).await.map(drop)
}

/// Applies log levels that other processes send, for as long as `tasks` runs. Ignores those that this process, called
/// `own`, has sent itself: they may arrive late and undo a later change.
pub fn follow_log_levels<'a>(
    bus: &'a dyn Bus,
    own: &'a str,
    tasks: &'a TaskSet,
) -> BoxFuture<'a, Result<(), BusError>> {
    Box::pin(async move {
        let mut questions = bus.subscribe(LOGGING).await?;
        let own = own.to_owned();
        tasks.spawn_until_stop("log levels", async move {
            while let Some(question) = questions.recv().await {
                match serde_json::from_slice::<LogOrder>(&question.body) {
                    Ok(order) if order.by == own => {}
                    Ok(LogOrder { levels, .. }) => match trireme_telemetry::set_log_levels(levels) {
                        Ok(()) => tracing::info!(?levels, "log levels were changed"),
                        Err(error) => tracing::warn!(%error, "log levels could not be changed"),
                    },
                    Err(error) => tracing::warn!(%error, "ignored log levels that cannot be read"),
                }
                // The answer only confirms; the sender does not wait for it.
                let _ = question.answer(Bytes::new()).await;
            }
        });
        Ok(())
    })
}
