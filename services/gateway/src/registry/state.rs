//! What the catalog is made from: the repository, what is wanted of it, and what workers say. No tasks, no bus.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_bus::{ModelState, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::{ModelConfig, Repository};
use trireme_runtime::{ControlMode, ControlOptions};

use super::catalog::{Catalog, Served, Sources, Unready};

/// The most model versions that are remembered, and the most entries of workers: more than any deployment has, so that
/// entries that somebody makes up do not use up the memory.
const MAX_KNOWN: usize = 10_000;

/// Where the catalog is made from.
pub struct State {
    pub repository: Repository,
    control: ControlOptions,
    /// In explicit mode: the models that are to be served.
    pub wanted: BTreeSet<String>,
    pub entries: HashMap<String, Live>,
    /// Versions of models seen since the start: they are known even when nobody serves them right now.
    known: BTreeMap<String, BTreeSet<i64>>,
    /// How each model was served last, where models are kept whose workers have gone.
    kept: Option<BTreeMap<String, BTreeMap<i64, Arc<ModelConfig>>>>,
}

/// A worker's entry, and when it last came.
pub struct Live {
    pub entry: WorkerEntry,
    /// What its `config` says. Workers of the same one share it, and renewals carry the same text again and again.
    config: Arc<ModelConfig>,
    pub renewed: Instant,
    /// Whether it was taken at its word and the bus has not brought it yet: what that brings until then is older.
    ahead: bool,
}

// === impl State ===

impl State {
    /// With `keep_models` a model that was served once counts as served when its workers have gone.
    pub fn new(repository: Repository, control: &ControlOptions, keep_models: bool) -> State {
        let mut state = State {
            repository: Repository::default(),
            control: control.clone(),
            wanted: control.initial(&repository),
            entries: HashMap::new(),
            known: BTreeMap::new(),
            kept: keep_models.then(BTreeMap::new),
        };
        state.replace(repository);
        state
    }

    /// Takes a worker's entry, from the bus or `ahead` of it. Says whether it tells anything new.
    pub fn put(&mut self, entry: WorkerEntry, ahead: bool) -> bool {
        let known = self.entries.get(&entry.key());
        if known.is_some_and(|known| known.entry.since > entry.since && (ahead || known.ahead)) {
            return false;
        }
        // What the bus has brought already is not ahead of it.
        let ahead = ahead && known.is_none_or(|known| known.ahead || known.entry.since < entry.since);
        let config = match self.config_of(&entry) {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(worker = entry.worker, model = %entry.model, error, "ignored a worker's entry");
                return false;
            }
        };
        self.learn(&entry.model.name, [entry.model.version]);
        let live = Live { entry: entry.clone(), config, renewed: Instant::now(), ahead };
        self.entries.insert(entry.key(), live).is_none_or(|before| before.entry != entry)
    }

    /// The configuration in an entry that may be taken: one that another entry has already, or a new one.
    fn config_of(&mut self, entry: &WorkerEntry) -> Result<Arc<ModelConfig>, String> {
        if !self.has_room_for(&entry.model) {
            return Err(format!("{MAX_KNOWN} model versions are known already"));
        }
        let known = self.entries.get(&entry.key());
        if known.is_none() && self.entries.len() >= MAX_KNOWN {
            return Err(format!("there are {MAX_KNOWN} entries already"));
        }
        let same = |live: &&Live| live.entry.config == entry.config;
        if let Some(live) = known.filter(same).or_else(|| self.entries.values().find(same)) {
            return Ok(live.config.clone());
        }
        ModelConfig::from_json(&entry.config).map(Arc::new).map_err(|error| error.to_string())
    }

    /// Whether a model version is known, or can be; what is neither served nor wanted makes room.
    fn has_room_for(&mut self, model: &ModelKey) -> bool {
        if self.known.get(&model.name).is_some_and(|versions| versions.contains(&model.version)) {
            return true;
        }
        let count = |known: &BTreeMap<String, BTreeSet<i64>>| known.values().map(BTreeSet::len).sum::<usize>();
        if count(&self.known) >= MAX_KNOWN {
            let mut known = std::mem::take(&mut self.known);
            known.retain(|name, _| {
                self.is_in_repository(name) || self.entries.values().any(|live| live.entry.model.name == *name)
            });
            self.known = known;
        }
        count(&self.known) < MAX_KNOWN
    }

    /// The bus says that an entry was taken back. Says whether that changed anything.
    pub fn delete(&mut self, key: &str) -> bool {
        match self.entries.get(key) {
            Some(live) if live.ahead => false,
            _ => self.entries.remove(key).is_some(),
        }
    }

    /// This process did not run for so long: what workers said meanwhile still has to be read.
    pub fn excuse(&mut self, stood_still: Duration) {
        let now = Instant::now();
        self.entries.values_mut().for_each(|live| live.renewed = now.min(live.renewed + stood_still));
    }

    /// Takes all entries as renewed.
    pub fn renew(&mut self) {
        self.entries.values_mut().for_each(|live| live.renewed = Instant::now());
    }

    /// Removes entries that were not renewed in time. Says whether there were any.
    pub fn sweep(&mut self) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, live| {
            let alive = live.renewed.elapsed() <= WorkerEntry::TIME_TO_LIVE;
            if !alive {
                tracing::warn!(worker = live.entry.worker, model = %live.entry.model, "worker stopped renewing its entry");
            }
            alive
        });
        self.entries.len() != before
    }

    /// Remembers that a model has these versions.
    pub fn learn(&mut self, model: &str, versions: impl IntoIterator<Item = i64>) {
        self.known.entry(model.to_owned()).or_default().extend(versions);
    }

    /// Takes the repository as it is now. Models that are broken in it stay as they were.
    pub fn replace(&mut self, repository: Repository) {
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
            // What was served once, and is in no repository, may come back.
            ControlMode::None => self.is_in_repository(name) || self.known.contains_key(name),
        }
    }

    /// Whether the server is not ready without a model. Where a repository says what there is to be, nobody waits for the
    /// return of a stranger that came and went.
    fn is_required(&self, name: &str) -> bool {
        let nobody_says = self.repository.models().next().is_none() && self.repository.broken().next().is_none();
        self.is_wanted(name) && (self.control.mode != ControlMode::None || nobody_says || self.is_in_repository(name))
    }

    /// What workers serve, and with `kept` what they served before they had all gone.
    pub fn served(&self) -> Served<'_> {
        let mut served = self.live();
        for (name, versions) in self.kept.iter().flatten().filter(|(name, _)| self.is_wanted(name)) {
            served.entry(name).or_insert_with(|| versions.clone());
        }
        served
    }

    fn live(&self) -> Served<'_> {
        let mut served = Served::new();
        for Live { entry, config, .. } in self.entries.values() {
            if entry.state == ModelState::Ready {
                let config = config.clone();
                served.entry(&entry.model.name).or_default().insert(entry.model.version, config);
            }
        }
        served
    }

    /// Remembers how models are served now, as a whole: versions that were replaced are not among them.
    pub fn keep(&mut self) {
        if self.kept.is_some() {
            let live: Vec<_> = self.live().into_iter().map(|(name, versions)| (name.to_owned(), versions)).collect();
            self.kept.iter_mut().for_each(|kept| kept.extend(live.iter().cloned()));
        }
    }

    /// What is served right now.
    pub fn catalog(&self) -> Catalog {
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
            required: &|name| self.is_required(name),
            by_request: self.control.mode == ControlMode::Explicit,
        })
    }
}

#[cfg(test)]
mod tests;
