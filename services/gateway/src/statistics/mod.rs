//! What the whole system has done: the sum over every process, and what this gateway adds to it.
//!
//! Workers count what they execute. A gateway counts ensembles, and what it answers itself: requests that were refused
//! because too many were in flight, that were not answered in time, or whose client went away. A request is counted once,
//! by who answers it.

mod requests;
mod sources;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use trireme_bus::{Bus, BusError};
use trireme_runtime::statistics::report::{STATISTICS, STATISTICS_TOLD, tell_log_levels};
use trireme_runtime::{Snapshot, Statistics, TaskSet};
use trireme_telemetry::LogLevels;

pub use requests::CountedRequest;
use sources::Sources;
pub use sources::{Process, Total, Totals};

/// How long processes may take to answer a question.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Gathers the statistics of all processes.
pub struct Collector {
    bus: Arc<dyn Bus>,
    own: Statistics,
    sources: Arc<Mutex<Sources>>,
}

// === impl Collector ===

impl Collector {
    /// Starts to listen to what processes tell. `own` are the statistics of this one.
    pub async fn open(bus: Arc<dyn Bus>, own: Statistics, tasks: &TaskSet) -> Result<Collector, BusError> {
        let sources = Arc::<Mutex<Sources>>::default();
        let mut told = bus.questions(STATISTICS_TOLD).await?;
        own.report(&bus, tasks).await?;
        let (heard, stopping) = (sources.clone(), tasks.stopping().clone());
        tasks.spawn("statistics of others", async move {
            loop {
                let told = tokio::select! {
                    told = told.recv() => told,
                    () = stopping.cancelled() => return,
                };
                let Some(told) = told else { return };
                hear(&heard, &told.body);
            }
        });
        Ok(Collector { bus, own, sources })
    }

    /// The statistics of this process.
    pub fn own(&self) -> &Statistics {
        &self.own
    }

    /// The processes that have spoken lately, in order of name.
    pub fn processes(&self) -> Vec<Process> {
        let mut processes = self.sources.lock().processes(Instant::now());
        processes.sort_by(|left, right| left.name.cmp(&right.name));
        processes
    }

    /// The last word of this process.
    pub async fn tell(&self) {
        self.own.tell(self.bus.as_ref()).await;
    }

    /// Tells all processes what to log. Best effort: one that the bus does not reach goes on as before.
    pub async fn tell_log_levels(&self, levels: LogLevels) {
        let told = tell_log_levels(self.bus.as_ref(), self.own.process(), levels);
        if !matches!(tokio::time::timeout(ANSWER_LIMIT, told).await, Ok(Ok(()))) {
            tracing::warn!("other processes could not be told what to log");
        }
    }

    /// The sum over every process there is or was, asked for just now. Waits for the answers of `workers` and of whoever
    /// was heard lately, for [`ANSWER_LIMIT`] at most; who does not answer counts as it was last heard.
    pub async fn totals(&self, workers: impl IntoIterator<Item = String>) -> Totals {
        let mut missing: BTreeSet<String> = workers.into_iter().collect();
        missing.extend(self.sources.lock().speaking(Instant::now()).map(str::to_owned));
        missing.remove(self.own.process());
        if tokio::time::timeout(ANSWER_LIMIT, self.gather(&mut missing)).await.is_err() {
            tracing::debug!(?missing, "processes did not tell their statistics in time");
        }
        let mut sources = self.sources.lock();
        sources.hear(self.own.snapshot(), Instant::now());
        sources.totals(Instant::now())
    }

    async fn gather(&self, missing: &mut BTreeSet<String>) {
        if missing.is_empty() {
            return;
        }
        let mut answers = match self.bus.ask(STATISTICS, Bytes::new()).await {
            Ok(answers) => answers,
            Err(error) => return tracing::debug!(%error, "statistics could not be asked for"),
        };
        while !missing.is_empty() {
            let Some(answer) = answers.recv().await else { return };
            if let Some(process) = hear(&self.sources, &answer) {
                missing.remove(&process);
            }
        }
    }
}

/// Takes in a snapshot; says whose it is.
fn hear(sources: &Mutex<Sources>, body: &[u8]) -> Option<String> {
    match serde_json::from_slice::<Snapshot>(body) {
        Ok(snapshot) => {
            let process = snapshot.process.clone();
            sources.lock().hear(snapshot, Instant::now());
            Some(process)
        }
        Err(error) => {
            tracing::warn!(%error, "ignored statistics that cannot be read");
            None
        }
    }
}
