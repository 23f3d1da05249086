//! Looks after executions under way: stops those that nobody waits for any more, where their instance can be stopped, and
//! notices those that do not end. The deliveries of the latter are let go, so that other workers get them, and the worker
//! fails: its process ends and is replaced, because a thread that hangs in a model cannot be stopped.
//!
//! Not here: executions that end too late for their requests (`hosted` drops those).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_inference::UnixMicros;

use crate::backend::Stop;
use crate::cancel::CancelFlag;
use crate::held::Slot;
use crate::hosted::{HostedModel, unwanted};

/// The longest time between two looks.
const LOOKS_LONGEST: Duration = Duration::from_secs(1);

/// Time in which a model's intake ends.
const INTAKE_ENDS: Duration = Duration::from_millis(100);

/// Time in which the bus takes back what an execution that does not end has in hand.
const LET_GO_LIMIT: Duration = Duration::from_secs(1);

/// Name under which a worker fails whose execution does not end.
const FAILURE: &str = "execution that does not end";

/// The executions of one model that are under way.
#[derive(Default)]
pub struct Executions {
    running: Mutex<Running>,
    broken: AtomicBool,
}

#[derive(Default)]
struct Running {
    next: u64,
    by_number: HashMap<u64, Begun>,
}

struct Begun {
    since: Instant,
    /// The places of its deliveries among those held.
    slots: Vec<Slot>,
    abort: Option<Abort>,
}

/// What stops an execution, and who has to be gone for that.
pub struct Abort {
    /// Flag and deadline of each of its requests.
    pub callers: Vec<(CancelFlag, UnixMicros)>,
    /// Stops it.
    pub stop: Arc<dyn Stop>,
}

/// An execution under way, until it is dropped.
pub struct Execution<'a> {
    executions: &'a Executions,
    number: u64,
}

// === impl Executions ===

impl Executions {
    /// An execution begins, of deliveries that are held at `slots`.
    pub fn begin(&self, slots: Vec<Slot>, abort: Option<Abort>) -> Execution<'_> {
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        running.by_number.insert(number, Begun { since: Instant::now(), slots, abort });
        Execution { executions: self, number }
    }

    /// Stops those that nobody waits for any more.
    pub fn stop_unwanted(&self) {
        // Under the lock: none of them ends meanwhile, so that what is stopped is the one that was meant.
        for Abort { callers, stop } in self.running.lock().by_number.values().filter_map(|begun| begun.abort.as_ref()) {
            if callers.iter().all(|(cancelled, deadline)| unwanted(cancelled, *deadline).is_some()) {
                stop.stop();
            }
        }
    }

    /// Whether the instances can no longer be relied on: an execution did not end, or the canary request failed.
    pub fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// From now on they cannot.
    pub fn set_broken(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// The deliveries of executions that began more than `limit` ago; told once. `None` when there are none.
    fn overdue(&self, limit: Duration, now: Instant) -> Option<Vec<Slot>> {
        let mut running = self.running.lock();
        let is_over = |since: &Instant| now.saturating_duration_since(*since) > limit;
        let over: Vec<u64> =
            running.by_number.iter().filter(|(_, begun)| is_over(&begun.since)).map(|(number, _)| *number).collect();
        let slots = over.iter().filter_map(|number| running.by_number.remove(number)).flat_map(|begun| begun.slots);
        let slots: Vec<Slot> = slots.collect();
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
        model.executions.stop_unwanted();
        let Some(slots) = model.executions.overdue(limit, Instant::now()) else { continue };
        tracing::error!(
            model = %model.key, requests = slots.len(),
            "an execution has not ended for {} s: this worker gives its work back and ends", limit.as_secs_f32()
        );
        model.executions.set_broken();
        // Otherwise this worker would get it again.
        model.intake.cancel();
        tokio::time::sleep(INTAKE_ENDS).await;
        model.worker.held.let_go(&slots, LET_GO_LIMIT).await;
        model.worker.tasks.fail(FAILURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_that_does_not_end_is_told_once() {
        let executions = Executions::default();
        let ended = executions.begin(vec![1], None);
        let hanging = executions.begin(vec![2, 3], None);
        let (limit, now) = (Duration::from_secs(5), Instant::now());
        assert_eq!(executions.overdue(limit, now), None);
        drop(ended);
        assert_eq!(executions.overdue(limit, now + limit * 2), Some(vec![2, 3]));
        assert_eq!(executions.overdue(limit, now + limit * 2), None);
        drop(hanging);
        assert!(executions.running.lock().by_number.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_is_stopped_and_nothing_else() {
        #[derive(Default)]
        struct Stopped(AtomicBool);
        impl Stop for Stopped {
            fn stop(&self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (executions, stopped) = (Executions::default(), Arc::new(Stopped::default()));
        let (one, other) = (CancelFlag::default(), CancelFlag::default());
        let late = (CancelFlag::default(), UnixMicros::now());
        let callers = vec![(one.clone(), UnixMicros::NEVER), (other.clone(), UnixMicros::NEVER), late];
        let execution = executions.begin(Vec::new(), Some(Abort { callers, stop: stopped.clone() }));
        one.cancel();
        executions.stop_unwanted();
        assert!(!stopped.0.load(Ordering::SeqCst), "somebody waits");
        other.cancel();
        executions.stop_unwanted();
        assert!(stopped.0.swap(false, Ordering::SeqCst));
        drop(execution);
        executions.stop_unwanted();
        assert!(!stopped.0.load(Ordering::SeqCst), "it has ended");
    }
}
