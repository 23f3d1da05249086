//! The input: a text a line, or a text a row of a column.

use std::io::BufRead;
use std::iter::Peekable;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::{Deserializer, Value};
use trireme_columns::{Batch, Batches, Format, Reader, Source, Table};

use super::identity::Identity;
use super::place::Place;
use super::rows::{Id, Rest, Text, Window};
use super::work::Input;

/// Rows of a batch that is read from a file of columns.
const BATCH: usize = 512;

/// Bytes of texts after which a window is large enough.
const MOST_TEXT: usize = 64 << 20;

/// A byte order mark in UTF-8, which some editors write before the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileFormat {
    /// A text or a JSON value a line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
    /// Arrow's IPC file format, which is Feather 2 too.
    Arrow,
}

/// The columns of the input.
#[derive(Clone, Debug)]
pub struct Columns {
    pub text: String,
    /// `None`: `id`, if there is one.
    pub id: Option<String>,
}

/// The file that is read.
pub struct InputFile {
    source: Arc<dyn Source>,
    place: Place,
    /// `None`: lines.
    pub table: Option<Table>,
}

/// The lines of an input, from the first one that an earlier run has not done.
struct Lines {
    reader: Reader,
    /// The number of the line before the next one.
    number: u64,
}

/// The rows of a table, from the first one that an earlier run has not done.
struct Rows {
    batches: Peekable<Batches>,
    text: String,
    /// Where the output has ids only: their column, and the number of the row before the next one.
    ids: Option<(Option<String>, u64)>,
}

// === impl FileFormat ===

impl FileFormat {
    /// The format that the end of a name says, otherwise `other`.
    pub fn of(name: &str, other: Option<FileFormat>) -> FileFormat {
        let name = name.split(['?', '#']).next().filter(|_| name.contains("://")).unwrap_or(name);
        match Format::of_name(name) {
            Some(Format::Parquet) => FileFormat::Parquet,
            Some(Format::Arrow) => FileFormat::Arrow,
            None if name.ends_with(".jsonl") => FileFormat::Jsonl,
            None => other.unwrap_or(FileFormat::Jsonl),
        }
    }

    /// The format of a file of columns.
    pub fn columns(self) -> Option<Format> {
        match self {
            FileFormat::Jsonl => None,
            FileFormat::Parquet => Some(Format::Parquet),
            FileFormat::Arrow => Some(Format::Arrow),
        }
    }
}

// === impl InputFile ===

impl InputFile {
    pub fn open(place: &Place, format: FileFormat, columns: &Columns) -> anyhow::Result<InputFile> {
        let (source, place) = (place.open()?, place.clone());
        let Some(format) = format.columns() else { return Ok(InputFile { source, place, table: None }) };
        let table = Table::open(source.clone(), format).with_context(|| place.to_string())?;
        for column in std::iter::once(&columns.text).chain(&columns.id) {
            let names = table.columns();
            ensure!(
                table.has(column),
                "{place} has no column '{column}', only {names}: name the columns by --text-column and --id-column"
            );
        }
        Ok(InputFile { source, place, table: Some(table) })
    }

    /// The bytes of the file. A remote file is not fetched twice.
    pub fn identity(&self) -> anyhow::Result<Identity> {
        let of = if self.place.is_local() { Identity::of } else { Identity::of_ends };
        of(self.source.as_ref()).with_context(|| self.place.to_string())
    }

    /// Number of rows, where it is known without reading them all.
    pub fn rows(&self) -> anyhow::Result<Option<u64>> {
        match &self.table {
            Some(table) => Ok(Some(table.rows())),
            None if !self.place.is_local() => Ok(None),
            None => {
                let lines = Reader::new(self.source.clone(), 0).split(b'\n');
                let count = lines.map(|line| line.map(drop)).try_fold(0, |count, line| line.map(|()| count + 1));
                Ok(Some(count.with_context(|| format!("cannot read {}", self.place))?))
            }
        }
    }

    /// The rows behind the first `before`. `ids_only`: the output keeps ids and no other columns.
    pub fn rest(&self, before: u64, columns: &Columns, ids_only: bool) -> anyhow::Result<Box<dyn Input>> {
        let Some(table) = &self.table else {
            let mut lines = Lines { reader: Reader::new(self.source.clone(), 0), number: 0 };
            let mut line = Vec::new();
            for _ in 0..before {
                line.clear();
                ensure!(lines.reader.read_until(b'\n', &mut line)? > 0, "the output has more rows than the input");
            }
            lines.number = before;
            return Ok(Box::new(lines));
        };
        let named = columns.id.clone().or_else(|| table.has("id").then(|| "id".to_owned()));
        let ids = ids_only.then_some((named, before));
        let batches = table.batches(before, BATCH)?.peekable();
        Ok(Box::new(Rows { batches, text: columns.text.clone(), ids }))
    }
}

// === impl Lines ===

impl Input for Lines {
    fn next(&mut self, rows: usize) -> anyhow::Result<Option<Window>> {
        let (mut texts, mut ids, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut line = Vec::new();
        while texts.len() < rows && bytes < MOST_TEXT {
            line.clear();
            if self.reader.read_until(b'\n', &mut line).context("cannot read the input")? == 0 {
                break;
            }
            self.number += 1;
            bytes += line.len();
            let (id, text) = read_line(self.number, line.strip_suffix(b"\n").unwrap_or(&line));
            texts.push(text);
            ids.push(id);
        }
        Ok((!texts.is_empty()).then_some(Window { texts, rest: Rest::Ids(ids) }))
    }
}

/// The id and the text in a line; the id of a line without one is its number. Lines that begin with a brace are JSON. A byte order mark
/// before the first line is none of it.
fn read_line(number: u64, line: &[u8]) -> (Id, Text) {
    let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 1).unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let id = Id::from(number);
    let Ok(text) = std::str::from_utf8(line) else { return (id, Err("no UTF-8".to_owned())) };
    match serde_json::from_str(text) {
        Ok(Value::String(text)) => (id, Ok(text)),
        Ok(Value::Object(mut fields)) => {
            let found = match fields.remove("text") {
                Some(Value::String(text)) => Ok(text),
                _ => Err("a JSON object without 'text'".to_owned()),
            };
            (fields.remove("id").map_or(id, |id| as_written(text, "id", id)), found)
        }
        Err(error) if text.trim_start().starts_with('{') => {
            let why = format!("no JSON ({error}): write a text that begins with a brace as a JSON string");
            (id, Err(why))
        }
        _ => (id, Ok(text.to_owned())),
    }
}

/// A member of a JSON object as an id. `value` has 64 bits of a number, and the id all of them.
pub fn as_written(object: &str, name: &str, value: Value) -> Id {
    match value.is_f64().then(|| member(object, name)).flatten() {
        Some(json) => Id::written(json),
        None => Id::from(value),
    }
}

/// The last value of this name in a JSON object, as it is written.
fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = object.trim_start().strip_prefix('{')?;
    let mut found = None;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_ascii_whitespace());
        if rest.starts_with('}') {
            return found;
        }
        let mut key = Deserializer::from_str(rest).into_iter::<String>();
        let is_wanted = key.next()?.ok()? == name;
        rest = rest[key.byte_offset()..].trim_start().strip_prefix(':')?.trim_start();
        let mut value = Deserializer::from_str(rest).into_iter::<Value>();
        value.next()?.ok()?;
        let (json, behind) = rest.split_at(value.byte_offset());
        found = if is_wanted { Some(json) } else { found };
        rest = behind;
    }
}

// === impl Rows ===

impl Input for Rows {
    fn next(&mut self, rows: usize) -> anyhow::Result<Option<Window>> {
        let (mut texts, mut batches, mut bytes) = (Vec::<Text>::new(), Vec::<Batch>::new(), 0);
        while texts.len() < rows && bytes < MOST_TEXT {
            let Some(batch) = self.batches.next() else { break };
            let batch = batch.context("cannot read the input")?;
            for text in batch.texts(&self.text)? {
                bytes += text.as_ref().map_or(0, String::len);
                texts.push(text.ok_or_else(|| "no text".to_owned()));
            }
            batches.push(batch);
        }
        if texts.is_empty() {
            return Ok(None);
        }
        let rest = match &mut self.ids {
            None => Rest::Batches(batches),
            Some((column, number)) => {
                let before = *number;
                *number += texts.len() as u64;
                let mut ids = Vec::with_capacity(texts.len());
                match column {
                    Some(column) => {
                        for batch in &batches {
                            ids.extend(batch.ids(column)?.into_iter().map(Id::from));
                        }
                    }
                    None => ids.extend((before + 1..=*number).map(Id::from)),
                }
                Rest::Ids(ids)
            }
        };
        Ok(Some(Window { texts, rest }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_a_text_or_names_one() {
        let of = |line: &str| read_line(7, line.as_bytes());
        let line = |id: Value, text: &str| (Id::from(id), Ok(text.to_owned()));
        assert_eq!(of("a text\r"), line(json!(7), "a text"));
        assert_eq!(of("\"a \\\"text\\\"\""), line(json!(7), "a \"text\""));
        assert_eq!(of(r#"{"id": "x", "text": "a"}"#), line(json!("x"), "a"));
        assert_eq!(of(r#"{"text": "a"}"#), line(json!(7), "a"));
        assert_eq!(of("17"), line(json!(7), "17"), "a number is a text too");
        assert!(of(r#"{"id": 1}"#).1.is_err());
        assert!(read_line(7, &[0xff]).1.is_err());
    }

    #[test]
    fn a_line_that_is_no_text_is_refused_and_an_id_keeps_its_digits() {
        let of = |line: &str| read_line(1, line.as_bytes());
        let line = |id: &str, text: &str| (Id::written(id), Ok(text.to_owned()));
        assert_eq!(of("\u{feff}{\"id\": \"x\", \"text\": \"a\"}"), line("\"x\"", "a"));
        assert_eq!(of("\u{feff}a text"), line("1", "a text"));
        for broken in [r#"{"id": 1, "text": "a""#, r#" {"text": "a"} more"#, "{a}"] {
            let (id, text) = of(broken);
            assert!(id == Id::from(1u64) && text.unwrap_err().contains("no JSON"), "{broken}");
        }
        assert_eq!(of("\"quoted\" words"), line("1", "\"quoted\" words"));
        for id in ["12345678901234567890123", "-12345678901234567890123", "1.50", "18446744073709551615"] {
            assert_eq!(of(&format!(r#"{{"id" : 1, "n": [1, {{"id": 2}}], "id": {id} , "text": "a"}}"#)), line(id, "a"));
        }
    }

    #[test]
    fn a_name_says_its_format() {
        let of = |name| FileFormat::of(name, None);
        assert_eq!(of("a/b.parquet"), FileFormat::Parquet);
        assert_eq!(of("s3://bucket/b.FEATHER"), FileFormat::Arrow);
        assert_eq!(of("https://h/x.arrow?signature=a.jsonl"), FileFormat::Arrow);
        assert_eq!(of("texts.txt"), FileFormat::Jsonl);
        assert_eq!(FileFormat::of("https://h/x", Some(FileFormat::Parquet)), FileFormat::Parquet);
    }
}
