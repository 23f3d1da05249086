//! Where a gateway's replies arrive: one inbox per gateway, and a map from request to whoever waits.
//!
//! The map is our own because the NATS client's request call keeps an entry for each request that was never answered
//! (nats.rs issue 1617); here a waiter that goes away takes its entry with it.
//!
//! Parts of an answer may overtake one another on their way, and come again when a worker died: they are put in order
//! here, and repetitions left out. What is kept for a reader is bounded; one that falls behind is told so, and loses
//! nothing silently.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_inference::InferError;

use crate::{Reply, original_id};

const SHARDS: usize = 16;

/// Replies to one request that are kept for its reader.
const BACKLOG: usize = 1024;

/// Bytes of tensors in them; a single reply may be larger.
const BACKLOG_BYTES: usize = 64 << 20;

type Waiters = HashMap<String, Arc<Waiter>>;

/// A gateway's correlation map.
#[derive(Debug)]
pub struct Inbox {
    gateway: String,
    hasher: RandomState,
    shards: [Mutex<Waiters>; SHARDS],
}

/// The replies to one request. Dropping it forgets the request: later replies go nowhere.
#[derive(Debug)]
pub struct PendingReplies {
    inbox: Arc<Inbox>,
    request_id: String,
    waiter: Arc<Waiter>,
}

/// What connects the inbox with whoever waits for a request's replies.
#[derive(Debug, Default)]
struct Waiter {
    replies: Mutex<Replies>,
    arrived: Notify,
}

/// The replies to one request that have come and not been read: the pure part.
#[derive(Debug, Default)]
struct Replies {
    /// By number; what is before `next` was read.
    kept: BTreeMap<u32, Reply>,
    next: u32,
    bytes: usize,
    /// The last reply was read, or is all that is kept.
    complete: bool,
}

// === impl Inbox ===

impl Inbox {
    pub(crate) fn new(gateway: &str) -> Arc<Inbox> {
        let shards = std::array::from_fn(|_| Mutex::default());
        Arc::new(Inbox { gateway: gateway.to_owned(), hasher: RandomState::new(), shards })
    }

    /// The gateway that this inbox belongs to: the return address of its requests.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Starts to wait for replies to `request_id`, which is in use by no other request of this gateway.
    pub fn expect(self: &Arc<Self>, request_id: &str) -> PendingReplies {
        let waiter = Arc::new(Waiter::default());
        self.shard(request_id).lock().insert(request_id.to_owned(), waiter.clone());
        PendingReplies { inbox: self.clone(), request_id: request_id.to_owned(), waiter }
    }

    /// How many requests wait for replies.
    pub fn waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Hands a reply to whoever waits for it. A reply that nobody waits for was answered before, or given up: dropped.
    /// Gives back the id of the request that ends here because its reader is too far behind: nobody needs more of it, and
    /// the reader may not look for a long time.
    #[must_use]
    pub(crate) fn dispatch(&self, reply: Reply) -> Option<String> {
        let request_id = original_id(&reply.request_id);
        let waiter = self.shard(request_id).lock().get(request_id).cloned();
        let Some(waiter) = waiter else {
            tracing::trace!(request_id = reply.request_id, "reply that nobody waits for");
            return None;
        };
        let given_up = waiter.replies.lock().put(reply);
        waiter.arrived.notify_one();
        given_up
    }

    fn shard(&self, request_id: &str) -> &Mutex<Waiters> {
        &self.shards[self.hasher.hash_one(request_id) as usize % SHARDS]
    }
}

// === impl PendingReplies ===

impl PendingReplies {
    /// The next reply in sequence. Repetitions, which at-least-once delivery brings about, are left out: the first
    /// answer wins. There is none after the last one. Cancel safe.
    pub async fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.waiter.replies.lock().take() {
                return reply;
            }
            self.waiter.arrived.notified().await;
        }
    }
}

impl Drop for PendingReplies {
    fn drop(&mut self) {
        self.inbox.shard(&self.request_id).lock().remove(&self.request_id);
    }
}

// === impl Replies ===

impl Replies {
    /// Keeps a reply; gives the request's id back when that is one too many.
    fn put(&mut self, mut reply: Reply) -> Option<String> {
        if self.complete {
            return None;
        }
        if reply.outcome.is_err() {
            // Nothing comes after an error. A worker that gives a request up does not know how many parts another one
            // has sent before it died.
            reply.last = true;
            reply.sequence = reply.sequence.max(self.next);
            while self.kept.get(&reply.sequence).is_some_and(|kept| kept.outcome.is_ok()) {
                reply.sequence += 1;
            }
        }
        if reply.sequence < self.next || self.kept.contains_key(&reply.sequence) {
            return None;
        }
        let bytes = size(&reply);
        if self.kept.len() >= BACKLOG || (self.bytes + bytes > BACKLOG_BYTES && !self.kept.is_empty()) {
            return Some(self.give_up(reply));
        }
        self.bytes += bytes;
        self.kept.insert(reply.sequence, reply);
        None
    }

    /// The reader is too far behind: an error takes the place of all that is kept.
    fn give_up(&mut self, reply: Reply) -> String {
        let error = InferError::unavailable(format!(
            "the reader of request '{}' is more than {} replies or {} bytes behind, the most that is kept for it",
            reply.request_id, BACKLOG, BACKLOG_BYTES
        ));
        tracing::warn!(request_id = reply.request_id, kept = self.kept.len(), bytes = self.bytes, "{}", error.message);
        let request_id = reply.request_id.clone();
        self.kept.clear();
        self.kept.insert(self.next, Reply { sequence: self.next, last: true, outcome: Err(error), ..reply });
        self.complete = true;
        request_id
    }

    fn take(&mut self) -> Option<Reply> {
        let reply = self.kept.remove(&self.next)?;
        self.bytes = self.bytes.saturating_sub(size(&reply));
        self.next = self.next.saturating_add(1);
        if reply.last {
            self.complete = true;
            self.kept.clear();
        }
        Some(reply)
    }
}

fn size(reply: &Reply) -> usize {
    reply.outcome.iter().flat_map(|output| &output.tensors).map(|tensor| tensor.data().len()).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trireme_inference::{Ledger, Tensor, UnixMicros};

    use super::*;
    use crate::Output;

    fn part(sequence: u32, last: bool) -> Reply {
        Reply {
            request_id: "r".to_owned(),
            gateway: "g".to_owned(),
            sequence,
            last,
            outcome: Ok(Output::default()),
            ledger: Ledger::default(),
            sent_at: UnixMicros(0),
        }
    }

    fn error(sequence: u32) -> Reply {
        Reply { outcome: Err(InferError::internal("failed")), ..part(sequence, true) }
    }

    fn drain(replies: &mut Replies) -> Vec<(u32, bool)> {
        std::iter::from_fn(|| replies.take()).map(|reply| (reply.sequence, reply.outcome.is_ok())).collect()
    }

    proptest! {
        /// However parts come, and however often, each is read once and in order.
        #[test]
        fn parts_are_read_in_order(
            count in 1u32..40,
            arrivals in proptest::collection::vec((any::<u32>(), any::<bool>()), 0..200),
        ) {
            let mut replies = Replies::default();
            let mut read = Vec::new();
            let all = arrivals.iter().map(|&(number, take)| (number % count, take)).chain((0..count).map(|n| (n, false)));
            for (number, take) in all {
                prop_assert_eq!(replies.put(part(number, number + 1 == count)), None);
                if take {
                    read.extend(replies.take().map(|reply| reply.sequence));
                }
            }
            read.extend(drain(&mut replies).into_iter().map(|(sequence, _)| sequence));
            prop_assert_eq!(read, (0..count).collect::<Vec<_>>());
            prop_assert_eq!(replies.put(part(count, false)), None);
            prop_assert_eq!(replies.take(), None, "nothing follows the last one");
        }
    }

    #[test]
    fn an_error_comes_after_the_parts_before_it_and_ends_the_answer() {
        let mut replies = Replies::default();
        assert_eq!(replies.put(error(2)), None);
        assert_eq!(replies.put(part(1, false)), None);
        assert_eq!(drain(&mut replies), []);
        assert_eq!(replies.put(part(0, false)), None);
        assert_eq!(drain(&mut replies), [(0, true), (1, true), (2, false)]);
        assert_eq!(replies.put(part(3, true)), None);
        assert_eq!(drain(&mut replies), []);
    }

    #[test]
    fn an_error_of_a_worker_that_knows_of_no_parts_ends_the_answer_too() {
        let mut replies = Replies::default();
        assert_eq!(replies.put(part(0, false)), None);
        assert_eq!(replies.put(part(1, false)), None);
        assert_eq!(drain(&mut replies), [(0, true), (1, true)]);
        assert_eq!(replies.put(part(2, false)), None);
        assert_eq!(replies.put(error(0)), None);
        assert_eq!(replies.put(error(0)), None);
        assert_eq!(drain(&mut replies), [(2, true), (3, false)], "after the parts that have come");
    }

    #[test]
    fn a_reader_that_is_too_far_behind_gets_an_error_and_nothing_is_kept() {
        let mut replies = Replies::default();
        for sequence in 0..BACKLOG as u32 {
            assert_eq!(replies.put(part(sequence, false)), None);
        }
        assert_eq!(replies.put(part(BACKLOG as u32, false)).as_deref(), Some("r"));
        assert_eq!(replies.put(part(BACKLOG as u32 + 1, false)), None, "said once");
        assert_eq!(replies.kept.len(), 1);
        assert_eq!(drain(&mut replies), [(0, false)]);

        let mut replies = Replies::default();
        let heavy = Tensor::from_values("x", [BACKLOG_BYTES as i64], vec![0u8; BACKLOG_BYTES]).unwrap();
        let heavy = |sequence| Reply {
            outcome: Ok(Output { tensors: vec![heavy.clone()], ..Output::default() }),
            ..part(sequence, false)
        };
        assert_eq!(replies.put(heavy(0)), None);
        assert_eq!(drain(&mut replies), [(0, true)], "a reply by itself may be of any size");
        assert_eq!(replies.put(heavy(1)), None);
        assert_eq!(replies.put(part(2, false)), None);
        assert_eq!(replies.put(heavy(3)).as_deref(), Some("r"));
        assert_eq!(drain(&mut replies), [(1, false)]);
    }
}
