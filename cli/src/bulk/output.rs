//! The output, which a later run of the same command continues.
//!
//! Each window becomes a part in a folder beside the output (`OUT.parts`), with the counts of the rows up to its end, which are written
//! before it. The parts become the output when they are all there: it appears whole, under a name where nothing was.

use std::io::{BufRead, Read, Write};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use trireme_columns::{Batch, ERROR, Format, Layout, Reader, Table, Writer};

use super::errors::ErrorFile;
use super::input::as_written;
use super::job::{COUNTS, Job, PART, row_range, window_name};
use super::place::{Place, is_partial};
use super::rows::{Id, Outcome, Rest, Totals, Window};
use super::work::Output;

/// Parts beside the output.
pub struct Parts {
    output: Place,
    job: Job,
    /// The columns; `None` for lines.
    columns: Option<(Format, Layout)>,
    /// Rows of all parts.
    rows: u64,
    names: Vec<String>,
}

/// A line of the output, whose vector is of this space. It ends with the vector or with the reason why there is none.
pub fn line(id: &Id, outcome: &Outcome, space: Option<&str>) -> String {
    let space = space.map(|space| format!("\"space\":{},", Value::from(space))).unwrap_or_default();
    match outcome {
        Ok(vector) => format!("{{\"id\":{id},{space}\"embedding\":{}}}\n", numbers(vector)),
        Err(error) => format!("{{\"id\":{id},\"error\":{}}}\n", Value::from(error.as_str())),
    }
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

/// Notes rows of the output that have no vectors. `before` is the number of the row before them.
pub fn note_errors(errors: &mut ErrorFile, before: u64, batch: &Batch) -> anyhow::Result<()> {
    // Ids of other types are left out.
    let ids = batch.ids("id").unwrap_or_default();
    for (place, why) in batch.texts(ERROR)?.into_iter().enumerate() {
        if let Some(why) = why {
            let id = ids.get(place).filter(|id| !id.is_null()).cloned().map(Id::from);
            errors.write(before + 1 + place as u64, id.as_ref(), &why)?;
        }
    }
    Ok(())
}

fn counts(folder: &Place, name: &str) -> anyhow::Result<Totals> {
    let found: Value = serde_json::from_slice(&read(&folder.with(&format!("/{name}"))?)?).with_context(|| {
        format!("cannot read {folder}/{name}: remove it, then the counts of earlier runs are not known")
    })?;
    Ok(Totals::from_json(&found))
}

fn lines(window: &Window, outcomes: &[Outcome], space: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let Rest::Ids(ids) = &window.rest else { bail!("rows of columns are not written as lines") };
    Ok(ids.iter().zip(outcomes).map(|(id, outcome)| line(id, outcome, space)).collect::<String>().into_bytes())
}

// === impl Parts ===

impl Parts {
    /// The output at `output` with the parts that earlier runs of the job have left, and the number and counts of their rows.
    pub fn open(output: Place, columns: Option<(Format, Layout)>, job: Job) -> anyhow::Result<(Parts, u64, Totals)> {
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
        Ok((Parts { output, job, columns, rows, names: parts }, rows, totals))
    }

    fn part(&self, window: &Window, outcomes: &[Outcome]) -> anyhow::Result<Vec<u8>> {
        let Some((_, layout)) = &self.columns else {
            return lines(window, outcomes, self.job.space());
        };
        let mut writer = Writer::new(Format::Arrow, layout, Vec::new())?;
        match &window.rest {
            Rest::Ids(ids) => {
                let batch = Batch::of_texts(vec![("id", ids.iter().map(Id::text).collect())])?;
                writer.write(&batch.with_vectors(layout, outcomes)?)?;
            }
            Rest::Batches(batches) => {
                let mut outcomes = outcomes;
                for batch in batches {
                    let (own, rest) = outcomes.split_at_checked(batch.rows()).context("a row has no outcome")?;
                    writer.write(&batch.with_vectors(layout, own)?)?;
                    outcomes = rest;
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
                        number += 1;
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
                        note_errors(&mut errors, number, &batch)?;
                        number += batch.rows() as u64;
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

    #[test]
    fn a_line_has_the_vector_or_the_reason() {
        let vector = Ok(vec![0.1, -2.0]);
        assert_eq!(line(&Id::from(json!("[]")), &vector, None), "{\"id\":\"[]\",\"embedding\":[0.1,-2.0]}\n");
        let of_space = line(&Id::from(json!(1)), &vector, Some("ab.cd"));
        assert_eq!(of_space, "{\"id\":1,\"space\":\"ab.cd\",\"embedding\":[0.1,-2.0]}\n");
        let written = line(&Id::written("12345678901234567890123"), &Err("why".to_owned()), Some("ab.cd"));
        assert_eq!(written, "{\"id\":12345678901234567890123,\"error\":\"why\"}\n");
        let read = read_line(written.trim_end().as_bytes()).unwrap();
        assert_eq!(read, (Id::written("12345678901234567890123"), Some("why".to_owned())));
    }
}
