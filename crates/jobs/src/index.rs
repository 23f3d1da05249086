//! A gateway's index of files and batches: when each was made, and its owner. So it finds a page of a list, and the usage of an owner, without
//! reading them. Waiting requests are in it where they have a quota.
//!
//! Invariants: work that is accepted at the same time is counted from the moment at which it was found to have room ([`Promised`]); a record
//! that lapses in the store leaves the index at that time, by the clock of the bus.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use trireme_bus::Bus;

use crate::clock::seconds;
use crate::error::JobError;
use crate::quotas::{Quotas, Usage};
use crate::record::{Record, RequestState};

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
    /// When the store drops the record by itself, in seconds since 1970. It tells nobody.
    lapses: Option<u64>,
    revision: u64,
}

/// Room of an owner for a record that is not written yet, or not whole.
struct Promise {
    owner: String,
    uses: Usage,
    /// Requests that write the record: those of a client that has sent the same key twice.
    holders: u32,
}

/// The records that this gateway knows.
pub(crate) struct Index {
    bus: Arc<dyn Bus>,
    places: Mutex<Places>,
    /// How long records of jobs that have ended are kept.
    time_to_live: Duration,
    /// Whether requests are noted. They are the most by far, and only a quota asks for their number.
    counts_requests: bool,
    /// Whether it has seen all that were there when it started.
    is_whole: watch::Sender<bool>,
}

#[derive(Default)]
struct Places {
    /// With the number of the pass of the watch that has shown each last.
    by_id: HashMap<String, (Known, u64)>,
    by_time: BTreeSet<(Kind, u64, String)>,
    /// The records that lapse, and when.
    by_lapse: BTreeSet<(u64, String)>,
    promises: HashMap<String, Promise>,
    by_owner: HashMap<String, Usage>,
    /// The pass of the watch, and its last revision: a watch that starts again shows earlier ones.
    pass: u64,
    last: u64,
}

/// Room of an owner for a record, until this is dropped. The record counts by its own usage or by the promised one, whichever is more.
pub(crate) struct Promised {
    index: Arc<Index>,
    id: String,
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
    /// Knows no records of this bus yet. Requests are noted if `counts_requests`.
    pub fn new(bus: Arc<dyn Bus>, time_to_live: Duration, counts_requests: bool) -> Index {
        let is_whole = watch::Sender::new(false);
        Index { bus, places: Mutex::default(), time_to_live, counts_requests, is_whole }
    }

    /// The records that have not lapsed.
    fn places(&self) -> MutexGuard<'_, Places> {
        let mut places = self.places.lock();
        places.drop_lapsed(seconds(self.bus.now()));
        places
    }

    /// Notes a record that is in the store, unless a later one is known.
    pub fn put(&self, id: &str, record: &Record, revision: u64) {
        let known = match record {
            Record::File(file) => Known {
                kind: if file.purpose.is_file() { Kind::File } else { Kind::Part },
                created: file.created,
                client: file.client.clone(),
                purpose: file.purpose.name(),
                upload: file.upload.clone(),
                uses: Usage::of(file),
                lapses: record.lapses(self.time_to_live),
                revision,
            },
            Record::Batch(batch) => Known {
                kind: Kind::Batch,
                created: batch.created,
                client: batch.client.clone(),
                purpose: "",
                upload: None,
                uses: Usage { batches: u64::from(!batch.state.is_end()), ..Usage::default() },
                lapses: record.lapses(self.time_to_live),
                revision,
            },
            Record::Request(request) if self.counts_requests && request.state == RequestState::Queued => Known {
                kind: Kind::Request,
                created: request.created,
                client: request.client.clone(),
                purpose: "",
                upload: None,
                uses: Usage { requests: 1, ..Usage::default() },
                lapses: None,
                revision,
            },
            Record::Request(_) => return self.remove(id),
        };
        let mut places = self.places();
        let pass = places.pass;
        match places.by_id.get_mut(id) {
            Some((there, seen)) if there.revision >= revision => *seen = pass,
            _ => places.recount(id, |places| places.insert(id, known)),
        }
        // It may have lapsed since it was written.
        places.drop_lapsed(seconds(self.bus.now()));
    }

    /// Notes the revision of a change that the watch shows.
    pub fn see(&self, revision: u64) {
        let mut places = self.places.lock();
        if revision <= places.last {
            places.pass += 1;
        }
        places.last = revision;
    }

    /// Notes that a record is gone.
    pub fn remove(&self, id: &str) {
        self.places().recount(id, |places| places.remove(id));
    }

    /// Forgets the records that have lapsed.
    pub fn tidy(&self) {
        drop(self.places());
    }

    /// Whether there is such a record.
    pub fn knows(&self, id: &str) -> bool {
        self.places().by_id.contains_key(id)
    }

    /// Whether a list has this record.
    pub fn lists(&self, kind: Kind, id: &str, sees: impl Fn(&str) -> bool) -> bool {
        self.places().by_id.get(id).is_some_and(|(known, _)| known.kind == kind && sees(&known.client))
    }

    /// The parts of an upload.
    pub fn parts(&self, upload: &str) -> Vec<String> {
        let places = self.places();
        let parts = places.by_id.iter().filter(|(_, (known, _))| known.upload.as_deref() == Some(upload));
        parts.map(|(id, _)| id.clone()).collect()
    }

    /// Promises an owner room for the record `id`, if the quotas leave it. The room for one record is promised once.
    pub fn promise(
        self: &Arc<Self>,
        id: &str,
        owner: &str,
        uses: Usage,
        quotas: &Quotas,
    ) -> Result<Promised, JobError> {
        let mut places = self.places();
        places.check(id, owner, &uses, quotas)?;
        places.recount(id, |places| match places.promises.get_mut(id) {
            Some(promise) => {
                promise.holders += 1;
                promise.uses = promise.uses.max(&uses);
            }
            None => {
                let promise = Promise { owner: owner.to_owned(), uses, holders: 1 };
                places.promises.insert(id.to_owned(), promise);
            }
        });
        drop(places);
        Ok(Promised { index: self.clone(), id: id.to_owned() })
    }

    /// Notes that the watch has shown all records: others are gone, and their deletion was not seen.
    pub fn complete(&self) {
        let mut places = self.places();
        let pass = places.pass;
        let gone = places.by_id.iter().filter(|(_, (_, seen))| *seen < pass).map(|(id, _)| id.clone());
        for id in gone.collect::<Vec<_>>() {
            places.recount(&id, |places| places.remove(&id));
        }
        places.pass += 1;
        drop(places);
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
        let places = self.places();
        let is_wanted = |place: &&(Kind, u64, String)| {
            places.by_id.get(&place.2).is_some_and(|(known, _)| {
                sees(&known.client) && page.purpose.as_ref().is_none_or(|purpose| purpose == known.purpose)
            })
        };
        let all = (kind, 0, String::new())..=(kind, u64::MAX, String::new());
        let (from, behind) = match &page.after {
            None => (None, all),
            Some(after) => match places.by_id.get(after).filter(|(known, _)| known.kind == kind) {
                None => return Vec::new(),
                Some((known, _)) => (Some((kind, known.created, after.clone())), all),
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
    /// Makes a change to a record or its promise, and counts the difference to its owner.
    fn recount(&mut self, id: &str, change: impl FnOnce(&mut Places)) {
        if let Some((owner, uses)) = self.counted(id)
            && let Some(all) = self.by_owner.get_mut(&owner)
        {
            all.change(&uses, u64::saturating_sub);
            if *all == Usage::default() {
                self.by_owner.remove(&owner);
            }
        }
        change(self);
        if let Some((owner, uses)) = self.counted(id) {
            self.by_owner.entry(owner).or_default().change(&uses, u64::saturating_add);
        }
    }

    /// The owner of a record, and the record's counted usage.
    fn counted(&self, id: &str) -> Option<(String, Usage)> {
        match (self.by_id.get(id), self.promises.get(id)) {
            (Some((known, _)), Some(promise)) => Some((known.client.clone(), known.uses.max(&promise.uses))),
            (Some((known, _)), None) => Some((known.client.clone(), known.uses)),
            (None, Some(promise)) => Some((promise.owner.clone(), promise.uses)),
            (None, None) => None,
        }
    }

    /// An error if the owner has no room for the growth of the record `id` to `uses`.
    fn check(&self, id: &str, owner: &str, uses: &Usage, quotas: &Quotas) -> Result<(), JobError> {
        let mut more = *uses;
        if let Some((_, counted)) = self.counted(id) {
            more.change(&counted, u64::saturating_sub);
        }
        quotas.check(&self.by_owner.get(owner).copied().unwrap_or_default(), &more)
    }

    fn insert(&mut self, id: &str, known: Known) {
        self.remove(id);
        if matches!(known.kind, Kind::File | Kind::Batch) {
            self.by_time.insert((known.kind, known.created, id.to_owned()));
        }
        if let Some(at) = known.lapses {
            self.by_lapse.insert((at, id.to_owned()));
        }
        self.by_id.insert(id.to_owned(), (known, self.pass));
    }

    fn remove(&mut self, id: &str) {
        let Some((known, _)) = self.by_id.remove(id) else { return };
        self.by_time.remove(&(known.kind, known.created, id.to_owned()));
        if let Some(at) = known.lapses {
            self.by_lapse.remove(&(at, id.to_owned()));
        }
    }

    fn drop_lapsed(&mut self, now: u64) {
        while let Some((_, id)) = self.by_lapse.first().filter(|(at, _)| *at <= now).cloned() {
            self.recount(&id, |places| places.remove(&id));
        }
    }

    fn drop_promise(&mut self, id: &str) {
        self.recount(id, |places| {
            if let Some(promise) = places.promises.get_mut(id) {
                promise.holders -= 1;
                if promise.holders == 0 {
                    places.promises.remove(id);
                }
            }
        });
    }
}

// === impl Promised ===

impl Promised {
    /// Promises so much in all, if the quotas leave it.
    pub fn grow(&self, uses: Usage, quotas: &Quotas) -> Result<(), JobError> {
        let mut places = self.index.places();
        let owner = places.promises.get(&self.id).map(|promise| promise.owner.clone()).unwrap_or_default();
        places.check(&self.id, &owner, &uses, quotas)?;
        places.recount(&self.id, |places| {
            if let Some(promise) = places.promises.get_mut(&self.id) {
                promise.uses = promise.uses.max(&uses);
            }
        });
        Ok(())
    }

    /// The record for which there is room has another id from now on, and the one with the former id counts as nothing.
    pub fn move_to(&mut self, id: &str) {
        let former = std::mem::replace(&mut self.id, id.to_owned());
        let mut places = self.index.places();
        let Some(Promise { owner, uses, .. }) = places.promises.get(&former) else { return };
        let (owner, uses) = (owner.clone(), *uses);
        places.drop_promise(&former);
        places.recount(id, |places| {
            let promise = places.promises.entry(id.to_owned());
            let promise = promise.or_insert(Promise { owner, uses: Usage::default(), holders: 0 });
            promise.holders += 1;
            promise.uses = promise.uses.max(&uses);
        });
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.index.places().drop_promise(&self.id);
    }
}

#[cfg(test)]
mod tests;
