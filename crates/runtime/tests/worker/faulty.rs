//! The in-process bus, and a broker's refusals.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use trireme_bus::{
    Attempts, Bus, BusError, Connection, DeadLetter, InProcess, Inbox, MessageName, Puller, Question, QueueOptions,
    QueueStatus, Queued, RegistryEvent, Reply, StoredLetter, WorkMessage, WorkerEntry,
};
use trireme_inference::ModelKey;

/// What can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    Queue,
    Entry,
    Reply,
    Attempts,
    Note,
    /// One note is taken, and nobody is told.
    NoteUnheard,
}

/// A bus that refuses for as long as it is told to.
#[derive(Clone, Default)]
pub struct Faulty {
    bus: InProcess,
    refused: Arc<Mutex<HashSet<Asked>>>,
}

impl Faulty {
    /// From now on it refuses these, and nothing else.
    pub fn refuse(&self, asked: &[Asked]) {
        *self.refused.lock() = asked.iter().copied().collect();
    }

    fn check(&self, asked: Asked) -> Result<(), BusError> {
        match self.refused.lock().contains(&asked) {
            true => Err(BusError::Refused { action: "doing as asked", reason: "as told".to_owned() }),
            false => Ok(()),
        }
    }
}

impl Deref for Faulty {
    type Target = InProcess;

    fn deref(&self) -> &InProcess {
        &self.bus
    }
}

#[async_trait]
impl Bus for Faulty {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        self.check(Asked::Queue)?;
        self.bus.declare_queue(model, options).await
    }

    async fn publish(&self, message: &WorkMessage) -> Result<Queued, BusError> {
        self.bus.publish(message).await
    }

    async fn take_back(&self, queued: &Queued) -> Result<(), BusError> {
        self.bus.take_back(queued).await
    }

    async fn attempts(&self, message: &MessageName) -> Result<Option<Attempts>, BusError> {
        self.check(Asked::Attempts)?;
        self.bus.attempts(message).await
    }

    async fn note_attempts(&self, message: &MessageName, attempts: Attempts) -> Result<(), BusError> {
        self.check(Asked::Note)?;
        self.bus.note_attempts(message, attempts).await?;
        match self.refused.lock().remove(&Asked::NoteUnheard) {
            true => Err(BusError::Unreachable("as told".to_owned())),
            false => Ok(()),
        }
    }

    fn message_bytes(&self) -> usize {
        self.bus.message_bytes()
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Puller>, BusError> {
        self.bus.pull(model).await
    }

    async fn queue_status(&self, model: &ModelKey, levels: &[u32], policy: bool) -> Result<QueueStatus, BusError> {
        self.bus.queue_status(model, levels, policy).await
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        self.bus.open_inbox(gateway).await
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        self.check(Asked::Reply)?;
        self.bus.reply(reply).await
    }

    async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        self.bus.cancel(request_id).await
    }

    async fn cancellations(&self) -> Result<mpsc::Receiver<String>, BusError> {
        self.bus.cancellations().await
    }

    async fn dead_letter(&self, letter: DeadLetter) -> Result<(), BusError> {
        self.bus.dead_letter(letter).await
    }

    async fn dead_letter_after(&self, number: u64) -> Result<Option<StoredLetter>, BusError> {
        self.bus.dead_letter_after(number).await
    }

    async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError> {
        self.bus.remove_dead_letter(number).await
    }

    async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        self.check(Asked::Entry)?;
        self.bus.announce(entry).await
    }

    async fn withdraw(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        self.bus.withdraw(entry).await
    }

    async fn watch_registry(&self) -> Result<mpsc::Receiver<RegistryEvent>, BusError> {
        self.bus.watch_registry().await
    }

    async fn ask(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        self.bus.ask(topic, body).await
    }

    async fn questions(&self, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
        self.bus.questions(topic).await
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.bus.connection()
    }

    async fn advertise(&self, service: &str, metadata: HashMap<String, String>) -> Result<(), BusError> {
        self.bus.advertise(service, metadata).await
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}
