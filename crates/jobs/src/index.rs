//! A gateway's index of files and batches, so that it finds a page of a list without reading them: when each was made, and its owner.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::record::Record;

/// A part of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The page begins behind this one.
    pub after: Option<String>,
    /// Most items of the page.
    pub limit: usize,
    /// Whether the oldest comes first, not the newest.
    pub is_ascending: bool,
    /// Only files of this purpose.
    pub purpose: Option<String>,
}

/// The kinds of records that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    File,
    Batch,
}

/// The part of a record that a list needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    kind: Kind,
    created: u64,
    client: String,
    purpose: &'static str,
}

/// The files and batches that this gateway knows.
pub(crate) struct Index {
    known: Mutex<Places>,
    /// Whether it has seen all that were there when it started.
    is_whole: watch::Sender<bool>,
}

#[derive(Default)]
struct Places {
    by_id: HashMap<String, Known>,
    by_time: BTreeSet<(Kind, u64, String)>,
}

// === impl Index ===

impl Default for Index {
    fn default() -> Index {
        Index { known: Mutex::default(), is_whole: watch::Sender::new(false) }
    }
}

impl Index {
    /// Notes a record that is in the store.
    pub fn put(&self, id: &str, record: &Record) {
        let known = match record {
            Record::File(file) if file.purpose().is_file() => Known {
                kind: Kind::File,
                created: file.created,
                client: file.client.clone(),
                purpose: file.purpose().name(),
            },
            Record::Batch(batch) => {
                Known { kind: Kind::Batch, created: batch.created, client: batch.client.clone(), purpose: "" }
            }
            Record::File(_) | Record::Request(_) => return,
        };
        let mut places = self.known.lock();
        if places.by_id.get(id) == Some(&known) {
            return;
        }
        places.remove(id);
        places.by_time.insert((known.kind, known.created, id.to_owned()));
        places.by_id.insert(id.to_owned(), known);
    }

    /// Notes that a record is gone.
    pub fn remove(&self, id: &str) {
        self.known.lock().remove(id);
    }

    /// Notes that all records were seen.
    pub fn complete(&self) {
        self.is_whole.send_if_modified(|is_whole| !std::mem::replace(is_whole, true));
    }

    /// Waits until all records were seen, for `patience` at most. Returns whether they were.
    pub async fn wait(&self, patience: Duration) -> bool {
        let mut is_whole = self.is_whole.subscribe();
        let seen = tokio::time::timeout(patience, is_whole.wait_for(|is_whole| *is_whole)).await;
        seen.is_ok_and(|seen| seen.is_ok())
    }

    /// The ids of a list behind `page.after`, in the page's order and `most` at most.
    pub fn ids(&self, kind: Kind, page: &Page, sees: impl Fn(&str) -> bool, most: usize) -> Vec<String> {
        let places = self.known.lock();
        let is_wanted = |place: &&(Kind, u64, String)| {
            let known = places.by_id.get(&place.2);
            known.is_some_and(|known| {
                sees(&known.client) && page.purpose.as_ref().is_none_or(|purpose| purpose == known.purpose)
            })
        };
        let all = (kind, 0, String::new())..=(kind, u64::MAX, String::new());
        let (from, behind) = match &page.after {
            None => (None, all),
            Some(after) => match places.by_id.get(after).filter(|known| known.kind == kind) {
                None => return Vec::new(),
                Some(known) => (Some((kind, known.created, after.clone())), all),
            },
        };
        let ids = |places: &mut dyn Iterator<Item = &(Kind, u64, String)>| {
            places.filter(is_wanted).take(most).map(|(_, _, id)| id.clone()).collect()
        };
        let places = &places.by_time;
        match (from, page.is_ascending) {
            (None, true) => ids(&mut places.range(behind)),
            (None, false) => ids(&mut places.range(behind).rev()),
            (Some(from), true) => {
                let end = behind.end().clone();
                ids(&mut places.range(from.clone()..=end).filter(|place| **place != from))
            }
            (Some(from), false) => ids(&mut places.range(behind.start().clone()..from).rev()),
        }
    }
}

// === impl Places ===

impl Places {
    fn remove(&mut self, id: &str) {
        if let Some(known) = self.by_id.remove(id) {
            self.by_time.remove(&(known.kind, known.created, id.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{File, Purpose};

    fn ids(index: &Index, page: &Page, owner: &str) -> Vec<String> {
        index.ids(Kind::File, page, |client| owner.is_empty() || client == owner, 3)
    }

    #[test]
    fn pages_are_in_order_and_one_owners() {
        let index = Index::default();
        for n in 0..7u64 {
            let purpose = if n % 3 == 0 { Purpose::BatchOutput } else { Purpose::Batch };
            let client = if n % 2 == 0 { "a" } else { "b" };
            let file = File { created: 10 + n, ..File::new(client, "x", purpose, 0) };
            index.put(&format!("f{n}"), &Record::File(file));
        }
        index.put("u", &Record::File(File::new("a", "x", Purpose::Upload, 0)));
        let page = Page { limit: 3, ..Page::default() };
        assert_eq!(ids(&index, &page, ""), ["f6", "f5", "f4"]);
        assert_eq!(ids(&index, &Page { after: Some("f4".to_owned()), ..page.clone() }, ""), ["f3", "f2", "f1"]);
        let ascending = Page { is_ascending: true, ..page.clone() };
        assert_eq!(ids(&index, &ascending, "a"), ["f0", "f2", "f4"]);
        assert_eq!(ids(&index, &Page { after: Some("f4".to_owned()), ..ascending.clone() }, "a"), ["f6"]);
        let outputs = Page { purpose: Some("batch_output".to_owned()), ..page.clone() };
        assert_eq!(ids(&index, &outputs, ""), ["f6", "f3", "f0"]);
        assert!(ids(&index, &Page { after: Some("none".to_owned()), ..page.clone() }, "").is_empty());
        index.remove("f5");
        assert_eq!(ids(&index, &page, ""), ["f6", "f4", "f3"]);
        assert!(index.ids(Kind::Batch, &page, |_| true, 3).is_empty());
    }
}
