//! How a worker ends without losing anything: what it has begun is finished, and the bus gives the rest to others.
//!
//! All of it is within one limit, because whoever told it to stop kills it after theirs; a bus that is lost, or that takes
//! nothing more, makes it no longer. Not here: how single versions go (`models::retire`).

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::worker::Worker;

/// How long a worker that leaves waits for the bus to hear of it.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// How often a drain says who is still running.
const DRAIN_REPORT: Duration = Duration::from_secs(5);

// === impl Worker ===

impl Worker {
    /// Stops: takes no more work, finishes what is in hand, takes its entries back. All of that within `timeout` and
    /// [`LAST_WORDS`] at its beginning and end, whether or not the bus can be reached. Returns how many requests were still
    /// unfinished; the bus delivers those to other workers.
    pub async fn drain(self, timeout: Duration) -> usize {
        let until = tokio::time::Instant::now() + timeout;
        if tokio::time::timeout(LAST_WORDS, self.models.leave()).await.is_err() {
            tracing::warn!("could not announce that this worker leaves: its entries lapse");
        }
        self.models.pulling.cancel();
        let finished = tokio::time::timeout_at(until, self.finish()).await;
        let unfinished = if finished.is_ok() { 0 } else { self.shared.held.count() };

        let (bus, entries) = (self.shared.bus.as_ref(), self.models.entries());
        let last_words = async {
            tokio::join!(
                self.shared.statistics.tell(bus),
                join_all(entries.iter().map(|entry| async { drop(bus.withdraw(entry).await) })),
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
        // One of them may have a canary request in hand. An instance that may hang cannot be waited for; its thread ends
        // with the process.
        let until = until.max(tokio::time::Instant::now() + LAST_WORDS);
        if unfinished > 0 || broken || tokio::time::timeout_at(until, ended).await.is_err() {
            self.shared.tasks.stop();
        }
        unfinished
    }

    /// Waits until nothing is in hand and nothing can come.
    async fn finish(&self) {
        let mut report = Instant::now() + DRAIN_REPORT;
        loop {
            let broken: Vec<_> =
                self.shared.hosted.read().values().filter(|m| m.executions.broken()).cloned().collect();
            for model in broken {
                // Nobody will execute it here.
                model.hand_back().await;
            }
            // In this order: what a pull has taken is in hand before it ends.
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
