//! What a gateway does for the store now and then, beside its own jobs: files that have expired, jobs of gateways that are gone, the reserve,
//! numbers for metrics.

use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::{Driver, Ended, Id, Open};
use crate::record::{BatchState, Counts, Step};
use crate::statistics::Load;
use crate::store::now;

/// Most files that are deleted in one tick because they have expired or stopped to arrive.
const SWEPT: usize = 16;

/// How often the reserve of the store is looked after.
const RESERVE: Duration = Duration::from_secs(10);

/// Most jobs that are taken over in one tick, and at the same time.
const TAKEN_OVER: usize = 2048;
const AT_A_TIME: usize = 64;

// === impl Driver ===

impl Driver {
    /// Counts the work that is there, for metrics.
    pub(super) fn count_load(&self) {
        let waiting = self.open.values().filter(|open| matches!(open, Open::Waits)).count() as u64;
        let later = |is_wanted: fn(&Step) -> bool| {
            self.open.values().filter(|open| matches!(open, Open::Later(step, _) if is_wanted(step))).count() as u64
        };
        let is_later = |id: &Id| matches!(self.open.get(id), Some(Open::Later(..)));
        let begun: Vec<_> = self.batches.iter().filter(|(id, _)| !is_later(id)).map(|(_, batch)| batch).collect();
        let in_state = |state| begun.iter().filter(|(own, _)| *own == state).count() as u64;
        let open = [BatchState::Validating, BatchState::InProgress, BatchState::Cancelling];
        let left = |(_, counts): &(BatchState, Counts)| counts.total.saturating_sub(counts.completed + counts.failed);
        *self.jobs.0.counters.load.lock() = Load {
            waiting,
            scheduled: later(|step| matches!(step, Step::Request(_))),
            running: self.requests.len() as u64,
            batches: open.map(|state| (state, in_state(state))).into(),
            scheduled_batches: later(|step| matches!(step, Step::Batch)),
            lines_left: self.batches.values().map(left).sum(),
        };
    }

    /// Looks after the reserve of the store now and then, beside everything else.
    pub(super) fn keep_reserve(&mut self) {
        if self.reserve_at <= Instant::now() {
            self.reserve_at = Instant::now() + RESERVE;
            let jobs = self.jobs.clone();
            self.running.spawn(async move {
                jobs.fill_reserve().await;
                Ended { id: Id::default(), again: None }
            });
        }
    }

    /// Deletes files that have expired or stopped to arrive.
    pub(super) async fn sweep(&mut self) {
        let now = now();
        let over = self.expiring.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone());
        for id in over.take(SWEPT).collect::<Vec<Id>>() {
            match self.jobs.sweep(&id).await {
                // A record that was written meanwhile comes on the watch.
                Ok(None) => {
                    self.expiring.remove(&id);
                }
                Ok(Some(at)) => {
                    self.expiring.insert(id, at);
                }
                Err(error) => tracing::warn!(file = &*id, %error, "a file that has expired could not be deleted yet"),
            }
        }
    }

    /// Takes over the jobs of gateways that are gone.
    pub(super) async fn take_over(&mut self) {
        let execute = &self.jobs.0.execute;
        let gone = self.open.iter().filter_map(|(id, open)| match open {
            Open::Others(owner) if !execute.lives(owner) => Some((id.clone(), owner.clone())),
            _ => None,
        });
        // Several gateways may try: a random order lets each of them succeed.
        let mut gone: Vec<_> = gone.take(TAKEN_OVER).collect();
        fastrand::shuffle(&mut gone);
        if !gone.is_empty() {
            tracing::info!(jobs = gone.len(), "taking over jobs of gateways that are gone");
        }
        let jobs = &self.jobs;
        futures_util::stream::iter(gone)
            .for_each_concurrent(AT_A_TIME, |(id, owner)| async move {
                // The change comes back on the watch.
                let taken = jobs.change(&id, |record| {
                    (record.open_for() == Some(&owner)).then(|| {
                        record.set_owner(&jobs.0.own);
                        jobs.lapse(record)
                    })
                });
                if let Err(error) = taken.await {
                    tracing::warn!(job = &*id, %error, "a job could not be taken over yet");
                }
            })
            .await;
    }
}
