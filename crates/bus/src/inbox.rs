//! The inbox of a gateway: a map from each request to the task that waits for its replies.
//!
//! The map is our own because the request call of the NATS client keeps an entry for each request that was never
//! answered (nats.rs issue 1617). Here, a waiter that is dropped removes its entry.
//!
//! Parts of an answer may overtake each other on their way, and come again after a worker died. The inbox puts them in
//! order and drops repetitions. The replies kept for one reader are bounded, and so are those for all readers together.
//! A reader that falls too far behind gets an error, so it never loses a reply without noticing.
//!
//! The entry of a request ends with its deadline, even if its reader does not read: its replies are dropped and the
//! request is cancelled.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_inference::{InferError, Ledger, UnixMicros};

use crate::{BusError, Reply, ReplyHeaders, WorkMessage, original_id};

const SHARDS: usize = 16;

/// Replies to one request that may wait to be read.
const BACKLOG: usize = 1024;

/// Bytes of those replies; a single reply may be larger.
const BACKLOG_BYTES: usize = 64 << 20;

/// Bytes of replies that may wait for all readers together. That is room for a few large replies, which are read soon.
const KEPT_BYTES: usize = 1 << 30;

/// How often the inbox looks for passed deadlines. A reader that waits notices its own deadline in time.
const SWEEP: Duration = Duration::from_secs(1);

type Waiters = HashMap<String, Arc<Waiter>>;

/// A gateway's correlation map.
#[derive(Debug)]
pub struct Inbox {
    gateway: String,
    hasher: RandomState,
    shards: [Mutex<Waiters>; SHARDS],
    /// Bytes of replies that have arrived and were not read.
    kept: Arc<AtomicUsize>,
}

/// The replies to one request. Dropping it forgets the request; later replies to it are dropped.
///
/// Parts of an answer come in order:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// # use trireme_bus::{Bus, InProcess, Output, Reply};
/// # let (bus, message) = (InProcess::default(), message(&model, 7));
/// let inbox = bus.open_inbox("gateway").await?;
/// let mut replies = inbox.expect(&message);
/// let whole = message.reply(Ok(Output::default()));
/// bus.reply(Reply { sequence: 1, last: true, ..whole.clone() }).await?;
/// bus.reply(Reply { sequence: 0, last: false, ..whole }).await?;
/// assert_eq!((replies.next().await.sequence, replies.next().await.sequence), (0, 1));
///
/// drop(replies);
/// assert_eq!(inbox.waiting(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PendingReplies {
    inbox: Arc<Inbox>,
    request_id: String,
    waiter: Arc<Waiter>,
}

/// A reply that has arrived, but whose body has not. Until this is dropped, its request is not lost.
pub(crate) struct Arriving(Arc<Waiter>);

/// Connects the inbox with the reader of a request's replies.
#[derive(Debug)]
struct Waiter {
    deadline: UnixMicros,
    replies: Mutex<Replies>,
    arrived: Notify,
    /// Replies whose bodies are being fetched.
    arriving: AtomicUsize,
}

/// The replies to one request that have arrived and were not read. Without I/O.
#[derive(Debug, Default)]
struct Replies {
    /// By number. Replies before `next` were read.
    kept: BTreeMap<u32, Reply>,
    next: u32,
    bytes: usize,
    /// Bytes that are kept for all readers.
    of_all: Arc<AtomicUsize>,
    /// The last reply was read, or is the only one left to read.
    complete: bool,
}

// === impl Inbox ===

impl Inbox {
    pub(crate) fn new(gateway: &str) -> Arc<Inbox> {
        let shards = std::array::from_fn(|_| Mutex::default());
        Arc::new(Inbox { gateway: gateway.to_owned(), hasher: RandomState::new(), shards, kept: Arc::default() })
    }

    /// The name of the gateway that this inbox belongs to: the return address of its requests.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Starts to wait for replies to a request until its deadline. The request's id must be unique within this gateway.
    pub fn expect(self: &Arc<Self>, request: &WorkMessage) -> PendingReplies {
        let replies = Replies::counted_in(self.kept.clone());
        let (replies, arrived, arriving) = (Mutex::new(replies), Notify::new(), AtomicUsize::new(0));
        let waiter = Arc::new(Waiter { deadline: request.deadline, replies, arrived, arriving });
        let request_id = request.request_id.clone();
        self.shard(&request_id).lock().insert(request_id.to_string(), waiter.clone());
        PendingReplies { inbox: self.clone(), request_id: request_id.to_string(), waiter }
    }

    /// Ends the entries of requests at their deadlines and calls `cancel` for each of them, until the inbox is dropped.
    pub(crate) fn keep_deadlines<F>(self: &Arc<Self>, cancel: impl Fn(String) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), BusError>> + Send,
    {
        let inbox = Arc::downgrade(self);
        crate::spawn("inbox deadlines", async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(inbox) = inbox.upgrade() else { return };
                for request_id in inbox.end_overdue(UnixMicros::now()) {
                    // The worker that executes it stops at the deadline anyway.
                    if let Err(error) = cancel(request_id).await {
                        tracing::debug!(%error, "cancellation could not be sent");
                    }
                }
            }
        });
    }

    /// Ends the entries of requests whose deadlines have passed; returns their ids.
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

    /// Passes a reply to the reader of its request. A reply to an unknown request is dropped: the request was answered
    /// or given up before. Returns the id of a request that ends because its reader is too far behind. The caller has to cancel
    /// it, because the reader may not read the error for a long time.
    #[must_use]
    pub(crate) fn dispatch(&self, reply: Reply) -> Option<String> {
        let Some(waiter) = self.waiter(&reply.request_id) else {
            tracing::trace!(request_id = %reply.request_id, "reply that no request waits for");
            return None;
        };
        let given_up = waiter.replies.lock().put(reply);
        waiter.arrived.notify_one();
        given_up
    }

    /// Whether a reader still needs this reply: it has not arrived before, and its request is not over.
    pub(crate) fn awaits(&self, reply: &ReplyHeaders) -> bool {
        let waiter = self.waiter(&reply.request_id);
        waiter.is_some_and(|waiter| waiter.replies.lock().misses(reply.sequence))
    }

    /// Says that a reply has arrived whose body has yet to be fetched. `None` if no request waits for it.
    pub(crate) fn arriving(&self, reply: &ReplyHeaders) -> Option<Arriving> {
        let waiter = self.waiter(&reply.request_id)?;
        waiter.arriving.fetch_add(1, Ordering::Relaxed);
        Some(Arriving(waiter))
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
    /// The next reply in sequence. Repetitions, which at-least-once delivery causes, are dropped: the first answer
    /// wins. Nothing comes after the last reply. Cancel safe.
    pub async fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.waiter.replies.lock().take() {
                return reply;
            }
            self.waiter.arrived.notified().await;
        }
    }

    /// Forgets the replies that have come, also the last one: the request is sent anew.
    pub fn begin_anew(&mut self) {
        let mut replies = self.waiter.replies.lock();
        let of_all = replies.of_all.clone();
        *replies = Replies::counted_in(of_all);
    }

    /// Whether a reply has arrived whose body is still being fetched.
    pub fn is_arriving(&self) -> bool {
        self.waiter.arriving.load(Ordering::Relaxed) > 0
    }
}

impl Drop for PendingReplies {
    fn drop(&mut self) {
        self.inbox.shard(&self.request_id).lock().remove(&self.request_id);
    }
}

// === impl Arriving ===

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Replies ===

impl Replies {
    fn counted_in(of_all: Arc<AtomicUsize>) -> Replies {
        Replies { kept: BTreeMap::new(), next: 0, bytes: 0, of_all, complete: false }
    }

    /// Keeps a reply. If that is one too many, ends the request and returns its id.
    fn put(&mut self, mut reply: Reply) -> Option<String> {
        if self.complete {
            return None;
        }
        if reply.outcome.is_err() {
            // An error is the last reply. A worker that gives a request up does not know how many parts an earlier
            // worker sent before it died.
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

    /// Drops all replies that are kept.
    fn clear(&mut self) {
        self.kept.clear();
        self.of_all.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// Replaces all kept replies by an error, and keeps no more.
    fn give_up(&mut self, reply: Reply, error: String) -> String {
        tracing::warn!(request_id = %reply.request_id, kept = self.kept.len(), bytes = self.bytes, "{error}");
        let request_id = reply.request_id.clone();
        self.end(Reply { outcome: Err(InferError::unavailable(error)), ..reply });
        request_id.to_string()
    }

    /// Replaces all kept replies by the error for a passed deadline.
    fn expire(&mut self, gateway: &str, request_id: &str) {
        if !self.complete {
            let outcome = Err(InferError::unavailable("Request timeout expired"));
            let (request_id, gateway) = (request_id.to_owned(), gateway.to_owned());
            let (ledger, sent_at) = (Ledger::default(), UnixMicros::now());
            self.end(Reply {
                request_id: request_id.into(),
                gateway: gateway.into(),
                sequence: 0,
                last: true,
                outcome,
                ledger,
                sent_at,
            });
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
