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
    /// Unloads the versions of a model that are not to be kept. Gives the entries of those that still finish their work.
    pub(super) async fn retire(&self, model: &str, keep: &[i64]) -> Vec<WorkerEntry> {
        let mut unloading = Vec::new();
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
            unloading.push(entry.clone());
            self.unload_when_quiet(running, entry);
        }
        unloading
    }

    /// Goes on to pull in the background until nothing has come for a while, and lets go of the version then.
    fn unload_when_quiet(&self, running: Running, entry: WorkerEntry) {
        let (shared, stopping) = (self.shared.clone(), self.pulling.clone());
        let Running { instances: Instances { model, threads }, pull } = running;
        self.keep(threads);
        self.shared.tasks.spawn("unload", async move {
            let mut seen = model.admitted.load(Ordering::Relaxed);
            let mut since = Instant::now();
            while since.elapsed() < QUIET && !stopping.is_cancelled() {
                tokio::time::sleep(TICK).await;
                let now = model.admitted.load(Ordering::Relaxed);
                if now != seen || model.queue.in_hand() > 0 {
                    (seen, since) = (now, Instant::now());
                }
            }
            pull.stop.cancel();
            pull.stopped.cancelled().await;
            let key = model.key.clone();
            let_go(&shared, &model).await;
            if !shared.hosts(&key) {
                let _ = shared.bus.withdraw(&entry).await;
            }
            tracing::info!(model = %key, "unloaded");
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
