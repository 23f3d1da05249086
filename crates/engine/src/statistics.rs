//! The counters of one model version, and the load of its queue.
//!
//! Not here: the statistics of a process and how they travel (`runtime`).

use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use trireme_inference::{Counters, ModelKey};

/// The statistics of a model version in this process.
///
/// ```
/// # use std::time::Duration;
/// # use trireme_inference::ModelKey;
/// use trireme_engine::{ModelStatistics, QueueLoad};
///
/// let (statistics, key) = (ModelStatistics::default(), ModelKey { name: "encoder".into(), version: 1 });
/// assert!(statistics.snapshot(&key).is_none());
///
/// statistics.host("model", Duration::from_secs(2), || QueueLoad { waiting: 3, in_hand: 5, ..QueueLoad::default() });
/// statistics.record(|counters| counters.tokens += 12);
/// let snapshot = statistics.snapshot(&key).expect("it is hosted");
/// assert_eq!((snapshot.counters.tokens, snapshot.load.waiting), (12, 3));
/// ```
#[derive(Default)]
pub struct ModelStatistics {
    counters: Mutex<Counters>,
    hosting: RwLock<Hosting>,
}

/// Properties of a model version that this process hosts.
#[derive(Default)]
struct Hosting {
    stage: &'static str,
    load: Duration,
    load_now: Option<Box<dyn Fn() -> QueueLoad + Send + Sync>>,
}

/// The load of a model version's queue in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLoad {
    /// Requests that wait to be executed.
    pub waiting: u64,
    /// Requests in this worker: these, those being executed, and those whose results are being sent on.
    pub in_hand: u64,
    /// Tokens of the requests that wait to be executed, by lane; their rows for a model without tokens.
    pub waiting_tokens: [u64; 2],
    /// How long ago the instances were dismissed, while no others are there.
    pub asleep: Option<Duration>,
}

/// A model version in the snapshot of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSnapshot {
    /// The model version.
    pub model: ModelKey,
    /// Its counters.
    pub counters: Counters,
    /// The load of its queue.
    pub load: QueueLoad,
    /// How long it took to load; zero where it is not hosted.
    pub load_duration: Duration,
    /// The stage that executes it; empty if it is not hosted.
    pub stage: String,
}

// === impl ModelStatistics ===

impl ModelStatistics {
    /// Counts: `count` gets the counters under a lock and should be quick.
    pub fn record(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.counters.lock());
    }

    /// This process hosts the model version from now on, at `stage`. `load` returns the load of its queue.
    pub fn host(
        &self,
        stage: &'static str,
        load_duration: Duration,
        load: impl Fn() -> QueueLoad + Send + Sync + 'static,
    ) {
        *self.hosting.write() = Hosting { stage, load: load_duration, load_now: Some(Box::new(load)) };
    }

    /// The version's part of a snapshot; `None` if the version is not hosted and nothing was counted.
    pub fn snapshot(&self, key: &ModelKey) -> Option<ModelSnapshot> {
        let (hosting, counters) = (self.hosting.read(), self.counters.lock().clone());
        (hosting.load_now.is_some() || counters != Counters::default()).then(|| ModelSnapshot {
            model: key.clone(),
            counters,
            load: hosting.load_now.as_ref().map(|load| load()).unwrap_or_default(),
            load_duration: hosting.load,
            stage: hosting.stage.to_owned(),
        })
    }
}
