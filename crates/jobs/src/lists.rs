//! Lists of files and batches, by pages.
//!
//! Each gateway follows the store of jobs anyway, and keeps what a page needs to be found: when each file and batch was made, and whose
//! it is. So a page reads its own records, however many others there are.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::watch;
use trireme_bus::BusError;

use crate::error::JobError;
use crate::jobs::Jobs;
use crate::record::{Batch, File, Record};

/// How long a list waits for a gateway that has just started to know all records.
const STARTS: Duration = Duration::from_secs(10);

/// Records of a page that are read at the same time.
const AT_A_TIME: usize = 64;

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

/// The items of a page with their ids.
#[derive(Clone, Debug)]
pub struct Listed<T> {
    /// The items, in the order of the page.
    pub items: Vec<(String, T)>,
    /// Whether others come behind them.
    pub has_more: bool,
}

/// The kinds of records that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    File,
    Batch,
}

/// What a list needs to know of a record.
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

    /// The ids of a list behind `page.after`, in the page's order and `most` at most.
    fn ids(&self, kind: Kind, page: &Page, sees: impl Fn(&str) -> bool, most: usize) -> Vec<String> {
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

// === impl Jobs ===

impl Jobs {
    /// A page of files.
    pub async fn files(&self, page: &Page) -> Result<Listed<File>, JobError> {
        self.list(Kind::File, page, |record| record.into_file()).await
    }

    /// A page of batches.
    pub async fn batches(&self, page: &Page) -> Result<Listed<Batch>, JobError> {
        self.list(Kind::Batch, page, |record| record.into_batch()).await
    }

    async fn list<T>(&self, kind: Kind, page: &Page, of: impl Fn(Record) -> Option<T>) -> Result<Listed<T>, JobError> {
        let index = &self.0.index;
        let mut is_whole = index.is_whole.subscribe();
        let waiting = tokio::time::timeout(STARTS, is_whole.wait_for(|is_whole| *is_whole));
        if !waiting.await.is_ok_and(|whole| whole.is_ok()) {
            let reason = "this gateway has not read the store of jobs yet".to_owned();
            return Err(BusError::Refused { action: "listing", reason }.into());
        }
        let (mut items, mut page) = (Vec::new(), page.clone());
        loop {
            let left = page.limit - items.len();
            // One more shows whether others follow.
            let mut ids = index.ids(kind, &page, |owner| self.sees(owner), left + 1);
            let has_more = ids.len() > left;
            ids.truncate(left);
            let Some(last) = ids.last().cloned() else { return Ok(Listed { items, has_more }) };
            let reading = ids.into_iter().map(|id| async move { (self.read(&id).await, id) });
            let read: Vec<_> = stream::iter(reading).buffered(AT_A_TIME).collect().await;
            for (kept, id) in read {
                if let Some(item) = kept?.and_then(|kept| of(kept.record)) {
                    items.push((id, item));
                }
            }
            // Records that have lapsed meanwhile leave places.
            if !has_more || items.len() >= page.limit {
                return Ok(Listed { items, has_more });
            }
            page.after = Some(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Purpose;

    fn ids(index: &Index, page: &Page, owner: &str) -> Vec<String> {
        index.ids(Kind::File, page, |client| owner.is_empty() || client == owner, 3)
    }

    #[test]
    fn pages_are_in_order_and_one_owners() {
        let index = Index::default();
        for n in 0..7u64 {
            let purpose = if n % 3 == 0 { Purpose::BatchOutput } else { Purpose::Batch };
            let client = if n % 2 == 0 { "a" } else { "b" };
            let file = File { created: 10 + n, ..File::new(client, "x", purpose) };
            index.put(&format!("f{n}"), &Record::File(file));
        }
        index.put("u", &Record::File(File::new("a", "x", Purpose::Upload)));
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
