//! The model versions that a worker hosts, and how they change while it runs.
//!
//! [`Models::apply`] makes the hosted versions of a model match the repository. It loads versions that are new or whose
//! files have changed, while the old ones go on to serve. Only when all of them are ready do they replace the old ones,
//! which then drain. If a version fails to load, the version that serves stays.
//!
//! How versions are loaded is in `loading`, how a loaded one is tried in `proving`, how it takes work in `hosting`, whether its
//! content may be served in `content`, how it leaves the memory while it is idle in `keep_alive`, and how it is unloaded in `retire`. Not here: the decision which models are served (`scheduler`), and the path of work through a version
//! (`intake`, `settle`).

mod content;
mod hosting;
mod keep_alive;
mod loading;
mod outage;
mod proving;
mod retire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trireme_bus::{BusError, ModelState, WorkerEntry};
use trireme_engine::{Backend, LoadError, Threads};
use trireme_inference::{ModelKey, Name, UnixMicros};
use trireme_model_repository::ModelConfig;

use super::announce::Announcer;
use super::options::WorkerOptions;
use super::turns::Turns;
use crate::host::hostname;
use crate::hosted::standing::Obstacles;
use crate::hosted::{HostedModel, WorkerState};
use crate::intake::{Current, queue_levels};

/// How long a worker that ends waits for its last loads: a library that is torn down while it loads may crash.
const LAST_LOADS: Duration = Duration::from_secs(5);

/// The model versions that a worker hosts.
pub(crate) struct Models {
    pub shared: Arc<WorkerState>,
    pub announcer: Arc<Announcer>,
    /// The `since` of the last registry entry that was announced. A task holds the lock while it announces an entry.
    said: Arc<tokio::sync::Mutex<UnixMicros>>,
    pub options: WorkerOptions,
    backends: Vec<Arc<dyn Backend>>,
    /// Cancelled when the worker takes no more work.
    pub pulling: CancellationToken,
    /// Cancelled at the same time, and when the worker ends because a model cannot be loaded: waiting for a queue is
    /// over then.
    pub hopeless: CancellationToken,
    versions: Arc<Mutex<BTreeMap<ModelKey, Version>>>,
    /// Threads of versions that were replaced or unloaded.
    retired: Mutex<Vec<SharedThreads>>,
    /// The tasks that pull work.
    pub pulls: TaskTracker,
    /// Loads and unloads of one model are done one after the other.
    turns: Turns,
    /// A permit for each model that may be loaded now.
    loads: Semaphore,
}

/// A version that was loaded, or whose loading failed.
struct Version {
    entry: WorkerEntry,
    /// Fingerprint of the files from the last attempt to load it.
    fingerprint: u64,
    /// Whether the last attempt to load it failed. A version that served before goes on then.
    failed: bool,
    /// `None` if it was never loaded.
    running: Option<Running>,
}

struct Running {
    instances: Instances,
    pull: Pull,
}

/// A loaded version with its threads; without any while it is not in memory.
struct Instances {
    model: Arc<HostedModel>,
    threads: SharedThreads,
}

/// The threads of a version. The task that takes it out of memory and loads it again changes them.
type SharedThreads = Arc<Mutex<Threads>>;

/// The task that pulls work for a version. It stays when the version's instances are replaced: deliveries on their way
/// go to the current instances.
struct Pull {
    current: Current,
    /// Cancelled to stop the task for good.
    stop: CancellationToken,
    /// A child of `stop`, cancelled to stop the task for a time: another one pulls then.
    going: CancellationToken,
    /// Cancelled when the task has stopped.
    stopped: CancellationToken,
}

impl Running {
    /// Whether a version with this configuration uses the queue that this task pulls from.
    fn serves_queue_of(&self, config: &ModelConfig) -> bool {
        queue_levels(&self.instances.model.config) == queue_levels(config)
    }
}

/// The result of [`Models::apply`].
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Whether one of this worker's backends executes the model.
    pub mine: bool,
    /// The model's registry entries now.
    pub entries: Vec<WorkerEntry>,
    /// Versions that could not be loaded, with their errors.
    pub faults: Vec<(i64, LoadError)>,
}

impl Applied {
    /// Whether a version is broken. A version without a queue is not: its worker cannot mend the broker's limits.
    pub fn is_broken(&self) -> bool {
        self.faults.iter().any(|(_, fault)| !matches!(fault, LoadError::NoQueue { .. }))
    }
}

// === impl Models ===

impl Models {
    pub fn new(
        shared: Arc<WorkerState>,
        announcer: Arc<Announcer>,
        options: WorkerOptions,
        backends: Vec<Arc<dyn Backend>>,
    ) -> Models {
        let said = Arc::default();
        let (versions, retired, pulls) = (Arc::default(), Mutex::default(), TaskTracker::new());
        let pulling = CancellationToken::new();
        let hopeless = pulling.child_token();
        let (turns, loads) = (Turns::default(), Semaphore::new(options.load_threads));
        Models { shared, announcer, said, options, backends, pulling, hopeless, versions, retired, pulls, turns, loads }
    }

    /// The names of the backends.
    pub fn backends(&self) -> String {
        let mut names: Vec<_> = self.backends.iter().map(|backend| backend.name()).collect();
        // Two services that share a process may both host models of one backend.
        names.dedup();
        names.join(", ")
    }

    /// The versions that are loaded and take work.
    pub fn ready(&self) -> Vec<ModelKey> {
        let versions = self.versions.lock();
        versions.iter().filter(|(_, version)| version.running.is_some()).map(|(key, _)| key.clone()).collect()
    }

    /// Names of the models that have a version here, loaded or not.
    pub fn names(&self) -> Vec<Name> {
        let mut names: Vec<_> = self.versions.lock().keys().map(|key| key.name.clone()).collect();
        names.dedup();
        names
    }

    /// Writes to the registry, for all versions at once, that this worker takes no more work.
    pub async fn leave(&self) {
        let mut said = self.said.lock().await;
        self.versions.lock().values_mut().for_each(|version| {
            version.entry.state = ModelState::Unloading;
            version.entry.since = now_said(&mut said);
        });
        let entries = self.entries();
        let announced = self.announcer.announce_all(&entries).await;
        for (entry, announced) in entries.iter().zip(announced) {
            if let Err(error) = announced {
                tracing::warn!(model = %entry.model, %error, "could not announce that this worker leaves");
            }
        }
    }

    /// This worker's registry entries.
    pub fn entries(&self) -> Vec<WorkerEntry> {
        self.versions.lock().values().map(|version| version.entry.clone()).collect()
    }

    fn entries_of(&self, model: &str) -> Vec<WorkerEntry> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.model.name == model);
        entries
    }

    /// Closes all queues and returns all threads, to be joined.
    pub fn close(&self) -> Vec<JoinHandle<()>> {
        let mut all = std::mem::take(&mut *self.retired.lock());
        for version in std::mem::take(&mut *self.versions.lock()).into_values() {
            if let Some(running) = version.running {
                running.instances.model.queue.close();
                all.push(running.instances.threads);
            }
        }
        self.shared.forget_all();
        all.iter().flat_map(|threads| std::mem::take(&mut *threads.lock())).collect()
    }

    /// Announces that a served version may take work or may not. Announces nothing of a version that is unloaded or was replaced.
    pub async fn change(&self, model: &HostedModel, change: impl FnOnce(&mut Obstacles)) {
        let mut said = self.said.lock().await;
        let changed = self.versions.lock().get_mut(&model.key).and_then(|version| {
            let is_served = matches!(version.entry.state, ModelState::Ready | ModelState::Recovering(_));
            let is_this =
                version.running.as_ref().is_some_and(|running| std::ptr::eq(&*running.instances.model, model));
            if !(is_served && is_this) {
                return None;
            }
            let before = version.entry.clone();
            let mut obstacles = model.obstacles.lock();
            change(&mut obstacles);
            version.entry.state = obstacles.state();
            version.entry.content.iter_mut().for_each(|content| content.yields_to = obstacles.yields_to());
            (version.entry != before).then(|| version.entry.clone())
        });
        let Some(mut entry) = changed else { return };
        if let Err(error) = self.announce(&mut said, &mut entry).await {
            tracing::warn!(model = %model.key, %error, "could not announce yet whether the model can execute; trying on");
        }
        if let Some(version) = self.versions.lock().get_mut(&model.key) {
            version.entry.since = entry.since;
        }
    }

    /// The key of a served version's registry entry, and its `since`.
    fn announced(&self, model: &HostedModel) -> Option<(String, UnixMicros)> {
        let versions = self.versions.lock();
        let version = versions.get(&model.key)?;
        let running = version.running.as_ref()?;
        std::ptr::eq(&*running.instances.model, model).then(|| (version.entry.key(), version.entry.since))
    }

    /// Writes an entry to the registry. The caller holds the lock of `said`, and changes the hosted versions before it
    /// releases the lock, so that entries are written in the order of the changes.
    async fn announce(&self, said: &mut UnixMicros, entry: &mut WorkerEntry) -> Result<(), BusError> {
        entry.since = now_said(said);
        self.announcer.announce(entry).await
    }

    fn entry(&self, key: &ModelKey, state: ModelState, config: String, capacity: usize) -> WorkerEntry {
        WorkerEntry {
            worker: self.shared.name.to_string(),
            service: self.options.service.clone(),
            host: hostname(),
            model: key.clone(),
            state,
            config,
            capacity,
            bulk: true,
            content: None,
            // Set when it is announced.
            since: UnixMicros::default(),
        }
    }
}

/// A time for a registry entry, later than all entries before. The caller keeps the lock of `said` until the entry is
/// announced.
fn now_said(said: &mut UnixMicros) -> UnixMicros {
    *said = UnixMicros::now().max(said.after(Duration::from_micros(1)));
    *said
}
