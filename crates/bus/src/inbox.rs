//! Where a gateway's replies arrive: one inbox per gateway, and a map from request to whoever waits.
//!
//! The map is our own because the NATS client's request call keeps an entry for each request that was never answered
//! (nats.rs issue 1617); here a waiter that goes away takes its entry with it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::Reply;

const SHARDS: usize = 16;

/// Replies that one request can have waiting before its reader takes them.
const REPLY_BACKLOG: usize = 64;

type Waiters = HashMap<String, mpsc::Sender<Reply>>;

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
    replies: mpsc::Receiver<Reply>,
    next_sequence: u32,
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
        let (sender, replies) = mpsc::channel(REPLY_BACKLOG);
        self.shard(request_id).lock().insert(request_id.to_owned(), sender);
        PendingReplies { inbox: self.clone(), request_id: request_id.to_owned(), replies, next_sequence: 0 }
    }

    /// How many requests wait for replies.
    pub fn waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Hands a reply to whoever waits for it. A reply that nobody waits for was answered before, or given up: dropped.
    pub(crate) fn dispatch(&self, reply: Reply) {
        let shard = self.shard(&reply.request_id).lock();
        let Some(waiter) = shard.get(&reply.request_id) else {
            tracing::trace!(request_id = reply.request_id, "reply that nobody waits for");
            return;
        };
        if waiter.try_send(reply).is_err() {
            tracing::warn!(gateway = self.gateway, "a reply was dropped: its reader is {REPLY_BACKLOG} replies behind");
        }
    }

    fn shard(&self, request_id: &str) -> &Mutex<Waiters> {
        &self.shards[self.hasher.hash_one(request_id) as usize % SHARDS]
    }
}

// === impl PendingReplies ===

impl PendingReplies {
    /// The next reply in sequence. Repetitions, which at-least-once delivery brings about, are left out: the first
    /// answer wins. Cancel safe.
    pub async fn next(&mut self) -> Reply {
        loop {
            match self.replies.recv().await {
                Some(reply) if reply.sequence == self.next_sequence => {
                    self.next_sequence += 1;
                    return reply;
                }
                Some(_) => {}
                // The sender lives in the map until this value is dropped.
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for PendingReplies {
    fn drop(&mut self) {
        self.inbox.shard(&self.request_id).lock().remove(&self.request_id);
    }
}
