//! Runs a batch: reads lines ahead, begins those of similar length together, and writes the answers in the order of the
//! lines.
//!
//! Lines are read in chunks. The lines of a chunk begin sorted by length, so that a model's batches have little padding: every second
//! chunk begins with its longest lines, because the one before has ended with its own.
//! When all lines of the first chunk have ended, their answers are written and the checkpoint moves.

mod finish;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use trireme_bus::BusError;
use trireme_inference::Name;

use crate::call::JobCall;
use crate::columns;
use crate::error::JobError;
use crate::files::Content;
use crate::jobs::Jobs;
use crate::lines::{Asked, Lines, shown};
use crate::objects::{self, Writer};
use crate::outcomes::{Outcome, outcome, refusal};
use crate::record::{Batch, BatchState};
use crate::record::{Checkpoint, File, Object, Record};
use crate::requests::{ATTEMPTS, Tried};
use crate::store::{Kept, now};
use crate::turns::{Turn, Turns, until};

/// A chunk ends after so many lines or bytes.
const CHUNK_LINES: usize = 1024;
const CHUNK_BYTES: usize = 8 << 20;

/// Most chunks whose lines have not all ended. While the last lines of one chunk run, lines of the next ones begin.
const CHUNKS: usize = 3;

/// Parts of the output live for this much longer than the record of their file.
const SLACK: Duration = Duration::from_secs(3600);

/// A batch that has run for so long has not ended its gateway.
const SETTLED: Duration = Duration::from_secs(20);

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
    outcomes: Vec<Option<Outcome>>,
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
}

struct Run<'a> {
    jobs: &'a Jobs,
    id: &'a str,
    batch: Batch,
    revision: u64,
    lines: Lines<Content>,
    /// The number of the next line.
    number: u64,
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
    // Before anything is read: the work itself may be what has to be cancelled.
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
    let prepared = tokio::select! {
        biased;
        () = stopped(&mut stop) => return run.finish(BatchState::Cancelled).await,
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

/// The lines of a file from `offset` on, before which there are `number` lines.
fn lines_from(jobs: &Jobs, file: &File, batch: &Batch, offset: u64, number: u64) -> Lines<Content> {
    if let Some(format) = columns::format(file) {
        return Lines::new(columns::lines(jobs, file, format, &batch.endpoint, &batch.rows, number), offset);
    }
    let (jobs, objects) = (jobs.clone(), file.objects.clone());
    let parts = async_parts(jobs, objects, offset);
    Lines::new(Box::pin(parts), offset)
}

/// The parts of `objects` without the first `offset` bytes.
fn async_parts(
    jobs: Jobs,
    objects: Vec<Object>,
    offset: u64,
) -> impl Stream<Item = Result<Bytes, JobError>> + Send + 'static {
    // Whole objects before the offset are not read. The parts of one object but its last have one size.
    let mut skip = offset;
    let mut places = VecDeque::new();
    for object in objects {
        if skip >= object.bytes {
            skip -= object.bytes;
            continue;
        }
        let whole = skip / objects::PART as u64;
        skip -= whole * objects::PART as u64;
        places.extend((whole..object.parts).map(|part| (object.name.clone(), part, std::mem::take(&mut skip))));
    }
    futures_util::stream::unfold((jobs, places), |(jobs, mut places)| async move {
        let (object, part, skip) = places.pop_front()?;
        let read = objects::read_part(jobs.0.bus.as_ref(), &object, part).await;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        Some((read.map(|bytes| bytes.slice(skip.min(bytes.len())..)), (jobs, places)))
    })
}

/// Lines that are not empty; why the file is refused, if two of them have one `custom_id`.
async fn count(mut lines: Lines<Content>) -> Result<Result<u64, String>, JobError> {
    // Ids may be long: two hashes with keys of their own stand for one.
    let (one, other) = (RandomState::new(), RandomState::new());
    let (mut seen, mut count, mut number) = (HashMap::new(), 0, 0u64);
    while let Some(line) = lines.next().await? {
        number += 1;
        count += u64::from(!line.is_empty());
        if let Some(custom_id) = line.custom_id()
            && let Some(first) = seen.insert((one.hash_one(&*custom_id), other.hash_one(&*custom_id)), number)
        {
            return Ok(Err(format!(
                "lines {first} and {number} have the same 'custom_id' {:?}: give each line one of its own",
                shown(&custom_id)
            )));
        }
    }
    Ok(Ok(count))
}

// === impl Run ===

impl<'a> Run<'a> {
    /// The batch, if it is this gateway's and has not ended.
    async fn open(jobs: &'a Jobs, id: &'a str) -> Result<Option<Run<'a>>, JobError> {
        let Some(Kept { record: Record::Batch(batch), revision }) = jobs.read(id).await? else { return Ok(None) };
        if batch.state.is_end() || batch.owner != jobs.0.own {
            return Ok(None);
        }
        let lines = Lines::new(Box::pin(futures_util::stream::empty()) as Content, 0);
        let (number, turns) = (batch.checkpoint.lines, Turns::new(&jobs.0.paces));
        let chunks = VecDeque::new();
        Ok(Some(Run { jobs, id, batch, revision, lines, number, chunks, first: 0, turns, ended: false }))
    }

    /// Opens the input at the checkpoint, and counts its lines if that was not done before.
    async fn prepare(&mut self) -> Result<Prepared, JobError> {
        let (jobs, batch) = (self.jobs, &self.batch);
        let file = match jobs.file(&batch.input).await {
            Ok(file) => file,
            Err(error @ JobError::Unknown { .. }) => return Ok(Prepared::Fails(error.to_string())),
            Err(error) => return Err(error),
        };
        let of_file = |why: String| Prepared::Fails(format!("file '{}': {why}", batch.input));
        if batch.state == BatchState::Validating {
            let counted = match columns::format(&file) {
                Some(format) => columns::check(jobs, &file, format, &batch.endpoint, &batch.rows).await?,
                None => count(lines_from(jobs, &file, batch, 0, 0)).await?,
            };
            let total = match counted {
                Ok(0) => return Ok(of_file("it has no lines, expected one JSON object in each line".to_owned())),
                Ok(total) => total,
                Err(why) => return Ok(of_file(why)),
            };
            self.batch.counts.total = total;
            self.batch.state = BatchState::InProgress;
            self.batch.begun = Some(now());
            if !self.save(None).await? {
                return Ok(Prepared::IsGone);
            }
        }
        self.lines = lines_from(jobs, &file, &self.batch, self.batch.checkpoint.offset, self.number);
        Ok(Prepared::Works)
    }

    async fn work(mut self, mut stop: watch::Receiver<bool>) -> Result<(), JobError> {
        let paces = self.jobs.0.paces.clone();
        let mut running: JoinSet<Called> = JoinSet::new();
        let mut settles = Some(Instant::now() + SETTLED);
        loop {
            while !self.ended && self.chunks.len() < CHUNKS && self.turns.waiting() < CHUNK_LINES {
                tokio::select! {
                    biased;
                    () = stopped(&mut stop) => return self.finish(BatchState::Cancelled).await,
                    read = self.read_chunk() => read?,
                }
            }
            let room = paces.changed();
            while let Some((turn, slot)) = self.turns.begin(Instant::now()) {
                let (jobs, expires, batch) = (self.jobs.clone(), self.batch.expires, self.id.to_owned());
                running.spawn(async move {
                    let task = &turn.item;
                    let answer = match jobs.attempt(&task.call, expires, &slot).await {
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
            let left = Duration::from_secs(self.batch.expires.saturating_sub(now()));
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
                () = until(settles) => {
                    // Whatever ends gateways does so early.
                    settles = None;
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

    /// Reads the next chunk, if the file has more lines.
    async fn read_chunk(&mut self) -> Result<(), JobError> {
        let (mut outcomes, mut tasks, mut bytes) = (Vec::new(), Vec::new(), 0);
        let chunk = self.first + self.chunks.len() as u64;
        while outcomes.len() < CHUNK_LINES && bytes < CHUNK_BYTES {
            let Some(line) = self.lines.next().await? else {
                self.ended = true;
                break;
            };
            self.number += 1;
            if line.is_empty() {
                continue;
            }
            let Asked { custom_id, call } = line.asked(&self.batch.endpoint);
            match call {
                Ok(call) => {
                    let call = call.of(format!("{} line {}", self.id, self.number));
                    bytes += call.body.len();
                    tasks.push(Task { chunk, index: outcomes.len(), number: self.number, custom_id, call });
                    outcomes.push(None);
                }
                Err(why) => {
                    let message = format!("line {} of file '{}': {why}", self.number, self.batch.input);
                    self.jobs.0.counters.line(true);
                    outcomes.push(Some(refusal(self.id, self.number, &custom_id, "invalid_line", &message)));
                }
            }
        }
        if outcomes.is_empty() {
            return Ok(());
        }
        tasks.sort_by_key(|task| task.call.body.len());
        if chunk % 2 == 1 {
            tasks.reverse();
        }
        let left = tasks.len();
        for task in tasks {
            let destination = Name::from(self.jobs.0.execute.destination(&task.call));
            self.turns.push(destination, task);
        }
        self.chunks.push_back(Chunk { outcomes, left, end: (self.lines.offset, self.number) });
        Ok(())
    }

    fn take(&mut self, chunk: u64, index: usize, outcome: Outcome) {
        self.jobs.0.counters.line(outcome.is_error);
        let chunk = usize::try_from(chunk - self.first).ok().and_then(|at| self.chunks.get_mut(at));
        if let Some(chunk) = chunk
            && let Some(place) = chunk.outcomes.get_mut(index)
        {
            *place = Some(outcome);
            chunk.left -= 1;
        }
    }

    /// Writes the answers of the first chunk and moves the checkpoint. Returns whether the batch goes on here.
    async fn write_first(&mut self) -> Result<bool, JobError> {
        let Some(chunk) = self.chunks.pop_front() else { return Ok(true) };
        self.first += 1;
        let (output, errors) = self.write(chunk.outcomes.into_iter().flatten()).await?;
        let (offset, lines) = chunk.end;
        self.batch.checkpoint = Checkpoint { offset, lines, output, errors };
        self.batch.attempts.get_on();
        self.save(None).await
    }

    /// Writes outcomes behind the checkpoint's parts. Returns the objects with them.
    async fn write(&mut self, outcomes: impl Iterator<Item = Outcome>) -> Result<(Object, Object), JobError> {
        let bus = self.jobs.0.bus.as_ref();
        // The parts outlive the records of their files, which lapse a time to live after the end of the batch.
        let left = Duration::from_secs(self.batch.expires.saturating_sub(now()));
        let lapse = Some(left + self.jobs.0.options.time_to_live + SLACK);
        let mut output = Writer::append(bus, self.batch.checkpoint.output.clone(), lapse);
        let mut errors = Writer::append(bus, self.batch.checkpoint.errors.clone(), lapse);
        let mut counts = self.batch.counts;
        for outcome in outcomes {
            let (writer, count) = match outcome.is_error {
                true => (&mut errors, &mut counts.failed),
                false => (&mut output, &mut counts.completed),
            };
            writer.write(&outcome.text).await?;
            *count += 1;
        }
        self.batch.counts = counts;
        Ok((output.finish().await?, errors.finish().await?))
    }

    /// Writes the record. Returns whether the batch is still this gateway's and goes on.
    async fn save(&mut self, lapse: Option<Duration>) -> Result<bool, JobError> {
        loop {
            match self.jobs.write(self.id, &Record::Batch(self.batch.clone()), self.revision, lapse).await {
                Ok(revision) => {
                    self.revision = revision;
                    return Ok(true);
                }
                Err(BusError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // A client has cancelled it, another gateway has taken it over, or a broker has not the last revision yet.
            let Some(Kept { record, revision }) = self.jobs.read(self.id).await? else { return Ok(false) };
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
