//! A worker: the part of a process that hosts model versions on a bus.
//!
//! [`Worker::start`] loads every model of the repository that one of its backends executes, and for each of them opens
//! the queue, starts the instance threads, pulls, and keeps the registry entry alive. [`Worker::drain`] ends it without
//! losing anything.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use trireme_bus::{Bus, BusError, ModelState, QueueOptions, WorkMessage, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::{Repository, RepositoryError};

use crate::backend::{Backend, Instance, LoadError, LoadedModel};
use crate::batching::BatchPolicy;
use crate::cancel::Cancellations;
use crate::held::Held;
use crate::hosted::{Claim, HostedModel};
use crate::limits;
use crate::load;
use crate::queue::WorkQueue;
use crate::queue_policy;
use crate::statistics::Statistics;
use crate::statistics::report::follow_log_levels;
use crate::task_set::TaskSet;
use crate::watchdog::{self, Executions};

/// Pause before a queue that broke is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(250);

/// How often a drain says who is still running.
const DRAIN_REPORT: Duration = Duration::from_secs(5);

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
    /// How its queues behave.
    pub queue: QueueOptions,
    /// What this process counts, under the worker's name.
    pub statistics: Statistics,
    /// How long one execution may take before the worker counts as hung; `None` is for ever.
    pub execution_limit: Option<Duration>,
}

/// A running worker.
pub struct Worker {
    shared: Arc<Shared>,
    pulling: CancellationToken,
    threads: Mutex<Vec<JoinHandle<()>>>,
    entries: Vec<WorkerEntry>,
    service: String,
    execution_limit: Option<Duration>,
}

/// What all parts of a worker share.
pub(crate) struct Shared {
    pub name: String,
    pub bus: Arc<dyn Bus>,
    pub tasks: TaskSet,
    pub queue_options: QueueOptions,
    pub held: Held,
    pub cancellations: Cancellations,
    pub statistics: Statistics,
    hosted: RwLock<HashMap<ModelKey, Arc<HostedModel>>>,
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model repository is broken; every fault of it.
    #[error("model repository: {}", join(.0))]
    Repository(Vec<RepositoryError>),
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
        let repository = Repository::open(&options.model_repository).map_err(StartError::Repository)?;
        let loaded = load::load_models(&repository, backends, options).await?;
        let tasks = TaskSet::new();
        let shared = Arc::new(Shared {
            name: options.name.clone(),
            bus,
            tasks: tasks.clone(),
            queue_options: options.queue.clone(),
            held: Held::default(),
            cancellations: Cancellations::default(),
            statistics: options.statistics.clone(),
            hosted: RwLock::default(),
        });
        shared.held.keep_alive(options.queue.ack_wait, &tasks);
        shared.follow_cancellations().await?;
        shared.statistics.report(&shared.bus, &tasks).await?;
        follow_log_levels(shared.bus.as_ref(), &tasks).await?;

        let mut worker = Worker {
            shared,
            pulling: CancellationToken::new(),
            threads: Mutex::default(),
            entries: Vec::new(),
            service: options.service.clone(),
            execution_limit: options.execution_limit,
        };
        for (key, model, load_duration) in loaded {
            worker.host(key, model, load_duration).await?;
        }
        worker.announce().await?;
        worker.advertise().await?;
        Ok(worker)
    }

    /// The model versions it hosts.
    pub fn models(&self) -> Vec<ModelKey> {
        self.entries.iter().map(|entry| entry.model.clone()).collect()
    }

    /// Waits until one of the worker's tasks dies, which a process should not outlive.
    pub async fn failed(&self) -> &'static str {
        self.shared.tasks.failed().await
    }

    /// Stops: takes no more work, finishes what is in hand (for `timeout` at most), takes its entries back. Returns how
    /// many requests were still unfinished; the bus delivers those to other workers.
    pub async fn drain(self, timeout: Duration) -> usize {
        for entry in &self.entries {
            let leaving = WorkerEntry { state: ModelState::Unloading, ..entry.clone() };
            if let Err(error) = self.shared.bus.announce(&leaving).await {
                tracing::warn!(model = %entry.model, %error, "could not announce that this worker leaves");
            }
        }
        self.pulling.cancel();
        let hosted: Vec<_> = self.shared.hosted.read().values().cloned().collect();
        let unfinished = self.finish(timeout).await;
        self.shared.statistics.tell(self.shared.bus.as_ref()).await;
        let hung = hosted.iter().any(|model| model.executions.hung());
        for model in &hosted {
            model.queue.close();
        }
        for entry in &self.entries {
            let _ = self.shared.bus.withdraw(entry).await;
        }
        if unfinished == 0 && !hung {
            let threads = std::mem::take(&mut *self.threads.lock());
            let _ = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join()))).await;
            self.shared.tasks.join().await;
        } else {
            // A hung instance cannot be waited for; its thread ends with the process.
            self.shared.tasks.stop();
        }
        self.shared.hosted.write().clear();
        unfinished
    }

    async fn finish(&self, timeout: Duration) -> usize {
        let until = Instant::now() + timeout;
        let mut report = Instant::now() + DRAIN_REPORT;
        loop {
            let hung: Vec<_> = self.shared.hosted.read().values().filter(|m| m.executions.hung()).cloned().collect();
            for model in hung {
                // Nobody will execute it here.
                model.hand_back().await;
            }
            let in_hand = self.shared.held.count();
            if in_hand == 0 || Instant::now() >= until {
                return in_hand;
            }
            if Instant::now() >= report {
                report += DRAIN_REPORT;
                let hosted = self.shared.hosted.read();
                let busy: Vec<_> = hosted.values().filter(|m| m.queue.in_hand() > 0).collect();
                let busy: Vec<_> = busy.iter().map(|m| format!("{} ({})", m.key, m.queue.in_hand())).collect();
                tracing::info!(in_hand, still_running = busy.join(", "), "draining");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn host(&mut self, key: ModelKey, model: LoadedModel, load_duration: Duration) -> Result<(), StartError> {
        let LoadedModel { config, instances, policy } = model;
        let batched = config.max_batch_size > 0 || policy.max_rows() > 1;
        let in_hand = match queue_policy::is_limited(&config) {
            true => queue_policy::taken_in(instances.len().max(1), policy.max_rows()),
            false => in_hand(policy.as_ref(), &instances),
        };
        let queue = WorkQueue::new(policy, in_hand);
        let statistics = self.shared.statistics.model(&key);
        let observed = Arc::downgrade(&queue);
        let load = move || observed.upgrade().map(|queue| queue.load()).unwrap_or_default();
        statistics.host(load::stage(&config.backend), load_duration, load);
        self.entries.push(WorkerEntry {
            worker: self.shared.name.clone(),
            service: self.service.clone(),
            host: crate::hostname(),
            model: key.clone(),
            state: ModelState::Ready,
            config: config.to_json(),
            capacity: queue.capacity(),
        });
        let hosted = Arc::new(HostedModel {
            key: key.clone(),
            config,
            queue,
            worker: self.shared.clone(),
            statistics,
            batched,
            intake: self.pulling.child_token(),
            executions: Executions::default(),
            taken_in: Mutex::default(),
        });
        for (index, instance) in instances.into_iter().enumerate() {
            let model = hosted.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{}-{index}", key.name))
                .spawn(move || model.run_instance(instance))
                .map_err(|error| {
                    let reason = format!("cannot start an instance thread: {error}");
                    StartError::Load(vec![LoadError::Backend { model: key.name.clone(), reason }])
                })?;
            self.threads.lock().push(thread);
        }
        self.shared.bus.declare_queue(&key, &hosted.queue_options()).await?;
        self.shared.hosted.write().insert(key, hosted.clone());
        if let Some(limit) = self.execution_limit {
            self.shared.tasks.spawn("watchdog", watchdog::watch(hosted.clone(), limit));
        }
        if queue_policy::is_limited(&hosted.config) {
            self.shared.tasks.spawn("queue limits", limits::follow(hosted.clone()));
        }
        if queue_policy::has_timeouts(&hosted.config) {
            self.shared.tasks.spawn("queue timeouts", limits::watch_timeouts(hosted.clone()));
        }
        self.shared.tasks.spawn("pull", pull(hosted));
        Ok(())
    }

    async fn advertise(&self) -> Result<(), StartError> {
        let models: Vec<_> = self.entries.iter().map(|entry| entry.model.to_string()).collect();
        let metadata =
            [("worker", self.shared.name.clone()), ("host", crate::hostname()), ("models", models.join(" "))];
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(self.shared.bus.advertise(&self.service, metadata).await?)
    }

    /// Publishes the entries, and renews them for as long as the worker takes work.
    async fn announce(&self) -> Result<(), StartError> {
        for entry in &self.entries {
            self.shared.bus.announce(entry).await?;
        }
        let (shared, entries, pulling) = (self.shared.clone(), self.entries.clone(), self.pulling.clone());
        self.shared.tasks.spawn("heartbeat", async move {
            let mut ticks = tokio::time::interval(WorkerEntry::TIME_TO_LIVE / 3);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            ticks.tick().await;
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = pulling.cancelled() => return,
                }
                for entry in &entries {
                    let renewed = tokio::select! {
                        renewed = shared.bus.announce(entry) => renewed,
                        () = pulling.cancelled() => return,
                    };
                    if let Err(error) = renewed {
                        tracing::warn!(model = %entry.model, %error, "registry entry could not be renewed");
                    }
                }
            }
        });
        Ok(())
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

/// Pulls work for a model until told to stop; opens the queue again when the bus has lost it.
async fn pull(model: Arc<HostedModel>) {
    let pulling = model.intake.clone();
    let shared = model.worker.clone();
    loop {
        let error = match shared.bus.pull(&model.key).await {
            Err(error) => error,
            Ok(mut puller) => loop {
                let next = limits::next(&model, puller.as_mut());
                let next = tokio::select! {
                    next = next => next,
                    () = pulling.cancelled() => return puller.stop().await,
                };
                match next {
                    Ok(deliveries) => deliveries.into_iter().for_each(|delivery| model.receive(delivery)),
                    Err(error) => break error,
                }
            },
        };
        tracing::warn!(model = %model.key, %error, "pulling work broke; opening the queue again");
        tokio::select! {
            () = tokio::time::sleep(REOPEN_PAUSE) => {}
            () = pulling.cancelled() => return,
        }
        if let Err(error) = shared.bus.declare_queue(&model.key, &model.queue_options()).await {
            tracing::warn!(model = %model.key, %error, "the queue could not be made again yet");
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

    async fn follow_cancellations(self: &Arc<Self>) -> Result<(), BusError> {
        let mut cancelled = self.bus.cancellations().await?;
        let cancellations = self.cancellations.clone();
        let stopping = self.tasks.stopping().clone();
        self.tasks.spawn("cancellations", async move {
            loop {
                tokio::select! {
                    request_id = cancelled.recv() => match request_id {
                        Some(request_id) => cancellations.cancel(request_id),
                        None => return,
                    },
                    () = stopping.cancelled() => return,
                }
            }
        });
        Ok(())
    }
}

fn join<E: std::fmt::Display>(errors: &[E]) -> String {
    errors.iter().map(E::to_string).collect::<Vec<_>>().join("; ")
}
