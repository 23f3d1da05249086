//! The bus within one process: bounded queues, no broker, no encoding. A message is moved, its tensors are shared.
//!
//! It keeps the promises of the NATS bus: a delivery that is let go or refused comes again with a higher attempt, a
//! queue counts messages until they are settled, a second message of the same name is not delivered beside the first.

use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use trireme_inference::{ModelKey, UnixMicros};

use crate::registry::{RegistryEvent, WorkerEntry};
use crate::{
    AckHandle, Acker, AnswerHandle, Bus, BusError, Connection, DeadLetter, Delivery, Inbox, Puller, Question,
    QueueOptions, QueueStatus, Reply, StoredLetter, WorkMessage,
};

/// Registry events and cancellations that a slow watcher may be behind before it misses some.
const WATCH_BACKLOG: usize = 4096;

/// Dead letters kept for a person to look at.
const DEAD_LETTERS_KEPT: usize = 1000;

/// The in-process bus. Clones are the same bus.
#[derive(Clone)]
pub struct InProcess(Arc<Shared>);

struct Shared {
    queues: Mutex<HashMap<ModelKey, Arc<Queue>>>,
    inboxes: Mutex<HashMap<String, Weak<Inbox>>>,
    cancellations: broadcast::Sender<String>,
    registry: Mutex<Registry>,
    dead: Mutex<DeadLetters>,
    listeners: Mutex<HashMap<String, Vec<mpsc::Sender<Question>>>>,
    connection: watch::Sender<Connection>,
}

#[derive(Default)]
struct DeadLetters {
    letters: VecDeque<StoredLetter>,
    last: u64,
}

#[derive(Default)]
struct Registry {
    entries: HashMap<String, WorkerEntry>,
    watchers: Vec<mpsc::Sender<RegistryEvent>>,
}

struct Queue {
    max_deliver: u32,
    max_bytes: u64,
    state: Mutex<QueueState>,
    arrived: Notify,
}

#[derive(Default)]
struct QueueState {
    /// By number, the highest level first.
    levels: BTreeMap<u32, Level>,
    /// Refused for now; the earliest due on top.
    delayed: BinaryHeap<Delayed>,
    /// Names of all unsettled messages, ready, delayed and delivered, and when each was published.
    unsettled: HashMap<String, Instant>,
}

#[derive(Default)]
struct Level {
    ready: VecDeque<Queued>,
    max_messages: u64,
    /// Unsettled messages of this level, and their bytes.
    messages: u64,
    bytes: u64,
}

struct Queued {
    message: WorkMessage,
    attempt: u32,
    /// When it was published.
    since: Instant,
}

struct Delayed {
    due: Instant,
    queued: Queued,
}

struct Handle {
    queue: Arc<Queue>,
    /// Kept for the next delivery; gone once settled.
    message: Mutex<Option<Queued>>,
}

struct InProcessPuller {
    queue: Arc<Queue>,
}

// === impl InProcess ===

impl Default for InProcess {
    fn default() -> Self {
        InProcess(Arc::new(Shared {
            queues: Mutex::default(),
            inboxes: Mutex::default(),
            cancellations: broadcast::channel(WATCH_BACKLOG).0,
            registry: Mutex::default(),
            dead: Mutex::default(),
            listeners: Mutex::default(),
            connection: watch::channel(Connection::Up(1)).0,
        }))
    }
}

impl InProcess {
    /// The messages that were given up lately, oldest first.
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.0.dead.lock().letters.iter().map(|stored| stored.letter.clone()).collect()
    }

    fn queue(&self, model: &ModelKey) -> Result<Arc<Queue>, BusError> {
        self.0.queues.lock().get(model).cloned().ok_or_else(|| BusError::NoQueue { model: model.clone() })
    }

    fn tell(&self, event: &RegistryEvent) {
        // A watcher that is gone, or too far behind to be of use, is let go.
        self.0.registry.lock().watchers.retain(|watcher| watcher.try_send(event.clone()).is_ok());
    }
}

#[async_trait]
impl Bus for InProcess {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let new = || {
            let (max_deliver, max_bytes) = (options.max_deliver, options.max_bytes);
            Arc::new(Queue { max_deliver, max_bytes, state: Mutex::default(), arrived: Notify::new() })
        };
        let queue = self.0.queues.lock().entry(model.clone()).or_insert_with(new).clone();
        let mut state = queue.state.lock();
        for (level, max_messages) in options.level_limits() {
            state.levels.entry(level).or_default().max_messages = max_messages;
        }
        Ok(())
    }

    async fn publish(&self, message: &WorkMessage) -> Result<(), BusError> {
        let model = message.queue().ok_or(BusError::Refused {
            action: "publishing",
            reason: format!("route of request '{}' has no step left", message.request_id),
        })?;
        self.queue(model)?.push(model, message)
    }

    fn message_bytes(&self) -> usize {
        usize::MAX
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        Ok(Box::new(InProcessPuller { queue: self.queue(model)? }))
    }

    async fn queue_status(&self, model: &ModelKey, _levels: &[u32]) -> Result<QueueStatus, BusError> {
        Ok(self.queue(model)?.status())
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        self.0.inboxes.lock().insert(gateway.to_owned(), Arc::downgrade(&inbox));
        Ok(inbox)
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        let inbox = self.0.inboxes.lock().get(&reply.gateway).and_then(Weak::upgrade);
        if let Some(given_up) = inbox.and_then(|inbox| inbox.dispatch(reply)) {
            self.cancel(&given_up).await?;
        }
        Ok(())
    }

    async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        // No receiver is no error: no worker has started yet.
        let _ = self.0.cancellations.send(request_id.to_owned());
        Ok(())
    }

    async fn cancellations(&self) -> Result<mpsc::Receiver<String>, BusError> {
        let mut from = self.0.cancellations.subscribe();
        let (to, receiver) = mpsc::channel(WATCH_BACKLOG);
        crate::spawn("in-process cancellations", async move {
            loop {
                match from.recv().await {
                    Ok(request_id) => {
                        if to.send(request_id).await.is_err() {
                            return;
                        }
                    }
                    // Cancelling is best effort; the deadline ends what was missed.
                    Err(broadcast::error::RecvError::Lagged(missed)) => tracing::warn!(missed, "missed cancellations"),
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        Ok(receiver)
    }

    async fn dead_letter(&self, letter: DeadLetter) -> Result<(), BusError> {
        let mut dead = self.0.dead.lock();
        if dead.letters.len() == DEAD_LETTERS_KEPT {
            dead.letters.pop_front();
        }
        dead.last += 1;
        let number = dead.last;
        dead.letters.push_back(StoredLetter { number, at: UnixMicros::now(), letter });
        Ok(())
    }

    async fn dead_letter_after(&self, number: u64) -> Result<Option<StoredLetter>, BusError> {
        Ok(self.0.dead.lock().letters.iter().find(|stored| stored.number > number).cloned())
    }

    async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError> {
        let mut dead = self.0.dead.lock();
        let before = dead.letters.len();
        dead.letters.retain(|stored| stored.number != number);
        Ok(dead.letters.len() < before)
    }

    async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        self.0.registry.lock().entries.insert(entry.key(), entry.clone());
        self.tell(&RegistryEvent::Put(entry.clone()));
        Ok(())
    }

    async fn withdraw(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        self.0.registry.lock().entries.remove(&entry.key());
        self.tell(&RegistryEvent::Delete(entry.key()));
        Ok(())
    }

    async fn watch_registry(&self) -> Result<mpsc::Receiver<RegistryEvent>, BusError> {
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
        let mut registry = self.0.registry.lock();
        for entry in registry.entries.values() {
            let _ = sender.try_send(RegistryEvent::Put(entry.clone()));
        }
        registry.watchers.push(sender);
        Ok(receiver)
    }

    async fn ask(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        let (answers, receiver) = mpsc::channel(WATCH_BACKLOG);
        if let Some(listeners) = self.0.listeners.lock().get_mut(topic) {
            listeners.retain(|listener| !listener.is_closed());
            for listener in listeners.iter() {
                // One that is too far behind would not answer in time either.
                let _ = listener.try_send(Question::new(body.clone(), Answers(answers.clone())));
            }
        }
        Ok(receiver)
    }

    async fn questions(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
        self.0.listeners.lock().entry(topic.to_owned()).or_default().push(sender);
        Ok(receiver)
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.subscribe()
    }

    async fn advertise(&self, _: &str, _: HashMap<String, String>) -> Result<(), BusError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// The way back to an asker.
struct Answers(mpsc::Sender<Bytes>);

#[async_trait]
impl AnswerHandle for Answers {
    async fn answer(&self, body: Bytes) -> Result<(), BusError> {
        // An asker that is gone is no error.
        let _ = self.0.send(body).await;
        Ok(())
    }
}

// === impl Queue ===

impl Queue {
    fn push(&self, model: &ModelKey, message: &WorkMessage) -> Result<(), BusError> {
        let size = size(message);
        let mut state = self.state.lock();
        let name = message.message_id();
        if state.unsettled.contains_key(&name) {
            return Ok(());
        }
        let Some(level) = state.levels.get_mut(&message.level()) else {
            return Err(BusError::NoQueue { model: model.clone() });
        };
        let fits = level.messages < level.max_messages && level.bytes.saturating_add(size) <= self.max_bytes;
        if !fits {
            return Err(BusError::Full { model: model.clone() });
        }
        level.messages += 1;
        level.bytes += size;
        level.ready.push_back(Queued { message: message.clone(), attempt: 1, since: Instant::now() });
        state.unsettled.insert(name, Instant::now());
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    fn status(&self) -> QueueStatus {
        let state = self.state.lock();
        let waiting = state.levels.values().map(|level| level.ready.len()).sum::<usize>() + state.delayed.len();
        QueueStatus {
            waiting: waiting as u64,
            delivered: state.unsettled.len().saturating_sub(waiting) as u64,
            oldest: state.unsettled.values().min().map_or(Duration::ZERO, Instant::elapsed),
        }
    }

    fn settle(&self, queued: &Queued) {
        let mut state = self.state.lock();
        if state.unsettled.remove(&queued.message.message_id()).is_some() {
            let level = state.level(&queued.message);
            level.messages = level.messages.saturating_sub(1);
            level.bytes = level.bytes.saturating_sub(size(&queued.message));
        }
    }

    /// Delivers again; past the last attempt that gives it up, forgets.
    fn redeliver(&self, mut queued: Queued, delay: Duration) {
        queued.attempt += 1;
        if queued.attempt > self.max_deliver + 1 {
            return self.settle(&queued);
        }
        let mut state = self.state.lock();
        if delay.is_zero() {
            state.level(&queued.message).ready.push_front(queued);
            drop(state);
            self.arrived.notify_one();
        } else {
            state.delayed.push(Delayed { due: Instant::now() + delay, queued });
            drop(state);
            // Every puller has to know when it is due: one that alone knew could leave before.
            self.arrived.notify_waiters();
        }
    }

    /// Takes up to `room` messages; when there are none, says when the next delayed one is due.
    fn take(self: &Arc<Self>, room: usize) -> Result<Vec<Delivery>, Option<Instant>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        while state.delayed.peek().is_some_and(|delayed| delayed.due <= now) {
            let delayed = state.delayed.pop().expect("peeked under the same lock");
            state.level(&delayed.queued.message).ready.push_back(delayed.queued);
        }
        let mut taken = Vec::new();
        for level in state.levels.values_mut() {
            let count = (room - taken.len()).min(level.ready.len());
            taken.extend(level.ready.drain(..count));
        }
        if taken.is_empty() {
            return Err(state.delayed.peek().map(|delayed| delayed.due));
        }
        let more = state.levels.values().any(|level| !level.ready.is_empty());
        drop(state);
        if more {
            // One notification may stand for many messages: pass it on to the next puller.
            self.arrived.notify_one();
        }
        Ok(taken.into_iter().map(|queued| self.deliver(queued)).collect())
    }

    /// Takes what has waited at `level` for longer than `age`.
    fn overdue(self: &Arc<Self>, level: u32, age: Duration) -> Vec<Delivery> {
        let mut state = self.state.lock();
        let Some(level) = state.levels.get_mut(&level) else { return Vec::new() };
        let overdue = level.ready.iter().take_while(|queued| queued.since.elapsed() > age).count();
        let taken: Vec<_> = level.ready.drain(..overdue).collect();
        drop(state);
        taken.into_iter().map(|queued| self.deliver(queued)).collect()
    }

    fn deliver(self: &Arc<Self>, queued: Queued) -> Delivery {
        let Queued { message, attempt, since } = queued;
        let kept = Queued { message: message.clone(), attempt, since };
        let handle = Handle { queue: self.clone(), message: Mutex::new(Some(kept)) };
        Delivery { message, attempt, acker: Acker::new(Arc::new(handle)) }
    }
}

// === impl QueueState ===

impl QueueState {
    /// The level of a message that is in the queue.
    fn level(&mut self, message: &WorkMessage) -> &mut Level {
        self.levels.entry(message.level()).or_default()
    }
}

fn size(message: &WorkMessage) -> u64 {
    message.tensors.iter().map(|tensor| tensor.data().len() as u64).sum()
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

    async fn term(&self, _reason: &str) -> Result<(), BusError> {
        self.ack().await
    }

    async fn in_progress(&self) -> Result<(), BusError> {
        // No clock runs against a delivery within one process.
        Ok(())
    }

    fn abandon(&self) {
        if let Some(queued) = self.message.lock().take() {
            tracing::warn!(request_id = queued.message.request_id, "delivery was let go without being settled");
            self.queue.redeliver(queued, Duration::ZERO);
        }
    }
}

// === impl InProcessPuller ===

#[async_trait]
impl Puller for InProcessPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        loop {
            let arrived = self.queue.arrived.notified();
            match self.queue.take(room) {
                Ok(deliveries) => return Ok(deliveries),
                Err(None) => arrived.await,
                Err(Some(due)) => {
                    let _ = tokio::time::timeout_at(due.into(), arrived).await;
                }
            }
        }
    }

    async fn overdue(&mut self, level: u32, age: Duration) -> Result<Vec<Delivery>, BusError> {
        Ok(self.queue.overdue(level, age))
    }

    async fn stop(&mut self) {}
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
    /// The earliest is the greatest, so that it is on top of the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms() {
        let bus = InProcess::default();
        let setup = crate::conformance::Setup::new(move || {
            let bus: Arc<dyn Bus> = Arc::new(bus.clone());
            async { bus }
        });
        crate::conformance::run(&setup).await;
    }
}
