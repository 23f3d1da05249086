//! What the gateway knows of models: which exist, which are ready, and how a request for each one runs.
//!
//! Workers' entries come from the bus and lapse when they are not renewed; ensembles come from the model repository and
//! are compiled whenever the models they are made of change. Readers get an immutable [`Catalog`], replaced as a whole.

mod catalog;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use trireme_bus::{Bus, BusError, Connection, ModelState, RegistryEvent, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::{ModelConfig, Repository};
use trireme_runtime::TaskSet;

pub use catalog::{Catalog, ServedModel};

/// How often lapsed entries are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// The gateway's view of the registry. Clones share it.
#[derive(Clone)]
pub struct Registry(Arc<Shared>);

struct Shared {
    catalog: RwLock<Arc<Catalog>>,
    changed: watch::Sender<()>,
    state: Mutex<State>,
}

/// Where the catalog is made from.
struct State {
    repository: Repository,
    entries: HashMap<String, Live>,
    /// Parsed configurations, by the text they came as: renewals carry the same text again and again.
    configs: HashMap<String, Arc<ModelConfig>>,
    /// Versions of models seen since the start: they are known even when nobody serves them right now.
    known: BTreeMap<String, std::collections::BTreeSet<i64>>,
    /// How each version was served last, where models are kept whose workers have gone.
    kept: Option<BTreeMap<String, BTreeMap<i64, Arc<ModelConfig>>>>,
}

struct Live {
    entry: WorkerEntry,
    renewed: Instant,
}

// === impl Registry ===

impl Registry {
    /// Starts to follow the registry. Ensembles, and the names of models that should be there, come from `repository`. With
    /// `keep_models` a model that was served once counts as served when its workers have gone.
    pub async fn follow(
        bus: &dyn Bus,
        repository: Repository,
        keep_models: bool,
        tasks: &TaskSet,
    ) -> Result<Registry, BusError> {
        let known = repository.models().map(|m| (m.name.clone(), m.versions.iter().copied().collect())).collect();
        let kept = keep_models.then(BTreeMap::new);
        let state = State { repository, entries: HashMap::new(), configs: HashMap::new(), known, kept };
        let registry = Registry(Arc::new(Shared {
            catalog: RwLock::new(Arc::new(state.catalog())),
            changed: watch::channel(()).0,
            state: Mutex::new(state),
        }));
        let events = bus.watch_registry().await?;
        let task = registry.clone().run(events, bus.connection(), tasks.stopping().clone());
        tasks.spawn("registry", task);
        Ok(registry)
    }

    /// What is served right now.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.0.catalog.read().clone()
    }

    /// Every worker that is there, with each model version it serves.
    pub fn workers(&self) -> Vec<(String, ModelKey)> {
        let state = self.0.state.lock();
        state.entries.values().map(|live| (live.entry.worker.clone(), live.entry.model.clone())).collect()
    }

    /// Waits until every model is ready, for `timeout` at most. Otherwise says which are not, and why.
    pub async fn until_ready(&self, timeout: Duration) -> Result<(), String> {
        let mut changed = self.0.changed.subscribe();
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let catalog = self.catalog();
            let unready = catalog.unready();
            if unready.is_empty() {
                return Ok(());
            }
            if catalog.is_final() {
                return Err(unready.join("; "));
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(unready.join("; "));
            }
        }
    }

    async fn run(
        self,
        mut events: mpsc::Receiver<RegistryEvent>,
        mut connection: watch::Receiver<Connection>,
        stopping: tokio_util::sync::CancellationToken,
    ) {
        let mut sweep = tokio::time::interval(SWEEP);
        let mut reachable = true;
        loop {
            let changed = tokio::select! {
                event = events.recv() => match event {
                    Some(event) => {
                        let mut changed = self.apply(event);
                        while let Ok(event) = events.try_recv() {
                            changed |= self.apply(event);
                        }
                        changed
                    }
                    None => return,
                },
                _ = connection.changed() => {
                    let now = matches!(*connection.borrow_and_update(), Connection::Up(_));
                    if now && !reachable {
                        // Workers could not renew while the broker was away: their time starts anew.
                        self.0.state.lock().entries.values_mut().for_each(|live| live.renewed = Instant::now());
                    }
                    reachable = now;
                    false
                }
                _ = sweep.tick() => reachable && self.sweep(),
                () = stopping.cancelled() => return,
            };
            if changed {
                let catalog = Arc::new(self.0.state.lock().catalog());
                let before = std::mem::replace(&mut *self.0.catalog.write(), catalog.clone());
                catalog.log_changes(&before);
                self.0.changed.send_replace(());
            }
        }
    }

    fn apply(&self, event: RegistryEvent) -> bool {
        let mut state = self.0.state.lock();
        match event {
            RegistryEvent::Put(entry) => state.put(entry),
            RegistryEvent::Delete(key) => state.entries.remove(&key).is_some(),
        }
    }

    /// Removes entries that were not renewed in time.
    fn sweep(&self) -> bool {
        let mut state = self.0.state.lock();
        let before = state.entries.len();
        state.entries.retain(|_, live| {
            let alive = live.renewed.elapsed() <= WorkerEntry::TIME_TO_LIVE;
            if !alive {
                tracing::warn!(worker = live.entry.worker, model = %live.entry.model, "worker stopped renewing its entry");
            }
            alive
        });
        state.entries.len() != before
    }
}

// === impl State ===

impl State {
    fn put(&mut self, entry: WorkerEntry) -> bool {
        if !self.configs.contains_key(&entry.config) {
            match ModelConfig::from_json(&entry.config) {
                Ok(config) => self.configs.insert(entry.config.clone(), Arc::new(config)),
                Err(error) => {
                    tracing::warn!(worker = entry.worker, model = %entry.model, %error, "ignored a worker's entry");
                    return false;
                }
            };
        }
        self.known.entry(entry.model.name.clone()).or_default().insert(entry.model.version);
        if let Some(kept) = self.kept.as_mut().filter(|_| entry.state == ModelState::Ready) {
            let config = self.configs[&entry.config].clone();
            kept.entry(entry.model.name.clone()).or_default().insert(entry.model.version, config);
        }
        let live = Live { entry: entry.clone(), renewed: Instant::now() };
        match self.entries.insert(entry.key(), live) {
            Some(before) => before.entry != entry,
            None => true,
        }
    }

    fn catalog(&self) -> Catalog {
        let kept = self.kept.iter().flatten().map(|(name, versions)| (name.as_str(), versions.clone()));
        let mut served: BTreeMap<&str, BTreeMap<i64, Arc<ModelConfig>>> = kept.collect();
        for Live { entry, .. } in self.entries.values() {
            if entry.state == ModelState::Ready {
                let config = self.configs[&entry.config].clone();
                served.entry(&entry.model.name).or_default().insert(entry.model.version, config);
            }
        }
        Catalog::build(&self.repository, &served, &self.known)
    }
}
