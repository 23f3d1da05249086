//! Groups of records that are written at the same time: which of them go to the broker together, and how.
//!
//! With `sync_interval: always` a broker syncs a stream's file after each message. An atomic batch (NATS ADR-50) takes six syncs whatever
//! its size, because it has files of its own. So batches are faster for many messages at a broker that syncs; a few messages, and all
//! messages at a broker that does not sync, are faster alone. The gateway measures both ways and takes the faster one.
//!
//! Not here: sending them (`batches`).

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishError;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

/// Groups that may be on their way to the broker at once. The messages of the next group wait meanwhile.
const UNDER_WAY: usize = 2;

/// Fewest messages of a batch.
pub const LEAST: usize = 16;

/// Most messages of a group. The broker takes 1000 in a batch.
const MOST: usize = 256;

/// One of so many groups goes the way that was slower before, because the broker's load changes.
const LOOK_AGAIN: u32 = 64;

/// The messages that wait to be sent in a group.
pub struct Groups {
    waiting: Mutex<Vec<Waiting>>,
    /// Whoever gets a turn sends what waits, for all.
    pub turns: Semaphore,
    pub pace: Mutex<GroupTimes>,
}

/// A message of a stream of records.
#[derive(Clone)]
pub struct Message {
    pub subject: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A message, and where its sequence number is awaited.
pub struct Waiting {
    pub message: Message,
    pub sequence: oneshot::Sender<Result<u64, PublishError>>,
}

/// How long a message took lately in a group, alone and in a batch; zero if that was not measured.
#[derive(Default)]
pub struct GroupTimes {
    alone: Duration,
    batch: Duration,
    groups: u32,
}

// === impl Groups ===

impl Default for Groups {
    fn default() -> Groups {
        Groups { waiting: Mutex::default(), turns: Semaphore::new(UNDER_WAY), pace: Mutex::default() }
    }
}

impl Groups {
    /// Adds a message to those that wait. The receiver gets its sequence number, or nothing if it has to be sent again.
    pub fn add(&self, message: Message) -> oneshot::Receiver<Result<u64, PublishError>> {
        let (sequence, receiver) = oneshot::channel();
        self.waiting.lock().push(Waiting { message, sequence });
        receiver
    }

    /// The messages that have waited longest, without those of callers that have gone.
    pub fn take(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock();
        waiting.retain(|waiting| !waiting.sequence.is_closed());
        let count = waiting.len().min(MOST);
        waiting.drain(..count).collect()
    }
}

// === impl GroupTimes ===

impl GroupTimes {
    /// Whether the next group is to be a batch.
    pub fn prefers_batch(&mut self) -> bool {
        self.groups = self.groups.wrapping_add(1);
        let faster = self.batch < self.alone;
        if self.groups.is_multiple_of(LOOK_AGAIN) { !faster } else { faster }
    }

    /// Keeps the time that `messages` took.
    pub fn record(&mut self, in_batch: bool, took: Duration, messages: usize) {
        let each = took / u32::try_from(messages).unwrap_or(u32::MAX);
        let kept = if in_batch { &mut self.batch } else { &mut self.alone };
        *kept = if kept.is_zero() { each } else { (*kept * 3 + each) / 4 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn groups_go_the_faster_way_and_the_other_is_looked_at_again() {
        let mut pace = GroupTimes::default();
        assert!(!pace.prefers_batch(), "nothing is known");
        pace.record(false, MILLI * 100, 100);
        assert!(pace.prefers_batch(), "a batch was not measured");
        pace.record(true, MILLI * 300, 100);
        assert!(!pace.prefers_batch());
        pace.record(false, MILLI * 1700, 100);
        let batches = (0..LOOK_AGAIN).filter(|_| pace.prefers_batch()).count();
        assert_eq!(batches, LOOK_AGAIN as usize - 1, "5 ms alone, 3 ms in a batch");
    }
}
