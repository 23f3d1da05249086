//! Lists of files and batches, by pages, and what an owner has.
//!
//! Each gateway follows the store of jobs anyway, so it knows which records are on a page. A page reads these, however many others there
//! are.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use trireme_bus::BusError;

use crate::error::JobError;
use crate::index::{Kind, Page, Promised};
use crate::jobs::{Client, Jobs};
use crate::quotas::Usage;
use crate::record::{Batch, File, Record};

/// How long a list or a quota waits for a gateway that has just started to know all records.
const STARTS: Duration = Duration::from_secs(10);

/// Records of a page that are read at the same time.
const AT_A_TIME: usize = 64;

/// The items of a page with their ids.
#[derive(Clone, Debug)]
pub struct Listed<T> {
    /// The items, in the order of the page.
    pub items: Vec<(String, T)>,
    /// Whether others come behind them.
    pub has_more: bool,
}

// === impl Jobs ===

impl Jobs {
    /// A page of files.
    pub async fn files(&self, page: &Page) -> Result<Listed<File>, JobError> {
        self.list(Kind::File, page, |record| record.into_file().filter(|file| file.purpose.is_file())).await
    }

    /// A page of batches.
    pub async fn batches(&self, page: &Page) -> Result<Listed<Batch>, JobError> {
        self.list(Kind::Batch, page, |record| record.into_batch()).await
    }

    /// Room for the record `id`; an error if the client's quotas leave none. `None` without bounds, as for administrators.
    pub(crate) async fn promise(&self, id: &str, uses: Usage) -> Result<Option<Promised>, JobError> {
        let quotas = &self.0.options.quotas;
        if self.1 == Client::Everybody || !quotas.bound(&uses) {
            return Ok(None);
        }
        self.0.index.wait(STARTS).await;
        self.0.index.promise(id, self.client(), uses, quotas).map(Some)
    }

    async fn list<T>(&self, kind: Kind, page: &Page, of: impl Fn(Record) -> Option<T>) -> Result<Listed<T>, JobError> {
        let index = &self.0.index;
        if !index.wait(STARTS).await {
            let reason = "this gateway has not read the store of jobs yet".to_owned();
            return Err(BusError::Refused { action: "listing", reason }.into());
        }
        if let Some(after) = &page.after {
            // Another gateway may have made it just now.
            if !index.lists(kind, after, |owner| self.sees(owner))
                && let Some(kept) = self.read(after).await?
            {
                index.put(after, &kept.record, kept.revision);
            }
            if !index.lists(kind, after, |owner| self.sees(owner)) {
                return Err(JobError::Unknown { kind: kind.name(), id: after.clone() });
            }
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
