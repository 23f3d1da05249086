//! The executions under way. Those for which no client waits any more are stopped, if their instance can be stopped, and
//! those that do not end are noticed. An execution that passes its limit is ended by force, if its instance can do that
//! ([`Stop::kill`]). The requests of any other one are released, so that other workers get them. Then the worker fails: its
//! process ends and is replaced, because a thread that hangs in a model cannot be stopped.
//!
//! Not here: the task that looks at them (`watch`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_inference::UnixMicros;

use crate::cancel::{CancelFlag, unwanted};
use crate::instance::Stop;

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
pub struct ExecutionLimit {
    /// How many times the limit.
    pub times: u32,
    /// But at least so long: a client has asked for it. Where all clients have left, the limit counts from then on.
    pub at_least: Duration,
}

struct Begun<H> {
    since: Instant,
    allowed: ExecutionLimit,
    /// When it was first seen that no client waits for it.
    left: Option<Instant>,
    /// Whether it was ended by force.
    killed: bool,
    /// The handles that can release its requests.
    held: Vec<H>,
    callers: Callers,
}

/// The clients of an execution, and the means to stop it when none of them waits.
#[derive(Default)]
pub struct Callers {
    /// Cancel flag and deadline of each of its requests. An execution without any is always wanted.
    pub waiting: Vec<(CancelFlag, UnixMicros)>,
    /// Stops it, if its instance can be stopped.
    pub stop: Option<Arc<dyn Stop>>,
}

/// An execution under way; it ends when this is dropped.
pub struct Execution<'a, H> {
    executions: &'a Executions<H>,
    number: u64,
}

// === impl ExecutionLimit ===

impl ExecutionLimit {
    /// The limit, for an execution whose clients have not asked for more.
    pub const USUAL: ExecutionLimit = ExecutionLimit { times: 1, at_least: Duration::ZERO };

    /// How long an execution may take for clients that wait.
    fn of(self, limit: Duration) -> Duration {
        (limit * self.times).max(self.at_least)
    }
}

// === impl Callers ===

impl Callers {
    /// Whether no client waits any more.
    fn have_left(&self) -> bool {
        let unwanted = |(cancelled, deadline): &(CancelFlag, UnixMicros)| unwanted(cancelled, *deadline).is_some();
        !self.waiting.is_empty() && self.waiting.iter().all(unwanted)
    }
}

// === impl Begun ===

impl<H> Begun<H> {
    /// Whether it has taken too long. An execution that goes on after its clients have left gets the limit once more, in which it may
    /// be stopped, but not the time that they had asked for.
    fn is_over(&mut self, limit: Duration, now: Instant) -> bool {
        if self.callers.have_left() {
            self.left.get_or_insert(now);
        }
        let since = |then: Instant| now.saturating_duration_since(then);
        let usual = limit * self.allowed.times;
        since(self.since) > self.allowed.of(limit)
            || self.left.is_some_and(|left| since(left) > limit && since(self.since) > usual)
    }
}

// === impl Executions ===

impl<H> Executions<H> {
    /// An execution of these requests begins.
    pub fn begin(&self, held: Vec<H>, callers: Callers, allowed: ExecutionLimit) -> Execution<'_, H> {
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        let begun = Begun { since: Instant::now(), allowed, left: None, killed: false, held, callers };
        running.by_number.insert(number, begun);
        Execution { executions: self, number }
    }

    /// Stops the executions for which no client waits any more.
    pub fn stop_unwanted(&self) {
        // Under the lock no execution can end, so that `stop` cannot hit a later execution of the same instance.
        for Begun { callers, .. } in self.running.lock().by_number.values() {
            if let Some(stop) = callers.stop.as_ref().filter(|_| callers.have_left()) {
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
            if !begun.is_over(limit, now) {
                continue;
            }
            match &begun.callers.stop {
                Some(stop) if !begun.killed && stop.kill() => {
                    (begun.killed, begun.since, begun.left) = (true, now, None);
                    begun.allowed = ExecutionLimit::USUAL;
                }
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
        let ended = executions.begin(Vec::new(), Callers::default(), ExecutionLimit::USUAL);
        let hanging = executions.begin(Vec::new(), Callers::default(), ExecutionLimit::USUAL);
        let patient =
            executions.begin(Vec::new(), Callers::default(), ExecutionLimit { times: 10, ..ExecutionLimit::USUAL });
        let (limit, now) = (Duration::from_secs(5), Instant::now());
        assert!(executions.overdue(limit, now).is_none());
        drop(ended);
        assert!(executions.overdue(limit, now + limit * 2).is_some());
        assert!(executions.overdue(limit, now + limit * 9).is_none());
        assert!(executions.overdue(limit, now + limit * 11).is_some());
        let asked = executions.begin(Vec::new(), Callers::default(), ExecutionLimit { times: 1, at_least: limit * 20 });
        assert!(executions.overdue(limit, now + limit * 19).is_none());
        assert!(executions.overdue(limit, Instant::now() + limit * 21).is_some());
        drop((hanging, patient, asked));
        assert!(executions.running.lock().by_number.is_empty());
    }

    #[test]
    fn the_time_that_a_client_asked_for_ends_when_it_leaves() {
        let (limit, begun) = (Duration::from_secs(5), Instant::now());
        for stops in [false, true] {
            let executions = Executions::<()>::default();
            let (one, other) = (CancelFlag::default(), CancelFlag::default());
            let waiting = vec![(one.clone(), UnixMicros::NEVER), (other.clone(), UnixMicros::NEVER)];
            let stop = stops.then(|| Arc::new(Deaf) as Arc<dyn Stop>);
            let allowed = ExecutionLimit { times: 1, at_least: limit * 100 };
            let _execution = executions.begin(Vec::new(), Callers { waiting, stop }, allowed);
            one.cancel();
            assert!(executions.overdue(limit, begun + limit * 30).is_none(), "the other client waits");
            other.cancel();
            assert!(executions.overdue(limit, begun + limit * 40).is_none(), "it may still be stopped");
            assert!(executions.overdue(limit, begun + limit * 41).is_none());
            assert!(executions.overdue(limit, begun + limit * 42).is_some());
        }
        // In its first time an execution may go on although its clients have left.
        let executions = Executions::<()>::default();
        let gone = CancelFlag::default();
        gone.cancel();
        let waiting = vec![(gone, UnixMicros::NEVER)];
        let allowed = ExecutionLimit { times: 10, at_least: limit * 100 };
        let _execution = executions.begin(Vec::new(), Callers { waiting, stop: None }, allowed);
        assert!(executions.overdue(limit, begun + limit * 2).is_none());
        assert!(executions.overdue(limit, begun + limit * 9).is_none());
        assert!(executions.overdue(limit, Instant::now() + limit * 11).is_some());
    }

    /// It hears no request to stop.
    struct Deaf;

    impl Stop for Deaf {
        fn stop(&self) {}
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
        let callers = Callers { waiting: callers, stop: Some(stopped.clone()) };
        let execution = executions.begin(Vec::new(), callers, ExecutionLimit::USUAL);
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
