//! The output, which a later run of the same command continues.
//!
//! Lines go to the end of a local file: its whole lines are what is done. Other files have their end where their
//! content is described, or appear only when they are whole. For these each window becomes a part in a folder beside the output
//! (`OUT.parts`), and the parts become the output when they are all there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use trireme_columns::{Batch, Format, Layout, Reader, Table, Writer};

use super::place::Place;
use super::rows::{Outcome, Rest, Window};
use super::work::Output;

/// The file among the parts that says what they are parts of.
const JOB: &str = "job.json";

/// Lines at the end of a local file.
pub struct Lines {
    file: File,
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
fn line(id: &Value, outcome: &Outcome) -> String {
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
    /// The output at `path`, open behind its last whole line, and the number of its lines.
    pub fn open(path: &Path) -> anyhow::Result<(Lines, u64)> {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.with_context(|| format!("cannot write {}", path.display()))?;
        let (mut lines, mut whole, mut at) = (0, 0, 0);
        let mut chunk = vec![0; 1 << 16];
        loop {
            let count = file.read(&mut chunk)?;
            if count == 0 {
                break;
            }
            for (offset, _) in chunk[..count].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                (lines, whole) = (lines + 1, at + offset as u64 + 1);
            }
            at += count as u64;
        }
        file.set_len(whole)?;
        file.seek(SeekFrom::Start(whole))?;
        Ok((Lines { file }, lines))
    }
}

impl Output for Lines {
    fn write(&mut self, window: &Window, outcomes: &[Outcome]) -> anyhow::Result<()> {
        self.file.write_all(&lines(window, outcomes)?).context("cannot write the output")
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        self.file.sync_all().context("cannot write the output")
    }
}

fn lines(window: &Window, outcomes: &[Outcome]) -> anyhow::Result<Vec<u8>> {
    let Rest::Ids(ids) = &window.rest else { bail!("rows of columns are not written as lines") };
    Ok(ids.iter().zip(outcomes).map(|(id, outcome)| line(id, outcome)).collect::<String>().into_bytes())
}

// === impl Parts ===

impl Parts {
    /// The output at `output` with the parts that an earlier run of the same job has left, and the number of their rows; `None`
    /// where that run has made the output whole. `job` tells jobs apart.
    pub fn open(output: Place, columns: Option<(Format, Layout)>, job: &Value) -> anyhow::Result<Option<(Parts, u64)>> {
        let folder = output.with(".parts")?;
        let names = folder.names()?;
        let described = names.iter().any(|name| name == JOB);
        // Files that a run was writing when it was cut off.
        let (partial, mut names): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.ends_with(".partial"));
        folder.remove(&partial)?;
        names.retain(|name| row_range(name).is_some());
        if described {
            let found = read(&folder.with(&format!("/{JOB}"))?)?;
            let found: Value = serde_json::from_slice(&found).with_context(|| format!("cannot read {folder}/{JOB}"))?;
            ensure!(
                found == *job,
                "{folder} holds parts of another job: {found}, this one is {job}; remove that folder, or choose another OUT"
            );
            if output.exists()? {
                names.push(JOB.to_owned());
                folder.remove(&names)?;
                return Ok(None);
            }
        } else {
            ensure!(!output.exists()?, "{output} is there already: remove it, or choose another OUT");
            ensure!(names.is_empty(), "{folder} holds parts of an unknown job: remove it, or choose another OUT");
            folder.with(&format!("/{JOB}"))?.put(job.to_string().into_bytes())?;
        }
        let mut rows = 0;
        for name in &names {
            let (first, count) = row_range(name).unwrap_or_default();
            ensure!(first == rows, "{folder} lacks the rows from {rows} to {first}: remove it to begin anew");
            rows += count;
        }
        Ok(Some((Parts { output, folder, columns, rows, names }, rows)))
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
        }
        Ok(writer.finish()?)
    }

    /// Makes the output of the parts.
    fn join(&self) -> anyhow::Result<()> {
        let mut sink = self.output.create()?;
        match &self.columns {
            None => {
                for name in &self.names {
                    std::io::copy(&mut Reader::new(self.folder.with(&format!("/{name}"))?.open()?, 0), &mut sink)?;
                }
                sink.finish()
            }
            Some((format, layout)) => {
                let mut writer = Writer::new(*format, layout, sink)?;
                for name in &self.names {
                    let part = self.folder.with(&format!("/{name}"))?;
                    let table = Table::open(part.open()?, Format::Arrow).with_context(|| part.to_string())?;
                    for batch in table.batches(0, usize::MAX)? {
                        writer.write(&batch.with_context(|| part.to_string())?)?;
                    }
                }
                writer.finish()?.finish()
            }
        }
    }
}

impl Output for Parts {
    fn write(&mut self, window: &Window, outcomes: &[Outcome]) -> anyhow::Result<()> {
        let name = part_name(self.rows, outcomes.len() as u64);
        self.folder.with(&format!("/{name}"))?.put(self.part(window, outcomes)?)?;
        self.rows += outcomes.len() as u64;
        self.names.push(name);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> anyhow::Result<()> {
        self.join()?;
        // The description goes last: with it a run that was cut off here is told from another job.
        self.names.push(JOB.to_owned());
        self.folder.remove(&self.names)
    }
}

/// The name of a part; names are in the order of rows.
fn part_name(first: u64, count: u64) -> String {
    format!("{first:016}-{count}.part")
}

/// The first row of a part and the number of its rows.
fn row_range(name: &str) -> Option<(u64, u64)> {
    let (first, count) = name.strip_suffix(".part")?.split_once('-')?;
    Some((first.parse().ok()?, count.parse().ok()?))
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
    fn an_output_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        assert_eq!(Lines::open(&path).unwrap().1, 0);
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let (mut found, lines) = Lines::open(&path).unwrap();
        found.file.write_all(b"three\n").unwrap();
        assert_eq!((lines, std::fs::read_to_string(&path).unwrap().as_str()), (2, "one\ntwo\nthree\n"));
    }

    #[test]
    fn a_line_has_the_vector_or_the_reason() {
        assert_eq!(line(&json!("[]"), &Ok(vec![0.1, -2.0])), "{\"id\":\"[]\",\"embedding\":[0.1,-2.0]}\n");
        assert_eq!(line(&json!(7), &Err("why".to_owned())), "{\"id\":7,\"error\":\"why\"}\n");
    }
}
