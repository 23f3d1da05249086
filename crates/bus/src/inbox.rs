//! Where a gateway's replies arrive: one inbox per gateway, and a map from request to whoever waits.
//!
//! The map is our own because the NATS client's request call keeps an entry for each request that was never answered
//! (nats.rs issue 1617); here a waiter that goes away takes its entry with it.
//!
//! Parts of an answer may overtake one another on their way, and come again when a worker died: they are put in order
//! here, and repetitions left out. What is kept for a reader is bounded, and so is what is kept for all of them; one that
//! falls behind is told so, and loses nothing silently.
//!
//! A request's place ends with its deadline, whether or not its reader looks: a reader that stalls keeps neither the place
//! nor the replies, and its request is cancelled.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_inference::{InferError, Ledger, UnixMicros};

use crate::{Bus, Reply, ReplyHeaders, WorkMessage, original_id};

const SHARDS: usize = 16;

/// Replies to one request that are kept for its reader.
const BACKLOG: usize = 1024;

/// Bytes in them; a single reply may be larger.
const BACKLOG_BYTES: usize = 64 << 20;

/// Bytes that are kept for all readers together: of large replies a few, which are read as soon as they come.
const KEPT_BYTES: usize = 1 << 30;

/// How often deadlines are looked at. Whoever waits looks by itself, in time.
const SWEEP: Duration = Duration::from_secs(1);

type Waiters = HashMap<String, Arc<Waiter>>;

/// A gateway's correlation map.
#[derive(Debug)]
pub struct Inbox {
    gateway: String,
    hasher: RandomState,
    shards: [Mutex<Waiters>; SHARDS],
    /// Bytes of replies that have come and not been read.
    kept: Arc<AtomicUsize>,
}

/// The replies to one request. Dropping it forgets the request: later replies go nowhere.
#[derive(Debug)]
pub struct PendingReplies {
    inbox: Arc<Inbox>,
    request_id: String,
    waiter: Arc<Waiter>,
}

/// What came for a request.
#[derive(Debug)]
pub enum Arrival {
    /// The next reply in sequence.
    Reply(Reply),
    /// Word that a reply was lost on its way, and the id that it had: the request's own, or one of those it was sent again
    /// under. Nobody else answers it, unless it is sent again.
    Lost(String),
}

/// What connects the inbox with whoever waits for a request's replies.
#[derive(Debug)]
struct Waiter {
    deadline: UnixMicros,
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
    /// Bytes that are kept for everybody.
    of_all: Arc<AtomicUsize>,
    /// The last reply was read, or is all that is kept.
    complete: bool,
    /// The id of the reply that was lost last, until somebody is told.
    lost: Option<String>,
}

// === impl Inbox ===

impl Inbox {
    pub(crate) fn new(gateway: &str) -> Arc<Inbox> {
        let shards = std::array::from_fn(|_| Mutex::default());
        Arc::new(Inbox { gateway: gateway.to_owned(), hasher: RandomState::new(), shards, kept: Arc::default() })
    }

    /// The gateway that this inbox belongs to: the return address of its requests.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Starts to wait for replies to a request, whose id no other request of this gateway has, until its deadline.
    pub fn expect(self: &Arc<Self>, request: &WorkMessage) -> PendingReplies {
        let replies = Replies::counted_in(self.kept.clone());
        let waiter =
            Arc::new(Waiter { deadline: request.deadline, replies: Mutex::new(replies), arrived: Notify::new() });
        let request_id = request.request_id.clone();
        self.shard(&request_id).lock().insert(request_id.clone(), waiter.clone());
        PendingReplies { inbox: self.clone(), request_id, waiter }
    }

    /// Ends places at their deadlines for as long as there is the inbox, and cancels their requests on `bus`.
    pub(crate) fn keep_deadlines(self: &Arc<Self>, bus: impl Bus) {
        let inbox = Arc::downgrade(self);
        crate::spawn("inbox deadlines", async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(inbox) = inbox.upgrade() else { return };
                for request_id in inbox.end_overdue(UnixMicros::now()) {
                    // Who computes it stops at the deadline anyway.
                    if let Err(error) = bus.cancel(&request_id).await {
                        tracing::debug!(request_id, %error, "cancellation could not be sent");
                    }
                }
            }
        });
    }

    /// Ends the places of requests whose deadlines have passed; gives back their ids.
    fn end_overdue(&self, now: UnixMicros) -> Vec<String> {
        let mut ended = Vec::new();
        for shard in &self.shards {
            let overdue = shard.lock().extract_if(|_, waiter| waiter.deadline <= now).collect::<Vec<_>>();
            for (request_id, waiter) in overdue {
                waiter.replies.lock().expire(&self.gateway, &request_id);
                waiter.arrived.notify_one();
                ended.push(request_id);
            }
        }
        ended
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
        let Some(waiter) = self.waiter(&reply.request_id) else {
            tracing::trace!(request_id = reply.request_id, "reply that nobody waits for");
            return None;
        };
        let given_up = waiter.replies.lock().put(reply);
        waiter.arrived.notify_one();
        given_up
    }

    /// Whether somebody waits for this reply: it has not been had, and its request is not over.
    pub(crate) fn awaits(&self, reply: &ReplyHeaders) -> bool {
        let waiter = self.waiter(&reply.request_id);
        waiter.is_some_and(|waiter| waiter.replies.lock().misses(reply.sequence))
    }

    /// A reply came, and cannot be read: whoever waits for it is told.
    pub(crate) fn lost(&self, reply: &ReplyHeaders) {
        let Some(waiter) = self.waiter(&reply.request_id) else { return };
        let mut replies = waiter.replies.lock();
        if replies.misses(reply.sequence) {
            replies.lost = Some(reply.request_id.clone());
            waiter.arrived.notify_one();
        }
    }

    fn waiter(&self, request_id: &str) -> Option<Arc<Waiter>> {
        let request_id = original_id(request_id);
        self.shard(request_id).lock().get(request_id).cloned()
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

    /// As [`PendingReplies::next`], or word that a reply was lost. Cancel safe.
    pub async fn arrival(&mut self) -> Arrival {
        loop {
            {
                let mut replies = self.waiter.replies.lock();
                if let Some(reply) = replies.take() {
                    return Arrival::Reply(reply);
                }
                if let Some(request_id) = replies.lost.take() {
                    return Arrival::Lost(request_id);
                }
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
    fn counted_in(of_all: Arc<AtomicUsize>) -> Replies {
        Replies { kept: BTreeMap::new(), next: 0, bytes: 0, of_all, complete: false, lost: None }
    }

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
        if !self.misses(reply.sequence) {
            return None;
        }
        let bytes = reply.size();
        if self.kept.len() >= BACKLOG || (self.bytes + bytes > BACKLOG_BYTES && !self.kept.is_empty()) {
            let error = format!(
                "the reader of request '{}' is more than {BACKLOG} replies or {BACKLOG_BYTES} bytes behind, the most that \
                 is kept for it",
                reply.request_id
            );
            return Some(self.give_up(reply, error));
        }
        if self.of_all.load(Ordering::Relaxed) + bytes > KEPT_BYTES {
            let error = format!("replies of more than {KEPT_BYTES} bytes wait at the gateway to be read");
            return Some(self.give_up(reply, error));
        }
        self.insert(reply);
        None
    }

    fn misses(&self, sequence: u32) -> bool {
        !self.complete && sequence >= self.next && !self.kept.contains_key(&sequence)
    }

    fn insert(&mut self, reply: Reply) {
        let bytes = reply.size();
        self.bytes += bytes;
        self.of_all.fetch_add(bytes, Ordering::Relaxed);
        self.kept.insert(reply.sequence, reply);
    }

    /// Lets go of all that is kept.
    fn clear(&mut self) {
        self.kept.clear();
        self.of_all.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// An error takes the place of all that is kept, and nothing more is.
    fn give_up(&mut self, reply: Reply, error: String) -> String {
        tracing::warn!(request_id = reply.request_id, kept = self.kept.len(), bytes = self.bytes, "{error}");
        let request_id = reply.request_id.clone();
        self.end(Reply { outcome: Err(InferError::unavailable(error)), ..reply });
        request_id
    }

    /// The deadline has passed: that takes the place of all that is kept.
    fn expire(&mut self, gateway: &str, request_id: &str) {
        if !self.complete {
            let outcome = Err(InferError::unavailable("Request timeout expired"));
            let (request_id, gateway) = (request_id.to_owned(), gateway.to_owned());
            let (ledger, sent_at) = (Ledger::default(), UnixMicros::now());
            self.end(Reply { request_id, gateway, sequence: 0, last: true, outcome, ledger, sent_at });
        }
    }

    fn end(&mut self, error: Reply) {
        self.clear();
        self.insert(Reply { sequence: self.next, last: true, ..error });
        self.complete = true;
    }

    fn take(&mut self) -> Option<Reply> {
        let reply = self.kept.remove(&self.next)?;
        let bytes = reply.size();
        self.bytes -= bytes;
        self.of_all.fetch_sub(bytes, Ordering::Relaxed);
        self.next = self.next.saturating_add(1);
        if reply.last {
            self.complete = true;
            self.clear();
        }
        Some(reply)
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
