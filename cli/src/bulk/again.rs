//! A second try of the rows of a whole output that have no vector: only their texts are embedded, and the output is written anew with
//! the outcomes in their places.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::iter::Peekable;

use anyhow::{Context, ensure};
use trireme_columns::{Batch, Batches, Format, Layout, Reader, Table, WindowRow, Writer};

use super::errors::ErrorFile;
use super::job::Job;
use super::output::{line, note_error, note_errors, read_line, row_of, rows_of, written};
use super::place::{Place, Sink};
use super::rows::{Outcome, OutputRow, Rest, Totals, Window, rows_of_text};
use super::work::{Input, Output};

/// Rows of a batch that is read from the output.
const BATCH: usize = 4096;

/// Some of the rows of an input.
pub struct Only {
    input: Box<dyn Input>,
    /// Their numbers from 1, ascending.
    rows: Peekable<std::vec::IntoIter<u64>>,
    /// The number of the row before the next one of `input`.
    before: u64,
}

/// The output, written anew.
pub struct Mended {
    old: Old,
    /// Whether each window of a text has a row.
    is_chunked: bool,
    /// Rows of the input that are written.
    rows: u64,
    errors: ErrorFile,
    output: Place,
    job: Job,
}

enum Old {
    Lines {
        lines: Box<std::io::Split<Reader>>,
        sink: Sink,
    },
    Columns {
        batches: Batches,
        layout: Layout,
        writer: Writer<Sink>,
        outcomes: BTreeMap<u64, Outcome>,
        next: Option<Batch>,
    },
}

// === impl Only ===

impl Only {
    pub fn of(input: Box<dyn Input>, rows: Vec<u64>) -> Only {
        Only { input, rows: rows.into_iter().peekable(), before: 0 }
    }
}

impl Input for Only {
    fn next(&mut self, rows: usize) -> anyhow::Result<Option<Window>> {
        while self.rows.peek().is_some() {
            let window = self.input.next(rows)?.context("the input has fewer rows than the output")?;
            let (mut texts, mut numbers) = (Vec::new(), Vec::new());
            for text in window.texts {
                self.before += 1;
                if self.rows.next_if_eq(&self.before).is_some() {
                    texts.push(text);
                    numbers.push(self.before);
                }
            }
            if !texts.is_empty() {
                return Ok(Some(Window { texts, rest: Rest::Numbers(numbers) }));
            }
        }
        Ok(None)
    }
}

// === impl Mended ===

impl Mended {
    /// The output at `output` of a job, whose vectors have `width` numbers. `is_chunked`: its rows are those of windows.
    pub fn open(
        output: Place,
        format: Option<Format>,
        width: usize,
        is_chunked: bool,
        mut job: Job,
    ) -> anyhow::Result<Mended> {
        job.check_output()?;
        let source = output.open()?;
        let old = match format {
            None => {
                Old::Lines { lines: Box::new(Reader::new(source, 0).split(b'\n')), sink: output.create(&job.folder)? }
            }
            Some(format) => {
                let table = Table::open(source, format).with_context(|| output.to_string())?;
                let layout = Layout::with_vectors(&table).with_context(|| output.to_string())?.with_space(job.space());
                let found = layout.width();
                ensure!(
                    found == width,
                    "{output} has vectors of {found} numbers, but the model gives {width}: choose another OUT"
                );
                let sink = output.create(&job.folder)?;
                let (batches, writer) = (table.batches(0, BATCH)?, Writer::new(format, &layout, sink)?);
                Old::Columns { batches, layout, writer, outcomes: BTreeMap::new(), next: None }
            }
        };
        Ok(Mended { old, is_chunked, rows: 0, errors: ErrorFile::of(&output, &job.folder)?, output, job })
    }

    /// Writes the rows up to `last` with the outcomes that are known; all rows where it is `None`. A row without a vector is one row of the output, also
    /// where other texts have a row for each window.
    fn write_until(&mut self, last: Option<u64>, mut new: impl FnMut(u64) -> Option<Outcome>) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {} anew", self.output);
        let is_chunked = self.is_chunked;
        match &mut self.old {
            Old::Lines { lines, sink } => {
                while last.is_none_or(|last| self.rows < last)
                    && let Some(old) = lines.next()
                {
                    let mut old = old.with_context(cannot)?;
                    self.rows = if is_chunked { row_of(&old).with_context(cannot)? } else { self.rows + 1 };
                    if let Some(outcome) = new(self.rows) {
                        let (id, _) = read_line(&old).with_context(cannot)?;
                        let rows = rows_of_text(0, self.rows, &outcome);
                        let lines = rows.iter().map(|row| line(&id, row, is_chunked, self.job.space()));
                        old = lines.collect::<String>().into_bytes();
                        old.pop();
                    }
                    note_error(&mut self.errors, self.rows, &old)?;
                    old.push(b'\n');
                    sink.write_all(&old).with_context(cannot)?;
                }
            }
            Old::Columns { batches, layout, writer, outcomes, next } => loop {
                if next.is_none() {
                    *next = batches.next().transpose()?;
                }
                let numbers =
                    next.as_ref().map(|next| rows_of(next, self.rows, is_chunked)).transpose()?.unwrap_or_default();
                let end = numbers.last().copied().unwrap_or_default();
                let Some(batch) = next.take_if(|_| last.is_none_or(|last| end <= last)) else {
                    // The batch has rows whose outcomes are not known yet.
                    if let Some(last) = last {
                        outcomes.extend((self.rows + 1..=last).filter_map(|row| Some((row, new(row)?))));
                    }
                    break;
                };
                let (rest, found) = batch.without_vectors()?;
                let (rest, rows) = match is_chunked {
                    true => rest.without_windows()?,
                    false => {
                        let row = |(place, row)| WindowRow { place, row, window: None };
                        (rest, numbers.into_iter().enumerate().map(row).collect())
                    }
                };
                let mut mended = |row: u64| outcomes.remove(&row).or_else(|| new(row));
                let new: Vec<Option<Outcome>> =
                    rows.iter().map(|of| if of.window.is_none() { mended(of.row) } else { None }).collect();
                let mut all = Vec::with_capacity(rows.len());
                for ((of, found), new) in rows.into_iter().zip(&found).zip(&new) {
                    match new {
                        Some(outcome) => all.extend(rows_of_text(of.place, of.row, outcome)),
                        None => all
                            .push(OutputRow { of, outcome: found.as_ref().map(Vec::as_slice).map_err(String::as_str) }),
                    }
                }
                let batch = written(&rest, layout, &all, is_chunked)?;
                let numbers: Vec<u64> = all.iter().map(|row| row.of.row).collect();
                note_errors(&mut self.errors, &numbers, &batch)?;
                self.rows = end;
                writer.write(&batch)?;
            },
        }
        Ok(())
    }
}

impl Output for Mended {
    fn write(&mut self, window: &Window, outcomes: &[Outcome], _: &Totals) -> anyhow::Result<()> {
        let Rest::Numbers(numbers) = &window.rest else { return Ok(()) };
        let mut known: BTreeMap<u64, Outcome> = numbers.iter().copied().zip(outcomes.iter().cloned()).collect();
        self.write_until(numbers.last().copied(), |row| known.remove(&row))
    }

    fn finish(mut self: Box<Self>) -> anyhow::Result<u64> {
        self.write_until(None, |_| None)?;
        let Mended { old, errors, mut job, .. } = *self;
        let sink = match old {
            Old::Lines { sink, .. } => sink,
            Old::Columns { writer, .. } => writer.finish()?,
        };
        sink.finish(|content| job.note(content))?;
        let errors = errors.finish()?;
        job.end()?;
        Ok(errors)
    }
}
