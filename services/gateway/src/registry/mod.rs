//! The gateway's registry of models: which exist, which are ready, and how a request for each of them runs.
//!
//! Workers' entries come from the bus. Ensembles come from the model repository and are compiled whenever their models
//! change. Both are in [`State`]. Readers get an immutable [`Catalog`], which is replaced as a whole.
//!
//! An entry is valid while the heartbeats of its worker arrive ([`processes`]). When they stop, the gateway deletes the
//! entry from the store, and forgets it after that has succeeded: while the store cannot be reached, no entry is
//! forgotten. If a process's heartbeat does not match its known entries, the gateway asks the process to write them
//! again.

mod catalog;
mod contents;
mod labels;
mod offering;
mod processes;
mod spaces;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use trireme_bus::{
    Bus, BusError, Connection, ContentChoice, ContentQuestion, Heartbeat, RegistryEvent, RegistryEvents, TopicValues,
    WorkerEntry,
};
use trireme_inference::ModelKey;
use trireme_model_repository::{EnsembleError, ModelConfig, Repository, RepositoryModel, compile_ensemble};
use trireme_runtime::{ControlOptions, TaskSet};

use state::State;

pub use catalog::{Catalog, ServedModel};
pub use contents::Judgement;
pub use labels::Labels;
pub use processes::Process;
pub use state::WantedQueue;

/// Time between two looks for entries whose workers are silent.
const SWEEP: Duration = Duration::from_millis(500);

/// A gateway that stood still for longer than this may have missed heartbeats meanwhile.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Most entries that are being deleted at a time.
const MOST_LAPSING: usize = 16;

/// Shortest time between two catalogs that are built because of changes from the bus.
const PUBLISH_PERIOD: Duration = Duration::from_millis(20);

/// The gateway's view of the registry. Clones share it.
#[derive(Clone)]
pub struct Registry(Arc<RegistryView>);

struct RegistryView {
    catalog: RwLock<Arc<Catalog>>,
    changed: watch::Sender<()>,
    /// Notified of every event of the store.
    seen: watch::Sender<()>,
    state: Mutex<State>,
    /// Whether the state has changed since the catalog was built.
    stale: AtomicBool,
}

// === impl Registry ===

impl Registry {
    /// Starts to follow the registry and the heartbeats of all processes; `own` is the name of this process. Ensembles,
    /// and the names of models that should be served, come from `repository`. With `keep_models`, a model that was
    /// served once counts as served after its workers have gone.
    pub async fn follow(
        bus: Arc<dyn Bus>,
        own: &str,
        repository: Repository,
        control: &ControlOptions,
        keep_models: bool,
        tasks: &TaskSet,
    ) -> Result<Registry, BusError> {
        let state = State::new(own, repository, control, keep_models);
        let registry = Registry(Arc::new(RegistryView {
            catalog: RwLock::new(Arc::new(state.catalog())),
            changed: watch::channel(()).0,
            seen: watch::channel(()).0,
            state: Mutex::new(state),
            stale: AtomicBool::new(false),
        }));
        let heartbeats = bus.heartbeats().await?;
        let events = bus.watch_registry().await?;
        tasks.spawn_until_stop("registry", registry.clone().run(bus, events, heartbeats));
        Ok(registry)
    }

    /// Replaces the repository. Models that are broken in the new one stay as they were.
    pub fn replace(&self, repository: Repository) {
        self.0.state.lock().replace(repository);
        self.publish();
    }

    /// Marks a model as wanted, with `model` as its repository entry, or as not wanted any more.
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

    /// Whether an ensemble could be served now; the error says why not.
    pub fn try_ensemble(&self, ensemble: &RepositoryModel) -> Result<(), EnsembleError> {
        let state = self.0.state.lock();
        let served = state.served();
        let lookup = |name: &str, version| catalog::find_config(&state.repository, &served, name, version);
        ensemble
            .versions
            .iter()
            .try_for_each(|&version| compile_ensemble(ensemble.config_of(version), &lookup).map(drop))
    }

    /// The models that an ensemble is composed of, as far as the repository has them.
    pub fn composing(&self, ensemble: &str) -> BTreeSet<String> {
        self.0.state.lock().repository.composing(ensemble)
    }

    /// Whether a wanted ensemble other than `except` is composed of this model.
    pub fn is_needed(&self, model: &str, except: &str) -> bool {
        let state = self.0.state.lock();
        let others = state.wanted.iter().filter(|name| *name != except);
        others.into_iter().any(|name| state.repository.composing(name).contains(model))
    }

    /// Takes in entries from a worker's answer before the bus brings them. Takes in all of them at once, so that one of
    /// two versions is served at any time while one replaces the other.
    pub fn take(&self, entries: impl IntoIterator<Item = WorkerEntry>) {
        let changed = {
            let mut state = self.0.state.lock();
            entries.into_iter().fold(false, |changed, entry| state.take(entry) | changed)
        };
        // The bus may have brought the same entries before, and the catalog may not have them yet.
        if changed || self.0.stale.load(Ordering::Acquire) {
            self.publish();
        }
    }

    fn publish(&self) {
        let (catalog, before) = {
            // Held until the catalog is in its place, so that of two concurrent calls the newer catalog stays.
            let mut state = self.0.state.lock();
            self.0.stale.store(false, Ordering::Release);
            state.keep();
            let mut catalog = state.catalog();
            catalog.follow(&self.0.catalog.read());
            let catalog = Arc::new(catalog);
            let before = std::mem::replace(&mut *self.0.catalog.write(), catalog.clone());
            (catalog, before)
        };
        catalog.log_changes(&before);
        self.0.changed.send_replace(());
    }

    /// The current catalog.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.0.catalog.read().clone()
    }

    /// Every worker with each model version that it serves.
    pub fn workers(&self) -> Vec<(String, ModelKey)> {
        let state = self.0.state.lock();
        state.entries.values().map(|live| (live.entry().worker.clone(), live.entry().model.clone())).collect()
    }

    /// Every worker's entry for each model version that it serves, and the time since the worker's last heartbeat.
    pub fn entries(&self) -> Vec<(WorkerEntry, Duration)> {
        let state = self.0.state.lock();
        let heard = |live: &state::Live| state.processes.heard_at(&live.entry().worker).elapsed();
        state.entries.values().map(|live| (live.whole(), heard(live))).collect()
    }

    /// The processes whose heartbeats arrive, in order of name.
    pub fn processes(&self) -> Vec<Process> {
        self.0.state.lock().processes.there(Instant::now())
    }

    /// Whether a process is alive, as far as its heartbeats tell.
    pub fn lives(&self, process: &str) -> bool {
        let now = Instant::now();
        let state = self.0.state.lock();
        // Without its own heartbeats this process hears no others either.
        !state.processes.hears_itself(now) || !state.processes.is_silent(process, now)
    }

    /// The queues that workers need. `None` until all entries were read.
    pub fn queues(&self) -> Option<BTreeMap<ModelKey, WantedQueue>> {
        let state = self.0.state.lock();
        state.is_complete.then(|| state.queues())
    }

    /// Whether a model version counts as served although it has no entries.
    pub fn keeps(&self, model: &ModelKey) -> bool {
        self.0.state.lock().keeps(model)
    }

    /// Counts models as served that were served like this before this gateway started: by name, with the configuration of each
    /// version.
    pub fn restore(&self, models: impl IntoIterator<Item = (String, BTreeMap<i64, Arc<ModelConfig>>)>) {
        {
            let mut state = self.0.state.lock();
            models.into_iter().for_each(|(name, versions)| state.restore(&name, versions));
        }
        self.publish();
    }

    /// The configurations of the models that workers serve now, as workers wrote them: by name and version.
    pub fn texts(&self) -> BTreeMap<String, BTreeMap<i64, String>> {
        self.0.state.lock().texts()
    }

    /// The model versions that count as served, each with its configuration and whether it has workers. Ensembles are not
    /// among them.
    pub fn served(&self) -> Vec<(ModelKey, Arc<ModelConfig>, bool)> {
        let state = self.0.state.lock();
        let texts = state.texts();
        let has_workers = |name: &str, version| texts.get(name).is_some_and(|found| found.contains_key(&version));
        let of = |(name, versions): (&str, BTreeMap<i64, Arc<ModelConfig>>)| {
            let name = name.to_owned();
            versions.into_iter().map(move |(version, config)| (name.clone(), version, config))
        };
        let served = state.served().into_iter().flat_map(of);
        let each = served.map(|(name, version, config)| {
            let workers = has_workers(&name, version);
            (ModelKey { name: name.into(), version }, config, workers)
        });
        each.collect()
    }

    /// Judges a worker's question about its content by the entries that the store has shown so far.
    pub fn judge(&self, question: &ContentQuestion) -> Judgement {
        self.0.state.lock().judge(question)
    }

    /// Takes in a choice that was found in the store, unless its event has not come yet. Returns whether it was not known.
    pub fn found_choice(&self, choice: ContentChoice, revision: u64) -> bool {
        self.0.state.lock().found_choice(choice, revision)
    }

    /// Notifies of every event of the store.
    pub fn seen(&self) -> watch::Receiver<()> {
        self.0.seen.subscribe()
    }

    /// The reasons of the workers whose content is refused, by model version.
    pub fn refused(&self) -> BTreeMap<ModelKey, Vec<String>> {
        self.0.state.lock().refused()
    }

    /// Says in the index which versions that are served have files with faults by now; those of earlier calls are forgotten.
    pub fn note_faults(&self, faulty: BTreeMap<ModelKey, String>) {
        let before = std::mem::replace(&mut self.0.state.lock().faulty, faulty.clone());
        if before != faulty {
            self.publish();
        }
    }

    /// Notifies of changes of the catalog.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    /// Waits until every model is ready, for `timeout` at most. The error says which are not, and why.
    pub async fn until_ready(&self, timeout: Duration) -> Result<(), Vec<String>> {
        let mut changed = self.0.changed.subscribe();
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let catalog = self.catalog();
            let unready = catalog.unready();
            if unready.is_empty() {
                return Ok(());
            }
            if catalog.is_final() {
                return Err(unready);
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(unready);
            }
        }
    }

    /// Waits until all entries that were in the store have been read.
    pub async fn until_read(&self) {
        let mut changed = self.0.changed.subscribe();
        while !self.0.state.lock().is_complete && changed.changed().await.is_ok() {}
    }

    async fn run(self, bus: Arc<dyn Bus>, mut events: RegistryEvents, mut heartbeats: TopicValues<Heartbeat>) {
        let mut connection = bus.connection();
        let mut reachable = matches!(*connection.borrow_and_update(), Connection::Up(_));
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut swept = Instant::now();
        let mut lapsing = FuturesUnordered::<BoxFuture<'static, (String, Option<u64>, Lapse)>>::new();
        let mut asking = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        let mut saying = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        let (mut published, mut is_changed) = (None::<Instant>, false);
        loop {
            let due = published.map(|published| published + PUBLISH_PERIOD);
            if is_changed && due.is_none_or(|due| due <= Instant::now()) {
                self.publish();
                (published, is_changed) = (Some(Instant::now()), false);
            }
            is_changed |= tokio::select! {
                event = events.recv() => match event {
                    Some(event) => {
                        let mut has_left = matches!(event, RegistryEvent::Delete(_));
                        let mut changed = self.apply(event);
                        while let Some(Some(event)) = events.recv().now_or_never() {
                            has_left |= matches!(event, RegistryEvent::Delete(_));
                            changed |= self.apply(event);
                        }
                        if has_left {
                            self.say_contested(&bus, &saying);
                        }
                        changed
                    }
                    None => return,
                },
                heartbeat = heartbeats.recv() => match heartbeat {
                    Some(heartbeat) => {
                        let name = heartbeat.process.clone();
                        if self.0.state.lock().hear(heartbeat, Instant::now()) {
                            tracing::info!(process = name, "its registry entries are not those it says it has; asking for them");
                            let bus = bus.clone();
                            asking.push(Box::pin(async move {
                                if let Err(error) = bus.ask_to_announce(&name).await {
                                    tracing::debug!(process = name, %error, "could not be asked for its registry entries");
                                }
                            }));
                        }
                        false
                    }
                    None => return,
                },
                Some((key, revision, outcome)) = lapsing.next() => self.lapsed(&key, revision, outcome),
                Some(()) = asking.next() => false,
                Some(()) = saying.next() => false,
                Ok(()) = connection.changed() => {
                    reachable = matches!(*connection.borrow_and_update(), Connection::Up(_));
                    // No heartbeat could arrive while the broker was away.
                    self.0.state.lock().processes.refresh(Instant::now());
                    false
                }
                _ = sweep.tick() => {
                    let stood_still = swept.elapsed() > SWEEP + STOOD_STILL;
                    swept = Instant::now();
                    let mut state = self.0.state.lock();
                    if stood_still {
                        state.processes.refresh(swept);
                    }
                    if reachable {
                        for (key, revision) in state.lapsing(swept, MOST_LAPSING - lapsing.len()) {
                            lapsing.push(Box::pin(lapse(bus.clone(), key, revision)));
                        }
                    }
                    drop(state);
                    self.say_contested(&bus, &saying);
                    false
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if is_changed => false,
            };
        }
    }

    /// Tells workers that have another content than the chosen one, and those that may take over.
    fn say_contested(&self, bus: &Arc<dyn Bus>, saying: &FuturesUnordered<BoxFuture<'static, ()>>) {
        if !saying.is_empty() {
            return;
        }
        for choice in self.0.state.lock().contested() {
            let bus = bus.clone();
            saying.push(Box::pin(async move {
                if let Err(error) = bus.say_chosen(&choice).await {
                    tracing::debug!(of = choice.of, %error, "could not say which content is chosen");
                }
            }));
        }
    }

    fn apply(&self, event: RegistryEvent) -> bool {
        let mut state = self.0.state.lock();
        let changed = match event {
            RegistryEvent::Put(entry, revision) => state.read(entry, revision, Instant::now()),
            RegistryEvent::Chosen(choice, revision) => state.chosen(choice, revision),
            RegistryEvent::Delete(key) => state.delete(&key),
            RegistryEvent::Complete => {
                state.complete();
                self.0.changed.send_replace(());
                false
            }
        };
        self.0.stale.fetch_or(changed, Ordering::AcqRel);
        self.0.seen.send_replace(());
        changed
    }

    fn lapsed(&self, key: &str, revision: Option<u64>, outcome: Lapse) -> bool {
        match outcome {
            Ok(None) => self.0.state.lock().lapsed(key, revision),
            Ok(Some((entry, revision))) => self.0.state.lock().find(entry, revision, Instant::now()),
            Err(error) => {
                tracing::debug!(key, %error, "the entry of a worker that is not heard any more could not be deleted; it stays");
                self.0.state.lock().stays(key, Instant::now());
                false
            }
        }
    }
}

/// The other entry that the store has under the key, if there is one.
type Lapse = Result<Option<(WorkerEntry, u64)>, BusError>;

/// Deletes the entry of a silent worker.
async fn lapse(bus: Arc<dyn Bus>, key: String, revision: Option<u64>) -> (String, Option<u64>, Lapse) {
    let outcome = bus.withdraw_for(&key, revision).await;
    (key, revision, outcome)
}

#[cfg(test)]
mod tests;
