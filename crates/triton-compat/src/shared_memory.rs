//! The regions of POSIX shared memory that clients of the same host have registered, and reading and writing parts of them.
//!
//! A region is an open file of `/dev/shm`, which is where `shm_open` makes memory objects. It is read and written like any
//! file, not mapped: a client that cuts its object short then gets an error, where a mapping would end this process.
//!
//! Invariants:
//! - Nothing outside the directory is opened: a key is the name of a file in it, and no link is followed.
//! - Bytes are read and written only within the registered region, and within the file's current length.
//! - A part that was found stays usable until it is dropped, whatever is unregistered meanwhile.
//!
//! Not here: the places of a request's tensors (the gateway's `handlers`), the protocol's messages (`protocol`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use rustix::fs::OFlags;
use trireme_inference::{ErrorCode, InferError, SharedMemoryPart};
use trireme_protocol::shared_memory::SystemRegion;

/// Where the system keeps memory objects.
const DIRECTORY: &str = "/dev/shm";
/// Most regions: each takes a file descriptor.
const MAX_REGIONS: usize = 1024;
/// Most bytes of one part: the largest message of gRPC, as for tensors that travel.
const MAX_PART: u64 = i32::MAX as u64;
/// Up to this many bytes are copied where the request is handled; more of them would hold up other requests.
const COPIED_AT_ONCE: u64 = 256 << 10;
/// Longest name of a file.
const NAME_MAX: usize = 255;

/// The registered regions, by their names.
pub struct SharedMemory {
    directory: PathBuf,
    regions: RwLock<BTreeMap<String, Arc<Region>>>,
}

struct Region {
    said: SystemRegion,
    file: File,
}

/// A part of a region, within its bounds.
pub struct RegionPart {
    name: String,
    region: Arc<Region>,
    /// Where it begins in the file.
    start: u64,
    /// Its length.
    pub byte_size: u64,
}

// === impl SharedMemory ===

impl Default for SharedMemory {
    fn default() -> SharedMemory {
        SharedMemory::within(DIRECTORY)
    }
}

impl SharedMemory {
    fn within(directory: impl Into<PathBuf>) -> SharedMemory {
        SharedMemory { directory: directory.into(), regions: RwLock::default() }
    }

    /// Registers a region of a memory object that is there. Names are unique; objects may have several regions.
    pub fn register(&self, name: &str, region: SystemRegion) -> Result<(), InferError> {
        let mut regions = self.regions.write();
        if regions.contains_key(name) {
            let message = format!("shared memory region '{name}' already in manager");
            return Err(InferError::new(ErrorCode::AlreadyExists, message));
        }
        if regions.len() >= MAX_REGIONS {
            return Err(InferError::unavailable(format!(
                "failed to register shared memory region '{name}': there are {MAX_REGIONS} already, which is the most"
            )));
        }
        let unable = |_| InferError::internal(format!("Unable to open shared memory region: '{}'", region.key));
        let file = self.open(&region.key).map_err(unable)?;
        let length = file.metadata().map_err(unable)?.len();
        let end = region.offset.checked_add(region.byte_size);
        if region.byte_size == 0 || end.is_none_or(|end| end > length) {
            return Err(InferError::invalid_arg(format!(
                "failed to register shared memory region '{name}': invalid args"
            )));
        }
        regions.insert(name.to_owned(), Arc::new(Region { said: region, file }));
        Ok(())
    }

    /// Opens a memory object as `shm_open` does: slashes in front of its name are none of it.
    fn open(&self, key: &str) -> io::Result<File> {
        let name = key.trim_start_matches('/');
        if name.is_empty() || name == "." || name == ".." || name.len() > NAME_MAX || name.contains(['/', '\0']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A pipe must not make this wait.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits().cast_signed())
            .open(self.directory.join(name))?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Forgets a region, or all of them. An unknown name is no error.
    pub fn unregister(&self, name: Option<&str>) {
        let mut regions = self.regions.write();
        match name {
            Some(name) => drop(regions.remove(name)),
            None => regions.clear(),
        }
    }

    /// A region by its name, or all of them, in the order of their names.
    pub fn status(&self, name: Option<&str>) -> Result<Vec<(String, SystemRegion)>, InferError> {
        let regions = self.regions.read();
        let Some(name) = name else {
            return Ok(regions.iter().map(|(name, region)| (name.clone(), region.said.clone())).collect());
        };
        let region = regions
            .get(name)
            .ok_or_else(|| InferError::not_found(format!("Unable to find system shared memory region: '{name}'")))?;
        Ok(vec![(name.to_owned(), region.said.clone())])
    }

    /// A part of a registered region.
    pub fn find(&self, part: &SharedMemoryPart) -> Result<RegionPart, InferError> {
        let SharedMemoryPart { region: name, offset, byte_size } = part;
        let region = self.regions.read().get(name).cloned();
        let region =
            region.ok_or_else(|| InferError::not_found(format!("Unable to find shared memory region: '{name}'")))?;
        let invalid = |what| InferError::invalid_arg(format!("Invalid {what} for shared memory region: '{name}'"));
        let Some(room) = region.said.byte_size.checked_sub(*offset).filter(|&room| room > 0) else {
            return Err(invalid("offset"));
        };
        if *byte_size == 0 || *byte_size > room {
            return Err(invalid("offset + byte size"));
        }
        if *byte_size > MAX_PART {
            return Err(InferError::invalid_arg(format!(
                "a tensor of {byte_size} bytes in shared memory region '{name}' exceeds the maximum of {MAX_PART} bytes"
            )));
        }
        // Both are within the file's length, as it was.
        Ok(RegionPart { name: name.clone(), start: region.said.offset + offset, byte_size: *byte_size, region })
    }
}

// === impl RegionPart ===

impl RegionPart {
    /// Its bytes, copied.
    pub fn read(&self) -> Result<Bytes, InferError> {
        self.check_length(self.byte_size)?;
        let copied = without_stalling(self.byte_size, || {
            let mut bytes = vec![0; self.byte_size as usize];
            self.region.file.read_exact_at(&mut bytes, self.start).map(|()| bytes)
        });
        copied.map(Bytes::from).map_err(|error| self.fault(&error.to_string()))
    }

    /// Writes `bytes` to its beginning. There are to be no more of them than it is long.
    pub fn write(&self, bytes: &[u8]) -> Result<(), InferError> {
        let size = self.byte_size.min(bytes.len() as u64);
        self.check_length(size)?;
        let written = without_stalling(size, || self.region.file.write_all_at(&bytes[..size as usize], self.start));
        written.map_err(|error| self.fault(&error.to_string()))
    }

    /// Whether the file still has the part's first `size` bytes: its owner may have cut it short.
    fn check_length(&self, size: u64) -> Result<(), InferError> {
        let length = self.region.file.metadata().map_err(|error| self.fault(&error.to_string()))?.len();
        let end = self.start + size;
        match end <= length {
            true => Ok(()),
            false => Err(self.fault(&format!("it has {length} bytes left, expected at least {end}"))),
        }
    }

    fn fault(&self, what: &str) -> InferError {
        let (name, key) = (&self.name, &self.region.said.key);
        InferError::invalid_arg(format!("unable to use '{key}' of shared memory region '{name}': {what}"))
    }
}

/// Runs `copy`, which copies `size` bytes. If they are many, it leaves the thread's other tasks to other threads.
fn without_stalling<T>(size: u64, copy: impl FnOnce() -> T) -> T {
    match size <= COPIED_AT_ONCE {
        true => copy(),
        false => tokio::task::block_in_place(copy),
    }
}

#[cfg(test)]
mod tests;
