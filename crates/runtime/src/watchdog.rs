//! Notices executions that do not end. Their deliveries are let go, so that other workers get them, and the worker fails:
//! its process ends and is replaced, because a thread that hangs in a model cannot be stopped.
//!
//! Not here: executions that end too late for their requests (`hosted` drops those).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::hosted::HostedModel;

/// The longest time between two looks.
const LOOKS_LONGEST: Duration = Duration::from_secs(1);

/// Time in which a model's intake ends.
const INTAKE_ENDS: Duration = Duration::from_millis(100);

/// Name under which a worker fails whose execution does not end.
const FAILURE: &str = "execution that does not end";

/// The executions of one model that are under way.
#[derive(Default)]
pub struct Executions {
    running: Mutex<Running>,
    hung: AtomicBool,
}

#[derive(Default)]
struct Running {
    next: u64,
    /// When each began, and the places of its deliveries among those held.
    by_number: HashMap<u64, (Instant, Vec<usize>)>,
}

/// An execution under way, until it is dropped.
pub struct Execution<'a> {
    executions: &'a Executions,
    number: u64,
}

// === impl Executions ===

impl Executions {
    /// An execution begins, of deliveries that are held at `slots`.
    pub fn begin(&self, slots: Vec<usize>) -> Execution<'_> {
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        running.by_number.insert(number, (Instant::now(), slots));
        Execution { executions: self, number }
    }

    /// Whether one of them did not end.
    pub fn hung(&self) -> bool {
        self.hung.load(Ordering::Acquire)
    }

    /// The deliveries of executions that began more than `limit` ago; told once. `None` when there are none.
    fn overdue(&self, limit: Duration, now: Instant) -> Option<Vec<usize>> {
        let mut running = self.running.lock();
        let is_over = |since: &Instant| now.saturating_duration_since(*since) > limit;
        let over: Vec<u64> =
            running.by_number.iter().filter(|(_, (since, _))| is_over(since)).map(|(number, _)| *number).collect();
        let slots = over.iter().filter_map(|number| running.by_number.remove(number)).flat_map(|(_, slots)| slots);
        let slots: Vec<usize> = slots.collect();
        (!over.is_empty()).then_some(slots)
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.executions.running.lock().by_number.remove(&self.number);
    }
}

/// Looks at a model's executions for as long as its worker runs.
pub(crate) async fn watch(model: Arc<HostedModel>, limit: Duration) {
    let stopping = model.worker.tasks.stopping().clone();
    let mut looks = tokio::time::interval((limit / 10).clamp(Duration::from_millis(1), LOOKS_LONGEST));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = stopping.cancelled() => return,
        }
        let Some(slots) = model.executions.overdue(limit, Instant::now()) else { continue };
        tracing::error!(
            model = %model.key, requests = slots.len(),
            "an execution has not ended for {} s: this worker gives its work back and ends", limit.as_secs_f32()
        );
        model.executions.hung.store(true, Ordering::Release);
        // Otherwise this worker would get it again.
        model.intake.cancel();
        tokio::time::sleep(INTAKE_ENDS).await;
        model.worker.held.let_go(&slots).await;
        model.worker.tasks.fail(FAILURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_that_does_not_end_is_told_once() {
        let executions = Executions::default();
        let ended = executions.begin(vec![1]);
        let hanging = executions.begin(vec![2, 3]);
        let (limit, now) = (Duration::from_secs(5), Instant::now());
        assert_eq!(executions.overdue(limit, now), None);
        drop(ended);
        assert_eq!(executions.overdue(limit, now + limit * 2), Some(vec![2, 3]));
        assert_eq!(executions.overdue(limit, now + limit * 2), None);
        drop(hanging);
        assert!(executions.running.lock().by_number.is_empty());
    }
}
