//! The bus of this crate's traits, each call by its part.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use trireme_inference::{Lane, ModelKey};

use super::connection::Nats;
use super::limits::{CLOSE_TIMEOUT, LONGEST, REQUEST_TIMEOUT, limited};
use super::{buckets, bulk, consumer, topics, work};
use crate::{
    Bucket, Bus, BusError, BusFault, Change, Connection, Consumer, Entry, Inbox, MessagePosition, QueueOptions,
    QueueStatus, Reply, TopicMessage, WorkMessage,
};

/// Approximate bytes of headers, route, parameters and ledger. If they take more, the body travels by claim.
const BODY_EXTRA: usize = 64 << 10;

// === impl Nats ===

#[async_trait]
impl Bus for Nats {
    async fn declare_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        self.queues.lock().insert(model.clone(), options.clone());
        self.set_ack_wait(options.ack_wait);
        match self.makes_streams {
            true => limited(LONGEST, self.make_or_tell(model, options)).await,
            false => limited(LONGEST, self.await_queue(model, options)).await,
        }
    }

    async fn publish(&self, message: &WorkMessage) -> Result<MessagePosition, BusError> {
        match message.lane() {
            Lane::Live => {
                let published = self.publish_work(message).await;
                if matches!(published, Err(BusError::NoQueue { .. })) && self.makes_streams {
                    self.look_at_queue(message);
                }
                published
            }
            // Boxed, because its state is much larger than that of a live message.
            Lane::Bulk => Box::pin(self.publish_bulk(message)).await,
        }
    }

    async fn take_back(&self, queued: &MessagePosition) -> Result<(), BusError> {
        limited(REQUEST_TIMEOUT, work::take_back(self, queued)).await
    }

    async fn pull(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError> {
        let options = self.queues.lock().get(model).cloned().unwrap_or_default();
        Ok(Box::new(consumer::NatsConsumer::open(self, model, &options).await?))
    }

    async fn pull_bulk(&self, model: &ModelKey) -> Result<Box<dyn Consumer>, BusError> {
        Ok(Box::new(bulk::BulkConsumer::open(self, model).await?))
    }

    async fn bulk_queues(&self) -> Result<HashSet<ModelKey>, BusError> {
        limited(LONGEST, self.bulk_queue_names()).await
    }

    async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
        limited(LONGEST, work::queue_status(self, model, levels)).await
    }

    async fn unsettled(&self, model: &ModelKey, levels: &[u32], gateway: &str) -> Result<HashSet<String>, BusError> {
        limited(REQUEST_TIMEOUT, work::unsettled(self, model, levels, gateway)).await
    }

    async fn queues(&self) -> Result<BTreeMap<ModelKey, BTreeSet<u32>>, BusError> {
        limited(LONGEST, self.queue_names()).await
    }

    async fn remove_queue(&self, model: &ModelKey) -> Result<bool, BusError> {
        limited(LONGEST, self.remove_empty_queue(model)).await
    }

    fn deployment(&self) -> &str {
        &self.deployment
    }

    fn message_bytes(&self) -> usize {
        self.max_payload().saturating_sub(BODY_EXTRA)
    }

    async fn open_inbox(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        self.receive_replies(gateway).await
    }

    async fn reply(&self, reply: Reply) -> Result<(), BusError> {
        self.send_reply(&reply).await
    }

    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        let subject = format!("{}\"", buckets::subject(&self.names, bucket, key));
        tokio::select! {
            put = limited(LONGEST, self.put_value(bucket, key, value, expect, lapse)) => put,
            // A worker that may not announce a model learns that at once: the broker answers nothing.
            reason = self.refused(|refusal| refusal.contains(&subject)), if bucket == Bucket::Registry => {
                Err(BusError::Refused { action: "writing to a store", reason })
            }
        }
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        limited(LONGEST, self.get_value(bucket, key)).await
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        limited(LONGEST, self.next_value(bucket, revision)).await
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        limited(LONGEST, self.delete_value(bucket, key, expect)).await
    }

    async fn watch(&self, bucket: Bucket) -> Result<mpsc::Receiver<Change>, BusError> {
        Ok(self.watch_bucket(bucket))
    }

    async fn publish_to(&self, topic: &str, body: Bytes) -> Result<(), BusError> {
        topics::publish_to(self, topic, body).await
    }

    async fn request(&self, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
        topics::request(self, topic, body).await
    }

    async fn subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        topics::subscribe(self, topic, false).await
    }

    async fn queue_subscribe(&self, topic: &str) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        topics::subscribe(self, topic, true).await
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.follow()
    }

    fn fault(&self) -> watch::Receiver<Option<BusFault>> {
        self.fault.follow()
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Sends buffered messages. The wait has a limit, because a broker that is gone cannot take them.
        let until = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        let flushed = tokio::time::timeout_at(until, self.client.flush()).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the message bus was closed before everything was sent");
        }
        let _ = tokio::time::timeout_at(until, self.client.drain()).await;
    }
}
