//! The bus within one process, whose durable work outlives the process: queues, replies and topics are those of
//! [`InProcess`], and the stores of jobs and of their bytes are in a file.
//!
//! Not here: the other stores, which end with the process as its models do; what the records mean (`trireme-jobs`).

mod disk;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use trireme_bus::{
    Bucket, Bus, BusError, BusFault, Change, Connection, Consumer, Entry, InProcess, Inbox, MessagePosition,
    QueueOptions, QueueStatus, Reply, TopicMessage, WorkMessage,
};
use trireme_inference::{ModelKey, UnixMicros};

use self::disk::Disk;

/// The bus within one process with the stores of jobs on disk. Clones are the same bus.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let directory = tempfile::tempdir().expect("a temporary directory");
/// # let directory = directory.path();
/// use trireme_bus::{Bucket, Bus, QueueOptions};
/// use trireme_bus_disk::OnDisk;
///
/// let bus = OnDisk::open(&QueueOptions::default(), directory)?;
/// bus.put(Bucket::Jobs, "job-1", "waiting".into(), None, None).await?;
/// drop(bus);
///
/// let bus = OnDisk::open(&QueueOptions::default(), directory)?;
/// let kept = bus.get(Bucket::Jobs, "job-1").await?;
/// assert!(bus.keeps_jobs() && kept.is_some_and(|entry| entry.value == "waiting"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OnDisk {
    bus: InProcess,
    disk: Disk,
    /// Whether the file can be written.
    fault: watch::Sender<Option<BusFault>>,
}

// === impl OnDisk ===

impl OnDisk {
    /// A bus with these settings, and the stores of jobs in a file in `directory`. No other process may use the directory at the same
    /// time.
    pub fn open(settings: &QueueOptions, directory: &Path) -> Result<OnDisk, BusError> {
        let fault = watch::channel(None).0;
        Ok(OnDisk { disk: Disk::open(directory, fault.clone())?, bus: InProcess::new(settings), fault })
    }

    /// The disk, for the stores that are there.
    fn disk(&self, bucket: Bucket) -> Option<&Disk> {
        matches!(bucket, Bucket::Jobs | Bucket::Objects | Bucket::Usage).then_some(&self.disk)
    }
}

#[async_trait]
impl Bus for OnDisk {
    // === On disk ===

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
            None => self.bus.put(bucket, key, value, expect, lapse).await,
        }
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.get(bucket, key).await,
            None => self.bus.get(bucket, key).await,
        }
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.next(bucket, revision).await,
            None => self.bus.next(bucket, revision).await,
        }
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        match self.disk(bucket) {
            Some(disk) => disk.delete(bucket, key, expect).await,
            None => self.bus.delete(bucket, key, expect).await,
        }
    }

    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError> {
        match self.disk(bucket) {
            Some(disk) => Ok(disk.watch(bucket)),
            None => self.bus.watch(bucket).await,
        }
    }

    fn keeps_jobs(&self) -> bool {
        true
    }

    fn fault(&self) -> watch::Receiver<Option<BusFault>> {
        self.fault.subscribe()
    }

    // === In memory ===

    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
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

    fn message_bytes(&self) -> usize {
        self.bus.message_bytes()
    }

    fn is_shared(&self) -> bool {
        self.bus.is_shared()
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        self.bus.open_inbox(gateway).await
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        self.bus.reply(reply).await
    }

    fn now(&self) -> UnixMicros {
        self.bus.now()
    }

    fn deployment(&self) -> &str {
        self.bus.deployment()
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

    async fn close(&self) {
        self.bus.close().await;
    }
}
