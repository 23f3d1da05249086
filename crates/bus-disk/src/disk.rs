//! The last-value stores of jobs in a file.
//!
//! Every value is written with a new revision, and on the disk when the call returns. One thread writes: all calls that wait for it
//! go into one transaction, because a transaction waits for the disk. A watch reads the changes from the disk by their revisions, so a
//! slow watcher costs no memory.
//!
//! The last bytes of the disk are a reserve: deletions, and records that change, find room when nothing new does.

mod file;
mod tables;
mod writer;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redb::{ReadableDatabase, ReadableTable};
use tokio::sync::{mpsc, oneshot, watch};
use trireme_bus::{Bucket, BusError, BusFault, Change, Entry, KeptStores, Reopening};
use trireme_inference::UnixMicros;

use self::file::{File, failed};
use self::tables::{LAPSES, LAST, REVISIONS, VALUES};
use self::writer::{WRITES, Write, write_all};

/// The name of the file in its directory.
const FILE: &str = "jobs.redb";

/// Changes that may wait for a watcher to read them.
const WATCH_BACKLOG: usize = 256;

/// Changes that a watch reads from the disk at once.
const CHANGES: usize = 64;

/// How often values that have lapsed are removed.
const SWEEP: Duration = Duration::from_secs(60);

/// The stores in a file. Clones are the same.
#[derive(Clone)]
pub struct Disk(Arc<Shared>);

struct Shared {
    file: Arc<File>,
    /// To the thread that writes; `None` while the stores are closed.
    writes: Option<mpsc::Sender<Write>>,
    writer: Option<JoinHandle<()>>,
    /// The last revision, for watchers.
    last: Arc<watch::Sender<u64>>,
    /// Whether the file can be written.
    fault: watch::Sender<Option<BusFault>>,
}

// === impl Disk ===

impl Disk {
    /// Opens the file in `directory`, which is created if it is missing. Another process must not have it open.
    pub fn open(directory: &Path) -> Result<Disk, BusError> {
        // Texts of clients are in it, which are nobody else's business.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let file = File::open(directory.join(FILE))?;
        let last = file.with(|database| {
            let write = database.begin_write().map_err(failed)?;
            let last = {
                write.open_table(VALUES).map_err(failed)?;
                write.open_table(LAPSES).map_err(failed)?;
                // Watches of this process send no deletion that another process has written.
                let mut revisions = write.open_table(REVISIONS).map_err(failed)?;
                revisions.retain(|_, (_, is_deletion)| !is_deletion).map_err(failed)?;
                let last = write.open_table(LAST).map_err(failed)?;
                last.get(()).map_err(failed)?.map_or(0, |last| last.value())
            };
            write.commit().map_err(failed)?;
            Ok(last)
        })?;
        let (file, last, fault) = (Arc::new(file), Arc::new(watch::channel(last).0), watch::channel(None).0);
        let (writes, waiting) = mpsc::channel(WRITES);
        let (own, told, noted) = (file.clone(), last.clone(), fault.clone());
        let writer = std::thread::Builder::new().name("jobs-disk".to_owned()).spawn(move || {
            write_all(&own, waiting, &told, &noted);
        });
        let writer = Some(writer.map_err(failed)?);
        let disk = Disk(Arc::new(Shared { file, writes: Some(writes), writer, last, fault }));
        disk.sweep_now_and_then();
        Ok(disk)
    }

    /// Runs `work` where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, BusError> + Send + 'static,
    ) -> Result<T, BusError> {
        let disk = self.clone();
        tokio::task::spawn_blocking(move || work(&disk.0)).await.map_err(failed)?
    }

    /// Removes values that have lapsed.
    async fn sweep(&self, now: UnixMicros) -> Result<(), BusError> {
        let lapsed = self.blocking(move |shared| shared.lapsed(now)).await?;
        for bucket in Bucket::ALL {
            for (_, key) in lapsed.iter().filter(|(name, _)| name == bucket.name()) {
                self.0.replace(bucket, key, None, None).await?;
            }
        }
        Ok(())
    }

    /// Removes values that have lapsed, as long as the stores are open.
    fn sweep_now_and_then(&self) {
        // The task must not keep the file open.
        let weak = Arc::downgrade(&self.0);
        spawn("disk sweep", async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(shared) = weak.upgrade() else { return };
                if let Err(error) = Disk(shared).sweep(UnixMicros::now()).await {
                    tracing::warn!(%error, "lapsed values could not be removed");
                }
            }
        });
    }
}

#[async_trait]
impl KeptStores for Disk {
    async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        let now = UnixMicros::now();
        let until = lapse.map_or(UnixMicros::NEVER, |lapse| now.after(lapse));
        let written = self.0.replace(bucket, key, expect, Some((now, until, value))).await?;
        Ok(written.unwrap_or_default())
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        let key = key.to_owned();
        self.blocking(move |shared| shared.read(bucket, &key)).await
    }

    async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
        self.blocking(move |shared| {
            let mut revision = revision;
            loop {
                match shared.changes_after(bucket, revision, 1)?.pop() {
                    Some((_, Change::Put(entry))) => return Ok(Some(entry)),
                    Some((at, _)) => revision = at,
                    None => return Ok(None),
                }
            }
        })
        .await
    }

    async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        self.0.replace(bucket, key, expect, None).await.map(|revision| revision.is_some())
    }

    fn watch(&self, bucket: Bucket) -> mpsc::Receiver<Change> {
        let (changes, receiver) = mpsc::channel(WATCH_BACKLOG);
        let (disk, mut last) = (self.clone(), self.0.last.subscribe());
        spawn("disk watch", async move {
            let (mut revision, mut is_complete) = (0, false);
            let mut reading = Reopening::default();
            loop {
                last.mark_unchanged();
                let found = match disk.blocking(move |shared| shared.changes_after(bucket, revision, CHANGES)).await {
                    Ok(found) => found,
                    Err(error) => {
                        let pause = reading
                            .broke(&format_args!("a watch of the store '{}' cannot read: {error}", bucket.name()));
                        tokio::select! {
                            () = tokio::time::sleep(pause) => continue,
                            () = changes.closed() => return,
                        }
                    }
                };
                reading.works();
                match found.last() {
                    Some((at, _)) => revision = *at,
                    None if !is_complete => {
                        is_complete = true;
                        if changes.send(Change::Complete).await.is_err() {
                            return;
                        }
                    }
                    None => tokio::select! {
                        changed = last.changed() => if changed.is_err() {
                            return;
                        },
                        () = changes.closed() => return,
                    },
                }
                for (_, change) in found {
                    // A watch begins with the values that exist.
                    let is_old = !is_complete && matches!(change, Change::Deleted { .. });
                    if !is_old && changes.send(change).await.is_err() {
                        return;
                    }
                }
            }
        });
        receiver
    }

    fn fault(&self) -> watch::Receiver<Option<BusFault>> {
        self.0.fault.subscribe()
    }
}

// === impl Shared ===

impl Shared {
    /// Writes a value, or deletes it. Returns the revision of the change, or `None` if there was nothing to delete.
    async fn replace(
        &self,
        bucket: Bucket,
        key: &str,
        expect: Option<u64>,
        value: Option<(UnixMicros, UnixMicros, Bytes)>,
    ) -> Result<Option<u64>, BusError> {
        let (done, written) = oneshot::channel();
        let write = Write { bucket, key: key.to_owned(), expect, value, done };
        let closed = || failed("the stores are closed");
        self.writes.as_ref().ok_or_else(closed)?.send(write).await.map_err(|_| closed())?;
        written.await.map_err(|_| closed())?
    }

    fn read(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        self.file.with(|database| {
            let read = database.begin_read().map_err(failed)?;
            let values = read.open_table(VALUES).map_err(failed)?;
            let Some(found) = values.get((bucket.name(), key)).map_err(failed)? else { return Ok(None) };
            let (revision, at, until, value) = found.value();
            let value = Bytes::copy_from_slice(value);
            let entry = Entry { key: key.to_owned(), value, revision, at: UnixMicros(at) };
            Ok((until > UnixMicros::now().0).then_some(entry))
        })
    }

    /// The first changes after a revision, each with its own; `most` of them.
    fn changes_after(&self, bucket: Bucket, revision: u64, most: usize) -> Result<Vec<(u64, Change)>, BusError> {
        self.file.with(|database| {
            let read = database.begin_read().map_err(failed)?;
            let revisions = read.open_table(REVISIONS).map_err(failed)?;
            let values = read.open_table(VALUES).map_err(failed)?;
            let range = (bucket.name(), revision.saturating_add(1))..=(bucket.name(), u64::MAX);
            let mut changes = Vec::new();
            for next in revisions.range(range).map_err(failed)?.take(most) {
                let (at, changed) = next.map_err(failed)?;
                let ((_, revision), (key, is_deletion)) = (at.value(), changed.value());
                let found = match is_deletion {
                    true => None,
                    false => values.get((bucket.name(), key)).map_err(failed)?,
                };
                let key = key.to_owned();
                let change = match found.as_ref().map(|found| found.value()) {
                    Some((own, at, until, value)) if own == revision && until > UnixMicros::now().0 => {
                        let value = Bytes::copy_from_slice(value);
                        Change::Put(Entry { key, value, revision, at: UnixMicros(at) })
                    }
                    _ => Change::Deleted { key, revision },
                };
                changes.push((revision, change));
            }
            Ok(changes)
        })
    }

    /// The keys of the values that have lapsed, by the names of their buckets.
    fn lapsed(&self, now: UnixMicros) -> Result<Vec<(String, String)>, BusError> {
        self.file.with(|database| {
            let read = database.begin_read().map_err(failed)?;
            let lapses = read.open_table(LAPSES).map_err(failed)?;
            let lapsed = lapses.range(..=(now.0, "", "")).map_err(failed)?.map(|found| {
                let (key, _) = found.map_err(failed)?;
                let (_, bucket, key) = key.value();
                Ok((bucket.to_owned(), key.to_owned()))
            });
            lapsed.collect()
        })
    }
}

impl Drop for Shared {
    /// Waits until everything is written and the file is closed.
    fn drop(&mut self) {
        self.writes = None;
        // A writer that died has said so.
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

/// Starts one of the disk's own tasks. Each ends by itself when the stores are closed, so no task is joined.
fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    use tracing::Instrument;
    #[allow(clippy::disallowed_methods, reason = "the one place where this crate starts tasks")]
    drop(tokio::spawn(task.instrument(tracing::debug_span!("bus", task = name))));
}

#[cfg(test)]
mod tests;
