//! Lines of results before full queues.
//!
//! Only the first result in a line tries to publish. If all tried, each after a pause of its own, a result that has waited for long
//! would lose the room in the queue to a result that has just come, again and again.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use trireme_bus::WorkMessage;
use trireme_inference::ModelKey;

/// This worker's lines: one for each level of a queue that was full.
#[derive(Default)]
pub struct Lines(parking_lot::Mutex<Vec<Line>>);

/// The first place of a line. The next result gets it when it is dropped.
pub type Turn = OwnedMutexGuard<()>;

struct Line {
    model: ModelKey,
    level: u32,
    /// Tokio's mutex lets tasks in in the order in which they came.
    turn: Arc<tokio::sync::Mutex<()>>,
}

// === impl Lines ===

impl Lines {
    /// Whether results wait for room in the queue that a message goes to.
    pub fn has_line(&self, message: &WorkMessage) -> bool {
        self.0.lock().iter().any(|line| line.is_for(message) && line.turn.try_lock().is_err())
    }

    /// Waits until all results that have joined the line before have left it. `None` for a message without a queue.
    pub async fn join(&self, message: &WorkMessage) -> Option<Turn> {
        let turn = self.line(message)?;
        Some(turn.lock_owned().await)
    }

    /// The line of a message's queue.
    fn line(&self, message: &WorkMessage) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut lines = self.0.lock();
        if let Some(line) = lines.iter().find(|line| line.is_for(message)) {
            return Some(line.turn.clone());
        }
        // A worker serves for years, and models come and go.
        lines.retain(|line| Arc::strong_count(&line.turn) > 1);
        let line = Line { model: message.queue()?.clone(), level: message.level(), turn: Arc::default() };
        let turn = line.turn.clone();
        lines.push(line);
        Some(turn)
    }
}

// === impl Line ===

impl Line {
    fn is_for(&self, message: &WorkMessage) -> bool {
        message.queue() == Some(&self.model) && message.level() == self.level
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use trireme_bus::conformance::fixtures::{message, message_at};

    use super::*;

    #[tokio::test]
    async fn results_leave_a_line_in_the_order_in_which_they_came() {
        let (lines, model) = (Lines::default(), ModelKey { name: "m".into(), version: 1 });
        let result = message(&model, 1);
        let turn = lines.join(&result).await;
        assert!(turn.is_some() && lines.has_line(&result));
        let (mut second, mut third) = (Box::pin(lines.join(&result)), Box::pin(lines.join(&result)));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(turn);
        assert!((&mut third).now_or_never().is_none(), "it came later");
        drop((&mut second).now_or_never().expect("it is its turn"));
        drop(third.now_or_never().expect("it is its turn"));
        assert!(!lines.has_line(&result));
    }

    #[tokio::test]
    async fn each_queue_and_level_has_a_line_which_ends_with_its_results() {
        let (lines, model) = (Lines::default(), ModelKey { name: "m".into(), version: 1 });
        let turn = lines.join(&message_at(&model, 1, 1)).await;
        assert!(!lines.has_line(&message_at(&model, 2, 2)), "another level");
        assert!(!lines.has_line(&message_at(&ModelKey { name: "other".into(), version: 1 }, 1, 3)), "another queue");
        drop(turn);
        drop(lines.join(&message_at(&model, 2, 4)).await);
        assert_eq!(lines.0.lock().len(), 1, "the first line is gone");
    }
}
