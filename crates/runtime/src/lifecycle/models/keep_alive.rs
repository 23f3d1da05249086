//! Idle models leave the memory (`--keep-alive`): after some time without a request the instances of a version end, and its next request
//! has others made. The version is served all the while: its queue, the task that pulls for it and its registry entry stay, so it is ready for
//! clients, and requests wait in its queue while it is loaded. The later steps of these requests that sleep in this worker are loaded beside it.
//!
//! Not here: how instances end and are started (`engine`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use trireme_engine::{Backend, Instance, LoadedModel, Outage, load_version};
use trireme_inference::{FailureReason, InferError};
use trireme_model_repository::RepositoryModel;

use super::{LAST_LOADS, Models, SharedThreads, outage};
use crate::hosted::HostedModel;

/// Pause before a delivery that was given back is delivered again.
const AGAIN: Duration = Duration::from_millis(100);

/// A version that leaves the memory while it is idle.
pub(super) struct KeepAlive {
    pub models: Arc<Models>,
    pub hosted: Arc<HostedModel>,
    /// The files that it was loaded from, the backend that did so, and the fingerprint of the files at that time.
    pub source: (RepositoryModel, Arc<dyn Backend>, u64),
    pub threads: SharedThreads,
    /// How long it stays in memory without a request.
    pub keep: Duration,
}

/// The outages of a version's instances, where all of them have some.
type Outages = Option<Vec<watch::Receiver<Outage>>>;

/// Why a version was not loaded again.
enum NotLoaded {
    /// The worker ends.
    Stopping,
    /// Another content of the version has taken its place.
    Replaced,
    /// In words.
    Failed(String),
}

/// The worker ends, and the version stays out of memory.
struct Stopping;

// === impl KeepAlive ===

impl KeepAlive {
    /// Takes the version out of memory whenever it is idle, and loads it for its next request, until the worker ends. Meanwhile watches the
    /// outages of its instances.
    pub async fn run(self, mut outages: Outages) {
        let stopping = self.models.shared.tasks.stopping().clone();
        loop {
            let watched = async {
                if let Some(outages) = outages {
                    outage::watch(self.models.clone(), self.hosted.clone(), outages).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = stopping.cancelled() => return,
                () = watched => {}
                () = self.until_dismissed() => {}
            }
            self.let_go().await;
            outages = match self.wake().await {
                Ok(outages) => outages,
                Err(Stopping) => return,
            };
        }
    }

    async fn until_dismissed(&self) {
        while let Err(at) = self.hosted.queue.dismiss_if_idle(self.keep) {
            tokio::time::sleep_until(at.into()).await;
        }
    }

    /// Waits until the instances that were dismissed are gone, and the memory with them.
    async fn let_go(&self) {
        let (model, began) = (self.hosted.clone(), Instant::now());
        let threads = std::mem::take(&mut *self.threads.lock());
        let ended = tokio::task::spawn_blocking(move || {
            model.engine.drop_guests();
            threads.into_iter().for_each(|thread| drop(thread.join()));
        });
        drop(ended.await);
        let (idle, took) = (self.keep.as_secs_f32(), began.elapsed().as_secs_f32());
        tracing::info!(
            model = %self.hosted.key, idle_seconds = idle, seconds = took,
            "unloaded from memory: it had no request (--keep-alive); its next request loads it"
        );
    }

    /// Waits for a request, and loads the version for it. After a load that failed, the next request has it tried again.
    async fn wake(&self) -> Result<Outages, Stopping> {
        loop {
            tokio::select! {
                () = self.models.shared.tasks.stopping().cancelled() => return Err(Stopping),
                () = self.hosted.queue.called() => {}
            }
            self.expect_at_later_steps();
            let began = Instant::now();
            match self.load().await {
                Ok(outages) => {
                    let took = began.elapsed();
                    self.hosted.statistics.record(|counters| counters.waking.record(took));
                    let seconds = took.as_secs_f32();
                    tracing::info!(model = %self.hosted.key, seconds, "loaded again: a request came");
                    return Ok(outages);
                }
                // The bus delivers the requests that wait to other workers.
                Err(NotLoaded::Stopping) => return Err(Stopping),
                Err(NotLoaded::Replaced) => self.hosted.give_back_waiting(AGAIN).await,
                Err(NotLoaded::Failed(reason)) => self.fail(&reason),
            }
        }
    }

    /// Has the models of later steps loaded for which the requests that wait are on their way.
    fn expect_at_later_steps(&self) {
        let mut later = BTreeSet::new();
        self.hosted.queue.look(|work| {
            let steps = work.pending.message.route.remaining().iter().skip(1);
            later.extend(steps.map(|step| step.model.clone()));
        });
        let hosted = self.models.shared.hosted.read();
        later.iter().filter_map(|model| hosted.get(model)).for_each(|model| model.queue.expect());
    }

    async fn load(&self) -> Result<Outages, NotLoaded> {
        let (key, (model, backend, fingerprint)) = (&self.hosted.key, &self.source);
        let _turn = self.models.turns.of(&model.name).await;
        if self.is_replaced() {
            return Err(NotLoaded::Replaced);
        }
        if model.fingerprint(key.version) != *fingerprint {
            return Err(NotLoaded::Failed(format!(
                "its files have changed since it was loaded: load it anew, with POST /v2/repository/models/{}/load or a restart",
                key.name
            )));
        }
        let loading = async {
            let _place = self.models.loads.acquire().await;
            load_version(model, key.version, backend.clone(), self.models.load_options(key.clone())).await
        };
        let given_up = async {
            self.models.shared.tasks.stopping().cancelled().await;
            tokio::time::sleep(LAST_LOADS).await;
        };
        let loaded = tokio::select! {
            loaded = loading => loaded.map_err(|error| NotLoaded::Failed(error.to_string()))?.0,
            () = given_up => return Err(NotLoaded::Stopping),
        };
        let LoadedModel { instances, background, guests, policy, .. } = loaded;
        // The queue keeps its policy, which knows the costs of runs. This one may have to end a measurement first.
        drop(tokio::task::spawn_blocking(move || drop(policy)));
        let outages = instances.iter().map(Instance::outage).collect::<Option<Vec<_>>>();
        let started = self.hosted.engine.restart(instances, background, guests);
        let threads = started.map_err(|error| NotLoaded::Failed(error.to_string()))?;
        self.threads.lock().extend(threads);
        Ok(outages.filter(|outages| !outages.is_empty()))
    }

    /// Whether another content of the version serves its queue.
    fn is_replaced(&self) -> bool {
        let versions = self.models.versions.lock();
        let running = versions.get(&self.hosted.key).and_then(|version| version.running.as_ref());
        running.is_some_and(|running| !Arc::ptr_eq(&running.instances.model, &self.hosted))
    }

    /// Answers the requests that wait.
    fn fail(&self, reason: &str) {
        let key = &self.hosted.key;
        tracing::error!(model = %key, reason, "could not be loaded again; its next request tries it");
        let text = format!(
            "model '{key}' was unloaded from memory while it was idle (--keep-alive), and cannot be loaded again: {reason}"
        );
        // No other attempt is made for these requests: the load is what failed, and they say so.
        let error = InferError { of_model: true, ..InferError::unavailable(text) };
        for work in self.hosted.queue.remove_where(|_| true) {
            self.hosted.fail(work.pending, error.clone(), FailureReason::Other);
        }
    }
}
