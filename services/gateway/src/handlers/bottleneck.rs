//! Which step of an ensemble is the bottleneck: decided here only, and told in the status document, which `trireme status` and the
//! console show. docs/slow-pipeline.md says the rule.

use std::time::Duration;

/// A shorter wait is not worth a name.
const NOTICEABLE: Duration = Duration::from_millis(10);

/// A step, as it was in the last minute.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepLoad {
    /// Requests in its queue now.
    pub waiting: u64,
    /// The median way to its worker: the bus, and its queue there.
    pub transit: Duration,
    /// The median wait in its worker.
    pub worker_queue: Duration,
    /// The median run.
    pub compute: Duration,
}

/// The index of the step that the others wait for; `None` where no step keeps requests waiting for longer than it runs.
///
/// A step whose queue is full keeps requests waiting at the steps before it, too. So among steps with waits of the same size the last
/// one is the cause.
pub fn bottleneck(steps: &[StepLoad]) -> Option<usize> {
    let longest = steps.iter().map(StepLoad::wait).max()?;
    let is_slow = |step: &StepLoad| step.wait() >= NOTICEABLE.max(step.compute) && step.wait() >= longest / 2;
    steps.iter().rposition(is_slow)
}

// === impl StepLoad ===

impl StepLoad {
    /// How long a request waits for the step. The way over the bus counts only where requests queue there: otherwise it is the bus's
    /// own time.
    pub fn wait(&self) -> Duration {
        let transit = if self.waiting > 0 { self.transit } else { Duration::ZERO };
        self.worker_queue + transit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(waiting: u64, transit: u64, worker_queue: u64, compute: u64) -> StepLoad {
        let [transit, worker_queue, compute] = [transit, worker_queue, compute].map(Duration::from_millis);
        StepLoad { waiting, transit, worker_queue, compute }
    }

    #[test]
    fn the_step_that_requests_wait_longest_for_is_the_bottleneck() {
        let fast = step(0, 1, 0, 2);
        for (steps, expected) in [
            // In the worker's queue, on the bus, or in both.
            (vec![fast, step(0, 0, 400, 50), fast], Some(1)),
            (vec![fast, step(90, 400, 30, 50), fast], Some(1)),
            // A batch that waits a little for others is no bottleneck beside one.
            (vec![step(0, 0, 400, 50), step(0, 0, 60, 5)], Some(0)),
            // A full queue holds the step before it, which is quick itself.
            (vec![step(900, 800, 20, 2), step(1000, 900, 30, 50)], Some(1)),
            (vec![step(1000, 900, 30, 50), step(900, 800, 20, 50)], Some(1)),
        ] {
            assert_eq!(bottleneck(&steps), expected, "{steps:?}");
        }
    }

    #[test]
    fn a_pipeline_with_room_has_none() {
        let slow_bus = step(0, 40, 1, 5);
        for steps in
            [vec![], vec![StepLoad::default(); 3], vec![slow_bus; 3], vec![step(0, 0, 30, 50)], vec![step(1, 4, 3, 1)]]
        {
            assert_eq!(bottleneck(&steps), None, "{steps:?}");
        }
    }
}
