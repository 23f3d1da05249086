//! How many calls of durable work are in flight: for each destination as many as its workers take, shared evenly between jobs, and for all
//! destinations together a fixed number.
//!
//! Until something is refused the limit of a destination grows by one with each answer. It is halved when a queue was full or no worker was
//! there, and grows by one for as many answers as it allows from then on. This is how TCP finds the speed of a line (slow start, additive
//! increase, multiplicative decrease). A destination that refuses the only call that it may have rests for a while, longer and longer
//! until it answers.
//!
//! Not here: which call is the next one (`turns`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use trireme_inference::Name;

/// The limit of a destination at the start.
const FIRST: f64 = 32.0;

/// The limit is halved at most once in this time, because many refusals have one cause.
const HALVE_AGAIN: Duration = Duration::from_millis(200);

/// The pause after a refusal: the first, which then doubles, and the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Destinations without a job whose limits are remembered.
const KEPT: usize = 256;

/// The calls that may be in flight, by destination. Clones are the same.
#[derive(Clone)]
pub(crate) struct Paces(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// Most calls to all destinations together.
    most: usize,
    /// Calls in flight to all destinations.
    running: usize,
    /// The shares that exist.
    shares: usize,
    /// The number of the next share.
    next: u64,
    /// Shares that found all calls taken, in their order: a call that ends leaves its place to the first of them.
    waiting: VecDeque<u64>,
    destinations: HashMap<Name, Destination>,
}

/// The pace of one destination.
struct Destination {
    limit: f64,
    shares: usize,
    halved: Option<Instant>,
    /// The time before which no call begins, and the pause that ends then.
    rest: Option<(Instant, Duration)>,
}

/// A job's part of the pace of a destination, until it is dropped.
pub(crate) struct Share {
    paces: Paces,
    destination: Name,
    number: u64,
    running: Arc<AtomicUsize>,
}

/// The right to have a call in flight, until it is dropped.
pub(crate) struct Slot {
    paces: Paces,
    destination: Name,
    running: Arc<AtomicUsize>,
}

// === impl Destination ===

impl Destination {
    /// The pace of a destination that nothing is known of, at most `most` calls.
    fn new(most: usize) -> Destination {
        Destination { limit: FIRST.min(most as f64), shares: 0, halved: None, rest: None }
    }

    /// Counts an answer. Returns whether a rest has ended with it.
    fn answered(&mut self, most: f64) -> bool {
        let more = if self.halved.is_none() { 1.0 } else { 1.0 / self.limit };
        self.limit = (self.limit + more).min(most);
        self.rest.take().is_some()
    }

    /// Counts a refusal because the destination has too much to do, or is not there.
    fn refused(&mut self, now: Instant) {
        if self.limit <= 1.0 {
            if self.rests_until(now).is_none() {
                let pause = self.rest.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
                self.rest = Some((now + pause, pause));
            }
        } else if self.halved.is_none_or(|halved| now.saturating_duration_since(halved) > HALVE_AGAIN) {
            self.limit = (self.limit / 2.0).max(1.0);
            self.halved = Some(now);
        }
    }

    fn rests_until(&self, now: Instant) -> Option<Instant> {
        self.rest.map(|(until, _)| until).filter(|until| *until > now)
    }
}

// === impl Paces ===

impl Paces {
    /// Paces of at most `most` calls to all destinations together.
    pub fn new(most: usize) -> Paces {
        let state = State {
            most: most.max(1),
            running: 0,
            shares: 0,
            next: 0,
            waiting: VecDeque::new(),
            destinations: HashMap::new(),
        };
        Paces(Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }))
    }

    /// Counts another job that has calls to a destination.
    pub fn share(&self, destination: &Name) -> Share {
        let mut state = self.0.state.lock();
        state.shares += 1;
        state.next += 1;
        let most = state.most;
        state.destinations.entry(destination.clone()).or_insert_with(|| Destination::new(most)).shares += 1;
        let (paces, number) = (self.clone(), state.next);
        Share { paces, destination: destination.clone(), number, running: Arc::default() }
    }

    /// Ends when a share may have a call that it could not have before. Created before the look at the shares, it misses nothing.
    pub fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }

    /// Calls that may be in flight together now.
    pub fn limit(&self) -> usize {
        let state = self.0.state.lock();
        let used = state.destinations.values().filter(|pace| pace.shares > 0);
        let limits: usize = used.map(|pace| pace.limit as usize).sum();
        (if limits > 0 { limits } else { FIRST as usize }).min(state.most)
    }
}

// === impl Share ===

impl Share {
    /// Calls that this job has in flight.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Begins a call, unless the job has its part already, the destination rests, or all calls are taken. The part is an even one of the
    /// destination's limit and of all calls, and at least one call.
    pub fn begin(&self, now: Instant) -> Option<Slot> {
        let mut guard = self.paces.0.state.lock();
        let state = &mut *guard;
        let pace = state.destinations.get(&self.destination)?;
        let part = (pace.limit as usize / pace.shares.max(1)).min(state.most / state.shares.max(1)).max(1);
        if pace.rests_until(now).is_some() || self.running() >= part {
            self.leave(state);
            return None;
        }
        let free = state.most.saturating_sub(state.running);
        let place = state.waiting.iter().position(|number| *number == self.number);
        if place.unwrap_or(state.waiting.len()) >= free {
            if place.is_none() {
                state.waiting.push_back(self.number);
            }
            return None;
        }
        if let Some(place) = place {
            state.waiting.remove(place);
        }
        state.running += 1;
        self.running.fetch_add(1, Ordering::Relaxed);
        let (paces, destination) = (self.paces.clone(), self.destination.clone());
        Some(Slot { paces, destination, running: self.running.clone() })
    }

    /// When the destination's rest is over, if it rests.
    pub fn rests_until(&self, now: Instant) -> Option<Instant> {
        self.paces.0.state.lock().destinations.get(&self.destination)?.rests_until(now)
    }

    /// Leaves its place to other shares: the job has no call to begin.
    pub fn wants_none(&self) {
        self.leave(&mut self.paces.0.state.lock());
    }

    fn leave(&self, state: &mut State) {
        let before = state.waiting.len();
        state.waiting.retain(|number| *number != self.number);
        if state.waiting.len() < before {
            self.paces.0.changed.notify_waiters();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut guard = self.paces.0.state.lock();
        let state = &mut *guard;
        self.leave(state);
        state.shares -= 1;
        let others = state.destinations.len() > KEPT;
        if let Some(pace) = state.destinations.get_mut(&self.destination) {
            pace.shares -= 1;
            if others && pace.shares == 0 {
                state.destinations.remove(&self.destination);
            }
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Counts an answer to the call.
    pub fn answered(&self) {
        let mut state = self.paces.0.state.lock();
        let most = state.most as f64;
        if state.destinations.get_mut(&self.destination).is_some_and(|pace| pace.answered(most)) {
            self.paces.0.changed.notify_waiters();
        }
    }

    /// Counts a refusal of the call.
    pub fn refused(&self, now: Instant) {
        if let Some(pace) = self.paces.0.state.lock().destinations.get_mut(&self.destination) {
            pace.refused(now);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.paces.0.state.lock();
        state.running -= 1;
        self.running.fetch_sub(1, Ordering::Relaxed);
        if !state.waiting.is_empty() {
            self.paces.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;

    fn name(name: &str) -> Name {
        Name::from(name)
    }

    /// As many calls as a share may begin.
    fn begun(share: &Share, now: Instant) -> Vec<Slot> {
        std::iter::from_fn(|| share.begin(now)).collect()
    }

    #[test]
    fn the_limit_grows_with_answers_and_is_halved_once_for_many_refusals() {
        let (mut pace, now) = (Destination::new(64), Instant::now());
        assert_eq!(pace.limit, 32.0);
        (0..10).for_each(|_| _ = pace.answered(64.0));
        assert_eq!(pace.limit, 42.0);
        (0..100).for_each(|_| _ = pace.answered(64.0));
        assert_eq!(pace.limit, 64.0);
        (0..5).for_each(|_| pace.refused(now));
        assert_eq!(pace.limit, 32.0);
        (0..200).for_each(|_| _ = pace.answered(64.0));
        assert_eq!(pace.limit as usize, 37);
        (1..20).for_each(|time| pace.refused(now + HALVE_AGAIN * 2 * time));
        assert_eq!(pace.limit, 1.0);
    }

    #[test]
    fn a_destination_that_refuses_its_only_call_rests_longer_and_longer_until_it_answers() {
        let (mut pace, mut now) = (Destination { limit: 1.0, ..Destination::new(8) }, Instant::now());
        let mut rests = Vec::new();
        for _ in 0..8 {
            // Refusals during a rest have the same cause.
            (0..3).for_each(|_| pace.refused(now));
            let until = pace.rests_until(now).expect("a rest");
            rests.push(until - now);
            assert_eq!(pace.rests_until(until), None);
            now = until;
        }
        assert_eq!((rests[0], rests[1], rests[7]), (FIRST_PAUSE, FIRST_PAUSE * 2, LONGEST_PAUSE));
        pace.refused(now);
        assert!(pace.answered(8.0) && pace.rests_until(now).is_none(), "an answer ends the rest");
        pace.limit = 1.0;
        pace.refused(now);
        assert_eq!(pace.rests_until(now), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn refusals_of_one_destination_leave_the_others_alone() {
        let (paces, now) = (Paces::new(64), Instant::now());
        let (stuck, other) = (paces.share(&name("stuck")), paces.share(&name("other")));
        for time in 0..10 {
            let slot = stuck.begin(now + LONGEST_PAUSE * 2 * time).expect("a call after a rest");
            slot.refused(now + LONGEST_PAUSE * 2 * time);
        }
        assert!(stuck.begin(now + LONGEST_PAUSE * 18).is_none(), "it rests");
        assert_eq!(stuck.rests_until(now + LONGEST_PAUSE * 18).map(|until| until > now), Some(true));
        assert_eq!(begun(&other, now).len(), 32);
    }

    #[test]
    fn jobs_share_a_destination_and_all_calls_evenly() {
        let (paces, now) = (Paces::new(64), Instant::now());
        let one = paces.share(&name("a"));
        assert_eq!(begun(&one, now).len(), 32);
        let two = paces.share(&name("a"));
        assert_eq!((begun(&one, now).len(), begun(&two, now).len()), (16, 16));
        let others: Vec<_> = (0..6).map(|number| paces.share(&name(&format!("b{number}")))).collect();
        assert_eq!(begun(&others[0], now).len(), 64 / 8);
        drop((two, others));
        assert_eq!(begun(&one, now).len(), 32);
    }

    #[tokio::test]
    async fn all_calls_together_are_bounded_and_each_job_has_its_turn() {
        let (paces, now) = (Paces::new(8), Instant::now());
        let shares: Vec<_> = (0..18).map(|number| paces.share(&name(&format!("m{number}")))).collect();
        let mut slots: VecDeque<_> =
            shares.iter().flat_map(|share| share.begin(now).map(|slot| (share.number, slot))).collect();
        assert_eq!(slots.len(), 8);
        // Each end gives the place to the share that has waited longest, in whichever order they ask.
        let mut seen: Vec<u64> = slots.iter().map(|(number, _)| *number).collect();
        for _ in 0..10 {
            let changed = paces.changed();
            drop(slots.pop_front());
            tokio::time::timeout(NO_TIME, changed).await.expect("the others hear of it");
            let mut begun: Vec<_> =
                shares.iter().rev().flat_map(|share| share.begin(now).map(|slot| (share.number, slot))).collect();
            assert_eq!(begun.len(), 1);
            seen.push(begun[0].0);
            slots.append(&mut begun.drain(..).collect());
        }
        seen.sort_unstable();
        assert_eq!(seen, shares.iter().map(|share| share.number).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_job_without_calls_to_begin_is_no_obstacle_to_others() {
        let (paces, now) = (Paces::new(1), Instant::now());
        let (one, two, three) = (paces.share(&name("a")), paces.share(&name("b")), paces.share(&name("c")));
        let slot = one.begin(now).expect("the only call");
        assert!(two.begin(now).is_none() && three.begin(now).is_none());
        drop(slot);
        assert!(three.begin(now).is_none(), "it is the second one's turn");
        let changed = paces.changed();
        two.wants_none();
        tokio::time::timeout(NO_TIME, changed).await.expect("the others hear of it");
        assert!(three.begin(now).is_some());
    }
}
