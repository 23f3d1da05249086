//! How many calls of durable work are in flight: for each destination as many as its workers take, and for all destinations together a fixed
//! number. Where more calls want to begin, the owners of their jobs take turns by their weights ([`Shares`]), and the jobs of an owner one
//! after the other. A call costs its bytes: its tokens are not known before it ends, and workers count those.
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
use trireme_inference::{Backoff, Name, Owner, Shares};

/// The limit of a destination at the start.
const FIRST: f64 = 32.0;

/// The limit is halved at most once in this time, because many refusals have one cause.
const HALVE_AGAIN: Duration = Duration::from_millis(200);

/// The pauses after refusals in a row.
pub(crate) const REFUSED: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Destinations without a job whose limits are remembered.
const KEPT: usize = 256;

/// The calls that may be in flight, by destination. Clones are the same.
#[derive(Clone)]
pub(crate) struct Paces(Arc<PaceTable>);

struct PaceTable {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// Most calls to all destinations together.
    most: usize,
    /// Calls in flight to all destinations.
    running: usize,
    /// The destinations that have shares.
    used: usize,
    /// The number of the next share.
    next: u64,
    /// Destinations with room of their own whose shares found all calls taken: a call that ends leaves its place to the first of them.
    waiting: VecDeque<Name>,
    destinations: HashMap<Name, Destination>,
}

/// The pace of one destination.
struct Destination {
    limit: f64,
    shares: usize,
    running: usize,
    /// Shares that have a call to begin and found no room, in the order in which they asked.
    waiting: Vec<(u64, Owner)>,
    /// The turns of the owners.
    order: Shares,
    halved: Option<Instant>,
    /// The time before which no call begins, and the pause that ends then.
    rest: Option<(Instant, u32)>,
}

/// A job's part of the pace of a destination, until it is dropped.
pub(crate) struct Share {
    paces: Paces,
    destination: Name,
    owner: Owner,
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
        let (waiting, order) = (Vec::new(), Shares::default());
        Destination { limit: FIRST.min(most as f64), shares: 0, running: 0, waiting, order, halved: None, rest: None }
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
                let refusals = self.rest.map_or(1, |(_, refusals)| refusals.saturating_add(1));
                self.rest = Some((now + REFUSED.after(refusals), refusals));
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
            used: 0,
            next: 0,
            waiting: VecDeque::new(),
            destinations: HashMap::new(),
        };
        Paces(Arc::new(PaceTable { state: Mutex::new(state), changed: Notify::new() }))
    }

    /// Counts another job of this owner that has calls to a destination.
    pub fn share(&self, destination: &Name, owner: &Owner) -> Share {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        state.next += 1;
        let most = state.most;
        let pace = state.destinations.entry(destination.clone()).or_insert_with(|| Destination::new(most));
        pace.shares += 1;
        state.used += usize::from(pace.shares == 1);
        let (paces, number) = (self.clone(), state.next);
        Share { paces, destination: destination.clone(), owner: owner.clone(), number, running: Arc::default() }
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

    /// The owner of the job.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The weight of the job's owner may have changed.
    pub fn weighs(&mut self, weight: u32) {
        self.owner.weight = weight.max(1);
    }

    /// Begins a call of this cost, unless the destination rests or has as many calls as it may, all calls are taken, or it is the turn of others.
    /// Where several destinations are used, each has an even part of all calls, and at least one.
    pub fn begin(&self, cost: f64, now: Instant) -> Option<Slot> {
        let mut guard = self.paces.0.state.lock();
        let state = &mut *guard;
        let pace = state.destinations.get_mut(&self.destination)?;
        if pace.rests_until(now).is_some() {
            self.leave(state);
            return None;
        }
        if !pace.waiting.iter().any(|(number, _)| *number == self.number) {
            pace.waiting.push((self.number, self.owner.clone()));
        }
        let part = (pace.limit as usize).min(state.most / state.used.max(1)).max(1);
        let turns = pace.order.ranked(pace.waiting.iter().map(|(_, owner)| owner));
        let before = turns.iter().position(|&place| pace.waiting[place].0 == self.number)?;
        if before >= part.saturating_sub(pace.running) {
            return None;
        }
        let free = state.most.saturating_sub(state.running);
        let place = state.waiting.iter().position(|waits| *waits == self.destination);
        if place.unwrap_or(state.waiting.len()) >= free {
            if place.is_none() {
                state.waiting.push_back(self.destination.clone());
            }
            return None;
        }
        if let Some(place) = place {
            state.waiting.remove(place);
        }
        let Destination { waiting, order, .. } = pace;
        order.serve(waiting.iter().map(|(_, owner)| owner), [(&self.owner, cost)]);
        waiting.retain(|(number, _)| *number != self.number);
        pace.running += 1;
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
        let Some(pace) = state.destinations.get_mut(&self.destination) else { return };
        let before = pace.waiting.len();
        pace.waiting.retain(|(number, _)| *number != self.number);
        if pace.waiting.is_empty() {
            state.waiting.retain(|waits| *waits != self.destination);
        }
        if pace.waiting.len() < before {
            self.paces.0.changed.notify_waiters();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut guard = self.paces.0.state.lock();
        let state = &mut *guard;
        self.leave(state);
        let others = state.destinations.len() > KEPT;
        if let Some(pace) = state.destinations.get_mut(&self.destination) {
            pace.shares -= 1;
            state.used -= usize::from(pace.shares == 0);
            // The others have a larger part now.
            self.paces.0.changed.notify_waiters();
            if others && pace.shares == 0 && pace.running == 0 {
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
        let pace = state.destinations.get_mut(&self.destination);
        let waits = pace.is_some_and(|pace| {
            pace.running -= 1;
            !pace.waiting.is_empty()
        });
        if waits || !state.waiting.is_empty() {
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
        std::iter::from_fn(|| share.begin(1.0, now)).collect()
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
        assert_eq!((rests[0], rests[1], rests[7]), (REFUSED.after(1), REFUSED.after(2), REFUSED.longest()));
        pace.refused(now);
        assert!(pace.answered(8.0) && pace.rests_until(now).is_none(), "an answer ends the rest");
        pace.limit = 1.0;
        pace.refused(now);
        assert_eq!(pace.rests_until(now), Some(now + REFUSED.after(1)));
    }

    #[test]
    fn refusals_of_one_destination_leave_the_others_alone() {
        let (paces, now) = (Paces::new(64), Instant::now());
        let (stuck, other) =
            (paces.share(&name("stuck"), &Owner::default()), paces.share(&name("other"), &Owner::default()));
        for time in 0..10 {
            let slot = stuck.begin(1.0, now + REFUSED.longest() * 2 * time).expect("a call after a rest");
            slot.refused(now + REFUSED.longest() * 2 * time);
        }
        assert!(stuck.begin(1.0, now + REFUSED.longest() * 18).is_none(), "it rests");
        assert_eq!(stuck.rests_until(now + REFUSED.longest() * 18).map(|until| until > now), Some(true));
        assert_eq!(begun(&other, now).len(), 32);
    }

    /// Lets all of these shares begin calls, and ends the oldest one, again and again. Returns how many each has begun.
    fn served(shares: &[(Share, f64)], paces: &Paces, times: usize) -> Vec<usize> {
        let (mut slots, mut counts) = (VecDeque::new(), vec![0; shares.len()]);
        for _ in 0..times {
            for (index, (share, cost)) in shares.iter().enumerate() {
                while let Some(slot) = share.begin(*cost, Instant::now()) {
                    slots.push_back(slot);
                    counts[index] += 1;
                }
            }
            slots.pop_front();
        }
        assert!(paces.0.state.lock().running <= 8);
        counts
    }

    #[test]
    fn owners_share_calls_by_their_weights_and_jobs_of_an_owner_evenly() {
        let (paces, model) = (Paces::new(8), name("m"));
        let of = |owner: &str, weight| paces.share(&model, &Owner::new(owner, weight));
        // The first owner has one job, the second three, the third has four times the weight.
        let jobs = [of("one", 1), of("two", 1), of("two", 1), of("two", 1), of("four", 4)];
        let counts = served(&jobs.map(|share| (share, 1.0)), &paces, 6000);
        let near = |count: usize, expected: usize| assert!(count.abs_diff(expected) < 30, "{counts:?}");
        near(counts[0], 1000);
        near(counts[1] + counts[2] + counts[3], 1000);
        near(counts[4], 4000);
        assert!(counts[1..4].iter().all(|count| count.abs_diff(333) < 30), "{counts:?}");
    }

    #[test]
    fn a_call_that_costs_more_has_fewer_turns() {
        let (paces, model) = (Paces::new(8), name("m"));
        let of = |owner: &str| paces.share(&model, &Owner::new(owner, 1));
        let counts = served(&[(of("long"), 9.0), (of("short"), 1.0)], &paces, 5000);
        assert!(counts[0].abs_diff(500) < 20 && counts[1].abs_diff(4500) < 20, "{counts:?}");
    }

    #[test]
    fn a_job_alone_has_all_calls_and_destinations_share_them_evenly() {
        let (paces, now) = (Paces::new(64), Instant::now());
        let one = paces.share(&name("a"), &Owner::default());
        let begun_alone = begun(&one, now);
        assert_eq!(begun_alone.len(), 32);
        let other = paces.share(&name("b"), &Owner::default());
        assert_eq!(begun(&other, now).len(), 32);
        let _others: Vec<_> = (0..6).map(|n| paces.share(&name(&format!("c{n}")), &Owner::default())).collect();
        assert_eq!(begun(&other, now).len(), 64 / 8);
    }

    #[tokio::test]
    async fn all_calls_together_are_bounded_and_each_job_has_its_turn() {
        let (paces, now) = (Paces::new(8), Instant::now());
        let shares: Vec<_> =
            (0..18).map(|number| paces.share(&name(&format!("m{number}")), &Owner::default())).collect();
        let mut slots: VecDeque<_> =
            shares.iter().flat_map(|share| share.begin(1.0, now).map(|slot| (share.number, slot))).collect();
        assert_eq!(slots.len(), 8);
        // Each end gives the place to the share that has waited longest, in whichever order they ask.
        let mut seen: Vec<u64> = slots.iter().map(|(number, _)| *number).collect();
        for _ in 0..10 {
            let changed = paces.changed();
            drop(slots.pop_front());
            tokio::time::timeout(NO_TIME, changed).await.expect("the others hear of it");
            let mut begun: Vec<_> =
                shares.iter().rev().flat_map(|share| share.begin(1.0, now).map(|slot| (share.number, slot))).collect();
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
        let (one, two, three) = (
            paces.share(&name("a"), &Owner::default()),
            paces.share(&name("b"), &Owner::default()),
            paces.share(&name("c"), &Owner::default()),
        );
        let slot = one.begin(1.0, now).expect("the only call");
        assert!(two.begin(1.0, now).is_none() && three.begin(1.0, now).is_none());
        drop(slot);
        assert!(three.begin(1.0, now).is_none(), "it is the second one's turn");
        let changed = paces.changed();
        two.wants_none();
        tokio::time::timeout(NO_TIME, changed).await.expect("the others hear of it");
        assert!(three.begin(1.0, now).is_some());
    }
}
