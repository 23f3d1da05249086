//! The thread that writes: all writes that wait go into one transaction, as far as the disk has room.

use std::time::Instant;

use bytes::Bytes;
use redb::{Database, ReadableTable, Table};
use tokio::sync::{mpsc, oneshot, watch};
use trireme_bus::{Bucket, BusError, BusFault, FaultKind};
use trireme_inference::UnixMicros;

use super::file::{File, Room, failed, says_full};
use super::tables::{Kept, LAPSES, LAST, REVISIONS, VALUES};

/// Most writes that go into one transaction, and that wait for the next one.
pub(super) const WRITES: usize = 1024;

/// A value to write, or a key to delete.
pub(super) struct Write {
    pub bucket: Bucket,
    pub key: String,
    pub expect: Option<u64>,
    /// When it was written, when it lapses, and the value; `None` deletes.
    pub value: Option<(UnixMicros, UnixMicros, Bytes)>,
    /// Gets the revision of the change, or `None` if there was nothing to delete.
    pub done: oneshot::Sender<Result<Option<u64>, BusError>>,
}

/// The tables of a transaction.
struct Tables<'a> {
    values: Table<'a, (&'static str, &'static str), Kept<'static>>,
    revisions: Table<'a, (&'static str, u64), (&'static str, bool)>,
    lapses: Table<'a, (u64, &'static str, &'static str), ()>,
    last: Table<'a, (), u64>,
}

/// Writes until all senders are gone: everything that waits goes into one transaction.
pub(super) fn write_all(
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

/// Writes all that the disk has room for. If the disk turns out to be full, a second transaction leaves new objects out, and a third one has
/// deletions alone. The store is full for the writes that are left out.
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

/// Does in one transaction the writes that `is_tried` selects; the store is full for the others. Each write has a result of its own; an error
/// concerns all writes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_cannot_be_written_is_a_fault_until_it_can() {
        let fault = watch::channel(None).0;
        note(&fault, Some(&failed("No space left on device")));
        note(&fault, Some(&failed("Previous I/O error occurred")));
        let words = fault.borrow().as_ref().map(BusFault::to_string).unwrap_or_default();
        assert!(words.contains("--data-dir") && words.contains("No space left on device"), "{words}");
        note(&fault, None);
        assert_eq!(*fault.borrow(), None);
    }
}
