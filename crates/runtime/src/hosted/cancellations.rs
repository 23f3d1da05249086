//! Cancelled requests: the table that raises the flags which executions check.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use trireme_engine::CancelFlag;
use trireme_inference::Name;

/// Fewest cancellations that are remembered for work that has not arrived yet; there are always fewer than twice as
/// many.
const REMEMBERED: usize = 32_768;

/// The flags of all work in this worker, by request, and the recently cancelled requests. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancellations(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Each request's flag, and how many of its messages are in this worker: an answer in parts has several.
    in_hand: HashMap<Name, (CancelFlag, usize)>,
    recent: Recent,
}

/// The recently cancelled requests, as keyed hashes: no client can choose an id that collides with another's. Their
/// memory is allocated at the start.
#[derive(Debug)]
struct Recent {
    numbers: RandomState,
    /// The latest cancellations, up to [`REMEMBERED`], and the set that was full before.
    latest: HashSet<u64>,
    before: HashSet<u64>,
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
    /// The flag of a request whose message has arrived; it is raised already if the request was cancelled before.
    pub fn enter(&self, request_id: &Name) -> CancelFlag {
        let mut state = self.0.lock();
        let (flag, count) = state.in_hand.entry(request_id.clone()).or_default();
        *count += 1;
        let flag = flag.clone();
        if state.recent.contains(request_id) {
            flag.cancel();
        }
        flag
    }

    /// A message of the request has left this worker.
    pub fn leave(&self, request_id: &str) {
        let mut state = self.0.lock();
        if let Some((_, count)) = state.in_hand.get_mut(request_id) {
            *count -= 1;
            if *count == 0 {
                state.in_hand.remove(request_id);
            }
        }
    }

    /// Whether a request was cancelled recently.
    pub fn is_cancelled(&self, request_id: &str) -> bool {
        self.0.lock().recent.contains(request_id)
    }

    /// Cancels a request. Returns whether this worker has messages of it.
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
    use trireme_inference::format_name;

    use super::*;

    #[test]
    fn work_is_cancelled_whether_it_is_here_or_yet_to_come() {
        let cancellations = Cancellations::default();
        let here = cancellations.enter(&Name::new("a"));
        assert!(!here.is_cancelled());
        assert!(cancellations.cancel("a"), "in hand");
        assert!(here.is_cancelled());
        assert!(!cancellations.cancel("b"), "not in hand");
        assert!(cancellations.enter(&Name::new("b")).is_cancelled());
    }

    #[test]
    fn every_part_of_a_request_is_cancelled() {
        let cancellations = Cancellations::default();
        let flags = [cancellations.enter(&Name::new("a")), cancellations.enter(&Name::new("a"))];
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
        assert!(cancellations.enter(&format_name!("{}", 2 * REMEMBERED + 10)).is_cancelled(), "the last but so many");
    }
}
