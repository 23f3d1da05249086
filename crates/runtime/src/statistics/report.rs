//! How statistics and log levels travel: gateways ask, every process answers; what has changed is told once a second as well,
//! so that little is lost with a process that dies, and nothing with one that leaves in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_bus::{Bus, BusError};
use trireme_telemetry::LogLevels;

use super::{Snapshot, Statistics};
use crate::TaskSet;

/// The topic on which gateways ask for snapshots.
pub const STATISTICS: &str = "statistics";

/// The topic on which processes tell theirs unasked.
pub const STATISTICS_TOLD: &str = "statistics_told";

/// The topic on which processes are told what to log.
const LOGGING: &str = "logging";

/// How often a process looks whether it has something new to tell.
const TELL_PERIOD: Duration = Duration::from_secs(1);

/// How long a process without news keeps quiet.
const SILENCE: Duration = Duration::from_secs(5);

/// A process that was silent for this long is gone, or cannot be reached.
pub const GONE_AFTER: Duration = Duration::from_secs(11);

impl Statistics {
    /// Answers questions for this process, and tells what has changed, for as long as `tasks` runs. Where two parts of a
    /// process share statistics, the second one to call this does nothing.
    pub async fn report(&self, bus: &Arc<dyn Bus>, tasks: &TaskSet) -> Result<(), BusError> {
        if self.0.reporting.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let mut questions = bus.questions(STATISTICS).await?;
        let (statistics, bus, stopping) = (self.clone(), bus.clone(), tasks.stopping().clone());
        tasks.spawn("statistics", async move {
            let mut ticks = tokio::time::interval(TELL_PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut told: Option<(Snapshot, Instant)> = None;
            loop {
                tokio::select! {
                    question = questions.recv() => {
                        let Some(question) = question else { return };
                        if let Err(error) = question.answer(encode(&statistics.snapshot())).await {
                            tracing::debug!(%error, "statistics could not be sent");
                        }
                    }
                    _ = ticks.tick() => {
                        let now = statistics.snapshot();
                        let news = told.as_ref().is_none_or(|(told, at)| told.models != now.models || at.elapsed() > SILENCE);
                        if news {
                            tell(bus.as_ref(), &now).await;
                            told = Some((now, Instant::now()));
                        }
                    }
                    () = stopping.cancelled() => return,
                }
            }
        });
        Ok(())
    }

    /// Tells everything as it is now: the last word of a process that leaves.
    pub async fn tell(&self, bus: &dyn Bus) {
        tell(bus, &self.snapshot()).await;
    }
}

async fn tell(bus: &dyn Bus, snapshot: &Snapshot) {
    // Who listens does not answer, so the answers are let go at once.
    if let Err(error) = bus.ask(STATISTICS_TOLD, encode(snapshot)).await {
        tracing::debug!(%error, "statistics could not be told");
    }
}

fn encode(snapshot: &Snapshot) -> Bytes {
    serde_json::to_vec(snapshot).expect("numbers and texts become JSON").into()
}

/// What all processes shall log.
#[derive(Debug, Serialize, Deserialize)]
struct LogOrder {
    /// The process that says so, which does already.
    by: String,
    levels: LogLevels,
}

/// Tells all processes what to log; `by` is the name of this one.
pub async fn tell_log_levels(bus: &dyn Bus, by: &str, levels: LogLevels) -> Result<(), BusError> {
    let order = LogOrder { by: by.to_owned(), levels };
    let body = serde_json::to_vec(&order).expect("texts, switches and numbers become JSON");
    bus.ask(LOGGING, body.into()).await.map(drop)
}

/// Logs what others say that all processes shall log, for as long as `tasks` runs. What this process, called `own`, said
/// itself may come late: it could undo what it said since.
pub async fn follow_log_levels(bus: &dyn Bus, own: &str, tasks: &TaskSet) -> Result<(), BusError> {
    let mut questions = bus.questions(LOGGING).await?;
    let (own, stopping) = (own.to_owned(), tasks.stopping().clone());
    tasks.spawn("log levels", async move {
        loop {
            let question = tokio::select! {
                question = questions.recv() => question,
                () = stopping.cancelled() => return,
            };
            let Some(question) = question else { return };
            match serde_json::from_slice::<LogOrder>(&question.body) {
                Ok(order) if order.by == own => {}
                Ok(LogOrder { levels, .. }) => match trireme_telemetry::set_log_levels(levels) {
                    Ok(()) => tracing::info!(?levels, "log levels were changed"),
                    Err(error) => tracing::warn!(%error, "log levels could not be changed"),
                },
                Err(error) => tracing::warn!(%error, "ignored log levels that cannot be read"),
            }
            // Answering says that it was done; nobody needs to hear it.
            let _ = question.answer(Bytes::new()).await;
        }
    });
    Ok(())
}
