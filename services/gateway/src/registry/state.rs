//! The data behind the catalog: the repository, the wanted models, and the workers' entries. No tasks, no bus.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use trireme_bus::{Heartbeat, ModelState, WorkerEntry, escape_token};
use trireme_inference::ModelKey;
use trireme_model_repository::{ModelConfig, Repository};
use trireme_runtime::{ControlMode, ControlOptions};

use super::catalog::{Catalog, Served, Sources, Unready};
use super::contents::Choices;
use super::processes::Processes;

mod live;
mod queues;
mod serving;

use live::{Config, Deletion, Standing};

pub use live::Live;
pub use queues::WantedQueue;

/// Most model versions, and most entries of workers, that are remembered: more than any deployment has, so that forged
/// entries cannot use up the memory.
const MAX_KNOWN: usize = 10_000;

/// The state from which the catalog is built.
pub struct State {
    pub repository: Repository,
    control: ControlOptions,
    /// The models that are to be served, in explicit mode.
    pub wanted: BTreeSet<String>,
    pub entries: BTreeMap<String, Live>,
    /// The keys of the entries of each worker.
    owners: HashMap<String, BTreeSet<String>>,
    pub processes: Processes,
    /// Whether all entries were read that were in the store at the start.
    pub is_complete: bool,
    /// Counts the readings of the whole store. A revision lower than the last one shows that it is read again.
    pass: u64,
    last_revision: u64,
    is_read_anew: bool,
    /// Versions of models seen since the start: they stay known while no worker serves them.
    known: BTreeMap<String, BTreeSet<i64>>,
    /// How each model was last served, if models are kept after their workers have gone.
    kept: Option<BTreeMap<String, BTreeMap<i64, Arc<ModelConfig>>>>,
    /// Which contents are served.
    choices: Choices,
    /// The faults in files of versions that are served.
    pub faulty: BTreeMap<ModelKey, String>,
}

/// Most models of a worker that a log line names.
const MOST_NAMED: usize = 5;

// === impl State ===

impl State {
    /// With `keep_models`, a model that was served once counts as served after its workers have gone.
    pub fn new(own: &str, repository: Repository, control: &ControlOptions, keep_models: bool) -> State {
        let mut state = State {
            repository: Repository::default(),
            control: control.clone(),
            wanted: control.initial(&repository),
            entries: BTreeMap::new(),
            owners: HashMap::new(),
            processes: Processes::new(own, Instant::now()),
            is_complete: false,
            pass: 0,
            last_revision: 0,
            is_read_anew: false,
            known: BTreeMap::new(),
            kept: keep_models.then(BTreeMap::new),
            choices: Choices::default(),
            faulty: BTreeMap::new(),
        };
        state.replace(repository);
        state
    }

    /// Takes in an entry from a worker's answer before the bus brings it. Returns whether it changes anything.
    pub fn take(&mut self, entry: WorkerEntry) -> bool {
        self.put(entry, None, Instant::now())
    }

    /// Takes in a worker's entry from the bus.
    pub fn read(&mut self, entry: WorkerEntry, revision: u64, now: Instant) -> bool {
        self.see(revision);
        self.put(entry, Some(revision), now)
    }

    fn see(&mut self, revision: u64) {
        if revision <= self.last_revision {
            self.pass += 1;
            self.is_read_anew = true;
        }
        self.last_revision = revision;
    }

    /// Takes in a worker's entry that was found in the store.
    pub fn find(&mut self, entry: WorkerEntry, revision: u64, now: Instant) -> bool {
        self.put(entry, Some(revision), now)
    }

    /// The bus has brought all entries of the store. If it has done so again, entries that it has not brought are lost:
    /// their workers are alive and have to write them again.
    pub fn complete(&mut self) {
        let (pass, all_lost) = (self.pass, !self.is_read_anew);
        if self.is_complete {
            // If no entry that was known before came again, it is unknown which ones came now.
            let after = |live: &mut Live| live.standing = live.standing.after_reading(!all_lost && live.pass == pass);
            self.entries.values_mut().for_each(after);
            self.choices.lose(|read_in| all_lost || read_in != pass);
        }
        (self.is_complete, self.is_read_anew) = (true, false);
    }

    fn put(&mut self, mut entry: WorkerEntry, revision: Option<u64>, now: Instant) -> bool {
        let (key, ahead) = (entry.key(), revision.is_none());
        if revision.is_some() {
            self.processes.see(&entry.worker, now);
        }
        let known = self.entries.get_mut(&key);
        if let Some(known) = known
            && known.entry.since > entry.since
            && (ahead || known.standing == Standing::Ahead)
        {
            known.revision = revision.or(known.revision);
            return false;
        }
        let known = self.entries.get(&key);
        let standing = Standing::of(!ahead, known, entry.since);
        let config = match self.config_of(&key, &entry) {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(worker = entry.worker, model = %entry.model, error, "ignored a worker's entry");
                return false;
            }
        };
        entry.config.clear();
        self.learn(&entry.model.name, [entry.model.version]);
        let known = self.entries.get(&key);
        let is_news = known.is_none_or(|known| known.entry != entry || known.config.text != config.text);
        let revision = revision.or(known.and_then(|known| known.revision));
        self.owners.entry(entry.worker.clone()).or_default().insert(key.clone());
        let pass = self.pass;
        let deletion = Deletion::NotBegun;
        let live = Live { entry, config, revision, brought: now, pass, standing, deletion };
        self.entries.insert(key, live);
        is_news
    }

    /// The configuration of an entry that may be taken in: that of another entry with the same text, or a new one.
    fn config_of(&mut self, key: &str, entry: &WorkerEntry) -> Result<Arc<Config>, String> {
        if !self.has_room_for(&entry.model) {
            return Err(format!("{MAX_KNOWN} model versions are known already"));
        }
        let known = self.entries.get(key);
        if known.is_none() && self.entries.len() >= MAX_KNOWN {
            return Err(format!("there are {MAX_KNOWN} entries already"));
        }
        let same = |live: &&Live| live.config.text == entry.config;
        let of_model = format!("{}.", escape_token(&entry.model.name));
        let mut others = self.entries.range(of_model.clone()..).take_while(|(key, _)| key.starts_with(&of_model));
        if let Some(live) = known.filter(same).or_else(|| others.find_map(|(_, live)| Some(live).filter(same))) {
            return Ok(live.config.clone());
        }
        let model = ModelConfig::from_json(&entry.config).map(Arc::new).map_err(|error| error.to_string())?;
        State::check_levels(&model)?;
        Ok(Arc::new(Config { text: entry.config.clone(), model }))
    }

    /// Whether a model version is known, or can become known. Versions that are neither served nor wanted make room.
    fn has_room_for(&mut self, model: &ModelKey) -> bool {
        if self.known.get(model.name.as_str()).is_some_and(|versions| versions.contains(&model.version)) {
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

    /// The entry was withdrawn. Returns whether that changed anything.
    pub fn delete(&mut self, key: &str) -> bool {
        match self.entries.get(key) {
            Some(live) if live.standing == Standing::Ahead => false,
            _ => self.remove(key),
        }
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(live) = self.entries.remove(key) else { return false };
        if let Some(keys) = self.owners.get_mut(&live.entry.worker) {
            keys.remove(key);
            if keys.is_empty() {
                self.owners.remove(&live.entry.worker);
            }
        }
        true
    }

    /// Takes in a heartbeat. Returns whether the process has to be asked to write its entries again, because the
    /// heartbeat does not match its known entries.
    pub fn hear(&mut self, heartbeat: Heartbeat, now: Instant) -> bool {
        let name = heartbeat.process.clone();
        if !self.processes.hear(heartbeat, now) {
            return false;
        }
        let verdict = self.processes.compare(&name, self.sum(&name, Live::is_stored), now);
        if let Some(asked) = verdict.asked {
            // The process has written all of its entries, so the others are not its own.
            let since = |live: &Live| live.is_stored() && live.brought > asked;
            if self.processes.says(&name) == Some(self.sum(&name, since)) {
                let keys = self.owners.get(&name).into_iter().flatten();
                for key in keys {
                    if let Some(live) = self.entries.get_mut(key) {
                        live.standing = live.standing.after_writing(since(live));
                    }
                }
                return false;
            }
        }
        verdict.ask
    }

    /// The number of a worker's entries for which `counts` is true, and the sum of their `since`.
    fn sum(&self, worker: &str, counts: impl Fn(&Live) -> bool) -> (u32, u64) {
        let keys = self.owners.get(worker).into_iter().flatten();
        let entries = keys.filter_map(|key| self.entries.get(key)).filter(|live| counts(live));
        entries.fold((0, 0), |(count, sum), live| (count + 1, sum.wrapping_add(live.entry.since.0)))
    }

    /// At most `most` entries to delete because their worker is silent, each with its revision.
    pub fn lapsing(&mut self, now: Instant, most: usize) -> Vec<(String, Option<u64>)> {
        let owners = &self.owners;
        self.processes.forget(now, |name| owners.contains_key(name));
        if !self.processes.hears_itself(now) {
            return Vec::new();
        }
        let mut lapsing = Vec::new();
        for (worker, keys) in &self.owners {
            let is_silent = self.processes.is_silent(worker, now);
            let entries = || keys.iter().filter_map(|key| self.entries.get(key));
            let is_news = entries().all(|live| live.deletion == Deletion::NotBegun);
            if is_silent && lapsing.len() < most && is_news {
                let models = entries().map(|live| live.entry.model.to_string()).collect::<Vec<_>>();
                let (count, models) = (models.len(), models[..models.len().min(MOST_NAMED)].join(", "));
                tracing::warn!(worker, count, models, "a worker is not heard any more: its entries are deleted");
            }
            for key in keys {
                if lapsing.len() >= most {
                    return lapsing;
                }
                let Some(live) = self.entries.get_mut(key) else { continue };
                if (is_silent || live.standing == Standing::Stale) && live.deletion.is_due(now) {
                    live.deletion = Deletion::UnderWay;
                    lapsing.push((key.clone(), live.revision));
                }
            }
        }
        lapsing
    }

    /// The store has no longer an entry with this key and revision. Returns whether that changed anything.
    pub fn lapsed(&mut self, key: &str, revision: Option<u64>) -> bool {
        match self.entries.get(key) {
            Some(live) if live.revision == revision => {
                tracing::debug!(worker = live.entry.worker, model = %live.entry.model, "the entry of a worker was deleted");
                self.remove(key)
            }
            _ => false,
        }
    }

    /// The entry under a key could not be deleted: it stays, and the deletion is tried again.
    pub fn stays(&mut self, key: &str, now: Instant) {
        if let Some(live) = self.entries.get_mut(key) {
            live.deletion = Deletion::Failed(now);
        }
    }

    /// Whether a model version counts as served although it has no entries.
    pub fn keeps(&self, model: &ModelKey) -> bool {
        let kept = self.kept.as_ref().and_then(|kept| kept.get(model.name.as_str()));
        kept.is_some_and(|versions| versions.contains_key(&model.version)) && self.is_wanted(&model.name)
    }

    /// Counts a model as served with these configurations: another gateway, or this one before its restart, has seen it served.
    pub fn restore(&mut self, name: &str, versions: BTreeMap<i64, Arc<ModelConfig>>) {
        let has_room = versions.keys().all(|&version| self.has_room_for(&ModelKey { name: name.into(), version }));
        if let Some(kept) = self.kept.as_mut().filter(|_| has_room) {
            let numbers: Vec<_> = versions.keys().copied().collect();
            kept.entry(name.to_owned()).or_insert(versions);
            self.learn(name, numbers);
        }
    }

    /// The configurations of the models that workers serve now, as workers wrote them, by version.
    pub fn texts(&self) -> BTreeMap<String, BTreeMap<i64, String>> {
        let mut texts: BTreeMap<String, BTreeMap<i64, String>> = BTreeMap::new();
        for Live { entry, config, .. } in self.serving() {
            texts.entry(entry.model.name.to_string()).or_default().insert(entry.model.version, config.text.clone());
        }
        texts
    }

    /// Remembers that a model has these versions.
    pub fn learn(&mut self, model: &str, versions: impl IntoIterator<Item = i64>) {
        self.known.entry(model.to_owned()).or_default().extend(versions);
    }

    /// Replaces the repository. Models that are broken in the new one stay as they were.
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
            // A model that was served once and is in no repository may come back.
            ControlMode::None => self.is_in_repository(name) || self.known.contains_key(name),
        }
    }

    /// Whether the server is not ready without a model. If a repository lists the models, a model that is not in it is
    /// not waited for after its workers have gone.
    fn is_required(&self, name: &str) -> bool {
        let nobody_says = self.repository.models().next().is_none() && self.repository.broken().next().is_none();
        self.is_wanted(name) && (self.control.mode != ControlMode::None || nobody_says || self.is_in_repository(name))
    }

    /// The models that workers serve and, with `kept`, those that they served before all of them had gone.
    pub fn served(&self) -> Served<'_> {
        let mut served = self.live();
        for (name, versions) in self.kept.iter().flatten().filter(|(name, _)| self.is_wanted(name)) {
            served.entry(name).or_insert_with(|| versions.clone());
        }
        served
    }

    fn live(&self) -> Served<'_> {
        let mut served = Served::new();
        for Live { entry, config, .. } in self.serving() {
            let config = config.model.clone();
            served.entry(&entry.model.name).or_default().insert(entry.model.version, config);
        }
        served
    }

    /// The versions whose workers all leave requests of the bulk lane where they are.
    fn live_only(&self) -> BTreeSet<ModelKey> {
        let is_served = |entry: &&WorkerEntry| matches!(entry.state, ModelState::Ready | ModelState::Recovering(_));
        let (bulk, live): (Vec<_>, Vec<_>) =
            self.entries.values().map(Live::entry).filter(is_served).partition(|entry| entry.bulk);
        let mut live_only: BTreeSet<_> = live.into_iter().map(|entry| entry.model.clone()).collect();
        for entry in bulk {
            live_only.remove(&entry.model);
        }
        live_only
    }

    /// Remembers how models are served now, as a whole: versions that were replaced are left out.
    pub fn keep(&mut self) {
        if self.kept.is_some() {
            let live: Vec<_> = self.live().into_iter().map(|(name, versions)| (name.to_owned(), versions)).collect();
            self.kept.iter_mut().for_each(|kept| kept.extend(live.iter().cloned()));
        }
    }

    /// Builds the catalog from the current state.
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
                ModelState::Ready | ModelState::Recovering(_) => continue,
                ModelState::Unloading => Unready::Unloading,
                ModelState::Loading(activity) => Unready::Loading(activity.clone()),
                ModelState::Unavailable(reason) => Unready::Failed(reason.clone()),
            };
            known.entry(entry.model.name.to_string()).or_default().insert(entry.model.version, state);
        }
        // A name without versions that is neither in a repository nor wanted is left out.
        known.retain(|name, versions| !versions.is_empty() || self.is_in_repository(name) || self.is_wanted(name));
        Catalog::build(Sources {
            repository: &self.repository,
            served: self.served(),
            recovering: self.recovering(),
            doubts: self.doubts(),
            live_only: self.live_only(),
            contents: self.contents(),
            spaces: self.spaces(),
            known,
            wanted: &|name| self.is_wanted(name),
            required: &|name| self.is_required(name),
            by_request: self.control.mode == ControlMode::Explicit,
        })
    }
}

#[cfg(test)]
mod tests;
