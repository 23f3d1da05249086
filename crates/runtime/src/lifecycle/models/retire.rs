//! How model versions are unloaded: the worker finishes the requests that still arrive for them, then their threads
//! end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trireme_bus::{ModelState, WorkerEntry};
use trireme_inference::ModelKey;

use super::{Instances, Models, Running, SharedThreads, Version};
use crate::hosted::{HostedModel, WorkerState};

/// A version that is unloaded is pulled for until no work has arrived for this long. So requests whose earlier steps
/// still run find it.
pub(super) const QUIET: Duration = Duration::from_secs(3);

/// Time between two checks whether a version can be unloaded.
const TICK: Duration = Duration::from_millis(50);

// === impl Models ===

impl Models {
    /// Unloads the versions of a model that are not in `keep`, once no work has arrived for `quiet`. Returns their entries in the
    /// state `Unloading`.
    pub(super) async fn retire(&self, model: &str, keep: &[i64], quiet: Duration) -> Vec<WorkerEntry> {
        let mut unloading = Vec::new();
        let mut said = self.said.lock().await;
        let leaving: Vec<Version> = {
            let mut versions = self.versions.lock();
            let gone = |key: &ModelKey| key.name == model && !keep.contains(&key.version);
            let keys: Vec<_> = versions.keys().filter(|key| gone(key)).cloned().collect();
            keys.iter().filter_map(|key| versions.remove(key)).collect()
        };
        for Version { mut entry, running, .. } in leaving {
            entry.state = ModelState::Unloading;
            if let Err(error) = self.announce(&mut said, &mut entry).await {
                tracing::warn!(model = %entry.model, %error, "could not announce yet that a version is unloaded; trying on");
            }
            unloading.push(entry.clone());
            self.unload_when_quiet(running, entry, quiet);
        }
        unloading
    }

    /// Goes on to pull in the background until no work has arrived for `quiet`, then lets go of the version. An entry
    /// of a version that was never loaded is withdrawn after the same time.
    fn unload_when_quiet(&self, running: Option<Running>, entry: WorkerEntry, quiet: Duration) {
        let (shared, stopping, versions) = (self.shared.clone(), self.pulling.clone(), self.versions.clone());
        let (said, announcer) = (self.said.clone(), self.announcer.clone());
        let running = running.map(|Running { instances: Instances { model, threads }, pull }| {
            self.keep(threads);
            (model, pull)
        });
        self.shared.tasks.spawn("unload", async move {
            let admitted = || running.as_ref().map_or(0, |(model, _)| model.admitted.load(Ordering::Relaxed));
            let in_hand = || running.as_ref().map_or(0, |(model, _)| model.queue.in_hand());
            let mut seen = admitted();
            let mut since = Instant::now();
            while since.elapsed() < quiet && !stopping.is_cancelled() {
                tokio::time::sleep(TICK).await;
                let now = admitted();
                if now != seen || in_hand() > 0 {
                    (seen, since) = (now, Instant::now());
                }
            }
            if let Some((model, pull)) = &running {
                pull.stop.cancel();
                pull.stopped.cancelled().await;
                let_go(&shared, model).await;
            }
            // The version may have been loaded again meanwhile, or may be about to be announced.
            let _said = said.lock().await;
            if !shared.hosts(&entry.model) && !versions.lock().contains_key(&entry.model) {
                let _ = announcer.withdraw(&entry).await;
            }
            tracing::info!(model = %entry.model, "unloaded");
        });
    }

    /// Waits in the background until replaced instances have finished their work, then closes their queue.
    pub(super) fn finish(&self, replaced: Instances) {
        let shared = self.shared.clone();
        let Instances { model, threads } = replaced;
        self.keep(threads);
        self.shared.tasks.spawn("replace", async move { let_go(&shared, &model).await });
    }

    /// Keeps the handles of threads that end when their queue is closed.
    fn keep(&self, threads: SharedThreads) {
        let mut retired = self.retired.lock();
        let may_have_more = |threads: &SharedThreads| Arc::strong_count(threads) > 1;
        retired.retain(|threads| may_have_more(threads) || threads.lock().iter().any(|thread| !thread.is_finished()));
        retired.push(threads);
    }
}

/// Waits until a version that takes no more work holds no requests, or until the worker ends. Then closes its queue, so
/// that its threads end.
async fn let_go(shared: &WorkerState, model: &Arc<HostedModel>) {
    let _gone = model.gone.clone().drop_guard();
    shared.forget(model);
    while !model.queue.close_if_idle() {
        if shared.tasks.stopping().is_cancelled() {
            return model.queue.close();
        }
        tokio::time::sleep(TICK).await;
    }
}
