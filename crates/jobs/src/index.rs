//! A gateway's index of files and batches: when each was made, and its owner. So it finds a page of a list, and what an owner has, without
//! reading them. Waiting requests are in it where they have a quota.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::record::{File, Purpose, Record, RequestState};

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

/// The kinds of records. Files and batches are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    File,
    Batch,
    /// Of a file that is not whole.
    Part,
    /// That has not ended.
    Request,
}

/// The work and the files of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Files, those that arrive and uploads among them.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Batches that have not ended.
    pub batches: u64,
    /// Durable requests that have not ended.
    pub requests: u64,
}

/// The part of a record that a list needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    kind: Kind,
    created: u64,
    client: String,
    purpose: &'static str,
    /// The upload that it is a part of.
    upload: Option<String>,
    uses: Usage,
}

/// The records that this gateway knows.
pub(crate) struct Index {
    known: Mutex<Places>,
    /// Whether requests are noted. They are the most by far, and only a quota asks for their number.
    counts_requests: bool,
    /// Whether it has seen all that were there when it started.
    is_whole: watch::Sender<bool>,
}

#[derive(Default)]
struct Places {
    by_id: HashMap<String, Known>,
    by_time: BTreeSet<(Kind, u64, String)>,
    by_owner: HashMap<String, Usage>,
}

// === impl Kind ===

impl Kind {
    /// Its name in errors.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File | Kind::Part => "file",
            Kind::Batch => "batch",
            Kind::Request => "request",
        }
    }
}

// === impl Index ===

impl Index {
    /// Knows no records yet. Requests are noted if `counts_requests`.
    pub fn new(counts_requests: bool) -> Index {
        Index { known: Mutex::default(), counts_requests, is_whole: watch::Sender::new(false) }
    }

    /// Notes a record that is in the store.
    pub fn put(&self, id: &str, record: &Record) {
        let known = match record {
            Record::File(file) => Known {
                kind: if file.purpose().is_file() { Kind::File } else { Kind::Part },
                created: file.created,
                client: file.client.clone(),
                purpose: file.purpose().name(),
                upload: file.upload.clone(),
                uses: Usage::of(file),
            },
            Record::Batch(batch) => Known {
                kind: Kind::Batch,
                created: batch.created,
                client: batch.client.clone(),
                purpose: "",
                upload: None,
                uses: Usage { batches: u64::from(!batch.state.is_end()), ..Usage::default() },
            },
            Record::Request(request) if self.counts_requests && request.state == RequestState::Queued => Known {
                kind: Kind::Request,
                created: request.created,
                client: request.client.clone(),
                purpose: "",
                upload: None,
                uses: Usage { requests: 1, ..Usage::default() },
            },
            Record::Request(_) => return self.remove(id),
        };
        let mut places = self.known.lock();
        if places.by_id.get(id) == Some(&known) {
            return;
        }
        places.remove(id);
        if matches!(known.kind, Kind::File | Kind::Batch) {
            places.by_time.insert((known.kind, known.created, id.to_owned()));
        }
        match places.by_owner.get_mut(&known.client) {
            Some(all) => all.change(&known.uses, u64::saturating_add),
            None => _ = places.by_owner.insert(known.client.clone(), known.uses),
        }
        places.by_id.insert(id.to_owned(), known);
    }

    /// Notes that a record is gone.
    pub fn remove(&self, id: &str) {
        self.known.lock().remove(id);
    }

    /// Whether there is such a record.
    pub fn knows(&self, id: &str) -> bool {
        self.known.lock().by_id.contains_key(id)
    }

    /// Whether a list has this record.
    pub fn lists(&self, kind: Kind, id: &str, sees: impl Fn(&str) -> bool) -> bool {
        self.known.lock().by_id.get(id).is_some_and(|known| known.kind == kind && sees(&known.client))
    }

    /// The parts of an upload.
    pub fn parts(&self, upload: &str) -> Vec<String> {
        let places = self.known.lock();
        let parts = places.by_id.iter().filter(|(_, known)| known.upload.as_deref() == Some(upload));
        parts.map(|(id, _)| id.clone()).collect()
    }

    /// What an owner has.
    pub fn usage(&self, owner: &str) -> Usage {
        self.known.lock().by_owner.get(owner).copied().unwrap_or_default()
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
        let Some(known) = self.by_id.remove(id) else { return };
        self.by_time.remove(&(known.kind, known.created, id.to_owned()));
        if let Some(all) = self.by_owner.get_mut(&known.client) {
            all.change(&known.uses, u64::saturating_sub);
            if *all == Usage::default() {
                self.by_owner.remove(&known.client);
            }
        }
    }
}

// === impl Usage ===

impl Usage {
    /// The part of a file, an upload or a part of one. The bytes of an upload are those of its parts.
    fn of(file: &File) -> Usage {
        let (files, bytes) = match file.purpose() {
            Purpose::Batch | Purpose::BatchOutput | Purpose::Arriving => (1, file.bytes),
            Purpose::Upload => (1, 0),
            Purpose::Part => (0, file.bytes),
            Purpose::Joined | Purpose::Deleted => (0, 0),
        };
        Usage { files, bytes, ..Usage::default() }
    }

    fn change(&mut self, other: &Usage, with: fn(u64, u64) -> u64) {
        self.files = with(self.files, other.files);
        self.bytes = with(self.bytes, other.bytes);
        self.batches = with(self.batches, other.batches);
        self.requests = with(self.requests, other.requests);
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
        let index = Index::new(false);
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
