//! Hosting: a loaded version takes work, and the version that it replaces drains.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use trireme_bus::{BusError, Content, ModelState, Reopening, WorkerEntry};
use trireme_engine::{
    Backend, Executions, Guests, Instance, LoadedModel, Model, Outage, WorkQueue, allowance, most_in_hand, stage,
};
use trireme_inference::ModelKey;
use trireme_model_repository::RepositoryModel;

use super::super::options::OtherContent;
use super::keep_alive::KeepAlive;
use super::proving::Proven;
use super::{Instances, Models, Pull, Running, Version, outage};
use crate::hosted::standing::Standing;
use crate::hosted::{HostedModel, Work};
use crate::intake::{Current, has_timeouts, pull, watch_timeouts};

/// After a queue's levels have changed, the worker still pulls from the old levels for this long. Gateways learn of the
/// change sooner.
const LEFT_BEHIND: Duration = Duration::from_secs(60);

/// Closes the queue of a version that is not hosted after all. Otherwise its threads would wait for ever and keep the
/// model in memory.
struct Unhosted(Option<Arc<WorkQueue<Work>>>);

/// Why a loaded version is not hosted.
pub(super) enum NotHosted {
    /// The threads of its instances cannot be started.
    Threads(std::io::Error),
    Bus(BusError),
}

impl From<BusError> for NotHosted {
    fn from(error: BusError) -> NotHosted {
        NotHosted::Bus(error)
    }
}

/// The task that pulls from a queue's old levels, and how long it goes on after the levels have changed.
pub(super) struct Before {
    pull: Pull,
    left_behind: Duration,
}

impl Drop for Unhosted {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.close();
        }
    }
}

// === impl Pull ===

impl Pull {
    /// None, until one is started.
    fn stopped(current: Current, stop: CancellationToken) -> Pull {
        let (going, stopped) = (stop.child_token(), CancellationToken::new());
        going.cancel();
        stopped.cancel();
        Pull { current, stop, going, stopped }
    }
}

// === impl Running ===

impl Running {
    /// Its content, and whether it takes work.
    fn standing(&self) -> (Option<Content>, bool) {
        let content = self.instances.model.standing.as_ref().map(|standing| standing.content.clone());
        (content, !self.pull.going.is_cancelled())
    }
}

// === impl Models ===

impl Models {
    /// Lets a loaded version take work. The version that it replaces drains.
    pub(super) async fn host(
        self: &Arc<Self>,
        model: &RepositoryModel,
        version: i64,
        backend: &Arc<dyn Backend>,
        Proven { loaded, initial_states, canary, took, content }: Proven,
    ) -> Result<(), NotHosted> {
        let key = ModelKey { name: model.name.as_str().into(), version };
        let LoadedModel { config, instances, background, guests, policy, .. } = loaded;
        let batched = config.max_batch_size > 0 || policy.max_rows() > 1;
        let allowance = match config.has_queue_policy() {
            true => allowance(policy.as_ref(), &instances),
            false => most_in_hand(policy.as_ref(), &instances),
        };
        // The limits of a queue policy count the requests in the shared queue: of those, too, the worker takes no more than it can begin soon.
        let shared = self.shared.bus.is_shared() || config.has_queue_policy();
        let queue = WorkQueue::of(policy, &instances, shared);
        let statistics = self.shared.statistics.model(&key);
        // A stepwise instance has no batches, and no answer that another request could have.
        let in_batches = instances.iter().all(|instance| matches!(instance, Instance::Batch(_)));
        let caches = self.shared.step_answers.is_some() && config.response_cache && in_batches;
        let cached = caches.then(|| self.shared.loads.fetch_add(1, Ordering::Relaxed));
        let mut entry = self.entry(&key, ModelState::Ready, config.to_json(), allowance);
        entry.content = content.clone();
        // A version that is replaced keeps its pulling task, and the token that stops the task.
        let (intake, before) = match self.versions.lock().get(&key).and_then(|known| known.running.as_ref()) {
            Some(running) if running.serves_queue_of(&config) => (running.pull.stop.clone(), Some(running.standing())),
            Some(running) => (self.pulling.child_token(), Some(running.standing())),
            None => (self.pulling.child_token(), None),
        };
        // Files that are replaced while a worker runs are meant to be served.
        let switch = self.options.other_content == OtherContent::Switch || before.is_some();
        // A version that goes on with the same content need not ask.
        let goes_on = content.is_none() || before == Some((content.clone(), true));
        let standing = content.map(|content| Standing::new(content, switch && !goes_on));
        standing.iter().for_each(|standing| standing.is_served.store(goes_on, Ordering::Relaxed));
        let engine = Arc::new(Model {
            key: key.clone(),
            queue,
            guests: Guests::new(guests),
            statistics,
            canary,
            executions: Executions::default(),
            intake: intake.clone(),
            tasks: self.shared.tasks.clone(),
        });
        let hosted = Arc::new(HostedModel {
            engine,
            config,
            worker: self.shared.clone(),
            admitted: AtomicU64::new(0),
            allowance,
            batched,
            initial_states,
            gone: CancellationToken::new(),
            cached,
            standing,
            obstacles: Mutex::default(),
        });
        let mut unhosted = Unhosted(Some(hosted.queue.clone()));
        let outages: Option<Vec<_>> = instances.iter().map(Instance::outage).collect();
        let threads = hosted.engine.start(instances, background).map_err(NotHosted::Threads)?;
        self.until_queue_is_there(&hosted, &entry).await?;
        if !goes_on {
            let replaced = self.versions.lock().get(&key).and_then(|known| {
                let running = known.running.as_ref()?;
                running.serves_queue_of(&hosted.config).then(|| running.instances.model.clone())
            });
            if let Some(replaced) = replaced {
                self.stop_pull(&replaced).await;
            }
        }
        let mut said = self.said.lock().await;
        match self.announce(&mut said, &mut entry).await {
            // The announcer writes it as soon as the registry can be reached.
            Err(BusError::Unreachable(reason)) => {
                tracing::warn!(model = %key, reason, "could not be announced yet; trying on")
            }
            Err(error) => {
                let before = self.versions.lock().get(&key).map(|known| known.entry.clone());
                self.announcer.forget(&entry, before);
                return Err(error.into());
            }
            Ok(()) => {}
        }
        unhosted.0 = None;
        let observed = Arc::downgrade(&hosted.queue);
        let load = move || observed.upgrade().map(|queue| queue.load()).unwrap_or_default();
        hosted.statistics.host(stage(&hosted.config.backend), took, load);
        if goes_on {
            self.shared.remember(&hosted);
        }
        let (threads, fingerprint) = (Arc::new(Mutex::new(threads)), model.fingerprint(version));
        let keep_alive = self.options.keep_alive.map(|keep| KeepAlive {
            models: self.clone(),
            hosted: hosted.clone(),
            source: (model.clone(), backend.clone(), fingerprint),
            threads: threads.clone(),
            keep,
        });
        self.look_after(&hosted, outages.filter(|outages| !outages.is_empty()), keep_alive);
        let (instances, asking) = (Instances { model: hosted.clone(), threads }, hosted.clone());
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
                None if goes_on => (self.start_pull(Arc::new(RwLock::new(hosted)), intake, None), None),
                None => (Pull::stopped(Arc::new(RwLock::new(hosted)), intake), None),
            };
            let running = Some(Running { instances, pull });
            versions.insert(key, Version { entry, fingerprint, failed: false, running });
            replaced
        };
        drop(said);
        if let Some(replaced) = replaced {
            self.finish(replaced);
        }
        if !goes_on {
            self.follow_verdict(&asking).await;
        }
        Ok(())
    }

    /// Announces which queue a version needs, and waits until it is there, as long as no gateway makes it: loading the model may have
    /// taken minutes. Errors with the reason of a gateway that cannot make it.
    async fn until_queue_is_there(&self, hosted: &HostedModel, entry: &WorkerEntry) -> Result<(), BusError> {
        let running = self
            .versions
            .lock()
            .get(&hosted.key)
            .and_then(|known| known.running.as_ref().map(|running| running.serves_queue_of(&hosted.config)));
        let state = match running {
            None => Some(ModelState::Loading("waiting for its queue".to_owned())),
            // The version that it replaces goes on serving meanwhile, at levels of its own.
            Some(false) => Some(ModelState::Ready),
            Some(true) => None,
        };
        let Some(state) = state.filter(|_| self.shared.bus.is_shared()) else { return self.declare(hosted).await };
        let mut entry = WorkerEntry { state, ..entry.clone() };
        let before = || self.versions.lock().get(&hosted.key).map(|known| known.entry.clone());
        match self.announce(&mut *self.said.lock().await, &mut entry).await {
            Err(BusError::Unreachable(_)) | Ok(()) => {}
            Err(error) => {
                self.announcer.forget(&entry, before());
                return Err(error);
            }
        }
        let declared = self.declare(hosted).await;
        if declared.is_err() {
            let _ = match before() {
                Some(mut before) => self.announce(&mut *self.said.lock().await, &mut before).await,
                None => self.announcer.withdraw(&entry).await,
            };
        }
        declared
    }

    /// Waits for the queue of a version.
    async fn declare(&self, hosted: &HostedModel) -> Result<(), BusError> {
        let mut attempts = Reopening::default();
        tokio::select! {
            learnt = self.shared.learn_settings() => learnt?,
            // The worker ends because another model cannot be loaded.
            () = self.hopeless.cancelled() => return Err(BusError::Unreachable("the worker cannot start".to_owned())),
        }
        loop {
            let pause = match self.shared.bus.declare_queue(&hosted.key, &hosted.queue_options()).await {
                Err(BusError::Unreachable(reason)) if !self.hopeless.is_cancelled() => {
                    attempts.broke(&format_args!("the queue of model '{}' cannot be made yet: {reason}", hosted.key))
                }
                declared => return declared,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.hopeless.cancelled() => {}
            }
        }
    }

    /// Starts the tasks that a version needs. They end when the version is gone, or the worker.
    fn look_after(
        self: &Arc<Self>,
        model: &Arc<HostedModel>,
        outages: Option<Vec<watch::Receiver<Outage>>>,
        keep_alive: Option<KeepAlive>,
    ) {
        let tasks = &self.shared.tasks;
        let spawn = |name, task: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let gone = model.gone.clone();
            tasks.spawn_until_stop(name, async move { _ = gone.run_until_cancelled(task).await });
        };
        if let Some(limit) = self.options.execution_limit {
            spawn("watchdog", Box::pin(model.engine.clone().watch_executions(limit)));
        }
        if let Some(pause) = self.options.canary.filter(|_| model.canary.is_some()) {
            spawn("canary", Box::pin(model.engine.clone().watch_canary(pause)));
        }
        if model.standing.is_some() {
            spawn("content", Box::pin(self.clone().look_after_content(model.clone())));
        }
        match (keep_alive, outages) {
            (Some(keep_alive), outages) => {
                let gone = model.gone.clone();
                // It ends by itself: a load may have to end first.
                tasks.spawn("keep alive", async move { _ = gone.run_until_cancelled(keep_alive.run(outages)).await });
            }
            (None, Some(outages)) => spawn("outages", Box::pin(outage::watch(self.clone(), model.clone(), outages))),
            (None, None) => {}
        }
        if has_timeouts(&model.config) {
            spawn("queue timeouts", Box::pin(watch_timeouts(model.clone())));
        }
    }

    /// Starts to pull work for a model. The task in `before` still pulls from the queue's old levels for a while.
    pub(super) fn start_pull(&self, current: Current, stop: CancellationToken, before: Option<Before>) -> Pull {
        let (going, stopped) = (stop.child_token(), CancellationToken::new());
        let (task, ended) = (pull(current.clone(), going.clone()), stopped.clone().drop_guard());
        let (stopping, counted) = (going.clone(), self.pulls.token());
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
        Pull { current, stop, going, stopped }
    }
}
