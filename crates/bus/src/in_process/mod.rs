//! The bus within one process: bounded queues, no broker, no encoding. A message is moved, its tensors are shared.
//!
//! It keeps the promises of the NATS bus: a delivery that is let go or refused comes again as a later delivery, a
//! queue counts messages until they are settled, a second message of the same name is not delivered beside the first.

mod queue;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, watch};
use trireme_inference::{ModelKey, UnixMicros};

use self::queue::Queue;
use crate::registry::{RegistryEvent, WorkerEntry};
use crate::{
    AnswerHandle, Attempts, Bus, BusError, Connection, DeadLetter, Inbox, MessageName, Puller, Question, QueueOptions,
    QueueStatus, Queued, Reply, StoredLetter, WorkMessage,
};

/// Registry events and cancellations that a slow watcher may be behind before it misses some.
const WATCH_BACKLOG: usize = 4096;

/// Dead letters kept, the latest ones; the last one is kept whatever its size.
const DEAD_LETTERS_KEPT: usize = 1000;

/// Bytes of them, about: what they hold would be free otherwise.
const DEAD_BYTES_KEPT: u64 = 64 << 20;

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
    bytes: u64,
}

#[derive(Default)]
struct Registry {
    entries: HashMap<String, WorkerEntry>,
    watchers: Vec<mpsc::Sender<RegistryEvent>>,
}

// === impl DeadLetters ===

impl DeadLetters {
    /// Keeps a letter; older ones go for it.
    fn keep(&mut self, letter: DeadLetter) {
        self.last += 1;
        self.bytes += letter.message.size();
        self.letters.push_back(StoredLetter { number: self.last, at: UnixMicros::now(), letter });
        while self.letters.len() > 1 && (self.letters.len() > DEAD_LETTERS_KEPT || self.bytes > DEAD_BYTES_KEPT) {
            self.remove(self.letters[0].number);
        }
    }

    /// Forgets a letter. Whether it was there.
    fn remove(&mut self, number: u64) -> bool {
        let place = self.letters.iter().position(|stored| stored.number == number);
        let Some(stored) = place.and_then(|place| self.letters.remove(place)) else { return false };
        self.bytes -= stored.letter.message.size();
        true
    }
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
        let mut queues = self.0.queues.lock();
        queues.entry(model.clone()).or_insert_with(|| Queue::new(options)).set_policies(options);
        Ok(())
    }

    async fn publish(&self, message: &WorkMessage) -> Result<Queued, BusError> {
        let model = message.queue().ok_or(BusError::Refused {
            action: "publishing",
            reason: format!("route of request '{}' has no step left", message.request_id),
        })?;
        self.queue(model)?.push(model, message).map(|()| Queued(None))
    }

    async fn take_back(&self, _queued: &Queued) -> Result<(), BusError> {
        // Cancelling did.
        Ok(())
    }

    async fn attempts(&self, message: &MessageName) -> Result<Option<Attempts>, BusError> {
        Ok(self.queue(&message.model).ok().and_then(|queue| queue.attempts(&message.id)))
    }

    async fn note_attempts(&self, message: &MessageName, attempts: Attempts) -> Result<(), BusError> {
        if let Ok(queue) = self.queue(&message.model) {
            queue.note_attempts(&message.id, attempts);
        }
        Ok(())
    }

    fn message_bytes(&self) -> usize {
        usize::MAX
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        Ok(Box::new(self.queue(model)?.puller()))
    }

    async fn queue_status(&self, model: &ModelKey, _levels: &[u32], _policy: bool) -> Result<QueueStatus, BusError> {
        Ok(self.queue(model)?.status())
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        inbox.keep_deadlines(self.clone());
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
        let queues: Vec<_> = self.0.queues.lock().values().cloned().collect();
        queues.iter().for_each(|queue| queue.remove(request_id));
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
        self.0.dead.lock().keep(letter);
        Ok(())
    }

    async fn dead_letter_after(&self, number: u64) -> Result<Option<StoredLetter>, BusError> {
        Ok(self.0.dead.lock().letters.iter().find(|stored| stored.number > number).cloned())
    }

    async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError> {
        Ok(self.0.dead.lock().remove(number))
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

#[cfg(test)]
mod tests {
    use trireme_inference::{InferError, ParameterValue, Tensor};

    use super::*;
    use crate::conformance::fixtures::full_message;

    fn model() -> ModelKey {
        ModelKey { name: "m".to_owned(), version: 1 }
    }

    #[tokio::test]
    async fn dead_letters_are_bounded_by_what_they_hold() {
        let bus = InProcess::default();
        let mut message = full_message(&model());
        message.tensors = vec![Tensor::from_values("x", [10 << 20], vec![0u8; 10 << 20]).unwrap()];
        let letter = DeadLetter { message, reason: InferError::internal("failed"), attempts: 1 };
        for _ in 0..100 {
            bus.dead_letter(letter.clone()).await.unwrap();
        }
        assert_eq!(bus.dead_letters().len(), 6, "of 10 MiB each");
        assert_eq!(bus.dead_letter_after(0).await.unwrap().unwrap().number, 95, "the latest");
        let held = bus.0.dead.lock().bytes;
        assert!(bus.remove_dead_letter(95).await.unwrap() && !bus.remove_dead_letter(95).await.unwrap());
        assert_eq!(bus.0.dead.lock().bytes, held / 6 * 5);

        let mut huge = letter;
        huge.message.tensors = vec![Tensor::from_values("x", [65 << 20], vec![0u8; 65 << 20]).unwrap()];
        bus.dead_letter(huge).await.unwrap();
        assert_eq!(bus.dead_letters().len(), 1, "the last one stays");
    }

    /// Whatever a message holds takes room in its queue; one that never fits is told so.
    #[tokio::test]
    async fn a_queue_counts_all_that_a_message_holds() {
        let bus = InProcess::default();
        let options = QueueOptions { max_bytes: 1 << 20, ..QueueOptions::default() };
        bus.declare_queue(&model(), &options).await.unwrap();
        let named = |id: &str, bytes: usize| {
            let mut message = full_message(&model());
            message.request_id = id.to_owned();
            let text = ParameterValue::String("p".repeat(bytes));
            message.parameters = Arc::new([("long".to_owned(), text)].into());
            message
        };
        assert!(matches!(bus.publish(&named("vast", 1 << 20)).await, Err(BusError::TooLarge { limit: 0x10_0000, .. })));
        bus.publish(&named("a", 600 << 10)).await.unwrap();
        assert!(matches!(bus.publish(&named("b", 600 << 10)).await, Err(BusError::Full { .. })));
        bus.publish(&named("c", 300 << 10)).await.unwrap();
    }

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
