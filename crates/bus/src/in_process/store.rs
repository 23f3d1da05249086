//! Last-value stores within one process.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use trireme_inference::UnixMicros;

use crate::{Bucket, BusError, Change, Entry};

/// Changes that may wait for a watcher to read them. A watcher further behind is dropped.
const WATCH_BACKLOG: usize = 4096;

/// Limits of the dead letters that are kept: their number and their bytes. The latest are kept, and the last one
/// whatever its size.
const DEAD_LETTERS: usize = 1000;
const DEAD_BYTES: usize = 64 << 20;

/// Bytes of states of sequences that are kept. A value for which there is no room is refused.
const SEQUENCE_BYTES: usize = 256 << 20;

/// All buckets.
#[derive(Default)]
pub(super) struct Stores {
    buckets: HashMap<Bucket, Store>,
    revision: u64,
}

#[derive(Default)]
struct Store {
    /// By revision, so that the oldest is first.
    entries: BTreeMap<u64, (Entry, UnixMicros)>,
    revisions: HashMap<String, u64>,
    bytes: usize,
    watchers: Vec<mpsc::Sender<Change>>,
}

// === impl Stores ===

impl Stores {
    pub fn put(
        &mut self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        let now = UnixMicros::now();
        let store = self.buckets.entry(bucket).or_default();
        store.forget_lapsed(now);
        store.check(key, expect)?;
        if bucket == Bucket::Sequences {
            store.check_room(key, value.len(), SEQUENCE_BYTES)?;
        }
        self.revision += 1;
        let entry = Entry { key: key.to_owned(), value, revision: self.revision, at: now };
        store.remove(key);
        store.tell(&Change::Put(entry.clone()));
        store.bytes += entry.value.len();
        store.revisions.insert(key.to_owned(), self.revision);
        store.entries.insert(self.revision, (entry, lapse.map_or(UnixMicros::NEVER, |lapse| now.after(lapse))));
        if bucket == Bucket::Dead {
            store.bound(DEAD_LETTERS, DEAD_BYTES);
        }
        Ok(self.revision)
    }

    pub fn get(&mut self, bucket: Bucket, key: &str) -> Option<Entry> {
        let store = self.buckets.get_mut(&bucket)?;
        store.forget_lapsed(UnixMicros::now());
        Some(store.entries.get(store.revisions.get(key)?)?.0.clone())
    }

    pub fn next(&mut self, bucket: Bucket, revision: u64) -> Option<Entry> {
        let store = self.buckets.get_mut(&bucket)?;
        store.forget_lapsed(UnixMicros::now());
        store.entries.range(revision.saturating_add(1)..).next().map(|(_, (entry, _))| entry.clone())
    }

    pub fn delete(&mut self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        let store = self.buckets.entry(bucket).or_default();
        store.check(key, expect)?;
        let was_there = store.remove(key).is_some();
        if was_there {
            self.revision += 1;
            store.tell(&Change::Deleted { key: key.to_owned(), revision: self.revision });
        }
        Ok(was_there)
    }

    pub fn watch(&mut self, bucket: Bucket) -> mpsc::Receiver<Change> {
        let store = self.buckets.entry(bucket).or_default();
        store.forget_lapsed(UnixMicros::now());
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG + store.entries.len());
        let entries = store.entries.values().map(|(entry, _)| Change::Put(entry.clone()));
        // The channel has room for all of them.
        entries.chain([Change::Complete]).for_each(|change| drop(sender.try_send(change)));
        store.watchers.push(sender);
        receiver
    }
}

// === impl Store ===

impl Store {
    fn check(&self, key: &str, expect: Option<u64>) -> Result<(), BusError> {
        match expect {
            Some(expected) if self.revisions.get(key).copied().unwrap_or(0) != expected => {
                Err(BusError::Conflict { key: key.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Whether a value of `size` bytes for `key` leaves the store within `most` bytes.
    fn check_room(&self, key: &str, size: usize, most: usize) -> Result<(), BusError> {
        let replaced = self.revisions.get(key).and_then(|revision| self.entries.get(revision));
        let others = self.bytes - replaced.map_or(0, |(entry, _)| entry.value.len());
        match others.saturating_add(size) <= most {
            true => Ok(()),
            false => Err(BusError::StoreFull { store: Bucket::Sequences.name(), size }),
        }
    }

    fn remove(&mut self, key: &str) -> Option<Entry> {
        let (entry, _) = self.entries.remove(&self.revisions.remove(key)?)?;
        self.bytes -= entry.value.len();
        Some(entry)
    }

    fn tell(&mut self, change: &Change) {
        // Drops watchers that are closed or too far behind.
        self.watchers.retain(|watcher| watcher.try_send(change.clone()).is_ok());
    }

    fn forget_lapsed(&mut self, now: UnixMicros) {
        let lapsed = self.entries.values().filter(|(_, until)| *until <= now);
        let lapsed: Vec<String> = lapsed.map(|(entry, _)| entry.key.clone()).collect();
        lapsed.iter().for_each(|key| drop(self.remove(key)));
    }

    /// Removes the oldest values until at most `most` values and `bytes` bytes are left. The last value always stays.
    fn bound(&mut self, most: usize, bytes: usize) {
        while self.entries.len() > 1 && (self.entries.len() > most || self.bytes > bytes) {
            let oldest = self.entries.values().next().map(|(entry, _)| entry.key.clone());
            oldest.iter().for_each(|key| drop(self.remove(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_sequences_are_refused_when_there_is_no_room() {
        let mut stores = Stores::default();
        let mut put = |key: &str, size: usize| stores.put(Bucket::Sequences, key, vec![0; size].into(), None, None);
        put("a", SEQUENCE_BYTES - 1).unwrap();
        put("b", 1).unwrap();
        let full = put("c", 1).unwrap_err();
        assert_eq!(full.to_string(), "the store of sequences is full, there is no room for a value of 1 bytes");
        put("a", SEQUENCE_BYTES - 2).expect("a smaller value in place of the one before");
        put("c", 1).unwrap();
    }
}
