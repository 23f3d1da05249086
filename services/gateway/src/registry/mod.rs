//! What the gateway knows of models: which exist, which are ready, and how a request for each one runs.
//!
//! Workers' entries come from the bus and lapse when they are not renewed; ensembles come from the model repository and
//! are compiled whenever the models they are made of change. Readers get an immutable [`Catalog`], replaced as a whole.

mod catalog;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use trireme_bus::{Bus, BusError, Connection, ModelState, RegistryEvent, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::{EnsembleError, ModelConfig, Repository, RepositoryModel, compile_ensemble};
use trireme_runtime::{ControlMode, ControlOptions, TaskSet};

use catalog::{Served, Sources, Unready};

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
    control: ControlOptions,
    /// In explicit mode: the models that are to be served.
    wanted: BTreeSet<String>,
    entries: HashMap<String, Live>,
    /// Parsed configurations, by the text they came as: renewals carry the same text again and again.
    configs: HashMap<String, Arc<ModelConfig>>,
    /// Versions of models seen since the start: they are known even when nobody serves them right now.
    known: BTreeMap<String, BTreeSet<i64>>,
    /// How each model was served last, where models are kept whose workers have gone.
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
        control: &ControlOptions,
        keep_models: bool,
        tasks: &TaskSet,
    ) -> Result<Registry, BusError> {
        let wanted = control.initial(&repository);
        let mut state = State {
            repository: Repository::default(),
            control: control.clone(),
            wanted,
            entries: HashMap::new(),
            configs: HashMap::new(),
            known: BTreeMap::new(),
            kept: keep_models.then(BTreeMap::new),
        };
        state.replace(repository);
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

    /// Takes the repository as it is now. Models that are broken in it stay as they were.
    pub fn replace(&self, repository: Repository) {
        self.0.state.lock().replace(repository);
        self.publish();
    }

    /// A model is wanted from now on, and as what, or no longer.
    pub fn want(&self, name: &str, model: Option<RepositoryModel>, wanted: bool) {
        let mut state = self.0.state.lock();
        if let Some(model) = model {
            state.learn(&model.name, model.versions.iter().copied().filter(|_| model.config.is_ensemble()));
            state.repository.insert(model);
        }
        match wanted {
            true => drop(state.wanted.insert(name.to_owned())),
            false => drop(state.wanted.remove(name)),
        }
        drop(state);
        self.publish();
    }

    /// Whether an ensemble could be served now, or why not.
    pub fn try_ensemble(&self, ensemble: &RepositoryModel) -> Result<(), EnsembleError> {
        let state = self.0.state.lock();
        let served = state.served();
        let lookup = |name: &str, version| catalog::find_config(&state.repository, &served, name, version);
        compile_ensemble(&ensemble.config, &lookup).map(drop)
    }

    /// The models that an ensemble is made of, in as far as the repository knows them.
    pub fn composing(&self, ensemble: &str) -> BTreeSet<String> {
        self.0.state.lock().repository.composing(ensemble)
    }

    /// Whether a wanted ensemble other than `except` is made of this model.
    pub fn is_needed(&self, model: &str, except: &str) -> bool {
        let state = self.0.state.lock();
        let others = state.wanted.iter().filter(|name| *name != except);
        others.into_iter().any(|name| state.repository.composing(name).contains(model))
    }

    /// Takes an entry at its word before the bus brings it.
    pub fn take(&self, entry: WorkerEntry) {
        if self.apply(RegistryEvent::Put(entry)) {
            self.publish();
        }
    }

    fn publish(&self) {
        let catalog = {
            let mut state = self.0.state.lock();
            state.keep();
            Arc::new(state.catalog())
        };
        let before = std::mem::replace(&mut *self.0.catalog.write(), catalog.clone());
        catalog.log_changes(&before);
        self.0.changed.send_replace(());
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

    /// Every worker's entry for each model version it serves, and how long ago it was renewed.
    pub fn entries(&self) -> Vec<(WorkerEntry, Duration)> {
        let state = self.0.state.lock();
        state.entries.values().map(|live| (live.entry.clone(), live.renewed.elapsed())).collect()
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
                self.publish();
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
        self.learn(&entry.model.name, [entry.model.version]);
        let live = Live { entry: entry.clone(), renewed: Instant::now() };
        match self.entries.insert(entry.key(), live) {
            Some(before) => {
                let changed = before.entry != entry;
                if before.entry.config != entry.config {
                    self.forget_config(&before.entry.config);
                }
                changed
            }
            None => true,
        }
    }

    /// Configurations that no entry has any more would add up with each reload.
    fn forget_config(&mut self, config: &str) {
        if !self.entries.values().any(|live| live.entry.config == config) {
            self.configs.remove(config);
        }
    }

    fn learn(&mut self, model: &str, versions: impl IntoIterator<Item = i64>) {
        self.known.entry(model.to_owned()).or_default().extend(versions);
    }

    /// Takes the repository as it is now.
    fn replace(&mut self, repository: Repository) {
        let before = std::mem::replace(&mut self.repository, repository);
        let broken: Vec<_> = self.repository.broken().map(|(name, _)| name.to_owned()).collect();
        for name in broken {
            if let Some(model) = before.model(&name) {
                self.repository.insert(model.clone());
            }
        }
        let models: Vec<_> = self.repository.models().map(|m| (m.name.clone(), m.versions.clone())).collect();
        for (name, versions) in models {
            if self.is_wanted(&name) {
                self.learn(&name, versions);
            }
        }
    }

    fn is_in_repository(&self, name: &str) -> bool {
        self.repository.model(name).is_some() || self.repository.broken().any(|(broken, _)| broken == name)
    }

    /// Whether a model is meant to be served.
    fn is_wanted(&self, name: &str) -> bool {
        match self.control.mode {
            ControlMode::Explicit => self.wanted.contains(name),
            ControlMode::Poll => self.is_in_repository(name),
            // Without a repository, what was served once is meant to be.
            ControlMode::None => self.is_in_repository(name) || self.known.contains_key(name),
        }
    }

    /// What workers serve, and with `kept` what they served before they had all gone.
    fn served(&self) -> Served<'_> {
        let mut served = self.live();
        for (name, versions) in self.kept.iter().flatten().filter(|(name, _)| self.is_wanted(name)) {
            served.entry(name).or_insert_with(|| versions.clone());
        }
        served
    }

    fn live(&self) -> Served<'_> {
        let mut served = Served::new();
        for Live { entry, .. } in self.entries.values() {
            if entry.state == ModelState::Ready {
                let config = self.configs[&entry.config].clone();
                served.entry(&entry.model.name).or_default().insert(entry.model.version, config);
            }
        }
        served
    }

    /// Remembers how models are served now, as a whole: versions that were replaced are not among them.
    fn keep(&mut self) {
        if self.kept.is_some() {
            let live: Vec<_> = self.live().into_iter().map(|(name, versions)| (name.to_owned(), versions)).collect();
            self.kept.iter_mut().for_each(|kept| kept.extend(live.iter().cloned()));
        }
    }

    fn catalog(&self) -> Catalog {
        let absent = |versions: &BTreeSet<i64>| versions.iter().map(|&version| (version, Unready::Absent)).collect();
        let mut known: BTreeMap<String, BTreeMap<i64, Unready>> =
            self.known.iter().map(|(name, versions)| (name.clone(), absent(versions))).collect();
        for model in self.repository.models() {
            known.entry(model.name.clone()).or_default();
        }
        for (name, broken) in self.repository.broken() {
            let versions = known.entry(name.to_owned()).or_default();
            if self.is_wanted(name) {
                let failed = || Unready::Failed(broken.fault.to_string());
                versions.extend(broken.versions.last().map(|&version| (version, failed())));
            }
        }
        for Live { entry, .. } in self.entries.values() {
            let state = match &entry.state {
                ModelState::Ready => continue,
                ModelState::Unloading => Unready::Unloading,
                ModelState::Unavailable(reason) => Unready::Failed(reason.clone()),
            };
            known.entry(entry.model.name.clone()).or_default().insert(entry.model.version, state);
        }
        // Names that were unloaded and are in no repository are history.
        known.retain(|name, versions| !versions.is_empty() || self.is_in_repository(name) || self.is_wanted(name));
        Catalog::build(Sources {
            repository: &self.repository,
            served: self.served(),
            known,
            wanted: &|name| self.is_wanted(name),
            by_request: self.control.mode == ControlMode::Explicit,
        })
    }
}
