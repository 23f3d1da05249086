//! The end of a worker, without losing a request: the worker finishes the work that it has begun, and the bus delivers the rest
//! to other workers.
//!
//! The whole drain has one time limit, because the process is killed after its orchestrator's limit. A bus that is
//! lost, or that takes nothing more, does not make the drain longer.
//!
//! Not here: how single versions are unloaded (`models::retire`).

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::future::join_all;

use super::worker::Worker;
use crate::settle::GIVE_BACK_PAUSE;

/// How long a worker that leaves waits for the bus to take its last messages.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// Time between two log lines that say which models are still busy.
const DRAIN_REPORT: Duration = Duration::from_secs(5);

// === impl Worker ===

impl Worker {
    /// Stops the worker: it takes no more work, finishes the requests that it holds, and withdraws its registry
    /// entries. All of that takes at most `timeout` plus [`LAST_WORDS`] at the beginning and at the end, whether or not
    /// the bus can be reached. Returns how many requests were not finished; the bus delivers those to other workers.
    pub fn drain(self, timeout: Duration) -> BoxFuture<'static, usize> {
        Box::pin(async move {
            let until = tokio::time::Instant::now() + timeout;
            if tokio::time::timeout(LAST_WORDS, self.models.leave()).await.is_err() {
                tracing::warn!("could not announce that this worker leaves: its entries lapse");
            }
            self.models.pulling.cancel();
            let finished = tokio::time::timeout_at(until, self.finish()).await;
            let unfinished = if finished.is_ok() { 0 } else { self.shared.held.count() };

            let (shared, entries) = (&self.shared, self.models.entries());
            let last_words = async {
                tokio::join!(
                    shared.statistics.publish(shared.bus.as_ref()),
                    join_all(entries.iter().map(|entry| self.models.announcer.withdraw(entry))),
                )
            };
            let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
            let broken = self.shared.hosted.read().values().any(|model| model.executions.broken());
            let threads = self.models.close();
            let ended = async {
                let join = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join())));
                drop(join.await);
                self.shared.tasks.join().await;
            };
            // An instance may still execute a canary request. An instance that may hang is not waited for; its thread ends
            // with the process.
            let until = until.max(tokio::time::Instant::now() + LAST_WORDS);
            if unfinished > 0 || broken || tokio::time::timeout_at(until, ended).await.is_err() {
                self.shared.tasks.stop();
            }
            unfinished
        })
    }

    /// Waits until the worker holds no requests and can get no more.
    async fn finish(&self) {
        let mut report = Instant::now() + DRAIN_REPORT;
        loop {
            let broken: Vec<_> =
                self.shared.hosted.read().values().filter(|m| m.executions.broken()).cloned().collect();
            for model in broken {
                // The instances of this model execute nothing any more.
                model.give_back_waiting(GIVE_BACK_PAUSE).await;
            }
            // In this order: a pull counts the deliveries that it has taken before it ends.
            if self.models.pulls.is_empty() && self.shared.held.count() == 0 {
                return;
            }
            if Instant::now() >= report {
                report += DRAIN_REPORT;
                let hosted = self.shared.hosted.read();
                let busy: Vec<_> = hosted.values().filter(|m| m.queue.in_hand() > 0).collect();
                let busy: Vec<_> = busy.iter().map(|m| format!("{} ({})", m.key, m.queue.in_hand())).collect();
                tracing::info!(in_hand = self.shared.held.count(), still_running = busy.join(", "), "draining");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
