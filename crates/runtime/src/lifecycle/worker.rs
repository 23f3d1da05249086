//! A worker: the part of a process that hosts model versions on a bus.
//!
//! [`Worker::start`] loads the models that are to be served and that one of its backends executes, and announces them
//! (`announce`). Later changes of the served models are in `scheduler`. The worker's end is in `drain`.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use trireme_bus::{Bus, BusError, WaitingRooms};
use trireme_engine::{Backend, ThreadLimits};
use trireme_inference::ModelKey;
use trireme_tasks::TaskSet;

use super::announce::Announcer;
use super::models::Models;
use super::options::{StartError, WorkerOptions};
use super::scheduler::Scheduler;
use crate::hosted::WorkerState;
use crate::hosted::cancellations::Cancellations;
use crate::hosted::held::HeldDeliveries;
use crate::hosted::suspects::Suspects;
use crate::intake::hand_over;
use crate::observe::statistics::report::follow_log_levels;
use crate::response_cache::ResponseCache;

/// A running worker.
pub struct Worker {
    pub(crate) shared: Arc<WorkerState>,
    pub(crate) models: Arc<Models>,
}

// === impl Worker ===

impl Worker {
    /// Loads the models and starts to work. Returns when all of them are ready.
    pub fn start<'a>(
        bus: Arc<dyn Bus>,
        backends: &'a [Arc<dyn Backend>],
        options: &'a WorkerOptions,
    ) -> BoxFuture<'a, Result<Worker, StartError>> {
        Box::pin(async move {
            let worker = Worker::open(bus, backends, options).await?;
            if let Err(error) = worker.load().await {
                worker.models.pulling.cancel();
                drop(worker.models.close());
                worker.shared.tasks.stop();
                return Err(error);
            }
            Ok(worker)
        })
    }

    /// A worker that hosts no models yet. Next, call [`Worker::load`]. [`Worker::drain`] ends the worker, also while it
    /// loads.
    pub fn open<'a>(
        bus: Arc<dyn Bus>,
        backends: &'a [Arc<dyn Backend>],
        options: &'a WorkerOptions,
    ) -> BoxFuture<'a, Result<Worker, StartError>> {
        Box::pin(async move {
            let threads = ThreadLimits::of_this_process();
            tracing::info!(%threads, loads = options.load_threads, "this worker's limits");
            let tasks = TaskSet::new();
            let shared = Arc::new(WorkerState {
                name: options.name.clone().into(),
                bus: bus.clone(),
                tasks: tasks.clone(),
                settings: OnceLock::new(),
                held: HeldDeliveries::default(),
                suspects: Suspects::default(),
                cancellations: Cancellations::default(),
                waiting_rooms: WaitingRooms::default(),
                taps: Arc::default(),
                statistics: options.statistics.clone(),
                hosted: RwLock::default(),
                step_answers: options.cache.map(|config| ResponseCache::new(config, false)),
                loads: AtomicU64::new(0),
                next_step: hand_over,
            });
            let announcer = Announcer::start(&options.name, bus, &tasks).await?;
            let worker = Worker {
                models: Arc::new(Models::new(shared.clone(), announcer.clone(), options.clone(), backends.to_vec())),
                shared: shared.clone(),
            };
            shared.follow_cancellations().await?;
            worker.models.follow_choices().await?;
            shared.serve_taps().await?;
            let announcer = Arc::downgrade(&announcer);
            let entries = move || announcer.upgrade().map(|announcer| announcer.count()).unwrap_or_default();
            shared.statistics.worker(entries);
            shared.statistics.report(&shared.bus, &tasks).await?;
            follow_log_levels(shared.bus.as_ref(), shared.statistics.process(), &tasks).await?;
            Ok(worker)
        })
    }

    /// Loads the models; each of them takes work as soon as it is loaded. Returns when all of them are ready.
    pub fn load(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(async move {
            Scheduler::start(self.models.clone()).await?;
            Ok(())
        })
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

// === impl WorkerState ===

impl WorkerState {
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
        self.taps.serve(self.name.to_string(), self.bus.as_ref(), &self.tasks, hosted).await
    }

    async fn follow_cancellations(self: &Arc<Self>) -> Result<(), BusError> {
        let mut cancelled = self.bus.cancellations().await?;
        let shared = Arc::downgrade(self);
        self.tasks.spawn_until_stop("cancellations", async move {
            while let Some(request_id) = cancelled.recv().await {
                let Some(shared) = shared.upgrade() else { return };
                shared.cancel(&request_id);
            }
        });
        Ok(())
    }
}
