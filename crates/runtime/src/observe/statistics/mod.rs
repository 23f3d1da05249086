//! Statistics of this process per model version. They are counted where the events happen, and sent to gateways that
//! ask.
//!
//! A process has one [`Statistics`]. Code that counts gets a [`ModelStatistics`] once and keeps it, so that a request
//! costs a short lock and no look-up. [`report`] sends snapshots to the gateways; [`export`] shows the process's own as
//! metrics, with those that models define themselves ([`own`]). The process's heartbeat is in `heartbeat`.
//!
//! Not here: sums over processes (the gateway).

pub mod export;
mod heartbeat;
pub mod own;
mod process;
pub mod report;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;
use trireme_bus::BusFault;
use trireme_engine::{ModelSnapshot, ModelStatistics};
use trireme_inference::{ModelKey, UnixMicros};

use super::certificates::{self, ShownCertificate};

/// The statistics of a process. Clones are the same.
#[derive(Clone)]
pub struct Statistics(Arc<ProcessStatistics>);

struct ProcessStatistics {
    process: String,
    started: UnixMicros,
    models: RwLock<BTreeMap<ModelKey, Arc<ModelStatistics>>>,
    /// The number of the last snapshot.
    snapshots: AtomicU64,
    /// The number of the last heartbeat.
    heartbeats: AtomicU64,
    /// Whether a part of this process already answers questions for it.
    reporting: AtomicBool,
    /// Returns how many requests a gateway in this process has in flight.
    in_flight: RwLock<Option<Box<dyn Fn() -> u64 + Send + Sync>>>,
    /// Returns how many entries a worker in this process has in the registry, and the sum of their `since`.
    entries: RwLock<Option<CountEntries>>,
    /// The certificates that the process shows.
    certificates: RwLock<Vec<ShownCertificate>>,
    /// The fault of the process's bus, once the process reports on it.
    bus: OnceLock<watch::Receiver<Option<BusFault>>>,
    /// The runtime of the process's tasks, which is not the one that serves metrics. `None` if the statistics were
    /// created outside of a runtime.
    runtime: Option<Handle>,
}

type CountEntries = Box<dyn Fn() -> (u32, u64) + Send + Sync>;

/// A process's statistics at a point in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process.
    pub process: String,
    /// When the process started: a process that restarts under the same name counts from 0 again.
    pub started: UnixMicros,
    /// Number of the snapshot; it grows with each snapshot of a process.
    pub number: u64,
    /// The model versions that the process hosts, or for which it has counted anything.
    pub models: Vec<ModelSnapshot>,
}

// === impl Statistics ===

impl Statistics {
    /// Statistics without counts. `process` must be unique among processes.
    pub fn new(process: impl Into<String>) -> Statistics {
        Statistics(Arc::new(ProcessStatistics {
            process: process.into(),
            started: UnixMicros::now(),
            models: RwLock::default(),
            snapshots: AtomicU64::new(0),
            heartbeats: AtomicU64::new(0),
            reporting: AtomicBool::new(false),
            in_flight: RwLock::default(),
            entries: RwLock::default(),
            certificates: RwLock::default(),
            bus: OnceLock::new(),
            runtime: Handle::try_current().ok(),
        }))
    }

    /// Number of async tasks in the runtime in which this was created.
    pub fn tasks(&self) -> Option<usize> {
        self.0.runtime.as_ref().map(|runtime| runtime.metrics().num_alive_tasks())
    }

    /// The name of the process.
    pub fn process(&self) -> &str {
        &self.0.process
    }

    /// The statistics of a model version; they are created if there are none yet.
    pub fn model(&self, key: &ModelKey) -> Arc<ModelStatistics> {
        if let Some(model) = self.0.models.read().get(key) {
            return model.clone();
        }
        self.0.models.write().entry(key.clone()).or_default().clone()
    }

    /// Registers this process's gateway. `in_flight` returns its number of requests in flight.
    pub fn gateway(&self, in_flight: impl Fn() -> u64 + Send + Sync + 'static) {
        *self.0.in_flight.write() = Some(Box::new(in_flight));
    }

    /// Adds a certificate that the process shows.
    pub fn shows(&self, certificate: ShownCertificate) {
        self.0.certificates.write().push(certificate);
    }

    /// Warns now, and from time to time, of certificates that are about to expire.
    pub async fn watch_certificates(self) -> Infallible {
        loop {
            self.0.certificates.read().iter().for_each(|certificate| certificate.warn(SystemTime::now()));
            tokio::time::sleep(certificates::PERIOD).await;
        }
    }

    /// The fault that keeps the process's bus from taking work.
    pub fn bus_fault(&self) -> Option<BusFault> {
        self.0.bus.get().and_then(|fault| fault.borrow().clone())
    }

    /// All statistics with their current values.
    pub fn snapshot(&self) -> Snapshot {
        let number = self.0.snapshots.fetch_add(1, Ordering::Relaxed);
        let models = self.0.models.read().iter().filter_map(|(key, model)| model.snapshot(key)).collect();
        Snapshot { process: self.0.process.clone(), started: self.0.started, number, models }
    }
}

impl std::fmt::Debug for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Statistics({})", self.0.process)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use trireme_engine::QueueLoad;
    use trireme_inference::{Completed, FailureReason};

    #[test]
    fn a_snapshot_reads_back_as_it_was() {
        let statistics = Statistics::new("worker");
        let key = ModelKey { name: "m".into(), version: 3 };
        let model = statistics.model(&key);
        model.host("model", Duration::from_millis(1500), || QueueLoad {
            waiting: 2,
            in_hand: 3,
            waiting_tokens: [5, 6],
            asleep: Some(Duration::from_secs(90)),
        });
        let request = Completed { rows: 4, total: Duration::from_millis(7), ..Completed::default() };
        model.record(|counters| counters.complete(&request, UnixMicros(5_000_000)));
        statistics.model(&key).record(|counters| counters.fail(FailureReason::Backend, Duration::from_secs(1)));
        statistics.model(&ModelKey { name: "idle".into(), version: 1 });
        let snapshot = statistics.snapshot();
        assert_eq!(snapshot.models.len(), 1, "what is neither hosted nor counted is left out");
        assert_eq!(report::decode(&report::encode(&snapshot)).unwrap(), snapshot);
        let found = &snapshot.models[0];
        assert_eq!((found.counters.inferences, found.counters.fail.count, found.load.in_hand), (4, 1, 3));
        assert!(statistics.snapshot().number > snapshot.number);
    }
}
