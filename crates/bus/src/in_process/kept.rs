//! The stores of durable work, where they outlive the process of the bus.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::{Bucket, BusError, BusFault, Change, Entry};

/// Last-value stores that outlive the process. They get the buckets of durable work: [`Bucket::Jobs`], [`Bucket::Objects`] and
/// [`Bucket::Usage`]. Each call is that of [`Bus`](crate::Bus) with its name.
#[async_trait]
pub trait KeptStores: Send + Sync + 'static {
    /// [`Bus::put`](crate::Bus::put). Once this returns, the value outlives the process.
    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError>;

    /// [`Bus::get`](crate::Bus::get).
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError>;

    /// [`Bus::next`](crate::Bus::next).
    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError>;

    /// [`Bus::delete`](crate::Bus::delete). Once this returns, the deletion outlives the process.
    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError>;

    /// [`Bus::watch`](crate::Bus::watch).
    fn watch(&self, bucket: Bucket) -> mpsc::Receiver<Change>;

    /// [`Bus::fault`](crate::Bus::fault): the fault that keeps values from being written.
    fn fault(&self) -> watch::Receiver<Option<BusFault>>;
}
