//! Dismissal: the instances of an idle queue end, and others take their place when a request comes. In between the queue takes requests as
//! before, and they wait.
//!
//! Not here: when instances are dismissed, and how others are made (`runtime`).

use std::time::{Duration, Instant};

use super::WorkQueue;

// === impl WorkQueue ===

impl<T> WorkQueue<T> {
    /// Dismisses the instances if this worker has had no request for `keep`: they get no more batches and end. Otherwise returns when to
    /// try again at the earliest.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use trireme_engine::{OneAtATime, WorkQueue};
    /// # use trireme_inference::Lane;
    /// let queue = WorkQueue::<()>::new(Box::new(OneAtATime), 8, None);
    /// let permit = queue.permit(Lane::Live, false);
    /// assert!(queue.dismiss_if_idle(Duration::ZERO).is_err());
    ///
    /// drop(permit);
    /// assert!(queue.dismiss_if_idle(Duration::ZERO).is_ok());
    /// assert!(queue.load().asleep.is_some());
    /// ```
    pub fn dismiss_if_idle(&self, keep: Duration) -> Result<(), Instant> {
        let mut state = self.state.lock();
        // While no instance can execute, its backend is about to replace it.
        let idle = state.idle().filter(|_| !state.closed && !state.paused);
        if idle.is_none_or(|idle| idle < keep) {
            return Err(Instant::now() + keep.saturating_sub(idle.unwrap_or_default()));
        }
        state.dismissed = Some(Instant::now());
        // The next instances for bulk requests make themselves known.
        state.background = None;
        drop(state);
        self.wake_all();
        Ok(())
    }

    /// A request is on its way to this queue: where no instance is there for it, others are called before it comes.
    pub fn expect(&self) {
        let mut state = self.state.lock();
        if state.dismissed.is_some() {
            state.expects = true;
            drop(state);
            self.called.notify_one();
        }
    }

    /// Shows the requests that wait.
    pub fn look(&self, mut see: impl FnMut(&T)) {
        let state = self.state.lock();
        let alone = state.alone.iter().map(|(_, item)| item);
        state.lanes.iter().flat_map(|lane| &lane.items).chain(alone).for_each(&mut see);
    }

    /// Waits until a request waits, or is on its way, that no instance is there for.
    pub async fn called(&self) {
        loop {
            let called = self.called.notified();
            let is_called = {
                let mut state = self.state.lock();
                let expects = std::mem::take(&mut state.expects);
                state.dismissed.is_some() && (expects || state.waiting() > 0)
            };
            if is_called {
                return;
            }
            called.await;
        }
    }

    /// Whether instances have to end: the queue was closed, or they were dismissed.
    pub(crate) fn lets_go(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.dismissed.is_some()
    }

    /// Other instances are about to take batches: [`WorkQueue::dismiss_if_idle`] is over.
    pub fn recall(&self) {
        let mut state = self.state.lock();
        state.dismissed = None;
        state.expects = false;
        // The request that they were called for may still be on its way.
        state.idle_since = Instant::now();
    }

    /// Instances could not be started after [`WorkQueue::recall`]: the started ones end again, and their requests wait.
    pub fn dismiss(&self) {
        self.state.lock().dismissed = Some(Instant::now());
        self.wake_all();
    }
}
