//! Guests: instances that execute a request on the thread that brings it. Handing a request to an instance's thread and its result
//! back takes two changes of threads, which cost more than a short run.
//!
//! A guest executes a request if no other waits, the request is small, and runs of its model are short. All other requests go
//! through the queue to the threads of the model's instances. The thread of a guest is usually one of the runtime's, so only a backend
//! that computes and waits for nothing has guests.
//!
//! Not here: the execution (`execute`).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use trireme_inference::Tensor;

use crate::canary::Streak;
use crate::instance::ModelInstance;

/// The longest expected run of a guest: about as long as a task may keep a thread of the runtime.
pub const SHORT_RUN: Duration = Duration::from_micros(200);

/// The most bytes of a request's inputs.
const SMALL: usize = 4 << 10;

/// The most guests whose requests are concluded within each other: the result of one is the request of the next.
const MOST_NESTED: u32 = 4;

thread_local! {
    /// The guests of this thread that conclude a request.
    static NESTED: Cell<u32> = const { Cell::new(0) };
}

/// A model's guests.
pub struct Guests {
    count: usize,
    idle: Mutex<Vec<Guest>>,
}

/// An instance, and how its last runs ended.
pub(crate) struct Guest {
    pub instance: Box<dyn ModelInstance>,
    pub streak: Streak,
}

/// The guests of this process that execute a request now.
static EXECUTING: AtomicUsize = AtomicUsize::new(0);

/// The place of one guest.
pub(crate) struct Place(());

/// A guest's request is being concluded, which may run the guest of the next model.
pub(crate) struct Nested(());

/// This thread executes long runs: it executes nothing else between them.
pub(crate) fn reserve_thread() {
    NESTED.set(MOST_NESTED);
}

// === impl Guests ===

impl Guests {
    /// The guests of a model.
    pub fn new(instances: Vec<Box<dyn ModelInstance>>) -> Guests {
        let guest = |instance| Guest { instance, streak: Streak::default() };
        let guests: Vec<_> = instances.into_iter().map(guest).collect();
        Guests { count: guests.len(), idle: Mutex::new(guests) }
    }

    /// Whether the model has no guests.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a guest may execute a request with these inputs on this thread.
    pub(crate) fn may_take(&self, inputs: &[Tensor]) -> bool {
        let is_small = || inputs.iter().map(|input| input.data().len()).sum::<usize>() <= SMALL;
        !self.is_empty() && NESTED.get() < MOST_NESTED && is_small()
    }

    /// An idle guest. One of the runtime's `threads` is left without a guest, so that a guest that hangs is noticed.
    pub(crate) fn take(&self, threads: usize) -> Option<(Guest, Place)> {
        let place = Place::take(threads.saturating_sub(1))?;
        Some((self.idle.lock().pop()?, place))
    }

    /// Takes all guests out. No guest executes a request now.
    pub(crate) fn clear(&self) -> Vec<Guest> {
        std::mem::take(&mut self.idle.lock())
    }

    /// Puts guests in the place of those that were taken out.
    pub(crate) fn refill(&self, instances: Vec<Box<dyn ModelInstance>>) {
        let guests = instances.into_iter().map(|instance| Guest { instance, streak: Streak::default() });
        *self.idle.lock() = guests.collect();
    }

    /// The guest has executed its request.
    pub(crate) fn return_guest(&self, guest: Guest) {
        self.idle.lock().push(guest);
    }
}

// === impl Place ===

impl Place {
    fn take(most: usize) -> Option<Place> {
        let more = |executing| (executing < most).then_some(executing + 1);
        EXECUTING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Place(()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        EXECUTING.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Nested ===

impl Nested {
    pub fn begin() -> Nested {
        NESTED.set(NESTED.get() + 1);
        Nested(())
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        NESTED.set(NESTED.get() - 1);
    }
}
