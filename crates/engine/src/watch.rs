//! The tasks beside a model's instances: they notice executions that do not end, and have idle instances execute the canary
//! request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::canary::is_due;
use crate::completion::Completion;
use crate::model::Model;

/// The longest time between two checks of the executions.
const LOOKS_LONGEST: Duration = Duration::from_secs(1);

/// How long the end of a model's intake may take.
const INTAKE_ENDS: Duration = Duration::from_millis(100);

/// The name of the failure with which a worker ends whose execution does not end.
const FAILURE: &str = "execution that does not end";

// === impl Model ===

impl<C: Completion> Model<C> {
    /// Watches the model's executions until it is dropped.
    pub async fn watch_executions(self: Arc<Self>, limit: Duration) {
        let mut looks = tokio::time::interval((limit / 10).clamp(Duration::from_millis(1), LOOKS_LONGEST));
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.executions.stop_unwanted();
            let Some(held) = self.executions.overdue(limit, Instant::now()) else { continue };
            tracing::error!(
                model = %self.key, requests = held.len(),
                "an execution has not ended for {} s (--execution-limit-secs): this worker gives its work back and ends", limit.as_secs_f32()
            );
            self.executions.set_broken();
            // Otherwise this worker would get the requests again.
            self.intake.cancel();
            tokio::time::sleep(INTAKE_ENDS).await;
            C::release(held).await;
            self.tasks.fail(FAILURE);
        }
    }

    /// Makes the idle instances of the model execute its canary request after every `pause` in which no request succeeded.
    pub async fn watch_canary(self: Arc<Self>, pause: Duration) {
        let Some(canary) = &self.canary else { return };
        let mut seen = canary.successes();
        loop {
            tokio::time::sleep(pause).await;
            let now = canary.successes();
            if is_due(seen, now, self.queue.in_hand()) {
                self.queue.call_idle();
            }
            seen = now;
        }
    }
}
