//! How a batch reads its input: line after line, in chunks.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use trireme_inference::{IF_SPACE_HEADER, Name};

use super::{Chunk, Prepared, Run, Task};
use crate::columns;
use crate::error::JobError;
use crate::files::Content;
use crate::jobs::Jobs;
use crate::lines::{BatchLine, Lines, shown};
use crate::outcomes::refusal;
use crate::record::{Batch, BatchState, File};
use crate::room::Room;

/// A chunk ends after so many lines or bytes.
const CHUNK_LINES: usize = 1024;
const CHUNK_BYTES: usize = 8 << 20;

/// Most chunks whose lines have not all ended. While the last lines of one chunk run, lines of the next ones begin.
const CHUNKS: usize = 3;

/// Lines of a chunk as long as no line has an answer, so that little is read before the size of answers is known.
const FIRST_LINES: usize = 64;

/// Room for so many ids of lines is taken at once, and the bytes of one: two hashes and the number of its line in a map that grows by doubling.
const IDS: usize = 4096;
const ID_BYTES: usize = 64;

/// Bytes that an answer is taken to have until there is one.
const ANSWER: u64 = 8 << 10;

/// The lines of a file from `offset` on, before which there are `number` lines.
fn lines_from(jobs: &Jobs, file: &File, batch: &Batch, offset: u64, number: u64) -> Lines<Content> {
    if let Some(format) = columns::format(file) {
        return Lines::new(columns::lines(jobs, file, format, &batch.endpoint, &batch.rows, number), offset);
    }
    Lines::new(jobs.content_from(file, offset), offset)
}

/// Lines that are not empty; why the file is refused, if two of them have one `custom_id`. Ids that have no room in memory beside the others are
/// looked at in another pass over the lines.
async fn count(open: impl Fn() -> Lines<Content>, room: &Room) -> Result<Result<u64, String>, JobError> {
    // Ids may be long: two hashes with keys of their own stand for one.
    let (one, other) = (RandomState::new(), RandomState::new());
    let (mut first, mut total) = (0, None);
    loop {
        // The ids of this pass are those whose hash is in this range.
        let (mut last, mut held) = (u64::MAX, Vec::new());
        let (mut seen, mut count, mut number) = (HashMap::new(), 0, 0u64);
        let mut lines = open();
        while let Some(line) = lines.next().await? {
            number += 1;
            count += u64::from(!line.is_empty());
            let Some(custom_id) = line.custom_id() else { continue };
            let hash = one.hash_one(&*custom_id);
            while seen.len() == held.len() * IDS {
                match room.hold((IDS * ID_BYTES) as u64) {
                    Some(more) => held.push(more),
                    None => {
                        last = first + (last - first) / 2;
                        seen.retain(|(hash, _), _| *hash <= last);
                    }
                }
            }
            if (first..=last).contains(&hash)
                && let Some(before) = seen.insert((hash, other.hash_one(&*custom_id)), number)
            {
                return Ok(Err(format!(
                    "lines {before} and {number} have the same 'custom_id' {:?}: give each line one of its own",
                    shown(&custom_id)
                )));
            }
        }
        let total = *total.get_or_insert(count);
        match last.checked_add(1) {
            Some(next) => first = next,
            None => return Ok(Ok(total)),
        }
    }
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
                None => count(|| lines_from(jobs, &file, batch, 0, 0), &self.room).await?,
            };
            let total = match counted {
                Ok(0) => return Ok(of_file("it has no lines, expected one JSON object in each line".to_owned())),
                Ok(total) => total,
                Err(why) => return Ok(of_file(why)),
            };
            self.batch.counts.total = total;
            self.batch.state = BatchState::InProgress;
            self.batch.begun = Some(jobs.now());
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
                Ok(mut call) => {
                    let trace = self.batch.traceparent.iter().flat_map(|trace| trace.headers());
                    call.headers.extend(trace.map(|(name, value)| (name.to_owned(), value.to_string().into())));
                    let spaces =
                        self.batch.if_space.iter().map(|spaces| (IF_SPACE_HEADER.to_owned(), spaces.clone().into()));
                    call.headers.extend(spaces);
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
            let bytes = task.call.body.len() as u64;
            self.turns.push(destination, self.jobs.owner(&self.batch.client), bytes, task);
        }
        self.chunks.push_back(Chunk { outcomes, left, end: self.place });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;

    use super::*;
    use crate::objects::tests::jobs;

    fn open(ids: impl Fn(usize) -> usize, lines: usize) -> Lines<Content> {
        let text: String = (0..lines).map(|line| format!("{{\"custom_id\": \"{}\"}}\n", ids(line))).collect();
        Lines::new(Box::pin(futures_util::stream::iter([Ok(Bytes::from(text))])) as Content, 0)
    }

    /// A file with many ids, in the room of few.
    #[tokio::test]
    async fn ids_that_have_no_room_are_looked_at_in_another_pass() {
        const LINES: usize = 5 * IDS;
        let rooms = crate::room::Rooms::new(2 * (IDS * ID_BYTES) as u64, jobs().0.execute.clone());
        let (room, passes) = (rooms.batch(), Cell::new(0));
        let lines = || {
            passes.set(passes.get() + 1);
            open(|line| line, LINES)
        };
        assert_eq!(count(lines, &room).await.unwrap(), Ok(LINES as u64));
        assert!((3..20).contains(&passes.get()), "{} passes", passes.get());
        // Wherever its hash is.
        for twice in 0..10 {
            let why = count(|| open(|line| if line == LINES - 1 { twice } else { line }, LINES), &room).await.unwrap();
            let expected = format!("lines {} and {LINES} have the same 'custom_id' \"{twice}\"", twice + 1);
            assert!(why.as_ref().is_err_and(|why| why.starts_with(&expected)), "{why:?}");
        }
        assert!(room.hold(2 * (IDS * ID_BYTES) as u64).is_some(), "the room is free again");
    }
}
