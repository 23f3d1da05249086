//! How many calls of durable work are in flight: as many as the workers take, shared evenly between jobs.
//!
//! Until something is refused the limit grows by one with each answer. It is halved when a queue was full or no worker was there, and
//! grows by one for as many answers as it allows from then on. This is how TCP finds the speed of a line (slow start, additive
//! increase, multiplicative decrease).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The limit at the start.
const FIRST: f64 = 32.0;

/// The limit is halved at most once in this time, because many refusals have one cause.
const HALVE_AGAIN: Duration = Duration::from_millis(200);

/// The number of calls that may be in flight. Clones are the same.
#[derive(Clone)]
pub struct Pace(Arc<Mutex<State>>);

struct State {
    limit: f64,
    most: f64,
    jobs: usize,
    halved: Option<Instant>,
}

/// A job's part of the pace, until it is dropped.
pub(crate) struct Share(Pace);

// === impl Pace ===

impl Pace {
    /// A pace of at most `most` calls.
    pub(crate) fn new(most: usize) -> Pace {
        let most = most.max(1) as f64;
        Pace(Arc::new(Mutex::new(State { limit: FIRST.min(most), most, jobs: 0, halved: None })))
    }

    /// Counts another job that runs.
    pub(crate) fn share(&self) -> Share {
        self.0.lock().jobs += 1;
        Share(self.clone())
    }

    /// Counts an answer.
    pub(crate) fn answered(&self) {
        let mut state = self.0.lock();
        let more = if state.halved.is_none() { 1.0 } else { 1.0 / state.limit };
        state.limit = (state.limit + more).min(state.most);
    }

    /// Counts a refusal because the system has too much to do.
    pub(crate) fn refused(&self, now: Instant) {
        let mut state = self.0.lock();
        if state.halved.is_none_or(|halved| now.saturating_duration_since(halved) > HALVE_AGAIN) {
            state.limit = (state.limit / 2.0).max(1.0);
            state.halved = Some(now);
        }
    }

    /// Calls that may be in flight together.
    pub fn limit(&self) -> usize {
        self.0.lock().limit as usize
    }
}

// === impl Share ===

impl Share {
    /// Calls that this job may have in flight: an even part of the limit, and at least one.
    pub fn most(&self) -> usize {
        let state = self.0.0.lock();
        (state.limit as usize / state.jobs.max(1)).max(1)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.0.lock().jobs -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_with_answers_and_is_halved_once_for_many_refusals() {
        let pace = Pace::new(64);
        assert_eq!(pace.limit(), 32);
        (0..10).for_each(|_| pace.answered());
        assert_eq!(pace.limit(), 42);
        (0..100).for_each(|_| pace.answered());
        assert_eq!(pace.limit(), 64);
        let now = Instant::now();
        (0..5).for_each(|_| pace.refused(now));
        assert_eq!(pace.limit(), 32);
        (0..200).for_each(|_| pace.answered());
        assert_eq!(pace.limit(), 37);
        pace.refused(now + HALVE_AGAIN * 2);
        (2..20).for_each(|time| pace.refused(now + HALVE_AGAIN * 2 * time));
        assert_eq!(pace.limit(), 1);
    }

    #[test]
    fn jobs_share_the_limit_evenly() {
        let pace = Pace::new(64);
        let one = pace.share();
        assert_eq!(one.most(), 32);
        let two = pace.share();
        assert_eq!((one.most(), two.most()), (16, 16));
        drop(two);
        assert_eq!(one.most(), 32);
        let many: Vec<_> = (0..100).map(|_| pace.share()).collect();
        assert_eq!(many[0].most(), 1);
    }
}
