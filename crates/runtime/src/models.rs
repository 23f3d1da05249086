//! The model versions that a worker hosts, and how they change while it runs.
//!
//! [`Models::apply`] makes the hosted versions of a model match the repository. It loads versions that are new or whose
//! files have changed, while the old ones go on to serve. Only when all of them are ready do they replace the old ones,
//! which then drain. If a version fails to load, the version that serves stays.
//!
//! How versions are unloaded is in [`retire`]. Not here: the decision which models are served (`worker` at the start,
//! `steward` later), and the path of work through a version (`hosted`, `execute`, `settle`).

mod retire;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trireme_bus::{BusError, ModelState, WorkerEntry};
use trireme_inference::{ModelKey, Tensor, UnixMicros};
use trireme_model_repository::{ModelConfig, RepositoryModel};

use crate::backend::{Backend, Instance, LoadError, LoadedModel, Outage};
use crate::canary::{self, Canary};
use crate::hosted::{HostedModel, Work};
use crate::intake;
use crate::limits;
use crate::load::{backend_of, load_watched, stage};
use crate::outage;
use crate::queue::WorkQueue;
use crate::queue_policy;
use crate::watchdog::{self, Executions};
use crate::worker::{Current, REOPEN_PAUSE, Shared, WorkerOptions, now_said, pull};

/// After a queue's levels have changed, the worker still pulls from the old levels for this long. Gateways learn of the
/// change sooner.
const LEFT_BEHIND: Duration = Duration::from_secs(60);

/// The model versions that a worker hosts.
pub(crate) struct Models {
    pub shared: Arc<Shared>,
    pub options: WorkerOptions,
    backends: Vec<Arc<dyn Backend>>,
    /// Cancelled when the worker takes no more work.
    pub pulling: CancellationToken,
    /// Cancelled at the same time, and when the worker ends because a model cannot be loaded: waiting for a queue is
    /// over then.
    pub hopeless: CancellationToken,
    versions: Arc<Mutex<BTreeMap<ModelKey, Version>>>,
    /// Threads of versions that were replaced or unloaded.
    retired: Mutex<Vec<JoinHandle<()>>>,
    /// The tasks that pull work.
    pub pulls: TaskTracker,
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

/// A loaded version, how long loading took, and its canary request.
struct Proven {
    loaded: LoadedModel,
    initial_states: Vec<Tensor>,
    canary: Option<Canary>,
    took: Duration,
}

/// A loaded version with its threads.
struct Instances {
    model: Arc<HostedModel>,
    threads: Vec<JoinHandle<()>>,
}

/// Closes the queue of a version that is not hosted after all. Otherwise its threads would wait for ever and keep the
/// model in memory.
struct Unhosted(Option<Arc<WorkQueue<Work>>>);

/// The task that pulls work for a version. It stays when the version's instances are replaced: deliveries on their way
/// go to the current instances.
struct Pull {
    current: Current,
    /// Cancelled to stop the task.
    stop: CancellationToken,
    /// Cancelled when the task has stopped.
    stopped: CancellationToken,
}

impl Running {
    /// Whether a version with this configuration uses the queue that this task pulls from.
    fn serves_queue_of(&self, config: &ModelConfig) -> bool {
        queue_policy::levels(&self.instances.model.config) == queue_policy::levels(config)
    }
}

/// The task that pulls from a queue's old levels, and how long it goes on after the levels have changed.
struct Before {
    pull: Pull,
    left_behind: Duration,
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

impl Drop for Unhosted {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.close();
        }
    }
}

// === impl Models ===

impl Models {
    pub fn new(shared: Arc<Shared>, options: WorkerOptions, backends: Vec<Arc<dyn Backend>>) -> Models {
        let (versions, retired, pulls) = (Arc::default(), Mutex::default(), TaskTracker::new());
        let pulling = CancellationToken::new();
        let hopeless = pulling.child_token();
        Models { shared, options, backends, pulling, hopeless, versions, retired, pulls }
    }

    /// The names of the backends.
    pub fn backends(&self) -> String {
        self.backends.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ")
    }

    /// Serves the model as it is in the repository now. A version that failed to load is tried again with `retry`, or
    /// when its files have changed.
    pub async fn apply(self: &Arc<Self>, model: &RepositoryModel, retry: bool) -> Result<Applied, BusError> {
        let backend = match backend_of(model, &self.backends) {
            Ok(Some(backend)) => backend,
            Ok(None) => return Ok(Applied::default()),
            Err(fault) => {
                let version = model.versions.last().copied().unwrap_or(1);
                if self.is_current(model, version, retry) {
                    return Ok(Applied::default());
                }
                self.refuse(model, version, &fault).await;
                let (entries, faults) = (self.entries_of(&model.name), vec![(version, fault)]);
                return Ok(Applied { mine: true, entries, faults });
            }
        };
        let changed: Vec<i64> =
            model.versions.iter().copied().filter(|version| !self.is_current(model, *version, retry)).collect();
        let loading = changed.iter().map(|&version| {
            let announce = async move |doing| self.announce_load(model, version, doing).await;
            load_watched(model, version, backend.clone(), self.options.auto_complete, announce)
        });
        let outcomes = join_all(loading).await;
        let (mut loaded, mut faults) = (Vec::new(), Vec::new());
        for (version, outcome) in changed.into_iter().zip(outcomes) {
            let proven = match outcome {
                Ok((instance, initial_states, took)) => self.prove(&model.name, instance, initial_states, took).await,
                Err(fault) => Err(fault),
            };
            match proven {
                Ok(instance) => loaded.push((version, instance)),
                Err(fault) => faults.push((version, fault)),
            }
        }
        for (version, fault) in &faults {
            self.refuse(model, *version, fault).await;
        }
        for (version, instance) in loaded {
            self.host(model, version, instance).await?;
        }
        let mut entries = match faults.is_empty() {
            true => self.retire(&model.name, &model.versions).await,
            false => Vec::new(),
        };
        entries.extend(self.entries_of(&model.name));
        Ok(Applied { mine: true, entries, faults })
    }

    /// Stops serving the model. `None` if it is not hosted here.
    pub async fn unload(&self, model: &str) -> Option<Vec<WorkerEntry>> {
        let known = self.versions.lock().keys().any(|key| key.name == model);
        let entries = self.retire(model, &[]).await;
        known.then_some(entries)
    }

    /// The versions that are loaded and take work.
    pub fn ready(&self) -> Vec<ModelKey> {
        let versions = self.versions.lock();
        versions.iter().filter(|(_, version)| version.running.is_some()).map(|(key, _)| key.clone()).collect()
    }

    /// Names of the models that have a version here, loaded or not.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.versions.lock().keys().map(|key| key.name.clone()).collect();
        names.dedup();
        names
    }

    /// Writes to the registry, for all versions at once, that this worker takes no more work.
    pub async fn leave(&self) {
        let mut said = self.shared.said.lock().await;
        self.versions.lock().values_mut().for_each(|version| {
            version.entry.state = ModelState::Unloading;
            version.entry.since = now_said(&mut said);
        });
        let entries = self.entries();
        let announced = self.shared.announcer.announce_all(&entries).await;
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
        let mut threads = std::mem::take(&mut *self.retired.lock());
        for version in std::mem::take(&mut *self.versions.lock()).into_values() {
            if let Some(running) = version.running {
                running.instances.model.queue.close();
                threads.extend(running.instances.threads);
            }
        }
        self.shared.forget_all();
        threads
    }

    /// Whether the last attempt to load the version used the current files. With `retry`, a failed attempt does not
    /// count.
    fn is_current(&self, model: &RepositoryModel, version: i64, retry: bool) -> bool {
        let key = ModelKey { name: model.name.clone(), version };
        let versions = self.versions.lock();
        versions
            .get(&key)
            .is_some_and(|known| known.fingerprint == model.fingerprint(version) && !(known.failed && retry))
    }

    /// Says in the registry that a version loads, where none of it serves meanwhile.
    async fn announce_load(&self, model: &RepositoryModel, version: i64, doing: String) {
        let key = ModelKey { name: model.name.clone(), version };
        let mut said = self.shared.said.lock().await;
        if self.versions.lock().get(&key).is_some_and(|known| known.running.is_some()) {
            return;
        }
        let mut entry = self.entry(&key, ModelState::Loading(doing), model.config.to_json(), 0);
        if let Err(error) = self.shared.announce(&mut said, &mut entry).await {
            tracing::debug!(model = %key, %error, "could not announce that it is loading");
        }
    }

    /// Handles a version that could not be loaded: a version that served before goes on; otherwise the registry entry
    /// says why the model is not available.
    async fn refuse(&self, model: &RepositoryModel, version: i64, fault: &LoadError) {
        tracing::error!(model = model.name, version, %fault, "a model version could not be loaded");
        let key = ModelKey { name: model.name.clone(), version };
        let fingerprint = model.fingerprint(version);
        let mut said = self.shared.said.lock().await;
        if let Some(known) = self.versions.lock().get_mut(&key).filter(|known| known.running.is_some()) {
            (known.fingerprint, known.failed) = (fingerprint, true);
            return;
        }
        let mut entry = self.entry(&key, ModelState::Unavailable(fault.reason()), model.config.to_json(), 0);
        if let Err(error) = self.shared.announce(&mut said, &mut entry).await {
            tracing::warn!(model = %key, %error, "could not announce that it is not available yet; trying on");
        }
        self.versions.lock().insert(key, Version { entry, fingerprint, failed: true, running: None });
    }

    /// Finds the model's canary request if canary requests are enabled.
    async fn prove(
        &self,
        name: &str,
        mut loaded: LoadedModel,
        initial_states: Vec<Tensor>,
        took: Duration,
    ) -> Result<Proven, LoadError> {
        let canary = match self.options.canary {
            Some(_) => Canary::prove(&mut loaded, name, self.options.execution_limit).await?,
            None => None,
        };
        Ok(Proven { loaded, initial_states, canary, took })
    }

    /// Lets a loaded version take work. The version that it replaces drains.
    async fn host(
        self: &Arc<Self>,
        model: &RepositoryModel,
        version: i64,
        Proven { loaded, initial_states, canary, took }: Proven,
    ) -> Result<(), BusError> {
        let key = ModelKey { name: model.name.clone(), version };
        let LoadedModel { config, instances, policy, .. } = loaded;
        let batched = config.max_batch_size > 0 || policy.max_rows() > 1;
        let in_hand = intake::most_in_hand(policy.as_ref(), &instances, config.has_queue_policy());
        let intake = intake::of(policy.as_ref(), &instances);
        let queue = WorkQueue::new(policy, in_hand, intake);
        let statistics = self.shared.statistics.model(&key);
        // A stepwise instance has no batches, and no answer that another request could have.
        let in_batches = instances.iter().all(|instance| matches!(instance, Instance::Batch(_)));
        let caches = self.shared.step_answers.is_some() && config.response_cache && in_batches;
        let cached = caches.then(|| self.shared.loads.fetch_add(1, Ordering::Relaxed));
        let mut entry = self.entry(&key, ModelState::Ready, config.to_json(), queue.capacity());
        // A version that is replaced keeps its pulling task, and the token that stops the task.
        let intake = match self.versions.lock().get(&key).and_then(|known| known.running.as_ref()) {
            Some(running) if running.serves_queue_of(&config) => running.pull.stop.clone(),
            _ => self.pulling.child_token(),
        };
        let hosted = Arc::new(HostedModel {
            key: key.clone(),
            config,
            queue,
            worker: self.shared.clone(),
            admitted: AtomicU64::new(0),
            statistics,
            batched,
            initial_states,
            gone: CancellationToken::new(),
            intake: intake.clone(),
            canary,
            executions: Executions::default(),
            cached,
        });
        let mut unhosted = Unhosted(Some(hosted.queue.clone()));
        let outages: Option<Vec<_>> = instances.iter().map(Instance::outage).collect();
        let mut threads = Vec::new();
        for (index, instance) in instances.into_iter().enumerate() {
            let model = hosted.clone();
            let thread = std::thread::Builder::new().name(format!("{}-{index}", key.name));
            let started = thread.spawn(move || model.run_instance(instance));
            threads.push(started.map_err(|error| BusError::Refused {
                action: "starting an instance thread",
                reason: error.to_string(),
            })?);
        }
        self.declare(&hosted).await?;
        let mut said = self.shared.said.lock().await;
        match self.shared.announce(&mut said, &mut entry).await {
            // The announcer writes it as soon as the registry can be reached.
            Err(BusError::Unreachable(reason)) => {
                tracing::warn!(model = %key, reason, "could not be announced yet; trying on")
            }
            Err(error) => {
                let before = self.versions.lock().get(&key).map(|known| known.entry.clone());
                self.shared.announcer.forget(&entry, before);
                return Err(error);
            }
            Ok(()) => {}
        }
        unhosted.0 = None;
        let observed = Arc::downgrade(&hosted.queue);
        let load = move || observed.upgrade().map(|queue| queue.load()).unwrap_or_default();
        hosted.statistics.host(stage(&hosted.config.backend), took, load);
        self.shared.remember(&hosted);
        self.look_after(&hosted, outages.filter(|outages| !outages.is_empty()));
        let instances = Instances { model: hosted.clone(), threads };
        let fingerprint = model.fingerprint(version);
        let replaced = {
            let mut versions = self.versions.lock();
            let before = versions.remove(&key).and_then(|before| before.running);
            let (pull, replaced) = match before {
                Some(running) if running.serves_queue_of(&hosted.config) => {
                    *running.pull.current.write() = hosted;
                    (running.pull, Some(running.instances))
                }
                Some(Running { instances, pull }) => {
                    let left_behind = match instances.model.config.queue_levels() == hosted.config.queue_levels() {
                        // Both versions use the same levels, so the old task can stop at once.
                        true => Duration::ZERO,
                        false => LEFT_BEHIND,
                    };
                    // Deliveries of both tasks go to the current instances.
                    let current = pull.current.clone();
                    *current.write() = hosted;
                    let before = Before { pull, left_behind };
                    (self.start_pull(current, intake, Some(before)), Some(instances))
                }
                None => (self.start_pull(Arc::new(RwLock::new(hosted)), intake, None), None),
            };
            let running = Some(Running { instances, pull });
            versions.insert(key, Version { entry, fingerprint, failed: false, running });
            replaced
        };
        if let Some(replaced) = replaced {
            self.finish(replaced);
        }
        Ok(())
    }

    /// Declares the queue of a version. Waits as long as the bus, or the gateway that creates the stream, cannot be
    /// reached: loading the model may have taken minutes.
    async fn declare(&self, hosted: &HostedModel) -> Result<(), BusError> {
        let mut told = String::new();
        tokio::select! {
            learnt = self.shared.learn_settings() => learnt?,
            // The worker ends because another model cannot be loaded.
            () = self.hopeless.cancelled() => return Err(BusError::Unreachable("the worker cannot start".to_owned())),
        }
        loop {
            match self.shared.bus.declare_queue(&hosted.key, &hosted.queue_options()).await {
                Err(BusError::Unreachable(reason)) if !self.hopeless.is_cancelled() => {
                    if reason != told {
                        tracing::warn!(model = %hosted.key, reason, "its queue cannot be made yet; trying on");
                        told = reason;
                    }
                }
                declared => return declared,
            }
            tokio::select! {
                () = tokio::time::sleep(REOPEN_PAUSE) => {}
                () = self.hopeless.cancelled() => {}
            }
        }
    }

    /// Announces a new state of a version that is served. Announces nothing of a version that is unloaded or was replaced.
    pub async fn change(&self, model: &HostedModel, state: ModelState) {
        let mut said = self.shared.said.lock().await;
        let changed = self.versions.lock().get_mut(&model.key).and_then(|version| {
            let is_served = matches!(version.entry.state, ModelState::Ready | ModelState::Recovering(_));
            let is_this =
                version.running.as_ref().is_some_and(|running| std::ptr::eq(&*running.instances.model, model));
            (is_served && is_this).then(|| {
                version.entry.state = state;
                version.entry.clone()
            })
        });
        let Some(mut entry) = changed else { return };
        if let Err(error) = self.shared.announce(&mut said, &mut entry).await {
            tracing::warn!(model = %model.key, %error, "could not announce yet whether the model can execute; trying on");
        }
        if let Some(version) = self.versions.lock().get_mut(&model.key) {
            version.entry.since = entry.since;
        }
    }

    /// Starts the tasks that a version needs. They end when the version is gone.
    fn look_after(self: &Arc<Self>, model: &Arc<HostedModel>, outages: Option<Vec<watch::Receiver<Outage>>>) {
        let tasks = &self.shared.tasks;
        let spawn = |name, task: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let gone = model.gone.clone();
            tasks.spawn(name, async move {
                tokio::select! {
                    () = task => {}
                    () = gone.cancelled() => {}
                }
            });
        };
        if let Some(limit) = self.options.execution_limit {
            spawn("watchdog", Box::pin(watchdog::watch(model.clone(), limit)));
        }
        if let Some(pause) = self.options.canary.filter(|_| model.canary.is_some()) {
            spawn("canary", Box::pin(canary::watch(model.clone(), pause)));
        }
        if let Some(outages) = outages {
            spawn("outages", Box::pin(outage::watch(self.clone(), model.clone(), outages)));
        }
        if queue_policy::has_timeouts(&model.config) {
            spawn("queue timeouts", Box::pin(limits::watch_timeouts(model.clone())));
        }
    }

    /// Starts to pull work for a model. The task in `before` still pulls from the queue's old levels for a while.
    fn start_pull(&self, current: Current, stop: CancellationToken, before: Option<Before>) -> Pull {
        let stopped = CancellationToken::new();
        let (task, ended) = (pull(current.clone(), stop.clone()), stopped.clone().drop_guard());
        let (stopping, counted) = (stop.clone(), self.pulls.token());
        self.shared.tasks.spawn("pull", async move {
            let rest = async {
                let Some(before) = before else { return };
                let _ = tokio::time::timeout(before.left_behind, stopping.cancelled()).await;
                let before = before.pull;
                before.stop.cancel();
                before.stopped.cancelled().await;
            };
            tokio::join!(task, rest);
            drop((ended, counted));
        });
        Pull { current, stop, stopped }
    }

    fn entry(&self, key: &ModelKey, state: ModelState, config: String, capacity: usize) -> WorkerEntry {
        WorkerEntry {
            worker: self.shared.name.clone(),
            service: self.options.service.clone(),
            host: crate::hostname(),
            model: key.clone(),
            state,
            config,
            capacity,
            // Set when it is announced.
            since: UnixMicros::default(),
        }
    }
}
