//! The executions under way. Those for which no client waits any more are stopped, if their instance can be stopped, and
//! those that do not end are noticed. The requests of an execution that does not end are released, so that other workers
//! get them. Then the worker fails: its process ends and is replaced, because a thread that hangs in a model cannot be
//! stopped.
//!
//! Not here: the task that looks at them (`watch`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_inference::UnixMicros;

use crate::backend::Stop;
use crate::cancel::{CancelFlag, unwanted};

/// The executions of one model that are under way. `H` can release a request.
pub struct Executions<H> {
    running: Mutex<Running<H>>,
    broken: AtomicBool,
}

struct Running<H> {
    next: u64,
    by_number: HashMap<u64, Begun<H>>,
}

/// How long an execution may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How many times the limit.
    pub times: u32,
    /// But at least so long: a client has asked for it.
    pub at_least: Duration,
}

struct Begun<H> {
    since: Instant,
    patience: Patience,
    /// Whether it was ended by force.
    killed: bool,
    /// The handles that can release its requests.
    held: Vec<H>,
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
pub struct Execution<'a, H> {
    executions: &'a Executions<H>,
    number: u64,
}

// === impl Patience ===

impl Patience {
    /// The limit, for an execution whose clients have not asked for more.
    pub const USUAL: Patience = Patience { times: 1, at_least: Duration::ZERO };

    fn of(self, limit: Duration) -> Duration {
        (limit * self.times).max(self.at_least)
    }
}

// === impl Executions ===

impl<H> Executions<H> {
    /// An execution of these requests begins.
    pub fn begin(&self, held: Vec<H>, abort: Option<Abort>, patience: Patience) -> Execution<'_, H> {
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        running.by_number.insert(number, Begun { since: Instant::now(), patience, killed: false, held, abort });
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

    /// The requests of executions that have passed their limit, a multiple of `limit`, and cannot be ended by force. Each execution is
    /// returned only once; `None` if there are none. An execution that was ended by force gets `limit` once more.
    pub(crate) fn overdue(&self, limit: Duration, now: Instant) -> Option<Vec<H>> {
        let mut running = self.running.lock();
        let mut over = Vec::new();
        for (number, begun) in &mut running.by_number {
            if now.saturating_duration_since(begun.since) <= begun.patience.of(limit) {
                continue;
            }
            match &begun.abort {
                Some(abort) if !begun.killed && abort.stop.kill() => (begun.killed, begun.since) = (true, now),
                _ => over.push(*number),
            }
        }
        let begun = over.iter().filter_map(|number| running.by_number.remove(number));
        let held: Vec<H> = begun.flat_map(|begun| begun.held).collect();
        (!over.is_empty()).then_some(held)
    }
}

impl<H> Default for Executions<H> {
    fn default() -> Self {
        let running = Running { next: 0, by_number: HashMap::new() };
        Executions { running: Mutex::new(running), broken: AtomicBool::new(false) }
    }
}

impl<H> Drop for Execution<'_, H> {
    fn drop(&mut self) {
        self.executions.running.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_that_does_not_end_is_told_once() {
        let executions = Executions::<()>::default();
        let ended = executions.begin(Vec::new(), None, Patience::USUAL);
        let hanging = executions.begin(Vec::new(), None, Patience::USUAL);
        let patient = executions.begin(Vec::new(), None, Patience { times: 10, ..Patience::USUAL });
        let (limit, now) = (Duration::from_secs(5), Instant::now());
        assert!(executions.overdue(limit, now).is_none());
        drop(ended);
        assert!(executions.overdue(limit, now + limit * 2).is_some());
        assert!(executions.overdue(limit, now + limit * 9).is_none());
        assert!(executions.overdue(limit, now + limit * 11).is_some());
        let asked = executions.begin(Vec::new(), None, Patience { times: 1, at_least: limit * 20 });
        assert!(executions.overdue(limit, now + limit * 19).is_none());
        assert!(executions.overdue(limit, Instant::now() + limit * 21).is_some());
        drop((hanging, patient, asked));
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
        let (executions, stopped) = (Executions::<()>::default(), Arc::new(Stopped::default()));
        let (one, other) = (CancelFlag::default(), CancelFlag::default());
        let late = (CancelFlag::default(), UnixMicros::now());
        let callers = vec![(one.clone(), UnixMicros::NEVER), (other.clone(), UnixMicros::NEVER), late];
        let execution = executions.begin(Vec::new(), Some(Abort { callers, stop: stopped.clone() }), Patience::USUAL);
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
