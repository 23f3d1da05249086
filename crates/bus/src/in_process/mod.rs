//! The bus within one process: bounded queues, no broker, no encoding. A message is moved, its tensors are shared.
//!
//! It keeps the promises of the NATS bus: a delivery that is let go or refused comes again with a higher attempt, a
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
    AnswerHandle, Bus, BusError, Connection, DeadLetter, Inbox, Puller, Question, QueueOptions, QueueStatus, Reply,
    StoredLetter, WorkMessage,
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
        queues.entry(model.clone()).or_insert_with(|| Queue::new(options)).set_limits(options);
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
        Ok(Box::new(self.queue(model)?.puller()))
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
