//! A worker: the part of a process that hosts model versions on a bus.
//!
//! [`Worker::start`] loads the models that are to be served and that one of its backends executes, and keeps their registry
//! entries alive; what is served later is decided in `steward`. How it ends is in `drain`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use trireme_bus::{Bus, BusError, Connection, Delivery, QueueOptions, WorkMessage, WorkerEntry};
use trireme_inference::{ModelKey, UnixMicros};
use trireme_model_repository::RepositoryError;

use crate::backend::{Backend, LoadError};
use crate::cancel::Cancellations;
use crate::control_mode::ControlOptions;
use crate::held::Held;
use crate::hosted::{Claim, HostedModel};
use crate::limits;
use crate::models::Models;
use crate::statistics::Statistics;
use crate::statistics::report::follow_log_levels;
use crate::steward::Steward;
use crate::suspects::Suspects;
use crate::tap::Taps;
use crate::task_set::TaskSet;

/// Pause before a queue that broke is opened again.
pub(crate) const REOPEN_PAUSE: Duration = Duration::from_millis(250);

/// How a worker is set up.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The worker's name, unique among all processes.
    pub name: String,
    /// The service it is part of: `tokenizer`, `model`, `postprocess`, `trireme`.
    pub service: String,
    /// Model repositories.
    pub model_repository: Vec<PathBuf>,
    /// Whether backends may fill in what configurations leave out.
    pub auto_complete: bool,
    /// Which models are served.
    pub control: ControlOptions,
    /// How its queues behave.
    pub queue: QueueOptions,
    /// What this process counts, under the worker's name.
    pub statistics: Statistics,
    /// How long one execution may take before the worker counts as hung; `None` is for ever.
    pub execution_limit: Option<Duration>,
    /// How long a model has no traffic before its instances execute its canary request; `None` is never.
    pub canary: Option<Duration>,
}

/// A running worker.
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) models: Arc<Models>,
}

/// What all parts of a worker share.
pub(crate) struct Shared {
    pub name: String,
    pub bus: Arc<dyn Bus>,
    pub tasks: TaskSet,
    pub queue_options: QueueOptions,
    pub held: Held,
    pub suspects: Suspects,
    pub cancellations: Cancellations,
    pub taps: Arc<Taps>,
    pub statistics: Statistics,
    /// What was said to the registry last; who speaks holds it.
    pub said: tokio::sync::Mutex<UnixMicros>,
    pub hosted: RwLock<HashMap<ModelKey, Arc<HostedModel>>>,
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model repository is broken; every fault of it.
    #[error("model repository: {}", join(.0))]
    Repository(Vec<Arc<RepositoryError>>),
    /// Models that could not be loaded; every one of them.
    #[error("{}", join(.0))]
    Load(Vec<LoadError>),
    /// The repository has nothing for this service.
    #[error("model repository {repository} holds no model for the {service} service (backend {backends})")]
    NothingToServe {
        /// The repository's paths.
        repository: String,
        /// The service.
        service: String,
        /// The backends it hosts.
        backends: String,
    },
    /// The bus refused.
    #[error(transparent)]
    Bus(#[from] BusError),
}

// === impl Worker ===

impl Worker {
    /// Loads the models and starts to work. Returns once everything is ready.
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

    /// A worker that hosts nothing yet: [`Worker::load`] is next, and [`Worker::drain`] the end, also in the middle of that.
    pub async fn open(
        bus: Arc<dyn Bus>,
        backends: &[Arc<dyn Backend>],
        options: &WorkerOptions,
    ) -> Result<Worker, StartError> {
        let tasks = TaskSet::new();
        let shared = Arc::new(Shared {
            name: options.name.clone(),
            bus,
            tasks: tasks.clone(),
            queue_options: options.queue.clone(),
            held: Held::default(),
            suspects: Suspects::default(),
            cancellations: Cancellations::default(),
            taps: Arc::default(),
            statistics: options.statistics.clone(),
            said: tokio::sync::Mutex::default(),
            hosted: RwLock::default(),
        });
        let worker = Worker {
            models: Arc::new(Models::new(shared.clone(), options.clone(), backends.to_vec())),
            shared: shared.clone(),
        };
        shared.held.keep_alive(options.queue.ack_wait, &tasks);
        shared.follow_cancellations().await?;
        shared.serve_taps().await?;
        shared.statistics.report(&shared.bus, &tasks).await?;
        follow_log_levels(shared.bus.as_ref(), shared.statistics.process(), &tasks).await?;
        worker.keep_announced();
        Ok(worker)
    }

    /// Loads the models, each of which takes work as soon as it is there. Returns once everything is ready.
    pub async fn load(&self) -> Result<(), StartError> {
        Steward::start(self.models.clone()).await?;
        self.advertise().await
    }

    /// The model versions it hosts.
    pub fn models(&self) -> Vec<ModelKey> {
        self.models.ready()
    }

    /// Waits until one of the worker's tasks dies, which a process should not outlive.
    pub async fn failed(&self) -> &'static str {
        self.shared.tasks.failed().await
    }

    async fn advertise(&self) -> Result<(), StartError> {
        let models: Vec<_> = self.models().iter().map(ToString::to_string).collect();
        let metadata =
            [("worker", self.shared.name.clone()), ("host", crate::hostname()), ("models", models.join(" "))];
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(self.shared.bus.advertise(&self.models.options.service, metadata).await?)
    }

    /// Renews the registry's entries for as long as the worker takes work.
    fn keep_announced(&self) {
        let (shared, models) = (self.shared.clone(), self.models.clone());
        let pulling = models.pulling.clone();
        self.shared.tasks.spawn("heartbeat", async move {
            let mut ticks = tokio::time::interval(WorkerEntry::TIME_TO_LIVE / 3);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            ticks.tick().await;
            let mut connection = shared.bus.connection();
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    // A broker that was away may have forgotten everything.
                    Ok(()) = connection.changed() => if *connection.borrow_and_update() == Connection::Down { continue },
                    () = pulling.cancelled() => return,
                    () = shared.tasks.stopping().cancelled() => return,
                }
                for model in models.known() {
                    let renewed = tokio::select! {
                        renewed = models.renew(&model) => renewed,
                        () = pulling.cancelled() => return,
                    };
                    if let Err(error) = renewed {
                        tracing::warn!(%model, %error, "registry entry could not be renewed");
                    }
                }
            }
        });
    }
}

/// The instances that work is pulled for; they may be replaced.
pub(crate) type Current = Arc<RwLock<Arc<HostedModel>>>;

/// Pulls work for a model until told to stop, and takes in what was on its way by then; opens the queue again when the bus has lost it.
pub(crate) async fn pull(current: Current, pulling: CancellationToken) {
    let (shared, key) = {
        let model = current.read();
        (model.worker.clone(), model.key.clone())
    };
    // Under the lock: who replaces the model sees these in its hand.
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
                        // Sent back it could be sent to the next one that stops.
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
            declared = shared.bus.declare_queue(&key, &options) => declared,
            () = pulling.cancelled() => return,
        };
        if let Err(error) = declared {
            tracing::warn!(model = %key, %error, "the queue could not be made again yet");
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Moves a request to its next step, if that is hosted here and has room: no encoding, no broker. The delivery goes
    /// along and is acknowledged when the work leaves the process. Otherwise gives both back.
    pub fn hand_over(&self, message: WorkMessage, claim: Claim) -> Option<(WorkMessage, Claim)> {
        let next = message.queue().and_then(|model| self.hosted.read().get(model).cloned());
        match next {
            Some(model) => model.hand_over(message, claim),
            None => Some((message, claim)),
        }
    }

    /// Tells the registry what holds from now on. Only who holds `said` speaks, and changes what is hosted before letting go
    /// of it: words go out in the order in which they become true.
    pub async fn announce(&self, said: &mut UnixMicros, entry: &mut WorkerEntry) -> Result<(), BusError> {
        entry.since = now_said(said);
        self.bus.announce(entry).await
    }

    /// Lets requests be handed over to a model version, in place of one of its name.
    pub fn remember(&self, model: &Arc<HostedModel>) {
        self.hosted.write().insert(model.key.clone(), model.clone());
    }

    /// Whether requests can be handed over to a model version.
    pub fn hosts(&self, model: &ModelKey) -> bool {
        self.hosted.read().contains_key(model)
    }

    /// Hands nothing over to this model version any more; one that took its place stays.
    pub fn forget(&self, model: &Arc<HostedModel>) {
        let mut hosted = self.hosted.write();
        if hosted.get(&model.key).is_some_and(|known| Arc::ptr_eq(known, model)) {
            hosted.remove(&model.key);
        }
    }

    /// Hands nothing over any more.
    pub fn forget_all(&self) {
        self.hosted.write().clear();
    }

    /// Nobody waits for a request any more: what waits of it here makes room at once.
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

/// When something is said that nobody else may say before it is out: later than all that was said before.
pub(crate) fn now_said(said: &mut UnixMicros) -> UnixMicros {
    *said = UnixMicros::now().max(said.after(Duration::from_micros(1)));
    *said
}

fn join<E: std::fmt::Display>(errors: &[E]) -> String {
    errors.iter().map(E::to_string).collect::<Vec<_>>().join("; ")
}
