//! The bus within one process: bounded queues, no broker, no encoding. A message is moved, and its tensors are shared.
//!
//! It keeps the promises of the NATS bus: a delivery that a worker drops or returns comes again as a later delivery, a
//! queue counts messages until they are settled, and a second message with the same name is not delivered beside the
//! first.

mod disk;
mod queue;
mod store;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use trireme_inference::{Lane, ModelKey, UnixMicros};

use self::disk::Disk;
use self::queue::Queue;
use self::store::Stores;
use crate::cancel::CANCEL;
use crate::{
    Bucket, Bus, BusError, BusFault, Change, Connection, Consumer, Entry, Inbox, MessagePosition, QueueOptions,
    QueueStatus, Reply, RespondHandle, TopicMessage, WorkMessage,
};

/// Messages on a topic that may wait for a slow listener before it misses some.
const BACKLOG: usize = 4096;

/// The in-process bus. Clones are the same bus.
#[derive(Clone)]
pub struct InProcess(Arc<Shared>);

struct Shared {
    queues: Mutex<HashMap<ModelKey, Arc<Queue>>>,
    inboxes: Mutex<HashMap<String, Weak<Inbox>>>,
    stores: Mutex<Stores>,
    /// Microseconds by which the clock of the stores in memory is ahead. Only tests move it.
    ahead: AtomicU64,
    /// The stores of jobs, if they have a place on disk.
    disk: Option<Disk>,
    listeners: Mutex<HashMap<String, Vec<mpsc::Sender<TopicMessage>>>>,
    /// By topic, the listeners that take turns; the first one gets the next message.
    in_turn: Mutex<HashMap<String, VecDeque<mpsc::Sender<TopicMessage>>>>,
    connection: watch::Sender<Connection>,
    fault: watch::Sender<Option<BusFault>>,
}

// === impl InProcess ===

impl Default for InProcess {
    /// With the default settings.
    fn default() -> Self {
        InProcess::new(&QueueOptions::default())
    }
}

impl InProcess {
    /// A bus with these settings. No other process has to write them.
    pub fn new(settings: &QueueOptions) -> InProcess {
        InProcess::with(settings, None, watch::channel(None).0)
    }

    /// The same with the stores of jobs in a file in `directory`, so that they outlive the process. No other process may
    /// use the directory at the same time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), trireme_bus::BusError> {
    /// # let directory = tempfile::tempdir().expect("a temporary directory");
    /// # let directory = directory.path();
    /// # use trireme_bus::{Bucket, Bus, InProcess, QueueOptions};
    /// let bus = InProcess::open(&QueueOptions::default(), directory)?;
    /// bus.put(Bucket::Jobs, "job-1", "waiting".into(), None, None).await?;
    /// drop(bus);
    ///
    /// let bus = InProcess::open(&QueueOptions::default(), directory)?;
    /// let kept = bus.get(Bucket::Jobs, "job-1").await?;
    /// assert!(bus.keeps_jobs() && kept.is_some_and(|entry| entry.value == "waiting"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(settings: &QueueOptions, directory: &Path) -> Result<InProcess, BusError> {
        let fault = watch::channel(None).0;
        Ok(InProcess::with(settings, Some(Disk::open(directory, fault.clone())?), fault))
    }

    fn with(settings: &QueueOptions, disk: Option<Disk>, fault: watch::Sender<Option<BusFault>>) -> InProcess {
        let bus = InProcess(Arc::new(Shared {
            disk,
            queues: Mutex::default(),
            inboxes: Mutex::default(),
            stores: Mutex::default(),
            ahead: AtomicU64::new(0),
            listeners: Mutex::default(),
            in_turn: Mutex::default(),
            connection: watch::channel(Connection::Up(1)).0,
            fault,
        }));
        let written = (&bus as &dyn Bus).change_settings(settings).now_or_never();
        debug_assert!(matches!(written, Some(Ok(()))), "in process nothing waits, and nothing refuses");
        bus
    }

    /// Moves the clock of a bus without a directory: values lapse as if so much time had passed.
    #[cfg(any(test, feature = "conformance"))]
    pub fn advance(&self, time: Duration) {
        self.0.ahead.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn queue(&self, model: &ModelKey) -> Result<Arc<Queue>, BusError> {
        self.0.queues.lock().get(model).cloned().ok_or_else(|| BusError::NoQueue { model: model.clone() })
    }

    /// The disk, for buckets that are there.
    fn disk(&self, bucket: Bucket) -> Option<&Disk> {
        self.0.disk.as_ref().filter(|_| matches!(bucket, Bucket::Jobs | Bucket::Objects | Bucket::Usage))
    }

    fn deliver(&self, topic: &str, question: impl Fn() -> TopicMessage) {
        if let Some(listeners) = self.0.in_turn.lock().get_mut(topic) {
            listeners.retain(|listener| !listener.is_closed());
            if let Some(listener) = listeners.front()
                && listener.try_send(question()).is_err()
            {
                tracing::warn!(topic, "a listener that is too far behind misses a message");
            }
            listeners.rotate_left(usize::from(listeners.len() > 1));
        }
        if let Some(listeners) = self.0.listeners.lock().get_mut(topic) {
            listeners.retain(|listener| !listener.is_closed());
            for listener in listeners.iter() {
                // A listener that is so far behind would not answer in time either.
                if listener.try_send(question()).is_err() {
                    tracing::warn!(topic, "a listener that is too far behind misses a message");
                }
            }
        }
    }
}

#[async_trait]
impl Bus for InProcess {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let mut queues = self.0.queues.lock();
        queues.entry(model.clone()).or_insert_with(|| Queue::new(options)).set_policies(options);
        Ok(())
    }

    async fn publish(&self, message: &WorkMessage) -> Result<MessagePosition, BusError> {
        let model = message.queue().ok_or(BusError::Refused {
            action: "publishing",
            reason: format!("route of request '{}' has no step left", message.request_id),
        })?;
        self.queue(model)?.push(model, message).map(|()| MessagePosition(None))
    }

    async fn take_back(&self, _queued: &MessagePosition) -> Result<(), BusError> {
        // The cancellation has already removed it.
        Ok(())
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError> {
        Ok(Box::new(self.queue(model)?.consumer(Lane::Live)))
    }

    async fn pull_bulk(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError> {
        Ok(Box::new(self.queue(model)?.consumer(Lane::Bulk)))
    }

    async fn bulk_queues(&self) -> Result<HashSet<ModelKey>, BusError> {
        Ok(HashSet::new())
    }

    async fn queue_status(&self, model: &ModelKey, _levels: &[u32]) -> Result<QueueStatus, BusError> {
        Ok(self.queue(model)?.status())
    }

    async fn unsettled(&self, model: &ModelKey, _levels: &[u32], gateway: &str) -> Result<HashSet<String>, BusError> {
        Ok(self.queue(model)?.unsettled(gateway))
    }

    async fn queues(&self) -> Result<Vec<ModelKey>, BusError> {
        Ok(self.0.queues.lock().keys().cloned().collect())
    }

    async fn remove_queue(&self, model: &ModelKey) -> Result<bool, BusError> {
        let mut queues = self.0.queues.lock();
        let is_empty = queues.get(model).is_some_and(|queue| queue.status() == QueueStatus::default());
        Ok(is_empty && queues.remove(model).is_some())
    }

    fn message_bytes(&self) -> usize {
        usize::MAX
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        let bus = self.clone();
        inbox.keep_deadlines(move |request_id| {
            let bus = bus.clone();
            async move { (&bus as &dyn Bus).cancel(&request_id).await }
        });
        self.0.inboxes.lock().insert(gateway.to_owned(), Arc::downgrade(&inbox));
        Ok(inbox)
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        let inbox = self.0.inboxes.lock().get(reply.gateway.as_str()).and_then(Weak::upgrade);
        match inbox.and_then(|inbox| inbox.dispatch(reply)) {
            Some(request_id) => (self as &dyn Bus).cancel(&request_id).await,
            None => Ok(()),
        }
    }

    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.put(bucket, key, value, expect, lapse).await,
            None => self.0.stores.lock().put(bucket, key, value, expect, lapse, self.now()),
        }
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.get(bucket, key).await,
            None => Ok(self.0.stores.lock().get(bucket, key, self.now())),
        }
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.next(bucket, revision).await,
            None => Ok(self.0.stores.lock().next(bucket, revision, self.now())),
        }
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.delete(bucket, key, expect).await,
            None => self.0.stores.lock().delete(bucket, key, expect),
        }
    }

    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError> {
        match self.disk(bucket) {
            Some(disk) => Ok(disk.watch(bucket)),
            None => Ok(self.0.stores.lock().watch(bucket, self.now())),
        }
    }

    fn now(&self) -> UnixMicros {
        UnixMicros::now().after(Duration::from_micros(self.0.ahead.load(Ordering::Relaxed)))
    }

    async fn publish_to(&self, topic: &str, body: Bytes) -> Result<(), BusError> {
        if topic == CANCEL
            && let Ok(request_id) = std::str::from_utf8(&body)
        {
            // In process, `take_back` does nothing: the cancellation removes the request's messages.
            let queues: Vec<_> = self.0.queues.lock().values().cloned().collect();
            queues.iter().for_each(|queue| queue.remove(request_id));
        }
        self.deliver(topic, || TopicMessage::without_reply(body.clone()));
        Ok(())
    }

    async fn request(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        let (answers, receiver) = mpsc::channel(BACKLOG);
        self.deliver(topic, || TopicMessage::new(body.clone(), Answers(answers.clone())));
        Ok(receiver)
    }

    async fn subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.0.listeners.lock().entry(topic.to_owned()).or_default().push(sender);
        Ok(receiver)
    }

    async fn queue_subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.0.in_turn.lock().entry(topic.to_owned()).or_default().push_back(sender);
        Ok(receiver)
    }

    fn keeps_jobs(&self) -> bool {
        self.0.disk.is_some()
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.subscribe()
    }

    fn fault(&self) -> watch::Receiver<Option<BusFault>> {
        self.0.fault.subscribe()
    }

    async fn close(&self) {}
}

/// The way back to an asker.
struct Answers(mpsc::Sender<Bytes>);

#[async_trait]
impl RespondHandle for Answers {
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
    use crate::DeadLetter;
    use crate::conformance::fixtures::full_message;

    fn model() -> ModelKey {
        ModelKey { name: "m".into(), version: 1 }
    }

    #[tokio::test]
    async fn dead_letters_are_bounded_by_what_they_hold() {
        let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
        let mut message = full_message(&model());
        message.tensors = vec![Tensor::from_values("x", [10 << 20], vec![0u8; 10 << 20]).unwrap()];
        let letter = DeadLetter { message, reason: InferError::internal("failed"), attempts: 1 };
        let count = async || {
            let (mut count, mut last) = (0, 0);
            while let Some(stored) = bus.dead_letter_after(last).await.unwrap() {
                (count, last) = (count + 1, stored.number);
            }
            count
        };
        for number in 0..20 {
            let message = WorkMessage { request_id: number.to_string().into(), ..letter.message.clone() };
            bus.dead_letter(DeadLetter { message, ..letter.clone() }).await.unwrap();
        }
        assert_eq!(count().await, 6, "of 10 MiB each");
        let first = bus.dead_letter_after(0).await.unwrap().unwrap();
        assert_eq!(first.letter.message.request_id, "14", "the latest are kept");
        assert!(bus.remove_dead_letter(first.number).await.unwrap());
        assert!(!bus.remove_dead_letter(first.number).await.unwrap());

        let mut huge = letter;
        huge.message.tensors = vec![Tensor::from_values("x", [65 << 20], vec![0u8; 65 << 20]).unwrap()];
        bus.dead_letter(huge).await.unwrap();
        assert_eq!(count().await, 1, "the last one stays");
    }

    /// A queue counts all the memory of a message. A message that never fits gets its own error.
    #[tokio::test]
    async fn a_queue_counts_all_that_a_message_holds() {
        let bus = InProcess::default();
        let options = QueueOptions { max_bytes: 1 << 20, ..QueueOptions::default() };
        bus.declare_queue(&model(), &options).await.unwrap();
        let named = |id: &str, bytes: usize| {
            let mut message = full_message(&model());
            message.request_id = id.into();
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
