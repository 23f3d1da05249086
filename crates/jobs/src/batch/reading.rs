//! How a batch reads its input: line after line, in chunks.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use trireme_inference::Name;

use super::{Chunk, Prepared, Run, Task};
use crate::columns;
use crate::error::JobError;
use crate::files::Content;
use crate::jobs::Jobs;
use crate::lines::{BatchLine, Lines, shown};
use crate::outcomes::refusal;
use crate::record::{Batch, BatchState, File};
use crate::store::now;

/// A chunk ends after so many lines or bytes.
const CHUNK_LINES: usize = 1024;
const CHUNK_BYTES: usize = 8 << 20;

/// Most chunks whose lines have not all ended. While the last lines of one chunk run, lines of the next ones begin.
const CHUNKS: usize = 3;

/// Lines of a chunk as long as no line has an answer, so that little is read before the size of answers is known.
const FIRST_LINES: usize = 64;

/// Bytes that an answer is taken to have until there is one.
const ANSWER: u64 = 8 << 10;

/// The lines of a file from `offset` on, before which there are `number` lines.
fn lines_from(jobs: &Jobs, file: &File, batch: &Batch, offset: u64, number: u64) -> Lines<Content> {
    if let Some(format) = columns::format(file) {
        return Lines::new(columns::lines(jobs, file, format, &batch.endpoint, &batch.rows, number), offset);
    }
    Lines::new(jobs.content_from(file, offset), offset)
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

impl Run<'_> {
    /// Opens the input at the checkpoint, and counts its lines if that was not done before.
    pub(super) async fn prepare(&mut self) -> Result<Prepared, JobError> {
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
        self.lines = lines_from(jobs, &file, &self.batch, self.place.0, self.place.1);
        Ok(Prepared::Works)
    }

    /// Whether another chunk is read now.
    pub(super) fn reads_on(&self) -> bool {
        let is_short = self.chunks.len() < CHUNKS && self.turns.waiting() < CHUNK_LINES;
        !self.ended && !self.is_blocked && is_short
    }

    /// Reads the next chunk, if the file has more lines and there is room for one.
    pub(super) async fn read_chunk(&mut self) -> Result<(), JobError> {
        let (mut outcomes, mut tasks, mut bytes) = (Vec::new(), Vec::new(), 0);
        let chunk = self.first + self.chunks.len() as u64;
        let most = if self.answer.is_some() { CHUNK_LINES } else { FIRST_LINES };
        while outcomes.len() < most && bytes < CHUNK_BYTES {
            let (line, offset) = match self.pending.take() {
                Some(pending) => pending,
                None => match self.lines.next().await? {
                    Some(line) => (line, self.lines.offset),
                    None => {
                        self.ended = true;
                        break;
                    }
                },
            };
            let number = self.place.1 + 1;
            if line.is_empty() {
                self.place = (offset, number);
                continue;
            }
            // The line, and its answer.
            let Some(held) = self.room.hold(line.size() as u64 + self.answer.unwrap_or(ANSWER)) else {
                self.pending = Some((line, offset));
                self.is_blocked = true;
                break;
            };
            self.place = (offset, number);
            let BatchLine { custom_id, call } = line.asked(&self.batch.endpoint);
            match call {
                Ok(call) => {
                    let call = call.of(format!("{} line {number}", self.id));
                    bytes += call.body.len();
                    tasks.push(Task { chunk, index: outcomes.len(), number, custom_id, call, _held: held });
                    outcomes.push(None);
                }
                Err(why) => {
                    let message = format!("line {number} of file '{}': {why}", self.batch.input);
                    self.jobs.0.counters.line(true);
                    outcomes.push(Some((refusal(self.id, number, &custom_id, "invalid_line", &message), held)));
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
        self.chunks.push_back(Chunk { outcomes, left, end: self.place });
        Ok(())
    }
}
