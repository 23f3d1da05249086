//! The file of the rows without a vector, beside the output: a JSON object in each line.

use std::io::{BufRead, Write};

use anyhow::Context;
use serde_json::Value;
use trireme_columns::Reader;

use super::place::{Place, Sink};
use super::rows::Id;

/// The end of its name.
const SUFFIX: &str = ".errors.jsonl";

/// The file of the rows without a vector. There is none where every row has one.
pub struct ErrorFile {
    place: Place,
    /// Where the file is until it is whole.
    folder: Place,
    sink: Option<Sink>,
    rows: u64,
}

/// The place of the file of `output`.
pub fn place(output: &Place) -> anyhow::Result<Place> {
    output.with(SUFFIX)
}

// === impl ErrorFile ===

impl ErrorFile {
    /// The file of `output`, without rows. Until it is whole it is in `folder`.
    pub fn of(output: &Place, folder: &Place) -> anyhow::Result<ErrorFile> {
        Ok(ErrorFile { place: place(output)?, folder: folder.clone(), sink: None, rows: 0 })
    }

    /// Whether an earlier run has left one.
    pub fn exists(&self) -> anyhow::Result<bool> {
        self.place.exists()
    }

    /// Appends a row. Rows are numbered from 1; the line of a row without an id has no `id`.
    pub fn write(&mut self, row: u64, id: Option<&Id>, why: &str) -> anyhow::Result<()> {
        if self.sink.is_none() {
            self.sink = Some(self.place.create(&self.folder)?);
        }
        let id = id.map(|id| format!("\"id\":{id},")).unwrap_or_default();
        let sink = self.sink.as_mut().context("the file of errors is open")?;
        self.rows += 1;
        let why = Value::from(why);
        writeln!(sink, "{{\"row\":{row},{id}\"error\":{why}}}").with_context(|| format!("cannot write {}", self.place))
    }

    /// Makes the file whole, in place of an earlier one, or removes that. Returns the number of rows.
    pub fn finish(self) -> anyhow::Result<u64> {
        match self.sink {
            Some(sink) => sink.finish(|_| Ok(()))?,
            None => self.place.delete()?,
        }
        Ok(self.rows)
    }

    /// The rows of the file that an earlier run has left, ascending.
    pub fn rows(&self) -> anyhow::Result<Vec<u64>> {
        let row = |line: std::io::Result<String>| {
            let line: Value = serde_json::from_str(&line?)?;
            line["row"].as_u64().context("a line has no 'row'")
        };
        let rows = Reader::new(self.place.open()?, 0).lines().map(row).collect::<anyhow::Result<Vec<_>>>();
        rows.with_context(|| {
            format!("cannot read {}: remove it to leave the rows without a vector as they are", self.place)
        })
    }
}

impl std::fmt::Display for ErrorFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.place.fmt(f)
    }
}
