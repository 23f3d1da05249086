//! Watches executions under way. It stops those for which no client waits any more, if their instance can be stopped,
//! and notices those that do not end. The deliveries of an execution that does not end go back to the bus, so that
//! other workers get them. Then the worker fails: its process ends and is replaced, because a thread that hangs in a
//! model cannot be stopped.
//!
//! Not here: requests that cannot be answered in time (`lateness`), or whose deadline has passed (`hosted`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_inference::UnixMicros;

use crate::backend::Stop;
use crate::cancel::CancelFlag;
use crate::held::{Holding, give_back};
use crate::hosted::{HostedModel, unwanted};

/// The longest time between two checks.
const LOOKS_LONGEST: Duration = Duration::from_secs(1);

/// How long the end of a model's intake may take.
const INTAKE_ENDS: Duration = Duration::from_millis(100);

/// How long the bus may take to take back the deliveries of an execution that does not end.
const LET_GO_LIMIT: Duration = Duration::from_secs(1);

/// The name of the failure with which a worker ends whose execution does not end.
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
    /// Whether it was ended by force.
    killed: bool,
    /// The handles that can give its deliveries back.
    deliveries: Vec<Holding>,
    abort: Option<Abort>,
}

/// The means to stop an execution, and the requests that must all be unwanted for that.
pub struct Abort {
    /// Cancel flag and deadline of each of its requests.
    pub callers: Vec<(CancelFlag, UnixMicros)>,
    /// Stops it.
    pub stop: Arc<dyn Stop>,
}

/// An execution under way; it ends when this is dropped.
pub struct Execution<'a> {
    executions: &'a Executions,
    number: u64,
}

// === impl Executions ===

impl Executions {
    /// An execution of these deliveries begins.
    pub fn begin(&self, deliveries: Vec<Holding>, abort: Option<Abort>) -> Execution<'_> {
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        running.by_number.insert(number, Begun { since: Instant::now(), killed: false, deliveries, abort });
        Execution { executions: self, number }
    }

    /// Stops the executions for which no client waits any more.
    pub fn stop_unwanted(&self) {
        // Under the lock no execution can end, so that `stop` cannot hit a later execution of the same instance.
        for Abort { callers, stop } in self.running.lock().by_number.values().filter_map(|begun| begun.abort.as_ref()) {
            if callers.iter().all(|(cancelled, deadline)| unwanted(cancelled, *deadline).is_some()) {
                stop.stop();
            }
        }
    }

    /// Whether the instances are unreliable: an execution did not end, or the canary request failed.
    pub fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Marks the instances as unreliable.
    pub fn set_broken(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// The deliveries of executions that began more than `limit` ago and cannot be ended by force. Each execution is
    /// returned only once; `None` if there are none. An execution that was ended by force gets `limit` once more.
    fn overdue(&self, limit: Duration, now: Instant) -> Option<Vec<Holding>> {
        let mut running = self.running.lock();
        let mut over = Vec::new();
        for (number, begun) in &mut running.by_number {
            if now.saturating_duration_since(begun.since) <= limit {
                continue;
            }
            match &begun.abort {
                Some(abort) if !begun.killed && abort.stop.kill() => (begun.killed, begun.since) = (true, now),
                _ => over.push(*number),
            }
        }
        let begun = over.iter().filter_map(|number| running.by_number.remove(number));
        let deliveries: Vec<Holding> = begun.flat_map(|begun| begun.deliveries).collect();
        (!over.is_empty()).then_some(deliveries)
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.executions.running.lock().by_number.remove(&self.number);
    }
}

/// Watches a model's executions for as long as its worker runs.
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
        let Some(deliveries) = model.executions.overdue(limit, Instant::now()) else { continue };
        tracing::error!(
            model = %model.key, requests = deliveries.len(),
            "an execution has not ended for {} s: this worker gives its work back and ends", limit.as_secs_f32()
        );
        model.executions.set_broken();
        // Otherwise this worker would get the deliveries again.
        model.intake.cancel();
        tokio::time::sleep(INTAKE_ENDS).await;
        give_back(&deliveries, LET_GO_LIMIT).await;
        model.worker.tasks.fail(FAILURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_that_does_not_end_is_told_once() {
        let executions = Executions::default();
        let ended = executions.begin(Vec::new(), None);
        let hanging = executions.begin(Vec::new(), None);
        let (limit, now) = (Duration::from_secs(5), Instant::now());
        assert!(executions.overdue(limit, now).is_none());
        drop(ended);
        assert!(executions.overdue(limit, now + limit * 2).is_some());
        assert!(executions.overdue(limit, now + limit * 2).is_none());
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
