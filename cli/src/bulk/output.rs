//! The output, which a later run of the same command continues.
//!
//! Lines go to the end of a local file: its whole lines are the rows that are done. Other outputs cannot grow: Parquet and Arrow files
//! end with a description of their content, and an object in a store appears only when it is whole. For these each window becomes a
//! part in a folder beside the output (`OUT.parts`), and the parts become the output when they are all there. In both cases that folder
//! has the counts of the rows up to the end of each window. They are written before the window.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use trireme_columns::{Batch, ERROR, Format, Layout, Reader, Table, Writer};

use super::errors::ErrorFile;
use super::place::Place;
use super::rows::{Outcome, Rest, Totals, Window};
use super::work::Output;

/// The file among the parts that names the whole.
const JOB: &str = "job.json";

/// The file that says that the output is whole and the parts are left over.
const DONE: &str = "done";

/// The ends of the names of a window's rows and of its counts.
const PART: &str = ".part";
const COUNTS: &str = ".json";

/// Lines at the end of a local file.
pub struct Lines {
    file: File,
    output: Place,
    folder: Place,
    rows: u64,
}

/// How far an earlier run of the same command has come.
pub enum Opened {
    /// The output goes on behind so many rows, which have these counts.
    Open(Box<dyn Output>, u64, Totals),
    /// The output is whole.
    Whole,
}

/// Parts beside the output.
pub struct Parts {
    output: Place,
    folder: Place,
    /// The columns; `None` for lines.
    columns: Option<(Format, Layout)>,
    /// Rows of all parts.
    rows: u64,
    names: Vec<String>,
}

/// A line of the output.
pub fn line(id: &Value, outcome: &Outcome) -> String {
    match outcome {
        Ok(vector) => format!("{{\"id\":{id},\"embedding\":{}}}\n", numbers(vector)),
        Err(error) => format!("{{\"id\":{id},\"error\":{}}}\n", Value::from(error.as_str())),
    }
}

/// A JSON array of the shortest numbers that are read as the same floats.
fn numbers(vector: &[f32]) -> String {
    serde_json::to_string(vector).unwrap_or_default()
}

// === impl Lines ===

impl Lines {
    /// The output at `path`, open behind its last whole line, and the number and counts of its lines. A window whose lines are not all
    /// there is cut off, so that the counts are those of the lines.
    pub fn open(path: &Path) -> anyhow::Result<(Lines, u64, Totals)> {
        let output = Place::Local(path.to_owned());
        let folder = output.with(".parts")?;
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.with_context(|| format!("cannot write {output}"))?;
        let (mut rows, _) = count_lines(&mut file, u64::MAX)?;
        let (mut totals, mut stale) = (Totals::default(), Vec::new());
        for name in folder.names()?.into_iter().rev() {
            match row_range(&name, COUNTS) {
                Some((first, count)) if first + count > rows => {
                    rows = rows.min(first);
                    stale.push(name);
                }
                Some((first, count)) if first + count == rows => {
                    totals = counts(&folder, &name)?;
                    break;
                }
                _ => {}
            }
        }
        folder.remove(&stale)?;
        let (_, end) = count_lines(&mut file, rows)?;
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        Ok((Lines { file, output, folder, rows }, rows, totals))
    }
}

/// The number of whole lines, `most` at most, and the bytes up to the end of the last one.
fn count_lines(file: &mut File, most: u64) -> anyhow::Result<(u64, u64)> {
    file.rewind()?;
    let (mut lines, mut whole, mut at) = (0, 0, 0);
    let mut chunk = vec![0; 1 << 16];
    while lines < most {
        let count = file.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        let ends = chunk[..count].iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        for (offset, _) in ends.take(usize::try_from(most - lines).unwrap_or(usize::MAX)) {
            (lines, whole) = (lines + 1, at + offset as u64 + 1);
        }
        at += count as u64;
    }
    Ok((lines, whole))
}

impl Output for Lines {
    fn write(&mut self, window: &Window, outcomes: &[Outcome], totals: &Totals) -> anyhow::Result<()> {
        let count = outcomes.len() as u64;
        put_counts(&self.folder, self.rows, count, totals)?;
        self.file.write_all(&lines(window, outcomes)?).context("cannot write the output")?;
        self.rows += count;
        Ok(())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<u64> {
        self.file.sync_all().context("cannot write the output")?;
        let mut errors = ErrorFile::of(&self.output)?;
        for (number, line) in (1..).zip(Reader::new(self.output.open()?, 0).split(b'\n')) {
            note_error(&mut errors, number, &line?)?;
        }
        let count = errors.finish()?;
        clear(&self.folder)?;
        Ok(count)
    }
}

/// Notes a line of the output that has no vector. Only such a line ends with a text.
pub fn note_error(errors: &mut ErrorFile, row: u64, line: &[u8]) -> anyhow::Result<()> {
    if !line.ends_with(b"\"}") {
        return Ok(());
    }
    let found: Value = serde_json::from_slice(line).with_context(|| format!("line {row} of the output is no JSON"))?;
    match found["error"].as_str() {
        Some(why) => errors.write(row, &found["id"], why),
        None => Ok(()),
    }
}

/// Notes rows of the output that have no vectors. `before` is the number of the row before them.
pub fn note_errors(errors: &mut ErrorFile, before: u64, batch: &Batch) -> anyhow::Result<()> {
    // Ids of other types are left out.
    let ids = batch.ids("id").unwrap_or_default();
    for (place, why) in batch.texts(ERROR)?.into_iter().enumerate() {
        if let Some(why) = why {
            errors.write(before + 1 + place as u64, ids.get(place).unwrap_or(&Value::Null), &why)?;
        }
    }
    Ok(())
}

fn put_counts(folder: &Place, first: u64, count: u64, totals: &Totals) -> anyhow::Result<()> {
    folder.with(&format!("/{}", window_name(first, count, COUNTS)))?.put(totals.to_json().to_string().into_bytes())
}

fn counts(folder: &Place, name: &str) -> anyhow::Result<Totals> {
    let found: Value = serde_json::from_slice(&read(&folder.with(&format!("/{name}"))?)?).with_context(|| {
        format!("cannot read {folder}/{name}: remove it, then the counts of earlier runs are not known")
    })?;
    Ok(Totals::from_json(&found))
}

/// Removes the parts and counts of an output that is whole.
fn clear(folder: &Place) -> anyhow::Result<()> {
    let is_own =
        |name: &String| name.ends_with(".partial") || [PART, COUNTS].iter().any(|end| row_range(name, end).is_some());
    let (mut names, others): (Vec<_>, Vec<_>) = folder.names()?.into_iter().partition(is_own);
    // The files that distinguish the rest from another job go last.
    names.extend([JOB, DONE].into_iter().filter(|name| others.iter().any(|other| other == name)).map(str::to_owned));
    folder.remove(&names)
}

fn lines(window: &Window, outcomes: &[Outcome]) -> anyhow::Result<Vec<u8>> {
    let Rest::Ids(ids) = &window.rest else { bail!("rows of columns are not written as lines") };
    Ok(ids.iter().zip(outcomes).map(|(id, outcome)| line(id, outcome)).collect::<String>().into_bytes())
}

// === impl Parts ===

impl Parts {
    /// The output at `output` with the parts that an earlier run of the same job has left. `job` tells jobs apart.
    pub fn open(output: Place, columns: Option<(Format, Layout)>, job: &Value) -> anyhow::Result<Opened> {
        let folder = output.with(".parts")?;
        let names = folder.names()?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if has(DONE) {
            clear(&folder)?;
            return Ok(Opened::Whole);
        }
        let parts: Vec<_> = names.iter().filter(|name| row_range(name, PART).is_some()).cloned().collect();
        if has(JOB) {
            let found = read(&folder.with(&format!("/{JOB}"))?)?;
            let found: Value = serde_json::from_slice(&found).with_context(|| format!("cannot read {folder}/{JOB}"))?;
            ensure!(
                found == *job,
                "{folder} holds parts of another job: {found}, this one is {job}; remove that folder, or choose another OUT"
            );
        } else {
            if output.exists()? {
                return Ok(Opened::Whole);
            }
            ensure!(parts.is_empty(), "{folder} holds parts of an unknown job: remove it, or choose another OUT");
            folder.with(&format!("/{JOB}"))?.put(job.to_string().into_bytes())?;
        }
        // Files that a run was writing when it was cut off.
        let partial: Vec<_> = names.iter().filter(|name| name.ends_with(".partial")).cloned().collect();
        folder.remove(&partial)?;
        let mut rows = 0;
        for name in &parts {
            let (first, count) = row_range(name, PART).unwrap_or_default();
            ensure!(first == rows, "{folder} lacks the rows from {rows} to {first}: remove it to begin anew");
            rows += count;
        }
        let counted = parts.last().map(|name| name.replace(PART, COUNTS)).filter(|name| has(name));
        let totals = counted.map_or(Ok(Totals::default()), |name| counts(&folder, &name))?;
        Ok(Opened::Open(Box::new(Parts { output, folder, columns, rows, names: parts }), rows, totals))
    }

    fn part(&self, window: &Window, outcomes: &[Outcome]) -> anyhow::Result<Vec<u8>> {
        let Some((_, layout)) = &self.columns else { return lines(window, outcomes) };
        let mut writer = Writer::new(Format::Arrow, layout, Vec::new())?;
        match &window.rest {
            Rest::Ids(ids) => {
                let text = |id: &Value| Some(id.as_str().map_or_else(|| id.to_string(), str::to_owned));
                let batch = Batch::of_texts(vec![("id", ids.iter().map(text).collect())])?;
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
    fn join(&self) -> anyhow::Result<u64> {
        let mut sink = self.output.create()?;
        let (mut errors, mut number) = (ErrorFile::of(&self.output)?, 0);
        match &self.columns {
            None => {
                for name in &self.names {
                    for line in Reader::new(self.folder.with(&format!("/{name}"))?.open()?, 0).split(b'\n') {
                        let mut line = line?;
                        number += 1;
                        note_error(&mut errors, number, &line)?;
                        line.push(b'\n');
                        sink.write_all(&line)?;
                    }
                }
                sink.finish()?;
            }
            Some((format, layout)) => {
                let mut writer = Writer::new(*format, layout, sink)?;
                for name in &self.names {
                    let part = self.folder.with(&format!("/{name}"))?;
                    let table = Table::open(part.open()?, Format::Arrow).with_context(|| part.to_string())?;
                    for batch in table.batches(0, usize::MAX)? {
                        let batch = batch.with_context(|| part.to_string())?;
                        note_errors(&mut errors, number, &batch)?;
                        number += batch.rows() as u64;
                        writer.write(&batch)?;
                    }
                }
                writer.finish()?.finish()?;
            }
        }
        errors.finish()
    }
}

impl Output for Parts {
    fn write(&mut self, window: &Window, outcomes: &[Outcome], totals: &Totals) -> anyhow::Result<()> {
        let count = outcomes.len() as u64;
        let name = window_name(self.rows, count, PART);
        put_counts(&self.folder, self.rows, count, totals)?;
        self.folder.with(&format!("/{name}"))?.put(self.part(window, outcomes)?)?;
        self.rows += count;
        self.names.push(name);
        Ok(())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<u64> {
        let errors = self.join()?;
        self.folder.with(&format!("/{DONE}"))?.put(Vec::new())?;
        clear(&self.folder)?;
        Ok(errors)
    }
}

/// The name of a window's file; names are in the order of rows.
fn window_name(first: u64, count: u64, end: &str) -> String {
    format!("{first:016}-{count}{end}")
}

/// The first row of a window and the number of its rows.
fn row_range(name: &str, end: &str) -> Option<(u64, u64)> {
    let (first, count) = name.strip_suffix(end)?.split_once('-')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}

fn read(place: &Place) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Reader::new(place.open()?, 0).read_to_end(&mut bytes).with_context(|| format!("cannot read {place}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::bulk::rows::Facts;

    #[test]
    fn an_output_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        assert_eq!(Lines::open(&path).unwrap().1, 0);
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let (mut found, lines, _) = Lines::open(&path).unwrap();
        found.file.write_all(b"three\n").unwrap();
        assert_eq!((lines, std::fs::read_to_string(&path).unwrap().as_str()), (2, "one\ntwo\nthree\n"));
    }

    #[test]
    fn lines_go_on_with_the_counts_of_their_last_whole_window() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let ids: Vec<Value> = (1..=6).map(Value::from).collect();
        let outcomes = [Ok(vec![1.0]), Err("why".to_owned()), Ok(vec![1.0])];
        let totals = |errors| Totals {
            errors,
            facts: Facts { tokens: 10 * errors, cut: errors },
            took: Duration::from_secs(errors),
        };
        let (mut output, ..) = Lines::open(&path).unwrap();
        for (part, errors) in [(&ids[..3], 1), (&ids[3..], 2)] {
            let window = Window { texts: Vec::new(), rest: Rest::Ids(part.to_vec()) };
            output.write(&window, &outcomes, &totals(errors)).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        // Cut off in the second window, in its last line, and at its end.
        for (bytes, rows, errors) in
            [(0, 0, 0), (40, 0, 0), (whole.len() - 60, 3, 1), (whole.len() - 1, 3, 1), (whole.len(), 6, 2)]
        {
            let copy = tempfile::tempdir().unwrap();
            let path = copy.path().join("out.jsonl");
            std::fs::write(&path, &whole[..bytes]).unwrap();
            let parts = copy.path().join("out.jsonl.parts");
            std::fs::create_dir(&parts).unwrap();
            for entry in std::fs::read_dir(folder.path().join("out.jsonl.parts")).unwrap().flatten() {
                std::fs::copy(entry.path(), parts.join(entry.file_name())).unwrap();
            }
            let (output, found, counted) = Lines::open(&path).unwrap();
            assert_eq!(
                (found, counted),
                (rows, if errors == 0 { Totals::default() } else { totals(errors) }),
                "{bytes}"
            );
            assert_eq!(Box::new(output).finish().unwrap(), errors);
            let left = std::fs::read_dir(copy.path()).unwrap().count();
            assert_eq!(left, if errors == 0 { 1 } else { 2 }, "the output, and its errors if there are any");
        }
    }

    #[test]
    fn a_line_has_the_vector_or_the_reason() {
        assert_eq!(line(&json!("[]"), &Ok(vec![0.1, -2.0])), "{\"id\":\"[]\",\"embedding\":[0.1,-2.0]}\n");
        assert_eq!(line(&json!(7), &Err("why".to_owned())), "{\"id\":7,\"error\":\"why\"}\n");
    }
}
