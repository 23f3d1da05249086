//! Last-value stores within one process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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

/// Bytes of an entry beside its value and its key: its places in the maps, about.
const ENTRY_BYTES: usize = 256;

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
    /// The times at which entries lapse, with their revisions; without the entries that never do.
    lapses: BTreeSet<(UnixMicros, u64)>,
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
        now: UnixMicros,
    ) -> Result<u64, BusError> {
        let store = self.buckets.entry(bucket).or_default();
        store.forget_lapsed(now);
        store.check(key, expect)?;
        if bucket == Bucket::Sequences {
            store.check_room(key, footprint(key, &value), SEQUENCE_BYTES)?;
        }
        self.revision += 1;
        let entry = Entry { key: key.to_owned(), value, revision: self.revision, at: now };
        store.remove(key);
        store.notify(&Change::Put(entry.clone()));
        store.insert(entry, lapse.map_or(UnixMicros::NEVER, |lapse| now.after(lapse)));
        if bucket == Bucket::Dead {
            store.bound(DEAD_LETTERS, DEAD_BYTES);
        }
        Ok(self.revision)
    }

    pub fn get(&mut self, bucket: Bucket, key: &str, now: UnixMicros) -> Option<Entry> {
        let store = self.buckets.get_mut(&bucket)?;
        store.forget_lapsed(now);
        Some(store.entries.get(store.revisions.get(key)?)?.0.clone())
    }

    pub fn next(&mut self, bucket: Bucket, revision: u64, now: UnixMicros) -> Option<Entry> {
        let store = self.buckets.get_mut(&bucket)?;
        store.forget_lapsed(now);
        store.entries.range(revision.saturating_add(1)..).next().map(|(_, (entry, _))| entry.clone())
    }

    pub fn delete(&mut self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        let store = self.buckets.entry(bucket).or_default();
        store.check(key, expect)?;
        let was_there = store.remove(key).is_some();
        if was_there {
            self.revision += 1;
            store.notify(&Change::Deleted { key: key.to_owned(), revision: self.revision });
        }
        Ok(was_there)
    }

    pub fn watch(&mut self, bucket: Bucket, now: UnixMicros) -> mpsc::Receiver<Change> {
        let store = self.buckets.entry(bucket).or_default();
        store.forget_lapsed(now);
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
        let others = self.bytes - replaced.map_or(0, |(entry, _)| footprint(key, &entry.value));
        match others.saturating_add(size) <= most {
            true => Ok(()),
            false => Err(BusError::StoreFull { store: Bucket::Sequences.name(), size }),
        }
    }

    fn insert(&mut self, entry: Entry, until: UnixMicros) {
        self.bytes += footprint(&entry.key, &entry.value);
        self.revisions.insert(entry.key.clone(), entry.revision);
        if until != UnixMicros::NEVER {
            self.lapses.insert((until, entry.revision));
        }
        self.entries.insert(entry.revision, (entry, until));
    }

    fn remove(&mut self, key: &str) -> Option<Entry> {
        let (entry, until) = self.entries.remove(&self.revisions.remove(key)?)?;
        self.bytes -= footprint(key, &entry.value);
        self.lapses.remove(&(until, entry.revision));
        Some(entry)
    }

    fn notify(&mut self, change: &Change) {
        // Drops watchers that are closed or too far behind.
        self.watchers.retain(|watcher| watcher.try_send(change.clone()).is_ok());
    }

    fn forget_lapsed(&mut self, now: UnixMicros) {
        while let Some((_, revision)) = self.lapses.first().copied().filter(|(until, _)| *until <= now) {
            self.lapses.pop_first();
            let key = self.entries.get(&revision).map(|(entry, _)| entry.key.clone());
            key.iter().for_each(|key| drop(self.remove(key)));
        }
    }

    /// Removes the oldest values until at most `most` values and `bytes` bytes are left. The last value always stays.
    fn bound(&mut self, most: usize, bytes: usize) {
        while self.entries.len() > 1 && (self.entries.len() > most || self.bytes > bytes) {
            let oldest = self.entries.values().next().map(|(entry, _)| entry.key.clone());
            oldest.iter().for_each(|key| drop(self.remove(key)));
        }
    }
}

/// The bytes that an entry counts for. The key is in two maps.
fn footprint(key: &str, value: &[u8]) -> usize {
    value.len() + 2 * key.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_sequences_are_refused_when_there_is_no_room() {
        let mut stores = Stores::default();
        let beside = footprint("a", &[]);
        let mut put = |key: &str, size: usize| {
            stores.put(Bucket::Sequences, key, vec![0; size].into(), None, None, UnixMicros::now())
        };
        put("a", SEQUENCE_BYTES - 2 * beside - 1).unwrap();
        put("b", 1).unwrap();
        let full = put("c", 1).unwrap_err();
        assert!(
            full.to_string().starts_with("the store of sequences is full, there is no room for a value of"),
            "{full}"
        );
        put("a", SEQUENCE_BYTES - 3 * beside - 2).expect("a smaller value in place of the one before");
        put("c", 1).unwrap();
    }

    /// A client that begins many sequences and goes on with none of them.
    #[test]
    fn many_small_states_are_bounded_and_do_not_slow_down_the_others() {
        const MANY: usize = 200_000;
        let (mut stores, lapse) = (Stores::default(), Some(Duration::from_secs(600)));
        let begun = std::time::Instant::now();
        let state = Bytes::from_static(&[0; 2000]);
        let mut put =
            |key: String, lapse| stores.put(Bucket::Sequences, &key, state.clone(), None, lapse, UnixMicros::now());
        let kept = (0..MANY).take_while(|number| put(format!("m.1.{number}"), lapse).is_ok()).count();
        assert!(kept > 100_000 && kept < SEQUENCE_BYTES / (2000 + ENTRY_BYTES), "{kept} are kept");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?} for {kept} states", begun.elapsed());
        put("m.1.0".to_owned(), Some(Duration::ZERO)).expect("in place of the one before");
        assert_eq!(stores.get(Bucket::Sequences, "m.1.0", UnixMicros::now()), None, "it has lapsed");
        assert!(stores.get(Bucket::Sequences, "m.1.1", UnixMicros::now()).is_some());
        assert_eq!(stores.buckets[&Bucket::Sequences].lapses.len(), kept - 1);
    }
}
