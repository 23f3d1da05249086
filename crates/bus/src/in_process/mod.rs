//! The bus within one process: bounded queues, no broker, no encoding. A message is moved, and its tensors are shared.
//!
//! It keeps the promises of the NATS bus: a delivery that a worker drops or returns comes again as a later delivery, a
//! queue counts messages until they are settled, and a second message with the same name is not delivered beside the
//! first.
//!
//! Its stores end with the process, except the ones that [`InProcess::keeping`] replaces ([`KeptStores`]).

mod kept;
mod queue;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use trireme_inference::{Lane, ModelKey, UnixMicros};

pub use self::kept::KeptStores;
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
pub struct InProcess(Arc<InProcessState>);

struct InProcessState {
    queues: Mutex<HashMap<ModelKey, Arc<Queue>>>,
    inboxes: Mutex<HashMap<String, Weak<Inbox>>>,
    stores: Mutex<Stores>,
    /// The stores of durable work, if they outlive the process.
    kept: Option<Arc<dyn KeptStores>>,
    /// Microseconds by which the clock of the stores in memory is ahead. Only tests move it.
    ahead: AtomicU64,
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
        InProcess::with(settings, None)
    }

    /// The same, whose stores of durable work outlive the process: they are `kept`.
    pub fn keeping(settings: &QueueOptions, kept: Arc<dyn KeptStores>) -> InProcess {
        InProcess::with(settings, Some(kept))
    }

    fn with(settings: &QueueOptions, kept: Option<Arc<dyn KeptStores>>) -> InProcess {
        let bus = InProcess(Arc::new(InProcessState {
            queues: Mutex::default(),
            inboxes: Mutex::default(),
            stores: Mutex::default(),
            kept,
            ahead: AtomicU64::new(0),
            listeners: Mutex::default(),
            in_turn: Mutex::default(),
            connection: watch::channel(Connection::Up(1)).0,
            fault: watch::channel(None).0,
        }));
        let written = (&bus as &dyn Bus).change_settings(settings).now_or_never();
        debug_assert!(matches!(written, Some(Ok(()))), "in process nothing waits, and nothing refuses");
        bus
    }

    /// Moves the clock: values lapse as if so much time had passed.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn advance(&self, time: Duration) {
        self.0.ahead.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The stores that outlive the process, for a bucket that is there.
    fn kept(&self, bucket: Bucket) -> Option<&dyn KeptStores> {
        self.0.kept.as_deref().filter(|_| bucket.is_durable())
    }

    fn queue(&self, model: &ModelKey) -> Result<Arc<Queue>, BusError> {
        self.0.queues.lock().get(model).cloned().ok_or_else(|| BusError::NoQueue { model: model.clone() })
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

    async fn queues(&self) -> Result<BTreeMap<ModelKey, BTreeSet<u32>>, BusError> {
        Ok(self.0.queues.lock().iter().map(|(model, queue)| (model.clone(), queue.levels())).collect())
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
        // The task must not hold the stores open.
        let bus = Arc::downgrade(&self.0);
        inbox.keep_deadlines(move |request_id| {
            let bus = bus.upgrade().map(InProcess);
            async move {
                match bus {
                    Some(bus) => (&bus as &dyn Bus).cancel(&request_id).await,
                    None => Ok(()),
                }
            }
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
        match self.kept(bucket) {
            Some(kept) => kept.put(bucket, key, value, expect, lapse).await,
            None => self.0.stores.lock().put(bucket, key, value, expect, lapse, self.now()),
        }
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        match self.kept(bucket) {
            Some(kept) => kept.get(bucket, key).await,
            None => Ok(self.0.stores.lock().get(bucket, key, self.now())),
        }
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        match self.kept(bucket) {
            Some(kept) => kept.next(bucket, revision).await,
            None => Ok(self.0.stores.lock().next(bucket, revision, self.now())),
        }
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        match self.kept(bucket) {
            Some(kept) => kept.delete(bucket, key, expect).await,
            None => self.0.stores.lock().delete(bucket, key, expect),
        }
    }

    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError> {
        Ok(match self.kept(bucket) {
            Some(kept) => kept.watch(bucket),
            None => self.0.stores.lock().watch(bucket, self.now()),
        })
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
        self.0.kept.is_some()
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.subscribe()
    }

    fn fault(&self) -> watch::Receiver<Option<BusFault>> {
        match &self.0.kept {
            Some(kept) => kept.fault(),
            None => self.0.fault.subscribe(),
        }
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
    use crate::fixtures::full_message;

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
}
