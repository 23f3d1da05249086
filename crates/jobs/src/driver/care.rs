//! A gateway's work for the store beside its own jobs: it deletes expired files, takes over the jobs of gateways that are gone, keeps the
//! reserve, and counts for metrics. Work that waits for the store is a task beside the driver's loop.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tokio::task::{AbortHandle, JoinError};

use super::{Cared, Driver, Open};
use crate::files::AGAIN;
use crate::id::Id;
use crate::record::{BatchState, Counts, Step};
use crate::statistics::Load;

/// Most files that one sweep deletes because they have expired or stopped to arrive, and at the same time.
const SWEPT: usize = 64;
const SWEPT_AT_A_TIME: usize = 4;

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

    /// Looks after the reserve of the store now and then.
    pub(super) fn keep_reserve(&mut self) {
        if self.reserve_at <= Instant::now() && is_over(&self.filling) {
            self.reserve_at = Instant::now() + RESERVE;
            let jobs = self.jobs.clone();
            self.filling = Some(self.caring.spawn(async move {
                jobs.fill_reserve().await;
                Cared::Done
            }));
        }
    }

    /// Deletes files that have expired or stopped to arrive. A large one takes minutes.
    pub(super) fn sweep(&mut self) {
        let now = self.jobs.now();
        if !is_over(&self.sweeping) {
            return;
        }
        let over = self.expiring.iter().filter(|(_, until)| **until <= now).map(|(id, until)| (id.clone(), *until));
        let over: Vec<_> = over.take(SWEPT).collect();
        if over.is_empty() {
            return;
        }
        let jobs = self.jobs.clone();
        self.sweeping = Some(self.caring.spawn(async move {
            let sweeping = over.into_iter().map(async |(id, until)| {
                let next = match jobs.sweep(&id.to_string()).await {
                    Ok(next) => next,
                    Err(error) => {
                        tracing::warn!(file = %id, %error, "a file that has expired could not be deleted yet");
                        Some(jobs.now() + AGAIN.as_secs())
                    }
                };
                (id, until, next)
            });
            Cared::Swept(stream::iter(sweeping).buffer_unordered(SWEPT_AT_A_TIME).collect().await)
        }));
    }

    /// Takes over the jobs of gateways that are gone.
    pub(super) fn take_over(&mut self) {
        if !is_over(&self.taking_over) {
            return;
        }
        let execute = &self.jobs.0.execute;
        let gone = self.open.iter().filter_map(|(id, open)| match open {
            Open::Others(owner) if !execute.lives(owner) => Some((id.clone(), owner.clone())),
            _ => None,
        });
        // Several gateways may try: a random order lets each of them succeed.
        let mut gone: Vec<_> = gone.take(TAKEN_OVER).collect();
        if gone.is_empty() {
            return;
        }
        fastrand::shuffle(&mut gone);
        tracing::info!(jobs = gone.len(), "taking over jobs of gateways that are gone");
        let jobs = self.jobs.clone();
        self.taking_over = Some(self.caring.spawn(async move {
            let jobs = &jobs;
            let taking = stream::iter(gone).for_each_concurrent(AT_A_TIME, |(id, owner)| async move {
                // The change comes back on the watch.
                let key = id.to_string();
                let taken = jobs.change(&key, |record| {
                    (record.open_for() == Some(&*owner)).then(|| {
                        record.set_owner(&jobs.0.own);
                        jobs.lapse(record)
                    })
                });
                if let Err(error) = taken.await {
                    tracing::warn!(job = %id, %error, "a job could not be taken over yet");
                }
            });
            taking.await;
            Cared::Done
        }));
    }

    /// Notes the end of a task.
    pub(super) fn cared(&mut self, cared: Result<Cared, JoinError>) {
        match cared {
            Ok(Cared::Done) => {}
            Ok(Cared::Swept(files)) => {
                for (id, until, next) in files {
                    // A record that was written meanwhile came on the watch.
                    if self.expiring.get(&id) == Some(&until) {
                        match next {
                            Some(at) => self.expiring.insert(id, at),
                            None => self.expiring.remove(&id),
                        };
                    }
                }
            }
            Err(error) => tracing::error!(%error, "a task that looks after the store of jobs died"),
        }
    }

    /// Forgets the records that have lapsed in the store: the store announces no lapse.
    pub(super) fn drop_lapsed(&mut self) {
        let now = self.jobs.now();
        self.jobs.0.index.tidy();
        while let Some((at, id)) = self.lapsing.pop_first() {
            if at > now {
                self.lapsing.insert((at, id));
                return;
            }
            self.close(&id);
        }
    }
}

fn is_over(task: &Option<AbortHandle>) -> bool {
    task.as_ref().is_none_or(AbortHandle::is_finished)
}
