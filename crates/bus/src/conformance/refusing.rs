//! The in-process bus with a broker's refusals and delays, for tests of how its callers react.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use trireme_inference::{ModelKey, UnixMicros};

use crate::{
    Bucket, Bus, BusError, BusFault, Change, Connection, Consumer, DeadLetter, Entry, InProcess, Inbox,
    MessagePosition, QueueOptions, QueueStatus, Reply, TopicMessage, WorkMessage,
};

/// A call of [`Bus`] that [`Refusing`] can let fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Bus::declare_queue`].
    Declare,
    /// [`Bus::reply`].
    Reply,
    /// [`Bus::put`] and [`Bus::delete`] on a bucket.
    Write(Bucket),
    /// [`Bus::put`] on a bucket, once: the bus writes the value, but the caller gets an error as if the confirmation
    /// were lost.
    WriteUnheard(Bucket),
    /// [`Bus::put`] on a bucket: the value is on its way while the test names this, and arrives then, even if the caller has gone.
    WriteLate(Bucket),
    /// [`Bus::put`] and [`Bus::delete`] on any bucket.
    AnyWrite,
    /// [`Bus::put`] and [`Bus::delete`] on any bucket, once: the bus does it, but the caller gets an error as if the confirmation were lost.
    AnyUnheard,
    /// [`Bus::delete`] on a bucket: it waits while the test names this.
    DeleteLate(Bucket),
    /// [`Bus::watch`]: a watch begins, and ends at once.
    Watch,
    /// [`Bus::get`] and [`Bus::next`] on a bucket.
    Read(Bucket),
    /// [`Bus::get`] on a bucket: it finds nothing, as from a broker of a cluster that is behind the others.
    ReadBehind(Bucket),
}

/// [`InProcess`], where the calls named by a test fail.
#[derive(Clone, Default)]
pub struct Refusing {
    bus: InProcess,
    /// With the number of such calls that still succeed.
    refused: Arc<Mutex<HashMap<Call, usize>>>,
    /// Calls that have failed.
    failures: Arc<AtomicUsize>,
}

impl Refusing {
    /// Lets these calls fail from now on, and no others.
    pub fn refuse(&self, calls: impl IntoIterator<Item = Call>) {
        *self.refused.lock() = calls.into_iter().map(|call| (call, 0)).collect();
    }

    /// Lets this call fail after it has succeeded `successes` more times, and no other, as if the process ended there.
    pub fn refuse_after(&self, successes: usize, call: Call) {
        *self.refused.lock() = HashMap::from([(call, successes)]);
    }

    /// How many calls have failed.
    pub fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// Moves the clock of the stores.
    pub fn advance(&self, time: Duration) {
        self.bus.advance(time);
    }

    /// The same bus for another process, without refusals.
    pub fn beside(&self) -> Refusing {
        Refusing { bus: self.bus.clone(), ..Refusing::default() }
    }

    /// Cancels a request.
    pub async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        (&self.bus as &dyn Bus).cancel(request_id).await
    }

    /// The dead letters, oldest first.
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        let (bus, mut letters, mut last) = (&self.bus as &dyn Bus, Vec::new(), 0);
        let next = |after| bus.dead_letter_after(after).now_or_never().expect("in process nothing waits");
        while let Some(stored) = next(last).expect("in process nothing refuses") {
            last = stored.number;
            letters.push(stored.letter);
        }
        letters
    }

    fn write_late(
        &self,
        bucket: Bucket,
        key: String,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> oneshot::Receiver<Result<u64, BusError>> {
        let (own, (sent, arrived)) = (self.clone(), oneshot::channel());
        crate::spawn("a late write", async move {
            while own.check(Call::WriteLate(bucket)).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // The caller may have gone.
            let _ = sent.send(own.bus.put(bucket, &key, value, expect, lapse).await);
        });
        arrived
    }

    /// The outcome of a write as its caller hears it.
    fn heard<T, const N: usize>(&self, calls: [Call; N], written: T) -> Result<T, BusError> {
        let mut refused = self.refused.lock();
        for call in calls {
            match refused.get_mut(&call) {
                Some(0) => {
                    refused.remove(&call);
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    return Err(BusError::Unreachable("the confirmation was lost".to_owned()));
                }
                Some(successes) => *successes -= 1,
                None => {}
            }
        }
        Ok(written)
    }

    fn check(&self, call: Call) -> Result<(), BusError> {
        match self.refused.lock().get_mut(&call) {
            Some(0) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(BusError::Refused { action: "a call", reason: format!("the test refuses {call:?}") })
            }
            Some(successes) => {
                *successes -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Bus for Refusing {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        self.check(Call::Declare)?;
        self.bus.declare_queue(model, options).await
    }

    async fn publish(&self, message: &WorkMessage) -> Result<MessagePosition, BusError> {
        self.bus.publish(message).await
    }

    async fn take_back(&self, queued: &MessagePosition) -> Result<(), BusError> {
        self.bus.take_back(queued).await
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError> {
        self.bus.pull(model).await
    }

    async fn pull_bulk(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError> {
        self.bus.pull_bulk(model).await
    }

    async fn bulk_queues(&self) -> Result<HashSet<ModelKey>, BusError> {
        self.bus.bulk_queues().await
    }

    async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
        self.bus.queue_status(model, levels).await
    }

    async fn unsettled(&self, model: &ModelKey, levels: &[u32], gateway: &str) -> Result<HashSet<String>, BusError> {
        self.bus.unsettled(model, levels, gateway).await
    }

    async fn queues(&self) -> Result<Vec<ModelKey>, BusError> {
        self.bus.queues().await
    }

    async fn remove_queue(&self, model: &ModelKey) -> Result<bool, BusError> {
        self.bus.remove_queue(model).await
    }

    fn deployment(&self) -> &str {
        self.bus.deployment()
    }

    fn message_bytes(&self) -> usize {
        self.bus.message_bytes()
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        self.bus.open_inbox(gateway).await
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        self.check(Call::Reply)?;
        self.bus.reply(reply).await
    }

    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        self.check(Call::Write(bucket))?;
        self.check(Call::AnyWrite)?;
        let written = match self.refused.lock().contains_key(&Call::WriteLate(bucket)) {
            false => None,
            true => Some(self.write_late(bucket, key.to_owned(), value.clone(), expect, lapse)),
        };
        let written = match written {
            Some(arrived) => arrived.await.expect("the write arrives")?,
            None => self.bus.put(bucket, key, value, expect, lapse).await?,
        };
        self.heard([Call::WriteUnheard(bucket), Call::AnyUnheard], written)
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        self.check(Call::Read(bucket))?;
        if self.refused.lock().contains_key(&Call::ReadBehind(bucket)) {
            return Ok(None);
        }
        self.bus.get(bucket, key).await
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        self.check(Call::Read(bucket))?;
        self.bus.next(bucket, revision).await
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        self.check(Call::Write(bucket))?;
        self.check(Call::AnyWrite)?;
        while self.check(Call::DeleteLate(bucket)).is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let deleted = self.bus.delete(bucket, key, expect).await?;
        self.heard([Call::AnyUnheard], deleted)
    }

    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError> {
        match self.check(Call::Watch) {
            Ok(()) => self.bus.watch(bucket).await,
            Err(_) => Ok(mpsc::channel(1).1),
        }
    }

    fn now(&self) -> UnixMicros {
        self.bus.now()
    }

    async fn publish_to(&self, topic: &str, body: Bytes) -> Result<(), BusError> {
        self.bus.publish_to(topic, body).await
    }

    async fn request(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        self.bus.request(topic, body).await
    }

    async fn subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        self.bus.subscribe(topic).await
    }

    async fn queue_subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        self.bus.queue_subscribe(topic).await
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.bus.connection()
    }

    fn fault(&self) -> watch::Receiver<Option<BusFault>> {
        self.bus.fault()
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}
