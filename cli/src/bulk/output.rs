//! The output, which a later run of the same command continues.
//!
//! Each window becomes a part in a folder beside the output (`OUT.parts`), with the counts of the rows up to its end, which are written
//! before it. The parts become the output when they are all there: it appears whole, under a name where nothing was. Parts are named by rows of
//! the input, of which the output has several for each text with `--chunk`.

use std::io::{BufRead, Read, Write};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use trireme_columns::{Batch, ERROR, Format, Layout, Reader, Table, WINDOW, WindowRow, Writer};

use super::errors::ErrorFile;
use super::input::as_written;
use super::job::{COUNTS, Job, PART, row_range, window_name};
use super::place::{Place, is_partial};
use super::rows::{Id, Outcome, OutputRow, Rest, Totals, Window, output_rows};
use super::work::Output;
use crate::style::harmless;

/// Parts beside the output.
pub struct Parts {
    output: Place,
    job: Job,
    /// The columns; `None` for lines.
    columns: Option<(Format, Layout)>,
    /// Whether each window of a text has a row.
    is_chunked: bool,
    /// Rows of the input in all parts.
    rows: u64,
    names: Vec<String>,
}

/// A line of the output; `space` is the space of its vector. It ends with the vector, or with the reason why the row has no vector. The line of
/// a window begins with the row of its text in the input.
pub fn line(id: &Id, row: &OutputRow<'_>, is_chunked: bool, space: Option<&str>) -> String {
    let space = space.map(|space| format!("\"space\":{},", Value::from(space))).unwrap_or_default();
    let WindowRow { row: number, window, .. } = row.of;
    let of_row = if is_chunked { format!("{ROW}{number},") } else { "{".to_owned() };
    let window = window.map(|(number, start, end)| format!("\"window\":{number},\"start\":{start},\"end\":{end},"));
    match row.outcome {
        Ok(vector) => {
            format!("{of_row}\"id\":{id},{}{space}\"embedding\":{}}}\n", window.unwrap_or_default(), numbers(vector))
        }
        Err(error) => format!("{of_row}\"id\":{id},\"error\":{}}}\n", Value::from(error)),
    }
}

/// The beginning of a line of a window.
const ROW: &str = "{\"row\":";

/// The row of the input that a line of a window is of.
pub fn row_of(line: &[u8]) -> anyhow::Result<u64> {
    let number = line.strip_prefix(ROW.as_bytes()).and_then(|rest| rest.split(|byte| *byte == b',').next());
    let number = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.with_context(|| {
        let begin = String::from_utf8_lossy(&line[..line.len().min(2 * ROW.len())]).into_owned();
        format!("a line of the output begins with '{}', expected '{ROW}' and a number", harmless(&begin))
    })
}

/// A JSON array of the shortest numbers that are read as the same floats.
fn numbers(vector: &[f32]) -> String {
    serde_json::to_string(vector).unwrap_or_default()
}

/// Notes a line of the output that has no vector. Only such a line ends with a text.
pub fn note_error(errors: &mut ErrorFile, row: u64, line: &[u8]) -> anyhow::Result<()> {
    if !line.ends_with(b"\"}") {
        return Ok(());
    }
    let (id, why) = read_line(line).with_context(|| format!("line {row} of the output is no JSON"))?;
    match why {
        Some(why) => errors.write(row, Some(&id), &why),
        None => Ok(()),
    }
}

/// The id in a line of the output, and the reason why it has no vector.
pub fn read_line(line: &[u8]) -> anyhow::Result<(Id, Option<String>)> {
    let line = std::str::from_utf8(line)?;
    let mut found: Value = serde_json::from_str(line)?;
    Ok((as_written(line, "id", found["id"].take()), found["error"].as_str().map(str::to_owned)))
}

/// The rows of the input that the rows of a batch of the output are of. `before` is the number of the row before them.
pub fn rows_of(batch: &Batch, before: u64, is_chunked: bool) -> anyhow::Result<Vec<u64>> {
    match is_chunked {
        true => Ok(batch.counts(WINDOW[0])?.into_iter().map(Option::unwrap_or_default).collect()),
        false => Ok((before + 1..).take(batch.rows()).collect()),
    }
}

/// Notes rows of the output that have no vectors. `rows` are their numbers in the input.
pub fn note_errors(errors: &mut ErrorFile, rows: &[u64], batch: &Batch) -> anyhow::Result<()> {
    // Ids of other types are left out.
    let ids = batch.ids("id").unwrap_or_default();
    for (place, why) in batch.texts(ERROR)?.into_iter().enumerate() {
        if let Some(why) = why {
            let id = ids.get(place).filter(|id| !id.is_null()).cloned().map(Id::from);
            errors.write(rows[place], id.as_ref(), &why)?;
        }
    }
    Ok(())
}

/// Rows of the output, which have the other columns of `batch`.
pub fn written(batch: &Batch, layout: &Layout, rows: &[OutputRow<'_>], is_chunked: bool) -> anyhow::Result<Batch> {
    let outcomes: Vec<Result<&[f32], &str>> = rows.iter().map(|row| row.outcome).collect();
    let windows: Vec<WindowRow> = rows.iter().map(|row| row.of).collect();
    Ok(match is_chunked {
        true => batch.with_windows(&windows)?.with_vectors(layout, &outcomes)?,
        false => batch.with_vectors(layout, &outcomes)?,
    })
}

fn counts(folder: &Place, name: &str) -> anyhow::Result<Totals> {
    let found: Value = serde_json::from_slice(&read(&folder.with(&format!("/{name}"))?)?).with_context(|| {
        format!("cannot read {folder}/{name}: remove it, then the counts of earlier runs are not known")
    })?;
    Ok(Totals::from_json(&found))
}

// === impl Parts ===

impl Parts {
    /// The output at `output` with the parts that earlier runs of the job have left, and the number and counts of their rows.
    /// `is_chunked`: the rows of the output are those of windows.
    pub fn open(
        output: Place,
        columns: Option<(Format, Layout)>,
        is_chunked: bool,
        job: Job,
    ) -> anyhow::Result<(Parts, u64, Totals)> {
        let columns = columns.map(|(format, layout)| (format, layout.with_space(job.space())));
        let folder = &job.folder;
        let names = folder.names()?;
        let parts: Vec<_> = names.iter().filter(|name| row_range(name, PART).is_some()).cloned().collect();
        // Files that a run was writing when it was cut off.
        folder.remove(&names.iter().filter(|name| is_partial(name)).cloned().collect::<Vec<_>>())?;
        let mut rows = 0;
        for name in &parts {
            let (first, count) = row_range(name, PART).unwrap_or_default();
            ensure!(first == rows, "{folder} lacks the rows from {rows} to {first}: remove it to begin anew");
            rows += count;
        }
        let counted = parts.last().map(|name| name.replace(PART, COUNTS)).filter(|name| names.contains(name));
        let totals = counted.map_or(Ok(Totals::default()), |name| counts(folder, &name))?;
        Ok((Parts { output, job, columns, is_chunked, rows, names: parts }, rows, totals))
    }

    fn part(&self, window: &Window, outcomes: &[Outcome]) -> anyhow::Result<Vec<u8>> {
        let Parts { is_chunked, rows: before, .. } = *self;
        let Some((_, layout)) = &self.columns else {
            let Rest::Ids(ids) = &window.rest else { bail!("rows of columns are not written as lines") };
            let lines = output_rows(outcomes, before)
                .map(|row| line(&ids[row.of.place], &row, is_chunked, self.job.space()))
                .collect::<String>();
            return Ok(lines.into_bytes());
        };
        let mut writer = Writer::new(Format::Arrow, layout, Vec::new())?;
        let mut write = |batch: &Batch, outcomes: &[Outcome], before: u64| -> anyhow::Result<()> {
            let rows: Vec<_> = output_rows(outcomes, before).collect();
            Ok(writer.write(&written(batch, layout, &rows, is_chunked)?)?)
        };
        match &window.rest {
            Rest::Ids(ids) => {
                let batch = Batch::of_texts(vec![("id", ids.iter().map(Id::text).collect())])?;
                write(&batch, outcomes, before)?;
            }
            Rest::Batches(batches) => {
                let (mut outcomes, mut before) = (outcomes, before);
                for batch in batches {
                    let (own, rest) = outcomes.split_at_checked(batch.rows()).context("a row has no outcome")?;
                    write(batch, own, before)?;
                    (outcomes, before) = (rest, before + own.len() as u64);
                }
            }
            Rest::Numbers(_) => bail!("rows of a whole output are no part of one"),
        }
        Ok(writer.finish()?)
    }

    /// Makes the output of the parts, and the file of its errors. Returns the number of those.
    fn join(&mut self) -> anyhow::Result<u64> {
        let folder = self.job.folder.clone();
        let mut sink = self.output.create(&folder)?;
        let (mut errors, mut number) = (ErrorFile::of(&self.output, &folder)?, 0);
        let sink = match &self.columns {
            None => {
                for name in &self.names {
                    for line in Reader::new(folder.with(&format!("/{name}"))?.open()?, 0).split(b'\n') {
                        let mut line = line?;
                        number = if self.is_chunked { row_of(&line)? } else { number + 1 };
                        note_error(&mut errors, number, &line)?;
                        line.push(b'\n');
                        sink.write_all(&line)?;
                    }
                }
                sink
            }
            Some((format, layout)) => {
                let mut writer = Writer::new(*format, layout, sink)?;
                for name in &self.names {
                    let part = folder.with(&format!("/{name}"))?;
                    let table = Table::open(part.open()?, Format::Arrow).with_context(|| part.to_string())?;
                    for batch in table.batches(0, usize::MAX)? {
                        let batch = batch.with_context(|| part.to_string())?;
                        let rows = rows_of(&batch, number, self.is_chunked)?;
                        note_errors(&mut errors, &rows, &batch)?;
                        number = rows.last().copied().unwrap_or(number);
                        writer.write(&batch)?;
                    }
                }
                writer.finish()?
            }
        };
        sink.finish(|content| self.job.note(content))?;
        errors.finish()
    }
}

impl Output for Parts {
    fn write(&mut self, window: &Window, outcomes: &[Outcome], totals: &Totals) -> anyhow::Result<()> {
        let count = outcomes.len() as u64;
        let (name, folder) = (window_name(self.rows, count, PART), &self.job.folder);
        let counts = folder.with(&format!("/{}", window_name(self.rows, count, COUNTS)))?;
        counts.put(totals.to_json().to_string().into_bytes(), folder)?;
        folder.with(&format!("/{name}"))?.put(self.part(window, outcomes)?, folder)?;
        self.rows += count;
        self.names.push(name);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> anyhow::Result<u64> {
        let errors = self.join()?;
        self.job.end()?;
        Ok(errors)
    }
}

fn read(place: &Place) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Reader::new(place.open()?, 0).read_to_end(&mut bytes).with_context(|| format!("cannot read {place}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row<'a>(outcome: Result<&'a [f32], &'a str>, window: Option<(u64, u64, u64)>) -> OutputRow<'a> {
        OutputRow { of: WindowRow { place: 0, row: 7, window }, outcome }
    }

    #[test]
    fn a_line_has_the_vector_or_the_reason() {
        let of = |id: &Id, outcome, space| line(id, &row(outcome, None), false, space);
        let vector: Result<&[f32], &str> = Ok(&[0.1, -2.0]);
        assert_eq!(of(&Id::from(json!("[]")), vector, None), "{\"id\":\"[]\",\"embedding\":[0.1,-2.0]}\n");
        let of_space = of(&Id::from(json!(1)), vector, Some("ab.cd"));
        assert_eq!(of_space, "{\"id\":1,\"space\":\"ab.cd\",\"embedding\":[0.1,-2.0]}\n");
        let written = of(&Id::written("12345678901234567890123"), Err("why"), Some("ab.cd"));
        assert_eq!(written, "{\"id\":12345678901234567890123,\"error\":\"why\"}\n");
        let read = read_line(written.trim_end().as_bytes()).unwrap();
        assert_eq!(read, (Id::written("12345678901234567890123"), Some("why".to_owned())));
    }

    #[test]
    fn a_line_of_a_window_begins_with_the_row_of_its_text() {
        let of = |outcome, window| line(&Id::from(json!("x")), &row(outcome, window), true, Some("ab.cd"));
        let whole = of(Ok(&[0.5]), Some((2, 40, 61)));
        assert_eq!(
            whole,
            "{\"row\":7,\"id\":\"x\",\"window\":2,\"start\":40,\"end\":61,\"space\":\"ab.cd\",\"embedding\":[0.5]}\n"
        );
        let error = of(Err("why"), None);
        assert_eq!(error, "{\"row\":7,\"id\":\"x\",\"error\":\"why\"}\n");
        assert_eq!((row_of(whole.as_bytes()).unwrap(), row_of(error.as_bytes()).unwrap()), (7, 7));
        assert!(row_of(b"{\"id\":7,\"error\":\"why\"}").is_err());
    }
}
