//! The bytes of batches in memory: lines that wait or run, and answers that are not written yet. All batches together have room for so many
//! bytes, shared evenly; a batch without bytes in memory may always take one line.
//!
//! Pure but for the count at [`Execute`](crate::Execute), which has the bytes of live requests too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::call::Execute;

/// The room of all batches. Clones are the same.
#[derive(Clone)]
pub(crate) struct Rooms(Arc<RoomTable>);

struct RoomTable {
    most: u64,
    execute: Arc<dyn Execute>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: u64,
    batches: u64,
}

/// The part of a batch, until it is dropped.
pub(crate) struct Room {
    rooms: Rooms,
    used: Arc<AtomicU64>,
}

/// Bytes that are in memory until this is dropped.
pub(crate) struct Held {
    rooms: Rooms,
    of_batch: Arc<AtomicU64>,
    bytes: u64,
}

// === impl Rooms ===

impl Rooms {
    /// Room for `most` bytes.
    pub fn new(most: u64, execute: Arc<dyn Execute>) -> Rooms {
        Rooms(Arc::new(RoomTable { most, execute, state: Mutex::default() }))
    }

    /// Counts another batch.
    pub fn batch(&self) -> Room {
        self.0.state.lock().batches += 1;
        Room { rooms: self.clone(), used: Arc::default() }
    }

    /// Changes the bytes in use. Those beyond the limit are not counted at the gateway: they are there already, and calls that end need its
    /// room.
    fn change(&self, state: &mut State, used: u64) {
        let before = std::mem::replace(&mut state.used, used).min(self.0.most);
        self.0.execute.count_bytes(before, used.min(self.0.most));
    }
}

// === impl Room ===

impl Room {
    /// Room for so many bytes, if the batch has them left.
    pub fn hold(&self, bytes: u64) -> Option<Held> {
        let own = self.used.load(Ordering::Relaxed);
        let mut state = self.rooms.0.state.lock();
        let most = self.rooms.0.most;
        let has_left =
            own.saturating_add(bytes) <= most / state.batches.max(1) && state.used.saturating_add(bytes) <= most;
        (own == 0 || has_left).then(|| self.take(&mut state, bytes))
    }

    /// Counts bytes that are there already.
    pub fn hold_anyway(&self, bytes: u64) -> Held {
        self.take(&mut self.rooms.0.state.lock(), bytes)
    }

    fn take(&self, state: &mut State, bytes: u64) -> Held {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.rooms.change(state, state.used.saturating_add(bytes));
        Held { rooms: self.rooms.clone(), of_batch: self.used.clone(), bytes }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.rooms.0.state.lock().batches -= 1;
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        self.of_batch.fetch_sub(self.bytes, Ordering::Relaxed);
        let mut state = self.rooms.0.state.lock();
        let used = state.used.saturating_sub(self.bytes);
        self.rooms.change(&mut state, used);
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::call::{CallOf, Executed, JobCall};

    #[derive(Default)]
    struct Counting(AtomicU64);

    #[async_trait]
    impl Execute for Counting {
        async fn execute(&self, _: JobCall, _: CallOf) -> Executed {
            Executed::Refused
        }

        fn count_bytes(&self, before: u64, now: u64) {
            assert_eq!(self.0.swap(now, Ordering::Relaxed), before);
        }

        fn lives(&self, _: &str) -> bool {
            true
        }
    }

    #[test]
    fn batches_share_the_room_and_each_may_take_a_line() {
        let execute = Arc::new(Counting::default());
        let counted = || execute.0.load(Ordering::Relaxed);
        let rooms = Rooms::new(100, execute.clone());
        let one = rooms.batch();
        let held = one.hold(90).expect("it is alone");
        assert!(one.hold(11).is_none());
        let other = rooms.batch();
        let line = other.hold(1000).expect("it has nothing yet");
        assert_eq!(counted(), 100, "the gateway counts up to the limit");
        assert!(other.hold(1).is_none());
        drop(line);
        assert_eq!(counted(), 90);
        drop(held);
        let (half, answer) = (one.hold(50).expect("its half"), one.hold_anyway(20));
        assert!(one.hold(1).is_none() && other.hold(30).is_some());
        drop((half, answer));
        assert_eq!(counted(), 0);
        drop(other);
        assert!(one.hold(100).is_some());
    }
}
