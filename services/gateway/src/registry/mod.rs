//! What the gateway knows of models: which exist, which are ready, and how a request for each one runs.
//!
//! Workers' entries come from the bus and lapse when they are not renewed; ensembles come from the model repository and
//! are compiled whenever the models they are made of change: both are in [`State`]. Readers get an immutable [`Catalog`],
//! replaced as a whole.

mod catalog;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use trireme_bus::{Bus, BusError, Connection, RegistryEvent, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::{EnsembleError, Repository, RepositoryModel, compile_ensemble};
use trireme_runtime::{ControlOptions, TaskSet};

use state::State;

pub use catalog::{Catalog, ServedModel};

/// How often lapsed entries are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// When nobody at all is heard, it is rather the broker that is silent, or the way to it: entries are kept for so long then.
const SILENCE: Duration = Duration::from_secs(9);

/// The gateway's view of the registry. Clones share it.
#[derive(Clone)]
pub struct Registry(Arc<Shared>);

struct Shared {
    catalog: RwLock<Arc<Catalog>>,
    changed: watch::Sender<()>,
    state: Mutex<State>,
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
        let state = State::new(repository, control, keep_models);
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

    /// Takes entries at their word before the bus brings them, all at once: where a version takes over from another, one of
    /// both is there at any time.
    pub fn take(&self, entries: impl IntoIterator<Item = WorkerEntry>) {
        let changed = {
            let mut state = self.0.state.lock();
            entries.into_iter().fold(false, |changed, entry| state.put(entry, true) | changed)
        };
        if changed {
            self.publish();
        }
    }

    fn publish(&self) {
        let (catalog, before) = {
            // Until it is in its place: of two at once, the newer one must stay.
            let mut state = self.0.state.lock();
            state.keep();
            let catalog = Arc::new(state.catalog());
            let before = std::mem::replace(&mut *self.0.catalog.write(), catalog.clone());
            (catalog, before)
        };
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
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut swept, mut heard) = (Instant::now(), Instant::now());
        let mut reachable = true;
        loop {
            let changed = tokio::select! {
                event = events.recv() => match event {
                    Some(event) => {
                        heard = Instant::now();
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
                        self.0.state.lock().renew();
                        heard = Instant::now();
                    }
                    reachable = now;
                    false
                }
                _ = sweep.tick() => {
                    let stood_still = swept.elapsed().saturating_sub(SWEEP);
                    swept = Instant::now();
                    let mut state = self.0.state.lock();
                    state.excuse(stood_still);
                    heard = Instant::now().min(heard + stood_still);
                    reachable && may_lapse(heard.elapsed()) && state.sweep()
                }
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
            RegistryEvent::Put(entry) => state.put(entry, false),
            RegistryEvent::Delete(key) => state.delete(&key),
        }
    }
}

/// Whether the silence of single workers says that they are gone, when the last word of any of them is so old.
fn may_lapse(silence: Duration) -> bool {
    silence < WorkerEntry::TIME_TO_LIVE / 2 || silence > SILENCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_lapses_while_nobody_is_heard_unless_for_long() {
        let renewed = WorkerEntry::TIME_TO_LIVE / 3;
        assert!(may_lapse(Duration::ZERO) && may_lapse(renewed), "others are heard");
        assert!(!may_lapse(WorkerEntry::TIME_TO_LIVE), "all of them at once");
        assert!(may_lapse(SILENCE + renewed), "all of them, and for long");
    }
}
