//! Runs a batch: reads lines ahead, begins those of similar length together, and writes the answers in the order of the
//! lines.
//!
//! Lines are read in chunks. The lines of a chunk begin sorted by length, so that a model's batches have little padding: every second
//! chunk begins with its longest lines, because the one before has ended with its own.
//! When all lines of the first chunk have ended, their answers are written and the checkpoint moves.

mod finish;
mod reading;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::call::{CallOf, JobCall};
use crate::error::JobError;
use crate::files::Content;
use crate::jobs::Jobs;
use crate::lines::{Line, Lines};
use crate::objects::{Lease, Writer};
use crate::outcomes::{Outcome, outcome};
use crate::record::{ATTEMPTS, Checkpoint, Object, Record};
use crate::record::{Batch, BatchState, Counts};
use crate::requests::{GETS_ON, Tried};
use crate::room::{Held, Room};
use crate::store::StoredRecord;
use crate::turns::{Turn, Turns, until};

/// Parts of the output live for this much longer than the record of their file.
const SLACK: Duration = Duration::from_secs(3600);

/// How often the record of a batch says how many lines have ended, beside its checkpoints.
const TELL: Duration = Duration::from_secs(3);

/// How often a batch without room for another line looks for it.
const LOOK: Duration = Duration::from_millis(100);

/// The end of the names of files of lines.
const LINES: &str = "jsonl";

/// The state of a batch before its first line.
enum Prepared {
    Works,
    Fails(String),
    /// It is not this gateway's any more.
    IsGone,
}

/// Lines that were read together.
struct Chunk {
    /// By the order of the file.
    outcomes: Vec<Option<(Outcome, Held)>>,
    /// Lines that have not ended.
    left: usize,
    /// The input's bytes and lines before the next chunk.
    end: (u64, u64),
}

/// A line that waits for its turn.
struct Task {
    chunk: u64,
    index: usize,
    number: u64,
    custom_id: Value,
    call: JobCall,
    _held: Held,
}

struct Run<'a> {
    jobs: &'a Jobs,
    id: &'a str,
    batch: Batch,
    revision: u64,
    lines: Lines<Content>,
    /// The input's bytes and lines that are in chunks, or in the output.
    place: (u64, u64),
    /// A line that was read and has no room yet, and the input's bytes up to its end.
    pending: Option<(Line, u64)>,
    is_blocked: bool,
    room: Room,
    /// Bytes of the longest answer so far; at first of those before the checkpoint on average.
    answer: Option<u64>,
    chunks: VecDeque<Chunk>,
    /// The number of the first chunk.
    first: u64,
    turns: Turns<Task>,
    ended: bool,
}

/// The end of a call.
enum Called {
    /// The line has ended.
    Ended(u64, usize, Outcome),
    /// It was refused, and is to be tried again.
    Refused(Turn<Task>),
}

/// Runs a batch of this gateway from its checkpoint to its end. `stop` says that it was cancelled.
pub async fn run(jobs: &Jobs, id: &str, stop: watch::Receiver<bool>) -> Result<(), JobError> {
    match attempt(jobs, id, stop).await {
        Err(JobError::Lost(why)) => lose(jobs, id, why).await,
        other => other,
    }
}

async fn attempt(jobs: &Jobs, id: &str, mut stop: watch::Receiver<bool>) -> Result<(), JobError> {
    let Some(mut run) = Run::open(jobs, id).await? else { return Ok(()) };
    // Before the input is read: reading it may be the work that has to be cancelled.
    if run.batch.state == BatchState::Cancelling {
        return run.finish(BatchState::Cancelled).await;
    }
    if run.batch.attempts.begin(&jobs.0.process) > ATTEMPTS {
        return run
            .fail(format!("{ATTEMPTS} gateways have ended while they worked on this batch, so it is set aside"))
            .await;
    }
    if !run.save(None).await? {
        return Ok(());
    }
    let left = Duration::from_secs(run.batch.expires.saturating_sub(jobs.now()));
    let prepared = tokio::select! {
        biased;
        () = stopped(&mut stop) => return run.finish(BatchState::Cancelled).await,
        () = tokio::time::sleep(left) => return run.finish(BatchState::Expired).await,
        prepared = run.prepare() => prepared?,
    };
    match prepared {
        Prepared::Works => run.work(stop).await,
        Prepared::Fails(why) => run.fail(why).await,
        Prepared::IsGone => Ok(()),
    }
}

/// Notes that bytes of a batch are not in the store. A broker of a cluster may have them later, so the batch fails after the third time.
async fn lose(jobs: &Jobs, id: &str, why: String) -> Result<(), JobError> {
    let Some(mut run) = Run::open(jobs, id).await? else { return Ok(()) };
    run.batch.attempts.lost += 1;
    if run.batch.attempts.lost < ATTEMPTS {
        return run.save(None).await.map(drop);
    }
    run.fail(why).await
}

/// Ends when the batch is cancelled.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|is_cancelled| *is_cancelled).await.is_err() {
        std::future::pending().await
    }
}

// === impl Run ===

impl<'a> Run<'a> {
    /// The batch, if it is this gateway's and has not ended.
    async fn open(jobs: &'a Jobs, id: &'a str) -> Result<Option<Run<'a>>, JobError> {
        let Some(StoredRecord { record: Record::Batch(batch), revision }) = jobs.read(id).await? else {
            return Ok(None);
        };
        if batch.state.is_end() || batch.owner != jobs.0.own {
            return Ok(None);
        }
        let lines = Lines::new(Box::pin(futures_util::stream::empty()) as Content, 0);
        let place = (batch.checkpoint.offset, batch.checkpoint.lines);
        let answer = batch.checkpoint.output.bytes.checked_div(batch.counts.completed);
        Ok(Some(Run {
            jobs,
            id,
            batch,
            revision,
            lines,
            place,
            pending: None,
            is_blocked: false,
            room: jobs.0.rooms.batch(),
            answer,
            chunks: VecDeque::new(),
            first: 0,
            turns: Turns::new(&jobs.0.paces),
            ended: false,
        }))
    }

    /// The right to write the batch's files.
    fn lease(&self) -> Lease<'a> {
        Lease { jobs: self.jobs, id: self.id }
    }

    async fn work(mut self, mut stop: watch::Receiver<bool>) -> Result<(), JobError> {
        let paces = self.jobs.0.paces.clone();
        let mut running: JoinSet<Called> = JoinSet::new();
        let mut gets_on = Some(Instant::now() + GETS_ON);
        let mut told = Instant::now();
        loop {
            while self.reads_on() {
                tokio::select! {
                    biased;
                    () = stopped(&mut stop) => return self.finish(BatchState::Cancelled).await,
                    read = self.read_chunk() => read?,
                }
            }
            let room = paces.changed();
            while let Some((turn, slot)) = self.turns.begin(Instant::now()) {
                let (jobs, expires, batch) = (self.jobs.clone(), self.batch.expires, self.id.to_owned());
                let owner = Arc::from(&*self.batch.client);
                running.spawn(async move {
                    let task = &turn.item;
                    let of = CallOf { job: format!("{batch} line {}", task.number), owner };
                    let answer = match jobs.attempt(&task.call, of, expires, &slot).await {
                        Tried::Answered(answer) => Some(answer),
                        Tried::Refused => return Called::Refused(turn),
                        Tried::Expired => None,
                    };
                    Called::Ended(task.chunk, task.index, outcome(&batch, task.number, &task.custom_id, answer))
                });
            }
            if self.chunks.front().is_some_and(|chunk| chunk.left == 0) {
                if !self.write_first().await? {
                    return Ok(());
                }
                let most = self.jobs.0.options.max_error_bytes;
                if self.batch.checkpoint.errors.bytes > most {
                    let failed = self.batch.counts.failed;
                    running.shutdown().await;
                    return self
                        .fail(format!(
                            "the error file has more than {most} bytes, after {failed} lines that failed: it says why they did"
                        ))
                        .await;
                }
                continue;
            }
            if self.ended && self.chunks.is_empty() {
                return self.finish(BatchState::Completed).await;
            }
            let left = Duration::from_secs(self.batch.expires.saturating_sub(self.jobs.now()));
            if left.is_zero() {
                running.shutdown().await;
                return self.finish(BatchState::Expired).await;
            }
            tokio::select! {
                Some(called) = running.join_next() => {
                    match called {
                        Ok(Called::Ended(chunk, index, outcome)) => self.take(chunk, index, outcome),
                        Ok(Called::Refused(turn)) => self.turns.push_refused(turn, Instant::now()),
                        // The batch dies with its line.
                        Err(error) => {
                            if let Ok(panic) = error.try_into_panic() {
                                std::panic::resume_unwind(panic);
                            }
                        }
                    }
                }
                () = room => {}
                () = until(self.turns.next_at(Instant::now())) => {}
                () = tokio::time::sleep(left) => {}
                () = tokio::time::sleep(LOOK), if self.is_blocked => self.is_blocked = false,
                () = until(Some(told + TELL)) => {
                    told = Instant::now();
                    let ahead = self.ahead();
                    if ahead != self.batch.ahead {
                        self.batch.ahead = ahead;
                        if !self.save(None).await? {
                            return Ok(());
                        }
                    }
                }
                () = until(gets_on) => {
                    gets_on = None;
                    self.batch.attempts.get_on();
                    if !self.save(None).await? {
                        return Ok(());
                    }
                }
                () = stopped(&mut stop) => {
                    running.shutdown().await;
                    return self.finish(BatchState::Cancelled).await;
                }
            }
        }
    }

    fn take(&mut self, chunk: u64, index: usize, outcome: Outcome) {
        self.jobs.0.counters.line(outcome.is_error);
        self.is_blocked = false;
        let bytes = outcome.text.len() as u64;
        self.answer = self.answer.max(Some(bytes));
        let chunk = usize::try_from(chunk - self.first).ok().and_then(|at| self.chunks.get_mut(at));
        if let Some(chunk) = chunk
            && let Some(place) = chunk.outcomes.get_mut(index)
        {
            *place = Some((outcome, self.room.hold_anyway(bytes)));
            chunk.left -= 1;
        }
    }

    /// The lines that have ended and are not in the output.
    fn ahead(&self) -> Counts {
        let mut ahead = Counts::default();
        for (outcome, _) in self.chunks.iter().flat_map(|chunk| &chunk.outcomes).flatten() {
            *(if outcome.is_error { &mut ahead.failed } else { &mut ahead.completed }) += 1;
        }
        ahead
    }

    /// Writes the answers of the first chunk and moves the checkpoint. Returns whether the batch goes on here.
    async fn write_first(&mut self) -> Result<bool, JobError> {
        let Some(chunk) = self.chunks.pop_front() else { return Ok(true) };
        self.first += 1;
        let outcomes = chunk.outcomes.into_iter().flatten();
        let (output, errors) = self.write(outcomes.map(|(outcome, _)| outcome)).await?;
        let (offset, lines) = chunk.end;
        self.batch.checkpoint = Checkpoint { offset, lines, output, errors };
        self.batch.attempts.get_on();
        self.batch.ahead = self.ahead();
        self.is_blocked = false;
        self.save(None).await
    }

    /// Writes outcomes behind the checkpoint's parts. Returns the objects with them.
    async fn write(&mut self, outcomes: impl Iterator<Item = Outcome>) -> Result<(Object, Object), JobError> {
        let bus = self.jobs.0.bus.as_ref();
        // The parts outlive the records of their files, which lapse a time to live after the end of the batch.
        let left = Duration::from_secs(self.batch.expires.saturating_sub(self.jobs.now()));
        let lapse = Some(left + self.batch.keeps(self.jobs.0.options.time_to_live) + SLACK);
        let lease = self.lease();
        let mut output = Writer::append(bus, self.batch.checkpoint.output.clone(), lapse).leased(lease);
        let mut errors = Writer::append(bus, self.batch.checkpoint.errors.clone(), lapse).leased(lease);
        let (mut counts, mut usage) = (self.batch.counts, self.batch.usage);
        for outcome in outcomes {
            let (writer, count) = match outcome.is_error {
                true => (&mut errors, &mut counts.failed),
                false => (&mut output, &mut counts.completed),
            };
            writer.write(&outcome.text).await?;
            *count += 1;
            usage.add(outcome.usage);
        }
        (self.batch.counts, self.batch.usage) = (counts, usage);
        Ok((output.finish().await?, errors.finish().await?))
    }

    /// Writes the record. Returns whether the batch is still this gateway's and goes on.
    async fn save(&mut self, lapse: Option<Duration>) -> Result<bool, JobError> {
        loop {
            let record = Record::Batch(self.batch.clone());
            if let Some(revision) = self.jobs.replace(self.id, &record, self.revision, lapse).await? {
                self.revision = revision;
                return Ok(true);
            }
            // A client has cancelled it, another gateway has taken it over, or a broker has not the last revision yet.
            let Some(StoredRecord { record, revision }) = self.jobs.read(self.id).await? else { return Ok(false) };
            let Some(there) = record.into_batch() else { return Ok(false) };
            if there.owner != self.batch.owner || there.state.is_end() {
                return Ok(false);
            }
            if revision == self.revision {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            self.revision = revision;
            if there.state == BatchState::Cancelling && !self.batch.state.is_end() {
                self.batch.state = BatchState::Cancelling;
                self.batch.cancelling = there.cancelling;
            }
        }
    }
}
