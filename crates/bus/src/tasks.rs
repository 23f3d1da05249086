//! The bus's own tasks, and the pauses between their attempts.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use trireme_inference::Backoff;

/// See [`queue_pause`].
const QUEUE: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The pause before a message is published again to a queue that is full or missing. `time` counts the pauses from 0:
/// the first is about 50 ms, and each is twice the last, up to about a second. The pause is random, so that waiting
/// processes do not all publish at once when a broker comes back.
///
/// ```
/// # use std::time::Duration;
/// use trireme_bus::queue_pause;
///
/// assert!(queue_pause(0) <= Duration::from_millis(75));
/// assert!(queue_pause(20) >= Duration::from_millis(500));
/// ```
pub fn queue_pause(time: u32) -> Duration {
    QUEUE.scattered_after(time.saturating_add(1))
}

/// The pause before the first message in a waiting room is published again: 5 to 100 ms on average. It is the only one of its process
/// that looks for room, and other processes' messages take the room, too.
pub fn room_pause(time: u32) -> Duration {
    queue_pause(time) / 10
}

/// The pauses of a loop that opens something again whenever it breaks, such as a watch of a store. Where it breaks again at once,
/// the pauses grow to about a second, and the log says it once.
///
/// ```
/// use trireme_bus::Reopening;
///
/// let mut watch = Reopening::default();
/// let first = watch.broke(&"the broker is gone");
/// let pauses: Vec<_> = (0..9).map(|_| watch.broke(&"the broker is gone")).collect();
/// assert!(pauses[8] > first * 4);
/// ```
#[derive(Debug, Default)]
pub struct Reopening {
    /// Breaks in a row.
    breaks: u32,
    /// Since when it works.
    works_since: Option<Instant>,
}

// === impl Reopening ===

impl Reopening {
    /// A task that works for this long has not broken at once.
    const LASTING: Duration = Duration::from_secs(2);

    /// Notes that it works, or still does.
    pub fn works(&mut self) {
        self.works_since.get_or_insert_with(Instant::now);
    }

    /// Notes that it has broken, and logs why, unless it breaks again and again. Returns the pause before it is opened again.
    pub fn broke(&mut self, why: &dyn fmt::Display) -> Duration {
        match self.ended() {
            0 => tracing::warn!("{why}; trying again until it works"),
            breaks => tracing::debug!(breaks, "{why}"),
        }
        queue_pause(self.breaks)
    }

    /// Notes that it has ended without a fault. Returns the pause before it is opened again.
    pub fn pause(&mut self) -> Duration {
        self.ended();
        queue_pause(self.breaks)
    }

    /// Counts a break; returns how many were before it in a row.
    fn ended(&mut self) -> u32 {
        let before = match self.works_since.take() {
            Some(since) if since.elapsed() >= Reopening::LASTING => 0,
            Some(_) | None => self.breaks,
        };
        self.breaks = before.saturating_add(1);
        before
    }
}

/// Starts one of the bus's own tasks. Each ends by itself when the value it serves is dropped, so no task is joined.
pub(crate) fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    use tracing::Instrument;
    #[allow(clippy::disallowed_methods, reason = "the one place where this crate starts tasks")]
    drop(tokio::spawn(task.instrument(tracing::debug_span!("bus", task = name))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_breaks_at_once_is_opened_less_often_and_what_lasts_at_once() {
        let mut watch = Reopening::default();
        let mut pauses = Vec::new();
        for _ in 0..20 {
            // It is opened, and ends at once.
            watch.works();
            pauses.push(watch.broke(&"gone"));
        }
        assert!(pauses[0] < Duration::from_millis(200) && pauses[19] >= Duration::from_millis(500), "{pauses:?}");
        assert_eq!(watch.ended(), 20, "the log says it once");
        watch.works();
        tokio::time::advance(Reopening::LASTING).await;
        watch.works();
        assert_eq!(watch.ended(), 0, "the next one is news");
    }
}
