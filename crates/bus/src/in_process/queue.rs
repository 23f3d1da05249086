//! A queue within one process: its levels and the bulk lane, delayed messages, and deliveries until they are settled.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_inference::{Lane, ModelKey, Name, format_name};

use crate::{AckHandle, Acker, BusError, Consumer, Delivery, LevelPolicy, QueueOptions, QueueStatus, WorkMessage};

/// The queue of one model version.
pub(super) struct Queue {
    max_deliver: u32,
    max_messages: u64,
    max_bytes: u64,
    state: Mutex<QueueState>,
    /// Signalled when a lane may have a message.
    arrived: [Notify; 2],
}

#[derive(Default)]
struct QueueState {
    /// By number, the highest level first.
    levels: BTreeMap<u32, Level>,
    /// Messages that a worker returned with a delay, the earliest due on top.
    delayed: BinaryHeap<Delayed>,
    /// All unsettled messages by name: ready, delayed and delivered. The map is ordered, because the names of a
    /// request's messages begin with its id.
    unsettled: BTreeMap<Name, Unsettled>,
}

struct Unsettled {
    request_id: Name,
    gateway: Name,
}

#[derive(Default)]
struct Level {
    ready: VecDeque<QueuedMessage>,
    policy: LevelPolicy,
    /// Unsettled messages of this level, and their bytes.
    messages: u64,
    bytes: u64,
}

struct QueuedMessage {
    message: WorkMessage,
    deliveries: u32,
    /// When it was published.
    since: Instant,
}

struct Delayed {
    due: Instant,
    queued: QueuedMessage,
}

struct Handle {
    queue: Arc<Queue>,
    /// The message for the next delivery; `None` once settled.
    message: Mutex<Option<QueuedMessage>>,
}

/// Takes messages from a queue.
pub(super) struct QueueConsumer {
    queue: Arc<Queue>,
    lane: Lane,
}

// === impl Queue ===

impl Queue {
    pub fn new(options: &QueueOptions) -> Arc<Queue> {
        let QueueOptions { max_messages, max_bytes, .. } = *options;
        let (max_deliver, state) = (options.broker_max_deliver(), Mutex::default());
        Arc::new(Queue { max_deliver, max_messages, max_bytes, state, arrived: [Notify::new(), Notify::new()] })
    }

    /// Its levels, that of the bulk lane among them where it was used.
    pub fn levels(&self) -> BTreeSet<u32> {
        self.state.lock().levels.keys().copied().collect()
    }

    /// Sets the policies of the levels. Missing levels are created.
    pub fn set_policies(&self, options: &QueueOptions) {
        let mut state = self.state.lock();
        for (level, policy) in options.policies() {
            state.levels.entry(level).or_default().policy = policy;
        }
    }

    pub fn consumer(self: Arc<Self>, lane: Lane) -> QueueConsumer {
        QueueConsumer { queue: self, lane }
    }

    pub fn push(&self, model: &ModelKey, message: &WorkMessage) -> Result<(), BusError> {
        let size = message.size();
        let max_bytes = if self.max_bytes == 0 { u64::MAX } else { self.max_bytes };
        if size > max_bytes {
            // Even an empty queue would be too full for it.
            let taker = "a queue (--queue-max-bytes)";
            return Err(BusError::TooLarge { size: size as usize, limit: max_bytes as usize, taker });
        }
        let mut state = self.state.lock();
        let name = message.message_id();
        if state.unsettled.contains_key(&name) {
            return Ok(());
        }
        let level = match message.lane() {
            Lane::Live => state.levels.get_mut(&message.level()),
            Lane::Bulk => Some(state.level(message)),
        };
        let Some(level) = level else {
            return Err(BusError::NoQueue { model: model.clone() });
        };
        let may_wait = level.policy.max_waiting.is_none_or(|most| (level.ready.len() as u64) < most);
        let fits = level.messages < self.max_messages && level.bytes.saturating_add(size) <= max_bytes;
        if !(may_wait && fits) {
            return Err(BusError::Full { model: model.clone() });
        }
        level.messages += 1;
        level.bytes += size;
        level.ready.push_back(QueuedMessage { message: message.clone(), deliveries: 1, since: Instant::now() });
        let (request_id, gateway) = (message.request_id.clone(), message.gateway.clone());
        state.unsettled.insert(
            name.to_string().into(),
            Unsettled { request_id: request_id.to_string().into(), gateway: gateway.to_string().into() },
        );
        drop(state);
        self.arrived[message.lane() as usize].notify_one();
        Ok(())
    }

    pub fn status(&self) -> QueueStatus {
        let state = self.state.lock();
        let waiting = Lane::ALL.map(|(lane, _)| {
            let levels = state.levels.iter().filter(|&(&level, _)| Lane::of_level(level) == lane);
            let delayed = state.delayed.iter().filter(|delayed| delayed.queued.message.lane() == lane);
            (levels.map(|(_, level)| level.ready.len()).sum::<usize>() + delayed.count()) as u64
        });
        QueueStatus {
            waiting,
            delivered: (state.unsettled.len() as u64).saturating_sub(waiting.iter().sum()),
            oldest: Lane::ALL.map(|(lane, _)| {
                let levels = state.levels.iter().filter(|&(&level, _)| Lane::of_level(level) == lane);
                levels.filter_map(|(_, level)| level.oldest()).max().unwrap_or_default()
            }),
        }
    }

    /// The ids of the gateway's requests in this queue.
    pub fn unsettled(&self, gateway: &str) -> HashSet<String> {
        let state = self.state.lock();
        let of_gateway = state.unsettled.values().filter(|message| message.gateway == gateway);
        of_gateway.map(|message| message.request_id.to_string()).collect()
    }

    /// Removes a request's messages that wait. Delivered messages stay with their worker.
    pub fn remove(&self, request_id: &str) {
        let of_request = format_name!("{request_id}/");
        let mut state = self.state.lock();
        let first = state.unsettled.range(of_request.clone()..).next();
        if !first.is_some_and(|(name, _)| name.starts_with(of_request.as_str())) {
            return;
        }
        let is_of_request = |queued: &QueuedMessage| queued.message.request_id == request_id;
        let mut removed = Vec::new();
        for level in state.levels.values_mut() {
            while let Some(index) = level.ready.iter().position(is_of_request) {
                removed.extend(level.ready.remove(index));
            }
        }
        if state.delayed.iter().any(|delayed| is_of_request(&delayed.queued)) {
            let (of_request, others): (Vec<_>, Vec<_>) =
                state.delayed.drain().partition(|delayed| is_of_request(&delayed.queued));
            state.delayed = others.into();
            removed.extend(of_request.into_iter().map(|delayed| delayed.queued));
        }
        removed.iter().for_each(|queued| state.settle(queued));
    }

    fn settle(&self, queued: &QueuedMessage) {
        self.state.lock().settle(queued);
    }

    /// Delivers a message again, or forgets it after its last delivery.
    fn redeliver(&self, mut queued: QueuedMessage, delay: Duration) {
        queued.deliveries += 1;
        if queued.deliveries > self.max_deliver {
            return self.settle(&queued);
        }
        let mut state = self.state.lock();
        if delay.is_zero() {
            let lane = queued.message.lane();
            state.level(&queued.message).ready.push_front(queued);
            drop(state);
            self.arrived[lane as usize].notify_one();
        } else {
            state.delayed.push(Delayed { due: Instant::now() + delay, queued });
            drop(state);
            // Every consumer has to learn when the message is due: a single one could be dropped before.
            self.arrived.iter().for_each(Notify::notify_waiters);
        }
    }

    /// Takes up to `room` messages of a lane. If there are none, returns when the next delayed one is due.
    fn take(self: &Arc<Self>, lane: Lane, room: usize) -> Result<Vec<Delivery>, Option<Instant>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        while state.delayed.peek().is_some_and(|delayed| delayed.due <= now) {
            let delayed = state.delayed.pop().expect("peeked under the same lock");
            let lane = delayed.queued.message.lane();
            state.level(&delayed.queued.message).ready.push_back(delayed.queued);
            self.arrived[lane as usize].notify_one();
        }
        let mut taken = Vec::new();
        for (_, level) in state.levels.iter_mut().filter(|(level, _)| Lane::of_level(**level) == lane) {
            level.take(room - taken.len(), &mut taken);
        }
        if taken.is_empty() {
            return Err(state.delayed.peek().map(|delayed| delayed.due));
        }
        let mut levels = state.levels.iter().filter(|(level, _)| Lane::of_level(**level) == lane);
        let more = levels.any(|(_, level)| !level.ready.is_empty());
        drop(state);
        if more {
            // One notification may stand for many messages: notify the next consumer too.
            self.arrived[lane as usize].notify_one();
        }
        Ok(taken.into_iter().map(|queued| self.deliver(queued, more)).collect())
    }

    /// Takes messages that have waited longer than their level allows.
    fn overdue(self: &Arc<Self>) -> Vec<Delivery> {
        let (mut state, mut taken) = (self.state.lock(), Vec::new());
        for level in state.levels.values_mut() {
            if let Some(timeout) = level.policy.rejects_after() {
                let over = level.ready.iter().take_while(|queued| queued.since.elapsed() > timeout).count();
                taken.extend(level.ready.drain(..over));
            }
        }
        drop(state);
        taken.into_iter().map(|queued| self.deliver(queued, true)).collect()
    }

    fn deliver(self: &Arc<Self>, queued: QueuedMessage, more: bool) -> Delivery {
        let QueuedMessage { message, deliveries, since } = queued;
        let kept = QueuedMessage { message: message.clone(), deliveries, since };
        let handle = Handle { queue: self.clone(), message: Mutex::new(Some(kept)) };
        Delivery { message, deliveries, more, acker: Acker::new(Arc::new(handle)) }
    }
}

// === impl Level ===

impl Level {
    /// Age of the message that waits longest.
    fn oldest(&self) -> Option<Duration> {
        self.ready.iter().map(|queued| queued.since.elapsed()).max()
    }

    /// Takes the first `room` messages in the order of delivery.
    fn take(&mut self, room: usize, taken: &mut Vec<QueuedMessage>) {
        let room = room.min(self.ready.len());
        // The messages that waited longest are at the front, so delayed ones are at the front too.
        let delayed = self.ready.iter().take_while(|queued| self.policy.delays(queued.since.elapsed())).count();
        let first = room.min(self.ready.len() - delayed);
        taken.extend(self.ready.drain(delayed..delayed + first));
        taken.extend(self.ready.drain(..room - first));
    }
}

// === impl QueueState ===

impl QueueState {
    fn settle(&mut self, queued: &QueuedMessage) {
        if self.unsettled.remove(&queued.message.message_id()).is_some() {
            let level = self.level(&queued.message);
            level.messages = level.messages.saturating_sub(1);
            level.bytes = level.bytes.saturating_sub(queued.message.size());
        }
    }

    /// The level of a message in the queue.
    fn level(&mut self, message: &WorkMessage) -> &mut Level {
        self.levels.entry(message.level()).or_default()
    }
}

// === impl Handle ===

#[async_trait]
impl AckHandle for Handle {
    async fn ack(&self) -> Result<(), BusError> {
        if let Some(queued) = self.message.lock().take() {
            self.queue.settle(&queued);
        }
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        if let Some(queued) = self.message.lock().take() {
            self.queue.redeliver(queued, delay);
        }
        Ok(())
    }

    fn abandon(&self) {
        if let Some(queued) = self.message.lock().take() {
            tracing::warn!(request_id = %queued.message.request_id, "delivery was let go without being settled");
            self.queue.redeliver(queued, Duration::ZERO);
        }
    }
}

// === impl QueueConsumer ===

#[async_trait]
impl Consumer for QueueConsumer {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        if room == 0 {
            // No delivery is on its way.
            return std::future::pending().await;
        }
        loop {
            let arrived = self.queue.arrived[self.lane as usize].notified();
            match self.queue.take(self.lane, room) {
                Ok(deliveries) => return Ok(deliveries),
                Err(None) => arrived.await,
                Err(Some(due)) => {
                    let _ = tokio::time::timeout_at(due.into(), arrived).await;
                }
            }
        }
    }

    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError> {
        Ok(self.queue.overdue())
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        None
    }
}

// === impl Delayed ===

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    /// The earliest compares as the greatest, so that it is on top of the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due.cmp(&self.due)
    }
}
