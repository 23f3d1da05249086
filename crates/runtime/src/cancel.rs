//! Cancelled requests: the flag that a request's work looks at, and who raises it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Cancellations remembered for work that has not come yet.
const REMEMBERED: usize = 65_536;

/// Raised once, never lowered; clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

/// The flags of all work in hand, by request, and the requests that were cancelled lately. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancellations(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// With how much work of the request is in hand: it may be several parts of an answer.
    in_hand: HashMap<String, (CancelFlag, usize)>,
    recent: HashSet<String>,
    recent_order: VecDeque<String>,
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
    pub fn cancel(&self, request_id: String) -> bool {
        let mut state = self.0.lock();
        let in_hand = state.in_hand.get(&request_id);
        if let Some((flag, _)) = in_hand {
            flag.cancel();
        }
        let in_hand = in_hand.is_some();
        if state.recent.insert(request_id.clone()) {
            state.recent_order.push_back(request_id);
        }
        if state.recent_order.len() > REMEMBERED
            && let Some(oldest) = state.recent_order.pop_front()
        {
            state.recent.remove(&oldest);
        }
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
        assert!(cancellations.cancel("a".to_owned()), "in hand");
        assert!(here.is_cancelled());
        assert!(!cancellations.cancel("b".to_owned()), "not in hand");
        assert!(cancellations.enter("b").is_cancelled());
    }

    #[test]
    fn every_part_of_a_request_is_cancelled() {
        let cancellations = Cancellations::default();
        let flags = [cancellations.enter("a"), cancellations.enter("a")];
        cancellations.leave("a");
        cancellations.cancel("a".to_owned());
        assert!(flags.iter().all(CancelFlag::is_cancelled));
        cancellations.leave("a");
        assert!(cancellations.0.lock().in_hand.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let cancellations = Cancellations::default();
        for i in 0..REMEMBERED + 10 {
            cancellations.cancel(i.to_string());
        }
        assert_eq!(cancellations.0.lock().recent.len(), REMEMBERED);
        assert!(!cancellations.enter("0").is_cancelled());
    }
}
