//! What this process has done, per model version: counted where it happens, reported to whoever asks.
//!
//! A process has one [`Statistics`]. Whoever counts takes a [`ModelStatistics`] once and keeps it, so that a request costs a
//! short lock and no look-up. [`report`] carries snapshots to the gateways; [`export`] shows the process's own as metrics.
//!
//! Not here: sums over processes (the gateway).

pub mod export;
mod process;
pub mod report;
pub mod runs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use trireme_inference::{Counters, ModelKey, UnixMicros};

/// The statistics of a process. Clones are the same.
#[derive(Clone)]
pub struct Statistics(Arc<Shared>);

struct Shared {
    process: String,
    started: UnixMicros,
    models: RwLock<BTreeMap<ModelKey, Arc<ModelStatistics>>>,
    /// Numbers the snapshots.
    snapshots: AtomicU64,
    /// Whether somebody answers questions for this process already.
    reporting: AtomicBool,
    /// Says how many requests a gateway in this process has in flight.
    in_flight: RwLock<Option<Box<dyn Fn() -> u64 + Send + Sync>>>,
    /// Where the process's tasks live: not in the runtime that shows metrics. `None` where it was made outside of one.
    runtime: Option<Handle>,
}

/// The statistics of a model version in this process.
#[derive(Default)]
pub struct ModelStatistics {
    counters: Mutex<Counters>,
    hosting: RwLock<Hosting>,
}

/// What is known of a model version that this process hosts.
#[derive(Default)]
struct Hosting {
    stage: &'static str,
    load: Duration,
    load_now: Option<Box<dyn Fn() -> QueueLoad + Send + Sync>>,
}

/// How busy a model version's queue in this process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLoad {
    /// Requests that wait to be executed.
    pub waiting: u64,
    /// Requests in hand: these, those being executed and those being sent on.
    pub in_hand: u64,
}

/// A process's statistics at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process.
    pub process: String,
    /// When it started: a process that comes back under its name counts from 0 again.
    pub started: UnixMicros,
    /// Grows from one snapshot of a process to the next.
    pub number: u64,
    /// Its model versions.
    pub models: Vec<ModelSnapshot>,
    /// Requests in flight, where a gateway is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
}

/// A model version in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSnapshot {
    /// The model version.
    pub model: ModelKey,
    /// What it has done.
    pub counters: Counters,
    /// How busy it is.
    pub load: QueueLoad,
    /// How long it took to load; zero where it is not hosted.
    pub load_duration: Duration,
    /// The stage it is executed at; empty where it is not hosted.
    pub stage: String,
}

// === impl Statistics ===

impl Statistics {
    /// Nothing counted yet. `process` is a name that no other process has.
    pub fn new(process: impl Into<String>) -> Statistics {
        Statistics(Arc::new(Shared {
            process: process.into(),
            started: UnixMicros::now(),
            models: RwLock::default(),
            snapshots: AtomicU64::new(0),
            reporting: AtomicBool::new(false),
            in_flight: RwLock::default(),
            runtime: Handle::try_current().ok(),
        }))
    }

    /// How many asynchronous tasks live in the runtime that this was made in.
    pub fn tasks(&self) -> Option<usize> {
        self.0.runtime.as_ref().map(|runtime| runtime.metrics().num_alive_tasks())
    }

    /// The name of the process.
    pub fn process(&self) -> &str {
        &self.0.process
    }

    /// The statistics of a model version, from now on.
    pub fn model(&self, key: &ModelKey) -> Arc<ModelStatistics> {
        if let Some(model) = self.0.models.read().get(key) {
            return model.clone();
        }
        self.0.models.write().entry(key.clone()).or_default().clone()
    }

    /// A gateway is in this process from now on. `in_flight` says how many requests it has.
    pub fn gateway(&self, in_flight: impl Fn() -> u64 + Send + Sync + 'static) {
        *self.0.in_flight.write() = Some(Box::new(in_flight));
    }

    /// Everything as it is now.
    pub fn snapshot(&self) -> Snapshot {
        let number = self.0.snapshots.fetch_add(1, Ordering::Relaxed);
        let models = self.0.models.read().iter().map(|(key, model)| model.snapshot(key)).collect();
        let in_flight = self.0.in_flight.read().as_ref().map(|in_flight| in_flight());
        Snapshot { process: self.0.process.clone(), started: self.0.started, number, models, in_flight }
    }
}

impl std::fmt::Debug for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Statistics({})", self.0.process)
    }
}

// === impl ModelStatistics ===

impl ModelStatistics {
    /// Counts: `count` gets the counters and should be quick.
    pub fn record(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.counters.lock());
    }

    /// This process hosts the model version from now on, at `stage`. `load` says how busy its queue is.
    pub fn host(
        &self,
        stage: &'static str,
        load_duration: Duration,
        load: impl Fn() -> QueueLoad + Send + Sync + 'static,
    ) {
        *self.hosting.write() = Hosting { stage, load: load_duration, load_now: Some(Box::new(load)) };
    }

    fn snapshot(&self, key: &ModelKey) -> ModelSnapshot {
        let hosting = self.hosting.read();
        ModelSnapshot {
            model: key.clone(),
            counters: self.counters.lock().clone(),
            load: hosting.load_now.as_ref().map(|load| load()).unwrap_or_default(),
            load_duration: hosting.load,
            stage: hosting.stage.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_inference::{Completed, FailureReason};

    #[test]
    fn a_snapshot_reads_back_as_it_was() {
        let statistics = Statistics::new("worker");
        let key = ModelKey { name: "m".to_owned(), version: 3 };
        let model = statistics.model(&key);
        model.host("model", Duration::from_millis(1500), || QueueLoad { waiting: 2, in_hand: 3 });
        let request = Completed { rows: 4, total: Duration::from_millis(7), ..Completed::default() };
        model.record(|counters| counters.complete(&request, UnixMicros(5_000_000)));
        statistics.model(&key).record(|counters| counters.fail(FailureReason::Backend, Duration::from_secs(1)));
        let snapshot = statistics.snapshot();
        let encoded = serde_json::to_vec(&snapshot).unwrap();
        assert_eq!(serde_json::from_slice::<Snapshot>(&encoded).unwrap(), snapshot);
        let found = &snapshot.models[0];
        assert_eq!((found.counters.inferences, found.counters.fail.count, found.load.in_hand), (4, 1, 3));
        assert!(statistics.snapshot().number > snapshot.number);
    }
}
