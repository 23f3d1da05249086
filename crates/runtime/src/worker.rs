//! A worker: the part of a process that hosts model versions on a bus.
//!
//! [`Worker::start`] loads the models that are to be served and that one of its backends executes, and announces them
//! (`announce`). Later changes of the served models are in `steward`. The worker's end is in `drain`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use trireme_bus::{Bus, BusError, Delivery, QueueOptions, WorkMessage, WorkerEntry};
use trireme_inference::{ModelKey, UnixMicros};
use trireme_model_repository::{ModelSources, RepositoryError};

use crate::announce::Announcer;
use crate::backend::{Backend, LoadError};
use crate::cancel::Cancellations;
use crate::control_mode::ControlOptions;
use crate::faults;
use crate::held::Held;
use crate::hosted::{Claim, HostedModel};
use crate::limits;
use crate::models::Models;
use crate::response_cache::{CacheConfig, ResponseCache, StepAnswer};
use crate::statistics::Statistics;
use crate::statistics::report::follow_log_levels;
use crate::steward::Steward;
use crate::suspects::Suspects;
use crate::tap::Taps;
use crate::task_set::TaskSet;

/// Pause before a queue is opened again after an error.
pub(crate) const REOPEN_PAUSE: Duration = Duration::from_millis(250);

/// How long a worker waits for a gateway to create a lost queue before it pulls again. The gateway goes on creating it.
const DECLARE_LIMIT: Duration = Duration::from_secs(1);

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The worker's name, unique among all processes.
    pub name: String,
    /// The service it is part of: `tokenizer`, `model`, `postprocess`, `trireme`.
    pub service: String,
    /// Model repositories.
    pub model_repository: Vec<PathBuf>,
    /// Keeps those among them that were derived of model folders.
    pub sources: Option<Arc<ModelSources>>,
    /// Whether backends may complete configurations.
    pub auto_complete: bool,
    /// Which models are served.
    pub control: ControlOptions,
    /// The statistics of this process, under the worker's name.
    pub statistics: Statistics,
    /// How long one execution may take before the worker counts as hung; `None` is for ever.
    pub execution_limit: Option<Duration>,
    /// The canary request is executed after a model had no traffic for this time; `None` is never.
    pub canary: Option<Duration>,
    /// The cache for answers of steps, if there is one.
    pub cache: Option<CacheConfig>,
}

/// A running worker.
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) models: Arc<Models>,
}

/// State that all parts of a worker share.
pub(crate) struct Shared {
    pub name: String,
    pub bus: Arc<dyn Bus>,
    pub tasks: TaskSet,
    /// The deployment's settings, read before the first queue is declared.
    pub settings: OnceLock<QueueOptions>,
    pub held: Held,
    pub suspects: Suspects,
    pub cancellations: Cancellations,
    pub taps: Arc<Taps>,
    pub statistics: Statistics,
    /// The `since` of the last registry entry that was announced. A task holds the lock while it announces an entry.
    pub said: tokio::sync::Mutex<UnixMicros>,
    pub announcer: Arc<Announcer>,
    pub hosted: RwLock<HashMap<ModelKey, Arc<HostedModel>>>,
    /// Answers of models with `response_cache` to steps of ensembles.
    pub step_answers: Option<ResponseCache<StepAnswer>>,
    /// How many model versions with such answers were loaded.
    pub loads: AtomicU64,
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model repository is broken; all of its faults.
    #[error("model repository: {}", faults::list(.0))]
    Repository(Vec<Arc<RepositoryError>>),
    /// Models that could not be loaded; all of their faults.
    #[error("{}", faults::list(.0))]
    Load(Vec<LoadError>),
    /// The repository has no model for this service.
    #[error("model repository {repository} holds no model for the {service} service (backend {backends})")]
    NothingToServe {
        /// The repository's paths.
        repository: String,
        /// The service.
        service: String,
        /// The backends it hosts.
        backends: String,
    },
    /// An error of the bus.
    #[error(transparent)]
    Bus(#[from] BusError),
}

// === impl WorkerOptions ===

impl WorkerOptions {
    /// A worker with the name of `statistics` that serves all models of these repositories, without limits.
    pub fn new(service: &str, model_repository: Vec<PathBuf>, statistics: Statistics) -> WorkerOptions {
        WorkerOptions {
            name: statistics.process().to_owned(),
            service: service.to_owned(),
            model_repository,
            sources: None,
            auto_complete: true,
            control: ControlOptions::default(),
            statistics,
            execution_limit: None,
            canary: None,
            cache: None,
        }
    }
}

// === impl Worker ===

impl Worker {
    /// Loads the models and starts to work. Returns when all of them are ready.
    pub async fn start(
        bus: Arc<dyn Bus>,
        backends: &[Arc<dyn Backend>],
        options: &WorkerOptions,
    ) -> Result<Worker, StartError> {
        let worker = Worker::open(bus, backends, options).await?;
        if let Err(error) = worker.load().await {
            worker.models.pulling.cancel();
            drop(worker.models.close());
            worker.shared.tasks.stop();
            return Err(error);
        }
        Ok(worker)
    }

    /// A worker that hosts no models yet. Next, call [`Worker::load`]. [`Worker::drain`] ends the worker, also while it
    /// loads.
    pub async fn open(
        bus: Arc<dyn Bus>,
        backends: &[Arc<dyn Backend>],
        options: &WorkerOptions,
    ) -> Result<Worker, StartError> {
        let tasks = TaskSet::new();
        let shared = Arc::new(Shared {
            name: options.name.clone(),
            bus: bus.clone(),
            tasks: tasks.clone(),
            settings: OnceLock::new(),
            held: Held::default(),
            suspects: Suspects::default(),
            cancellations: Cancellations::default(),
            taps: Arc::default(),
            statistics: options.statistics.clone(),
            said: tokio::sync::Mutex::default(),
            announcer: Announcer::start(&options.name, bus, &tasks).await?,
            hosted: RwLock::default(),
            step_answers: options.cache.map(|config| ResponseCache::new(config, false)),
            loads: AtomicU64::new(0),
        });
        let worker = Worker {
            models: Arc::new(Models::new(shared.clone(), options.clone(), backends.to_vec())),
            shared: shared.clone(),
        };
        shared.follow_cancellations().await?;
        shared.serve_taps().await?;
        let announcer = Arc::downgrade(&shared.announcer);
        let entries = move || announcer.upgrade().map(|announcer| announcer.count()).unwrap_or_default();
        shared.statistics.worker(entries);
        shared.statistics.report(&shared.bus, &tasks).await?;
        follow_log_levels(shared.bus.as_ref(), shared.statistics.process(), &tasks).await?;
        Ok(worker)
    }

    /// Loads the models; each of them takes work as soon as it is loaded. Returns when all of them are ready.
    pub async fn load(&self) -> Result<(), StartError> {
        Steward::start(self.models.clone()).await?;
        Ok(())
    }

    /// The model versions it hosts.
    pub fn models(&self) -> Vec<ModelKey> {
        self.models.ready()
    }

    /// Waits until one of the worker's tasks has died. The process should end then.
    pub async fn failed(&self) -> &'static str {
        self.shared.tasks.failed().await
    }
}

/// The current instances behind a pulling task; they may be replaced.
pub(crate) type Current = Arc<RwLock<Arc<HostedModel>>>;

/// Pulls work for a model until `pulling` is cancelled, then takes in the deliveries that were on their way. Opens the
/// queue again if the bus has lost it.
pub(crate) async fn pull(current: Current, pulling: CancellationToken) {
    let (shared, key) = {
        let model = current.read();
        (model.worker.clone(), model.key.clone())
    };
    // Under the lock: a task that replaces the model sees these deliveries in the old model's queue.
    let receive = |deliveries: Vec<Delivery>| {
        let model = current.read();
        deliveries.into_iter().for_each(|delivery| model.receive(delivery));
    };
    loop {
        let error = match shared.bus.pull(&key).await {
            Err(error) => error,
            Ok(mut puller) => loop {
                let next = async {
                    let model = current.read().clone();
                    limits::next(&model, puller.as_mut()).await
                };
                let next = tokio::select! {
                    next = next => next,
                    () = pulling.cancelled() => {
                        // A delivery that is given back could be delivered to the next worker that stops.
                        while let Some(deliveries) = puller.stop().await {
                            receive(deliveries);
                        }
                        return;
                    }
                };
                match next {
                    Ok(deliveries) => receive(deliveries),
                    Err(error) => break error,
                }
            },
        };
        tracing::warn!(model = %key, %error, "pulling work broke; opening the queue again");
        tokio::select! {
            () = tokio::time::sleep(REOPEN_PAUSE) => {}
            () = pulling.cancelled() => return,
        }
        let options = current.read().queue_options();
        let declared = tokio::select! {
            declared = tokio::time::timeout(DECLARE_LIMIT, shared.bus.declare_queue(&key, &options)) => declared,
            () = pulling.cancelled() => return,
        };
        // Pull in any case: it shows whether the queue exists. On a cluster, a queue exists again once a leader is
        // elected.
        if let Ok(Err(error)) = declared {
            tracing::warn!(model = %key, %error, "the queue could not be made again yet");
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Waits for the deployment's settings, which its first gateway writes.
    pub async fn learn_settings(&self) -> Result<(), BusError> {
        if self.settings.get().is_none() {
            let _ = self.settings.set(self.bus.settings().await?);
        }
        Ok(())
    }

    /// The deployment's settings.
    pub fn queue_options(&self) -> &QueueOptions {
        self.settings.get().expect("learnt before a queue is declared, and nothing comes before that")
    }

    /// Moves a request to its next step if that is hosted here and has room, without encoding and without the broker.
    /// The delivery goes along and is acknowledged when the work leaves the process. Otherwise returns both.
    pub fn hand_over(&self, message: WorkMessage, claim: Claim) -> Option<(WorkMessage, Claim)> {
        let next = message.queue().and_then(|model| self.hosted.read().get(model).cloned());
        match next {
            Some(model) => model.hand_over(message, claim),
            None => Some((message, claim)),
        }
    }

    /// Writes an entry to the registry. The caller holds the lock of `said`, and changes the hosted versions before it
    /// releases the lock, so that entries are written in the order of the changes.
    pub async fn announce(&self, said: &mut UnixMicros, entry: &mut WorkerEntry) -> Result<(), BusError> {
        entry.since = now_said(said);
        self.announcer.announce(entry).await
    }

    /// Allows to hand requests over to a model version; it replaces another one with the same key.
    pub fn remember(&self, model: &Arc<HostedModel>) {
        self.hosted.write().insert(model.key.clone(), model.clone());
    }

    /// Whether requests can be handed over to a model version.
    pub fn hosts(&self, model: &ModelKey) -> bool {
        self.hosted.read().contains_key(model)
    }

    /// Hands no more requests over to this model version. A version that has replaced it stays.
    pub fn forget(&self, model: &Arc<HostedModel>) {
        let mut hosted = self.hosted.write();
        if hosted.get(&model.key).is_some_and(|known| Arc::ptr_eq(known, model)) {
            hosted.remove(&model.key);
        }
    }

    /// Hands no more requests over to any model version.
    pub fn forget_all(&self) {
        self.hosted.write().clear();
    }

    /// Cancels a request: its messages that wait in this worker are removed at once.
    fn cancel(&self, request_id: &str) {
        if self.cancellations.cancel(request_id) {
            for model in self.hosted.read().values() {
                model.drop_cancelled();
                model.executions.stop_unwanted();
            }
        }
    }

    async fn serve_taps(self: &Arc<Self>) -> Result<(), BusError> {
        let shared = Arc::downgrade(self);
        let hosted = move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            shared.hosted.read().values().map(|model| (model.key.clone(), model.config.backend.clone())).collect()
        };
        self.taps.serve(self.name.clone(), self.bus.as_ref(), &self.tasks, hosted).await
    }

    async fn follow_cancellations(self: &Arc<Self>) -> Result<(), BusError> {
        let mut cancelled = self.bus.cancellations().await?;
        let shared = Arc::downgrade(self);
        let stopping = self.tasks.stopping().clone();
        self.tasks.spawn("cancellations", async move {
            loop {
                tokio::select! {
                    request_id = cancelled.recv() => match request_id {
                        Some(request_id) => match shared.upgrade() {
                            Some(shared) => shared.cancel(&request_id),
                            None => return,
                        },
                        None => return,
                    },
                    () = stopping.cancelled() => return,
                }
            }
        });
        Ok(())
    }
}

/// A time for a registry entry, later than all entries before. The caller keeps the lock of `said` until the entry is
/// announced.
pub(crate) fn now_said(said: &mut UnixMicros) -> UnixMicros {
    *said = UnixMicros::now().max(said.after(Duration::from_micros(1)));
    *said
}
