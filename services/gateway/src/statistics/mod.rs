//! The counts of the whole system: the sum over every process, and this gateway's own counts.
//!
//! Workers count the requests that they execute. A gateway counts ensembles, and the requests that it answers itself: those that
//! were refused because too many were in flight, that were not answered in time, or whose client went away. The process that
//! answers a request counts it, once.

mod requests;
mod sources;
mod waiting;
mod windows;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use trireme_bus::{Bus, BusError};
use trireme_runtime::statistics::report::{STATISTICS, STATISTICS_TOLD, decode, publish_log_levels};
use trireme_runtime::{Statistics, TaskSet};
use trireme_telemetry::LogLevels;

use crate::registry::{Process, Registry};

pub use requests::CountedRequest;
use sources::Sources;
pub use sources::{Total, Totals};
pub use windows::Windows;

/// How long processes may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Gathers the statistics of all processes.
pub struct Collector {
    bus: Arc<dyn Bus>,
    own: Statistics,
    registry: Registry,
    sources: Arc<Mutex<Sources>>,
    /// The number of questions that were begun.
    begun: AtomicU64,
    /// The answers to the last question; held by the caller that asks.
    asked: tokio::sync::Mutex<Collection>,
}

/// A question and its answers.
#[derive(Default)]
struct Collection {
    /// The question's number, counted from 1.
    number: u64,
    totals: Arc<Totals>,
}

// === impl Collector ===

impl Collector {
    /// Starts to listen to the last reports of processes. `own` are the statistics of this process; `registry` knows the
    /// processes.
    pub async fn open(
        bus: Arc<dyn Bus>,
        own: Statistics,
        registry: Registry,
        tasks: &TaskSet,
    ) -> Result<Collector, BusError> {
        let sources = Arc::<Mutex<Sources>>::default();
        let mut told = bus.subscribe(STATISTICS_TOLD).await?;
        own.report(&bus, tasks).await?;
        let heard = sources.clone();
        tasks.spawn_until_stop("statistics of others", async move {
            while let Some(told) = told.recv().await {
                hear(&heard, &told.body);
            }
        });
        let (begun, asked) = (AtomicU64::new(0), tokio::sync::Mutex::default());
        Ok(Collector { bus, own, registry, sources, begun, asked })
    }

    /// The statistics of this process.
    pub fn own(&self) -> &Statistics {
        &self.own
    }

    /// The processes whose heartbeats are heard, in order of name.
    pub fn processes(&self) -> Vec<Process> {
        self.registry.processes()
    }

    /// The last report of this process.
    pub async fn publish(&self) {
        self.own.publish(self.bus.as_ref()).await;
    }

    /// Sends the log levels to all processes. Best effort: a process that the bus does not reach goes on as before.
    pub async fn publish_log_levels(&self, levels: LogLevels) {
        let told = publish_log_levels(self.bus.as_ref(), self.own.process(), levels);
        if !matches!(tokio::time::timeout(ANSWER_LIMIT, told).await, Ok(Ok(()))) {
            tracing::warn!("the log levels could not be sent to other processes");
        }
    }

    /// The sum over every process that exists or has existed, gathered now. Waits for the answers of all processes whose
    /// heartbeats are heard and of all workers in the registry, for [`ANSWER_LIMIT`] at most; a process that does not answer
    /// counts with its last report. Callers that come while a question is being answered share the next one.
    pub async fn totals(&self) -> Arc<Totals> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut asked = self.asked.lock().await;
        if asked.number > before {
            return asked.totals.clone();
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let mut there: HashSet<String> = self.registry.processes().into_iter().map(|process| process.name).collect();
        // A worker may be at work before its first heartbeat is heard.
        there.extend(self.registry.workers().into_iter().map(|(worker, _)| worker));
        let mut missing = there.clone();
        missing.remove(self.own.process());
        if tokio::time::timeout(ANSWER_LIMIT, self.gather(&mut missing)).await.is_err() {
            tracing::debug!(?missing, "processes did not tell their statistics in time");
        }
        let mut sources = self.sources.lock();
        sources.hear(self.own.snapshot(), Instant::now());
        sources.retire(&there);
        *asked = Collection { number, totals: Arc::new(sources.totals(&there)) };
        asked.totals.clone()
    }

    async fn gather(&self, missing: &mut HashSet<String>) {
        if missing.is_empty() {
            return;
        }
        let mut answers = match self.bus.request(STATISTICS, Bytes::new()).await {
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

/// Takes in a snapshot; returns the name of its process.
fn hear(sources: &Mutex<Sources>, body: &[u8]) -> Option<String> {
    match decode(body) {
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
