//! The model versions that a worker hosts, and how they change while it runs.
//!
//! [`Models::apply`] brings what is hosted in line with a model as the repository has it now: versions that are new or whose
//! files have changed are loaded beside those that serve; only when all of them are ready do they take over, and the old ones
//! drain. Where one fails to load, the one that serves stays.
//!
//! Not here: who decides what is to be served (`worker` at the start, `steward` later), queues and batches (`hosted`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use trireme_bus::{BusError, ModelState, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::RepositoryModel;

use crate::backend::{Backend, Instance, LoadError, LoadedModel};
use crate::batching::BatchPolicy;
use crate::hosted::HostedModel;
use crate::load::{backend_of, load_version};
use crate::queue::WorkQueue;
use crate::worker::{Shared, WorkerOptions, pull};

/// How long no work may come for a version that is unloaded before its worker stops to pull: requests whose earlier steps
/// still run find it until then.
const QUIET: Duration = Duration::from_secs(3);

/// How often the end of a version that is unloaded is looked for.
const TICK: Duration = Duration::from_millis(50);

/// What a worker hosts.
pub(crate) struct Models {
    pub shared: Arc<Shared>,
    pub options: WorkerOptions,
    backends: Vec<Arc<dyn Backend>>,
    /// Raised when the worker takes no more work.
    pub pulling: CancellationToken,
    versions: Mutex<BTreeMap<ModelKey, Version>>,
    /// Threads of versions that are gone.
    retired: Mutex<Vec<JoinHandle<()>>>,
}

/// A version that was loaded, or could not be.
struct Version {
    entry: WorkerEntry,
    /// Of the files that it was last loaded from, or could not be.
    fingerprint: u64,
    /// Whether that failed; what served before goes on then.
    failed: bool,
    /// `None`: it was never loaded.
    running: Option<Running>,
}

struct Running {
    model: Arc<HostedModel>,
    threads: Vec<JoinHandle<()>>,
    /// Raised when this version takes no more work.
    pulling: CancellationToken,
}

/// What a model's versions came to.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Whether one of this worker's backends executes the model.
    pub mine: bool,
    /// Versions that could not be loaded.
    pub faults: Vec<(i64, LoadError)>,
}

// === impl Models ===

impl Models {
    pub fn new(shared: Arc<Shared>, options: WorkerOptions, backends: Vec<Arc<dyn Backend>>) -> Models {
        let (versions, retired) = (Mutex::default(), Mutex::default());
        Models { shared, options, backends, pulling: CancellationToken::new(), versions, retired }
    }

    /// The names of the backends.
    pub fn backends(&self) -> String {
        self.backends.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ")
    }

    /// Serves the model as it is now. What failed to load is tried again with `retry`, or when its files have changed.
    pub async fn apply(&self, model: &RepositoryModel, retry: bool) -> Result<Applied, BusError> {
        let backend = match backend_of(model, &self.backends) {
            Ok(Some(backend)) => backend,
            Ok(None) => return Ok(Applied::default()),
            Err(fault) => {
                let version = model.versions.last().copied().unwrap_or(1);
                if self.is_current(model, version, retry) {
                    return Ok(Applied::default());
                }
                self.refuse(model, version, &fault).await?;
                return Ok(Applied { mine: true, faults: vec![(version, fault)] });
            }
        };
        let changed: Vec<i64> =
            model.versions.iter().copied().filter(|version| !self.is_current(model, *version, retry)).collect();
        let loading = changed.iter().map(|&version| {
            load_version(model, version, backend.clone(), self.options.auto_complete)
        });
        let outcomes = join_all(loading).await;
        let (mut loaded, mut faults) = (Vec::new(), Vec::new());
        for (version, outcome) in changed.into_iter().zip(outcomes) {
            match outcome {
                Ok(instance) => loaded.push((version, instance)),
                Err(fault) => faults.push((version, fault)),
            }
        }
        for (version, fault) in &faults {
            self.refuse(model, *version, fault).await?;
        }
        for (version, instance) in loaded {
            self.host(model, version, instance).await?;
        }
        if faults.is_empty() {
            self.retire(&model.name, &model.versions).await;
        }
        Ok(Applied { mine: true, faults })
    }

    /// Serves the model no longer. Says whether it was hosted here.
    pub async fn unload(&self, model: &str) -> bool {
        let known = self.versions.lock().keys().any(|key| key.name == model);
        self.retire(model, &[]).await;
        known
    }

    /// The versions that take work.
    pub fn ready(&self) -> Vec<ModelKey> {
        let versions = self.versions.lock();
        versions.iter().filter(|(_, version)| version.running.is_some()).map(|(key, _)| key.clone()).collect()
    }

    /// The names of models that have a version here, loaded or not.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.versions.lock().keys().map(|key| key.name.clone()).collect();
        names.dedup();
        names
    }

    /// Whether a model version is hosted, or could not be loaded.
    pub fn has(&self, model: &ModelKey) -> bool {
        self.versions.lock().contains_key(model)
    }

    /// What the registry is to say.
    pub fn entries(&self) -> Vec<WorkerEntry> {
        self.versions.lock().values().map(|version| version.entry.clone()).collect()
    }

    /// All threads there are, taken out: to be joined once the queues are closed.
    pub fn close(&self) -> Vec<JoinHandle<()>> {
        let mut threads = std::mem::take(&mut *self.retired.lock());
        for version in std::mem::take(&mut *self.versions.lock()).into_values() {
            if let Some(running) = version.running {
                running.model.queue.close();
                threads.extend(running.threads);
            }
        }
        self.shared.forget_all();
        threads
    }

    /// Whether a version was loaded from what is there now, or with `retry` not set, could not be.
    fn is_current(&self, model: &RepositoryModel, version: i64, retry: bool) -> bool {
        let key = ModelKey { name: model.name.clone(), version };
        let versions = self.versions.lock();
        versions.get(&key).is_some_and(|known| {
            known.fingerprint == model.fingerprint(version) && !(known.failed && retry)
        })
    }

    /// A version could not be loaded: what served before goes on, otherwise the registry says why nothing does.
    async fn refuse(&self, model: &RepositoryModel, version: i64, fault: &LoadError) -> Result<(), BusError> {
        tracing::error!(model = model.name, version, %fault, "a model version could not be loaded");
        let key = ModelKey { name: model.name.clone(), version };
        let fingerprint = model.fingerprint(version);
        if let Some(known) = self.versions.lock().get_mut(&key).filter(|known| known.running.is_some()) {
            (known.fingerprint, known.failed) = (fingerprint, true);
            return Ok(());
        }
        let entry = self.entry(&key, ModelState::Unavailable(fault.reason()), model.config.to_json(), 0);
        self.shared.bus.announce(&entry).await?;
        self.versions.lock().insert(key, Version { entry, fingerprint, failed: true, running: None });
        Ok(())
    }

    /// Lets a loaded version take work; the one that it replaces drains.
    async fn host(&self, model: &RepositoryModel, version: i64, loaded: LoadedModel) -> Result<(), BusError> {
        let key = ModelKey { name: model.name.clone(), version };
        let LoadedModel { config, instances, policy } = loaded;
        let in_hand = in_hand(policy.as_ref(), &instances);
        let queue = WorkQueue::new(policy, in_hand);
        let entry = self.entry(&key, ModelState::Ready, config.to_json(), queue.capacity());
        let hosted = Arc::new(HostedModel::new(key.clone(), config, queue, self.shared.clone()));
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
        self.shared.bus.declare_queue(&key, &self.shared.queue_options).await?;
        self.shared.bus.announce(&entry).await?;
        let pulling = self.pulling.child_token();
        self.shared.remember(&hosted);
        self.shared.tasks.spawn("pull", pull(hosted.clone(), pulling.clone()));
        let running = Some(Running { model: hosted, threads, pulling });
        let fingerprint = model.fingerprint(version);
        let before = self.versions.lock().insert(key, Version { entry, fingerprint, failed: false, running });
        if let Some(before) = before.and_then(|before| before.running) {
            // The new one takes what comes to the queue from now on.
            before.pulling.cancel();
            self.finish(before, None);
        }
        Ok(())
    }

    /// Unloads the versions of a model that are not to be kept.
    async fn retire(&self, model: &str, keep: &[i64]) {
        let leaving: Vec<Version> = {
            let mut versions = self.versions.lock();
            let gone = |key: &ModelKey| key.name == model && !keep.contains(&key.version);
            let keys: Vec<_> = versions.keys().filter(|key| gone(key)).cloned().collect();
            keys.iter().filter_map(|key| versions.remove(key)).collect()
        };
        for Version { mut entry, running, .. } in leaving {
            let Some(running) = running else {
                let _ = self.shared.bus.withdraw(&entry).await;
                continue;
            };
            entry.state = ModelState::Unloading;
            if let Err(error) = self.shared.bus.announce(&entry).await {
                tracing::warn!(model = %entry.model, %error, "could not announce that a version is unloaded");
            }
            self.finish(running, Some(entry));
        }
    }

    /// Waits in the background until a version has done its work, and lets go of it. With an entry the version is unloaded:
    /// it goes on to pull until nothing has come for a while.
    fn finish(&self, running: Running, entry: Option<WorkerEntry>) {
        let (shared, stopping) = (self.shared.clone(), self.pulling.clone());
        let Running { model, threads, pulling } = running;
        let mut retired = self.retired.lock();
        retired.retain(|thread| !thread.is_finished());
        retired.extend(threads);
        drop(retired);
        self.shared.tasks.spawn("unload", async move {
            let mut seen = model.admitted.load(Ordering::Relaxed);
            let mut since = Instant::now();
            while entry.is_some() && since.elapsed() < QUIET && !stopping.is_cancelled() {
                tokio::time::sleep(TICK).await;
                let now = model.admitted.load(Ordering::Relaxed);
                if now != seen || model.queue.in_hand() > 0 {
                    (seen, since) = (now, Instant::now());
                }
            }
            pulling.cancel();
            // What the bus has sent already still arrives.
            tokio::time::sleep(TICK).await;
            while model.queue.in_hand() > 0 && !shared.tasks.stopping().is_cancelled() {
                tokio::time::sleep(TICK).await;
            }
            model.queue.close();
            shared.forget(&model);
            if let Some(entry) = entry {
                if !shared.hosts(&entry.model) {
                    let _ = shared.bus.withdraw(&entry).await;
                }
                tracing::info!(model = %entry.model, "unloaded");
            }
        });
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
        }
    }
}

/// Requests that this worker has in hand for a model, waiting and being executed. Instances that work step by step say
/// themselves how many they take; one more each waits, so that no place stays empty between pulls.
fn in_hand(policy: &dyn BatchPolicy, instances: &[Instance]) -> usize {
    let batches = instances.iter().filter(|instance| matches!(instance, Instance::Batch(_))).count();
    let stepwise = instances.iter().filter_map(|instance| match instance {
        Instance::Batch(_) => None,
        Instance::Stepwise(instance) => Some(instance.room() + 1),
    });
    let stepwise: usize = stepwise.sum();
    match (batches, stepwise) {
        (0, 0) => policy.in_hand(1),
        (0, stepwise) => stepwise,
        (batches, stepwise) => policy.in_hand(batches) + stepwise,
    }
}
