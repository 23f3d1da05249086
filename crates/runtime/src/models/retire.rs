//! How model versions go: what comes for them is still done, then their threads end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trireme_bus::{ModelState, WorkerEntry};
use trireme_inference::ModelKey;

use super::{Instances, Models, Running, Version};
use crate::hosted::HostedModel;
use crate::worker::Shared;

/// How long no work may come for a version that is unloaded before its worker stops to pull: requests whose earlier steps
/// still run find it until then.
const QUIET: Duration = Duration::from_secs(3);

/// How often the end of a version that is unloaded is looked for.
const TICK: Duration = Duration::from_millis(50);

// === impl Models ===

impl Models {
    /// Unloads the versions of a model that are not to be kept. Gives their entries as they are while they finish their work.
    pub(super) async fn retire(&self, model: &str, keep: &[i64]) -> Vec<WorkerEntry> {
        let mut unloading = Vec::new();
        let mut said = self.shared.said.lock().await;
        let leaving: Vec<Version> = {
            let mut versions = self.versions.lock();
            let gone = |key: &ModelKey| key.name == model && !keep.contains(&key.version);
            let keys: Vec<_> = versions.keys().filter(|key| gone(key)).cloned().collect();
            keys.iter().filter_map(|key| versions.remove(key)).collect()
        };
        for Version { mut entry, running, .. } in leaving {
            entry.state = ModelState::Unloading;
            if let Err(error) = self.shared.announce(&mut said, &mut entry).await {
                tracing::warn!(model = %entry.model, %error, "could not announce that a version is unloaded");
            }
            unloading.push(entry.clone());
            self.unload_when_quiet(running, entry);
        }
        unloading
    }

    /// Goes on to pull in the background until nothing has come for a while, and lets go of the version then. One that was
    /// never loaded is only forgotten by then, too.
    fn unload_when_quiet(&self, running: Option<Running>, entry: WorkerEntry) {
        let (shared, stopping, versions) = (self.shared.clone(), self.pulling.clone(), self.versions.clone());
        let running = running.map(|Running { instances: Instances { model, threads }, pull }| {
            self.keep(threads);
            (model, pull)
        });
        self.shared.tasks.spawn("unload", async move {
            let admitted = || running.as_ref().map_or(0, |(model, _)| model.admitted.load(Ordering::Relaxed));
            let in_hand = || running.as_ref().map_or(0, |(model, _)| model.queue.in_hand());
            let mut seen = admitted();
            let mut since = Instant::now();
            while since.elapsed() < QUIET && !stopping.is_cancelled() {
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
            // It may be loaded again, or be about to be.
            let _said = shared.said.lock().await;
            if !shared.hosts(&entry.model) && !versions.lock().contains_key(&entry.model) {
                let _ = shared.bus.withdraw(&entry).await;
            }
            tracing::info!(model = %entry.model, "unloaded");
        });
    }

    /// Waits in the background until replaced instances have done their work, and lets go of them.
    pub(super) fn finish(&self, replaced: Instances) {
        let shared = self.shared.clone();
        let Instances { model, threads } = replaced;
        self.keep(threads);
        self.shared.tasks.spawn("replace", async move { let_go(&shared, &model).await });
    }

    /// Remembers threads that end by themselves once their queue is closed.
    fn keep(&self, threads: Vec<JoinHandle<()>>) {
        let mut retired = self.retired.lock();
        retired.retain(|thread| !thread.is_finished());
        retired.extend(threads);
    }
}

/// Waits until nothing is in hand for a version that takes no more, or the worker ends; then its threads end.
async fn let_go(shared: &Shared, model: &Arc<HostedModel>) {
    let _gone = model.gone.clone().drop_guard();
    shared.forget(model);
    while !model.queue.close_if_idle() {
        if shared.tasks.stopping().is_cancelled() {
            return model.queue.close();
        }
        tokio::time::sleep(TICK).await;
    }
}
