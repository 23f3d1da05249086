//! The last-value stores of jobs in a file.
//!
//! Every value is written with a new revision, and on the disk when the call returns. One thread writes: all calls that wait for it
//! go into one transaction, because a transaction waits for the disk. A watch reads the changes from the disk by their revisions, so a
//! slow watcher costs no memory.
//!
//! The last bytes of the disk are a reserve: deletions, and records that change, find room when nothing new does.

mod file;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};
use tokio::sync::{mpsc, oneshot, watch};
use trireme_inference::UnixMicros;

use self::file::{File, Room, failed, says_full};
use trireme_bus::{Bucket, BusError, BusFault, Change, Entry, FaultKind, Reopening};

/// The name of the file in its directory.
const FILE: &str = "jobs.redb";

/// Changes that may wait for a watcher to read them.
const WATCH_BACKLOG: usize = 256;

/// Most writes that go into one transaction, and that wait for the next one.
const WRITES: usize = 1024;

/// Changes that a watch reads from the disk at once.
const CHANGES: usize = 64;

/// How often values that have lapsed are removed.
const SWEEP: Duration = Duration::from_secs(60);

/// Revision, time of writing, time of lapsing, value.
type Kept<'a> = (u64, u64, u64, &'a [u8]);

/// The values by bucket and key.
const VALUES: TableDefinition<'_, (&str, &str), Kept<'_>> = TableDefinition::new("values");

/// By bucket and revision: the key, and whether the change is a deletion.
const REVISIONS: TableDefinition<'_, (&str, u64), (&str, bool)> = TableDefinition::new("revisions");

/// Time of lapsing, bucket and key of the values that lapse.
const LAPSES: TableDefinition<'_, (u64, &str, &str), ()> = TableDefinition::new("lapses");

/// Under one key: the last revision.
const LAST: TableDefinition<'_, (), u64> = TableDefinition::new("last");

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
}

/// A value to write, or a key to delete.
struct Write {
    bucket: Bucket,
    key: String,
    expect: Option<u64>,
    /// When it was written, when it lapses, and the value; `None` deletes.
    value: Option<(UnixMicros, UnixMicros, Bytes)>,
    /// Gets the revision of the change, or `None` if there was nothing to delete.
    done: oneshot::Sender<Result<Option<u64>, BusError>>,
}

/// The tables of a transaction.
struct Tables<'a> {
    values: Table<'a, (&'static str, &'static str), Kept<'static>>,
    revisions: Table<'a, (&'static str, u64), (&'static str, bool)>,
    lapses: Table<'a, (u64, &'static str, &'static str), ()>,
    last: Table<'a, (), u64>,
}

// === impl Disk ===

impl Disk {
    /// Opens the file in `directory`, which is created if it is missing. Another process must not have it open.
    /// While it cannot be written, `fault` says so.
    pub fn open(directory: &Path, fault: watch::Sender<Option<BusFault>>) -> Result<Disk, BusError> {
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
        let (file, last) = (Arc::new(file), Arc::new(watch::channel(last).0));
        let (writes, waiting) = mpsc::channel(WRITES);
        let (own, told) = (file.clone(), last.clone());
        let writer = std::thread::Builder::new().name("jobs-disk".to_owned()).spawn(move || {
            write_all(&own, waiting, &told, &fault);
        });
        let writer = Some(writer.map_err(failed)?);
        let disk = Disk(Arc::new(Shared { file, writes: Some(writes), writer, last }));
        disk.clone().sweep_now_and_then();
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

    pub async fn put(
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

    pub async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        let key = key.to_owned();
        self.blocking(move |shared| shared.read(bucket, &key)).await
    }

    pub async fn next(&self, bucket: Bucket, revision: u64) -> Result<Option<Entry>, BusError> {
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

    pub async fn delete(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        self.0.replace(bucket, key, expect, None).await.map(|revision| revision.is_some())
    }

    pub fn watch(&self, bucket: Bucket) -> mpsc::Receiver<Change> {
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
    fn sweep_now_and_then(self) {
        // The task must not keep the file open.
        let weak = Arc::downgrade(&self.0);
        drop(self);
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

/// Writes until all senders are gone: everything that waits goes into one transaction.
fn write_all(
    file: &File,
    mut waiting: mpsc::Receiver<Write>,
    last: &watch::Sender<u64>,
    fault: &watch::Sender<Option<BusFault>>,
) {
    let mut together = Vec::new();
    // Bytes of the last value for which there was no room.
    let mut lacking = 0;
    while let Some(first) = waiting.blocking_recv() {
        together.push(first);
        while together.len() < WRITES
            && let Ok(next) = waiting.try_recv()
        {
            together.push(next);
        }
        let written = write_what_fits(file, &together);
        let full = written.iter().flatten().find_map(|result| match result {
            Err(full @ BusError::StoreFull { .. }) => Some(full),
            _ => None,
        });
        if let Some(BusError::StoreFull { size, .. }) = full {
            lacking = *size as u64;
        }
        // Records and deletions still find room on a full disk.
        let stays_full = written.is_ok()
            && full.is_none()
            && fault.borrow().is_some()
            && !file.room().takes(Bucket::Objects, lacking.max(1));
        if !stays_full {
            note(fault, written.as_ref().err().or(full));
        }
        if let Err(error) = &written {
            file.reopen(error);
        }
        if let Some(revision) = written.iter().flatten().filter_map(|result| result.as_ref().ok().copied()?).max() {
            last.send_replace(revision);
        }
        match written {
            // An error says that the caller is gone.
            Ok(results) => together.drain(..).zip(results).for_each(|(write, result)| drop(write.done.send(result))),
            Err(error) => together.drain(..).for_each(|write| drop(write.done.send(Err(failed(&error))))),
        }
    }
}

/// Notes whether the last transaction was written. The first error is kept: later ones only say that there was one.
fn note(fault: &watch::Sender<Option<BusFault>>, error: Option<&BusError>) {
    fault.send_if_modified(|now| {
        if now.is_some() == error.is_some() {
            return false;
        }
        *now = error.map(|error| {
            let reason = match error {
                BusError::Refused { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            BusFault { kind: FaultKind::Disk, stops_requests: false, since: Instant::now(), reason }
        });
        true
    });
}

/// Writes all that the disk has room for. Where it is full although it seemed to have room, what may use the reserve is written without new
/// objects, and at last deletions alone: the others find the store full.
fn write_what_fits(file: &File, writes: &[Write]) -> Result<Vec<Result<Option<u64>, BusError>>, BusError> {
    let rounds: [fn(&Write) -> bool; 3] =
        [|_| true, |write| write.bucket != Bucket::Objects || write.value.is_none(), |write| write.value.is_none()];
    for is_tried in rounds {
        match transact(file, writes, is_tried) {
            Err(error) if says_full(&error) => file.reopen(&error),
            written => return written,
        }
    }
    Ok(writes.iter().map(|write| Err(write.refused())).collect())
}

/// Writes in one transaction those that are tried; the store is full for the others. Each write has a result of its own; an error is one of
/// all of them.
fn transact(
    file: &File,
    writes: &[Write],
    is_tried: fn(&Write) -> bool,
) -> Result<Vec<Result<Option<u64>, BusError>>, BusError> {
    let mut room = file.room();
    if writes.iter().map(Write::size).sum::<u64>() > room.for_new {
        room = file.make_room();
    }
    file.with(|database| transact_within(database, room, file, writes, is_tried))
}

fn transact_within(
    database: &Database,
    mut room: Room,
    file: &File,
    writes: &[Write],
    is_tried: fn(&Write) -> bool,
) -> Result<Vec<Result<Option<u64>, BusError>>, BusError> {
    let write = database.begin_write().map_err(failed)?;
    let results = {
        let mut tables = Tables {
            values: write.open_table(VALUES).map_err(failed)?,
            revisions: write.open_table(REVISIONS).map_err(failed)?,
            lapses: write.open_table(LAPSES).map_err(failed)?,
            last: write.open_table(LAST).map_err(failed)?,
        };
        let results = writes.iter().map(|write| match is_tried(write) && room.takes(write.bucket, write.size()) {
            true => tables.replace(write),
            false => Ok(Err(write.refused())),
        });
        results.collect::<Result<Vec<_>, BusError>>()?
    };
    write.commit().map_err(failed)?;
    if writes.iter().any(|write| write.value.is_none()) {
        file.has_freed();
    }
    Ok(results)
}

// === impl Write ===

impl Write {
    /// Bytes of the value; none for a deletion.
    fn size(&self) -> u64 {
        self.value.as_ref().map_or(0, |(_, _, value)| value.len() as u64)
    }

    /// The error of a write for which there is no room.
    fn refused(&self) -> BusError {
        BusError::StoreFull { store: self.bucket.name(), size: self.size() as usize }
    }
}

// === impl Tables ===

impl Tables<'_> {
    /// The inner result is that of this write, which then has changed nothing if it is an error.
    fn replace(&mut self, write: &Write) -> Result<Result<Option<u64>, BusError>, BusError> {
        let Write { bucket, key, expect, value, .. } = write;
        let (bucket, key) = (bucket.name(), key.as_str());
        let now = UnixMicros::now().0;
        let there = self.values.get((bucket, key)).map_err(failed)?.map(|there| {
            let (revision, _, until, _) = there.value();
            (revision, until)
        });
        let current = there.filter(|(_, until)| *until > now).map_or(0, |(revision, _)| revision);
        if expect.is_some_and(|expected| expected != current) {
            return Ok(Err(BusError::Conflict { key: key.to_owned() }));
        }
        if value.is_none() && there.is_none() {
            return Ok(Ok(None));
        }
        if let Some((revision, until)) = there {
            self.revisions.remove((bucket, revision)).map_err(failed)?;
            self.lapses.remove((until, bucket, key)).map_err(failed)?;
        }
        let revision = self.last.get(()).map_err(failed)?.map_or(0, |last| last.value()) + 1;
        self.last.insert((), revision).map_err(failed)?;
        self.revisions.insert((bucket, revision), (key, value.is_none())).map_err(failed)?;
        match value {
            Some((at, until, bytes)) => {
                if *until < UnixMicros::NEVER {
                    self.lapses.insert((until.0, bucket, key), ()).map_err(failed)?;
                }
                self.values.insert((bucket, key), (revision, at.0, until.0, bytes.as_ref())).map_err(failed)?;
            }
            None => drop(self.values.remove((bucket, key)).map_err(failed)?),
        }
        // A value that had lapsed was not there.
        Ok(Ok((value.is_some() || current != 0).then_some(revision)))
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
