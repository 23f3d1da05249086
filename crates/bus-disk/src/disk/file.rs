//! The file of the stores: opened again after an error, made smaller when the disk is full, and the room that the disk has for it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use redb::Database;
use rustix::fs::statvfs;
use rustix::io::Errno;

use trireme_bus::{Bucket, BusError};

/// Only the owner reads and writes the file.
const MODE: u32 = 0o600;

/// Memory for pages of the file, in bytes.
const CACHE: usize = 64 << 20;

/// Bytes of the disk that new objects leave free, and the part of a small disk.
const RESERVE: u64 = 64 << 20;
const RESERVE_PART: u64 = 20;

/// The part of the reserve that records leave to deletions: one of so many.
const LAST_PART: u64 = 4;

/// A page that a small value may need beside it, in bytes.
const PAGE: u64 = 4096;

/// An error of the stores on disk.
pub(super) fn failed(error: impl std::fmt::Display) -> BusError {
    BusError::Refused { action: "keeping jobs on disk", reason: error.to_string() }
}

/// Whether an error of the stores says that the disk, or what its owner may have of it, is full. The library gives the system's words.
pub(super) fn says_full(error: &BusError) -> bool {
    let BusError::Refused { reason, .. } = error else { return false };
    [Errno::NOSPC, Errno::DQUOT].iter().any(|errno| reason.contains(&format!("(os error {})", errno.raw_os_error())))
}

/// The file. After an error of the disk redb takes no transaction until the file is opened again.
pub(super) struct File {
    path: PathBuf,
    /// `None` while it could not be opened again.
    database: RwLock<Option<Database>>,
    /// Whether values were deleted since the file was last made smaller.
    has_freed: AtomicBool,
}

/// Bytes that may be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Of new objects.
    pub for_new: u64,
    /// Of records.
    for_records: u64,
}

// === impl Room ===

impl Room {
    fn of(free: u64, total: u64) -> Room {
        let reserve = RESERVE.min(total / RESERVE_PART);
        Room { for_new: free.saturating_sub(reserve), for_records: free.saturating_sub(reserve / LAST_PART) }
    }

    /// Whether there is room for a value of this size, which is then taken. Deletions have a size of 0. The file has pages of powers of two.
    pub fn takes(&mut self, bucket: Bucket, size: u64) -> bool {
        let taken = if size == 0 { 0 } else { (size + PAGE).next_power_of_two() };
        let room = if bucket == Bucket::Objects { self.for_new } else { self.for_records };
        if size > 0 && taken > room {
            return false;
        }
        self.for_new = self.for_new.saturating_sub(taken);
        self.for_records = self.for_records.saturating_sub(taken);
        true
    }
}

// === impl File ===

impl File {
    /// Opens the file, or creates it.
    pub fn open(path: PathBuf) -> Result<File, BusError> {
        let file = File { path, database: RwLock::new(None), has_freed: AtomicBool::new(true) };
        *file.database.write() = Some(file.opened()?);
        Ok(file)
    }

    fn opened(&self) -> Result<Database, BusError> {
        let own = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(&self.path);
        own.map_err(|error| failed(format!("{}: {error}", self.path.display())))?;
        let opened = Database::builder().set_cache_size(CACHE).create(&self.path);
        opened.map_err(|error| failed(format!("{}: {error}", self.path.display())))
    }

    /// Works with the open file. Opens it first where that failed before.
    pub fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, BusError>) -> Result<T, BusError> {
        let mut open = self.database.read();
        if open.is_none() {
            drop(open);
            let mut closed = self.database.write();
            if closed.is_none() {
                *closed = Some(self.opened()?);
            }
            drop(closed);
            open = self.database.read();
        }
        open.as_ref().map_or_else(|| Err(failed("the file is closed")), work)
    }

    /// Opens the file again after an error. If that fails, the next transaction tries again.
    pub fn reopen(&self, error: &BusError) {
        tracing::warn!(file = %self.path.display(), %error, "the file of durable work is opened again after an error");
        let mut open = self.database.write();
        // The file is locked as long as it is open.
        *open = None;
        match self.opened() {
            Ok(database) => *open = Some(database),
            Err(error) => tracing::error!(%error, "the file of durable work cannot be opened again yet; trying on"),
        }
    }

    /// The room that the disk has.
    pub fn room(&self) -> Room {
        match statvfs(&self.path) {
            Ok(disk) => {
                Room::of(disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize))
            }
            // The write that follows reports the fault.
            Err(_) => Room { for_new: u64::MAX, for_records: u64::MAX },
        }
    }

    /// Notes that values were deleted: the file may become smaller.
    pub fn has_freed(&self) {
        self.has_freed.store(true, Ordering::Relaxed);
    }

    /// Makes the file smaller, if values were deleted since the last time. Returns the room that the disk has then.
    pub fn make_room(&self) -> Room {
        if self.has_freed.swap(false, Ordering::Relaxed)
            && let Some(database) = self.database.write().as_mut()
            && let Err(error) = database.compact()
        {
            tracing::warn!(%error, "the file of durable work could not be made smaller");
        }
        self.room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_for_records_and_its_last_part_for_deletions() {
        const MIB: u64 = 1 << 20;
        let mut room = Room::of(70 * MIB, 10_000 * MIB);
        assert!(!room.takes(Bucket::Objects, 6 * MIB) && room.takes(Bucket::Objects, 3 * MIB));
        assert!(!room.takes(Bucket::Objects, 2 * MIB), "the reserve is left");
        assert!(room.takes(Bucket::Jobs, 30 * MIB) && !room.takes(Bucket::Jobs, 20 * MIB));
        assert!(room.takes(Bucket::Objects, 0) && room.takes(Bucket::Jobs, 0), "deletions");
        let small = Room::of(20 * MIB, 100 * MIB);
        assert_eq!(small.for_new, 15 * MIB, "a small disk has a small reserve");
    }

    #[test]
    fn a_full_disk_is_known_by_the_systems_word() {
        let full = std::io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error());
        assert!(says_full(&failed(format!("I/O error: {full}"))));
        assert!(!says_full(&failed(std::io::Error::from_raw_os_error(Errno::IO.raw_os_error()))));
    }
}
