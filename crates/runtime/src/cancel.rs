//! Cancelled requests: the flag that a request's work looks at, and who raises it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Cancellations remembered for work that has not come yet: so many at least, and less than twice as many.
const REMEMBERED: usize = 32_768;

/// Raised once, never lowered; clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

/// The flags of all work in hand, by request, and the requests that were cancelled lately. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancellations(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// With how much work of the request is in hand: it may be several parts of an answer.
    in_hand: HashMap<String, (CancelFlag, usize)>,
    recent: Recent,
}

/// The requests that were cancelled lately. Of each a number is enough, which nobody can aim at another's, and what they take
/// in memory is there from the beginning.
#[derive(Debug)]
struct Recent {
    numbers: RandomState,
    /// Up to [`REMEMBERED`], and those before them.
    latest: HashSet<u64>,
    before: HashSet<u64>,
}

// === impl CancelFlag ===

impl CancelFlag {
    /// Nobody waits any more.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        let set = || HashSet::with_capacity(REMEMBERED);
        State { in_hand: HashMap::new(), recent: Recent { numbers: RandomState::new(), latest: set(), before: set() } }
    }
}

// === impl Recent ===

impl Recent {
    fn contains(&self, request_id: &str) -> bool {
        let number = self.numbers.hash_one(request_id);
        self.latest.contains(&number) || self.before.contains(&number)
    }

    fn insert(&mut self, request_id: &str) {
        if self.latest.len() == REMEMBERED {
            std::mem::swap(&mut self.latest, &mut self.before);
            self.latest.clear();
        }
        self.latest.insert(self.numbers.hash_one(request_id));
    }
}

// === impl Cancellations ===

impl Cancellations {
    /// The flag of a request whose work comes in hand; raised already if the request was cancelled before.
    pub fn enter(&self, request_id: &str) -> CancelFlag {
        let mut state = self.0.lock();
        let (flag, count) = state.in_hand.entry(request_id.to_owned()).or_default();
        *count += 1;
        let flag = flag.clone();
        if state.recent.contains(request_id) {
            flag.cancel();
        }
        flag
    }

    /// Work of the request is out of hand.
    pub fn leave(&self, request_id: &str) {
        let mut state = self.0.lock();
        if let Some((_, count)) = state.in_hand.get_mut(request_id) {
            *count -= 1;
            if *count == 0 {
                state.in_hand.remove(request_id);
            }
        }
    }

    /// Whether a request was cancelled lately.
    pub fn is_cancelled(&self, request_id: &str) -> bool {
        self.0.lock().recent.contains(request_id)
    }

    /// A request was cancelled. Whether work of it is in hand.
    pub fn cancel(&self, request_id: &str) -> bool {
        let mut state = self.0.lock();
        let in_hand = state.in_hand.get(request_id);
        if let Some((flag, _)) = in_hand {
            flag.cancel();
        }
        let in_hand = in_hand.is_some();
        state.recent.insert(request_id);
        in_hand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cancelled_whether_it_is_here_or_yet_to_come() {
        let cancellations = Cancellations::default();
        let here = cancellations.enter("a");
        assert!(!here.is_cancelled());
        assert!(cancellations.cancel("a"), "in hand");
        assert!(here.is_cancelled());
        assert!(!cancellations.cancel("b"), "not in hand");
        assert!(cancellations.enter("b").is_cancelled());
    }

    #[test]
    fn every_part_of_a_request_is_cancelled() {
        let cancellations = Cancellations::default();
        let flags = [cancellations.enter("a"), cancellations.enter("a")];
        cancellations.leave("a");
        cancellations.cancel("a");
        assert!(flags.iter().all(CancelFlag::is_cancelled));
        cancellations.leave("a");
        assert!(cancellations.0.lock().in_hand.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let cancellations = Cancellations::default();
        let taken = || {
            let state = cancellations.0.lock();
            (state.recent.latest.capacity(), state.recent.before.capacity())
        };
        let before = taken();
        for i in 0..3 * REMEMBERED + 10 {
            cancellations.cancel(&i.to_string());
        }
        assert_eq!(taken(), before);
        assert!(!cancellations.is_cancelled("0"));
        assert!(cancellations.enter(&(2 * REMEMBERED + 10).to_string()).is_cancelled(), "the last but so many");
    }
}
