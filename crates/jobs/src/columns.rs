//! Batches over files of columns: each row is a request, and the output has the rows with their answers.
//!
//! Rows become lines as the file of a batch has them, with the number of the row (from 1) for `custom_id`, so everything between the
//! file and the answers is the same as for lines. At the end the lines of the answers become columns beside those of the input.
//! The libraries for columns block, so they run on threads of their own.

mod blocking;

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use trireme_columns::{Batch, ColumnsError, Format, Layout, Table, Writer};

use crate::error::JobError;
use crate::files::Content;
use crate::jobs::Jobs;
use crate::objects::{self, Lease};
use crate::record::{File, Object, RowRequest};
use blocking::{Access, Parts, Sink, Stored};

/// Rows that are read and written together, at most.
const ROWS: usize = 512;

/// Bytes of answers that are written together, and of one more.
const TOGETHER: usize = 16 << 20;

/// Lines of batches of rows that wait for the batch's run.
const AHEAD: usize = 2;

/// Columns that become fields of the body under their own names, where the client names no others.
const FIELDS: [&str; 6] = ["input", "inputs", "text", "texts", "query", "documents"];

/// The format of a file of columns, by the end of its name; `None` for lines.
pub fn format(file: &File) -> Option<Format> {
    Format::of_name(&file.name)
}

/// The answers to rows, in the order of the rows.
struct Answers {
    /// Lines of the output and of the errors, with the number of the row of the next one.
    lines: [io::Lines<Parts>; 2],
    next: [Option<(u64, Value)>; 2],
    /// Bytes of the lines that were read.
    bytes: usize,
}

/// The number of rows of a file of columns whose rows can become requests; otherwise why they cannot. An error is one of the store.
pub async fn check(
    jobs: &Jobs,
    file: &File,
    format: Format,
    endpoint: &str,
    rows: &RowRequest,
) -> Result<Result<u64, String>, JobError> {
    let access = Access::of(jobs);
    let (source, endpoint, rows) = (Stored::of(&access, &file.objects), endpoint.to_owned(), rows.clone());
    let checking = move || {
        let table = Table::open(Arc::new(source), format).map_err(|error| error.to_string())?;
        let columns = rows.columns_of(&table, &endpoint)?;
        if let Some(first) = table.batches(0, 1).map_err(|error| error.to_string())?.next() {
            let first = first.map_err(|error| error.to_string())?;
            for column in columns.values() {
                first.json(column).map_err(|error| error.to_string())?;
            }
        }
        Layout::answers(&table).map_err(|error| error.to_string())?;
        Ok(table.rows())
    };
    let _waits = access.waits();
    let checked = tokio::task::spawn_blocking(checking).await;
    access.judge(checked.unwrap_or_else(|error| Err(format!("it cannot be read: {error}"))))
}

/// The lines of a file of columns, behind the first `before` rows.
pub fn lines(jobs: &Jobs, file: &File, format: Format, endpoint: &str, rows: &RowRequest, before: u64) -> Content {
    let (send, receive) = mpsc::channel::<Result<Bytes, JobError>>(AHEAD);
    let access = Access::of(jobs);
    let waits = access.waits();
    let (source, endpoint, rows) = (Stored::of(&access, &file.objects), endpoint.to_owned(), rows.clone());
    tokio::task::spawn_blocking(move || {
        let mut number = before;
        let mut total = before;
        let read = || {
            let table = Table::open(Arc::new(source), format).map_err(|error| error.to_string())?;
            total = table.rows();
            let columns = rows.columns_of(&table, &endpoint)?;
            for batch in table.batches(before, ROWS).map_err(|error| error.to_string())? {
                let batch = batch.map_err(|error| error.to_string())?;
                let text = rows.lines(&batch, &columns, &endpoint, number).map_err(|error| error.to_string())?;
                number += batch.rows() as u64;
                if send.blocking_send(Ok(text.into())).is_err() {
                    break;
                }
            }
            match number < total {
                true => Err(format!("it has {number} rows, but says that it has {total}")),
                false => Ok::<_, String>(()),
            }
        };
        let found = match access.judge(read()) {
            Ok(found) => found,
            // The batch goes on from its checkpoint later. An error says that nobody waits for the lines.
            Err(error) => return drop(send.blocking_send(Err(error))),
        };
        if let Err(why) = found {
            // Each row that cannot be read is an error of its own, which names the reason in place of a route.
            let url = format!("(the row cannot be read: {why})");
            for number in number + 1..=total {
                let line = format!("{}\n", json!({"custom_id": number.to_string(), "url": url, "body": {}}));
                if send.blocking_send(Ok(line.into())).is_err() {
                    break;
                }
            }
        }
    });
    Box::pin(futures_util::stream::unfold((receive, waits), |(mut receive, waits)| async move {
        let part = receive.recv().await?;
        Some((part, (receive, waits)))
    }))
}

/// Writes the rows of `file` with their answers as an object of the batch. Rows that have none say so. Otherwise gives the reason why the data
/// cannot be written. An error is one of the store.
pub async fn join(
    Lease { jobs, id }: Lease<'_>,
    file: &File,
    format: Format,
    [output, errors]: [&Object; 2],
    lapse: Option<Duration>,
) -> Result<Result<Object, String>, JobError> {
    let access = Access::of(jobs);
    let source = Stored::of(&access, &file.objects);
    let lines = [output, errors].map(|object| Parts::of(&access, object));
    let (jobs, id, writing) = (jobs.clone(), id.to_owned(), access.clone());
    let joining = move || {
        let object = Object { name: format!("{id}-columns"), ..Object::default() };
        let lease = Lease { jobs: &jobs, id: &id };
        let writer = objects::Writer::append(jobs.0.bus.as_ref(), object, lapse).leased(lease);
        let sink = Sink { access: writing, writer };
        let table = Table::open(Arc::new(source), format)?;
        let unreadable = |error: io::Error| ColumnsError::Unreadable { format, why: format!("the answers: {error}") };
        let mut answers = Answers::new(lines).map_err(unreadable)?;
        let width = answers.width();
        let layout = match width {
            Some(width) => Layout::of(&table, width)?,
            None => Layout::answers(&table)?,
        };
        let space = answers.space();
        let layout = layout.with_space(space.as_deref());
        let mut writer = Writer::new(format, &layout, sink)?;
        let mut number = 0;
        for batch in table.batches(0, ROWS)? {
            let batch = batch?;
            let mut from = 0;
            while from < batch.rows() {
                let own = answers.some(&mut number, batch.rows() - from).map_err(unreadable)?;
                let rows = batch.slice(from, own.len());
                from += own.len();
                let rows = match width {
                    Some(width) => {
                        let vectors: Vec<_> =
                            own.into_iter().map(|answer| vector(of_space(answer?, space.as_deref())?, width)).collect();
                        rows.with_vectors(&layout, &vectors)?
                    }
                    None => {
                        let text = |answer: Result<Value, String>| {
                            of_space(answer?, space.as_deref()).map(|answer| answer["response"]["body"].to_string())
                        };
                        let texts: Vec<_> = own.into_iter().map(text).collect();
                        rows.with_answers(&layout, &texts)?
                    }
                };
                writer.write(&rows)?;
            }
        }
        let sink = writer.finish()?;
        sink.finish().map_err(|error| ColumnsError::Unwritable { format, why: error.to_string() })
    };
    let _waits = access.waits();
    let joined = tokio::task::spawn_blocking(joining).await;
    access.judge(joined.map_err(|error| error.to_string()).and_then(|joined| joined.map_err(|error| error.to_string())))
}

/// The answer, if it is of this space, that of the first row: the metadata of a file has one space.
fn of_space(answer: Value, space: Option<&str>) -> Result<Value, String> {
    let found = answer["response"]["space"].as_str();
    match space {
        Some(space) if found != Some(space) => Err(match found {
            Some(found) => format!(
                "the answer has space '{found}', expected '{space}' as in the first row: ask for this row again"
            ),
            None => format!(
                "the answer does not tell its space, expected '{space}' as in the first row: ask for this row again"
            ),
        }),
        _ => Ok(answer),
    }
}

/// The vector of an answer to an embedding request, as numbers or in base64.
fn vector(answer: Value, width: usize) -> Result<Vec<f32>, String> {
    let data = &answer["response"]["body"]["data"];
    if data[0]["window"].is_u64() && data.as_array().is_some_and(|rows| rows.len() > 1) {
        return Err(format!(
            "the answer has {} vectors, one for each window, expected one for the row: ask for another 'fold' than 'keep', or send lines (JSONL)",
            data.as_array().map_or(0, Vec::len)
        ));
    }
    let found = embedding(&answer).ok_or("the answer has no vector")?;
    match found.len() == width {
        true => Ok(found),
        false => Err(format!("the answer has a vector of {} numbers, expected {width} as in other rows", found.len())),
    }
}

fn embedding(answer: &Value) -> Option<Vec<f32>> {
    use base64::Engine;
    match &answer["response"]["body"]["data"][0]["embedding"] {
        Value::Array(numbers) => numbers.iter().map(|number| number.as_f64().map(|number| number as f32)).collect(),
        Value::String(text) => {
            let bytes = base64::prelude::BASE64_STANDARD.decode(text).ok()?;
            Some(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
        }
        _ => None,
    }
}

// === impl RowRequest ===

impl RowRequest {
    /// The column of each field.
    fn columns_of(&self, table: &Table, endpoint: &str) -> Result<BTreeMap<String, String>, String> {
        let columns = match &self.columns {
            Some(columns) => columns.clone(),
            None => {
                let field = |column: &&str| match *column {
                    "text" if endpoint.ends_with("/embeddings") => "input".to_owned(),
                    column => column.to_owned(),
                };
                let there = FIELDS.iter().filter(|column| table.has(column));
                there.map(|column| (field(column), (*column).to_owned())).collect()
            }
        };
        if columns.is_empty() {
            return Err(format!(
                "no column is a field of the body: name them by 'columns', as in {{\"input\": \"COLUMN\"}}; there are {}",
                table.columns()
            ));
        }
        match columns.values().find(|column| !table.has(column)) {
            Some(column) => Err(format!("'columns' names '{column}', there are {}", table.columns())),
            None => Ok(columns),
        }
    }

    /// The lines of rows; `before` is the number of the row before the first of them. Cells that are null leave their fields
    /// out.
    fn lines(
        &self,
        batch: &Batch,
        columns: &BTreeMap<String, String>,
        endpoint: &str,
        before: u64,
    ) -> Result<String, ColumnsError> {
        let mut body = self.body.clone();
        if endpoint.ends_with("/embeddings") {
            body.entry("encoding_format").or_insert_with(|| "base64".into());
        }
        let mut bodies = vec![body; batch.rows()];
        for (field, column) in columns {
            for (body, cell) in bodies.iter_mut().zip(batch.json(column)?).filter(|(_, cell)| !cell.is_null()) {
                body.insert(field.clone(), cell);
            }
        }
        let line = |(number, body): (u64, Map<String, Value>)| {
            format!("{}\n", json!({"custom_id": number.to_string(), "url": endpoint, "body": body}))
        };
        Ok((before + 1..).zip(bodies).map(line).collect())
    }
}

// === impl Answers ===

impl Answers {
    fn new(lines: [Parts; 2]) -> io::Result<Answers> {
        let mut answers = Answers { lines: lines.map(BufRead::lines), next: [None, None], bytes: 0 };
        for from in 0..answers.lines.len() {
            answers.read(from)?;
        }
        Ok(answers)
    }

    /// The width of the first vector, if the answers are vectors.
    fn width(&self) -> Option<usize> {
        self.next[0].as_ref().and_then(|(_, answer)| embedding(answer)).map(|vector| vector.len())
    }

    /// The space of the first answer, if it tells one.
    fn space(&self) -> Option<String> {
        self.next[0].as_ref().and_then(|(_, answer)| Some(answer["response"]["space"].as_str()?.to_owned()))
    }

    fn read(&mut self, from: usize) -> io::Result<()> {
        self.next[from] = None;
        if let Some(line) = self.lines[from].next() {
            let line = line?;
            self.bytes += line.len();
            let answer: Value = serde_json::from_str(&line)?;
            let row = answer["custom_id"].as_str().and_then(|id| id.parse().ok());
            let row = row.ok_or_else(|| io::Error::other("a line has no number of a row for 'custom_id'"))?;
            self.next[from] = Some((row, answer));
        }
        Ok(())
    }

    /// The answers to the rows behind row `number`: to `most` rows, or fewer if they are large; one at least.
    fn some(&mut self, number: &mut u64, most: usize) -> io::Result<Vec<Result<Value, String>>> {
        let (mut all, until) = (Vec::new(), self.bytes.saturating_add(TOGETHER));
        while all.len() < most && (all.is_empty() || self.bytes < until) {
            *number += 1;
            all.push(self.of(*number)?);
        }
        Ok(all)
    }

    /// The answer to a row, or the reason why the row has no answer.
    fn of(&mut self, row: u64) -> io::Result<Result<Value, String>> {
        for from in 0..self.lines.len() {
            let Some((_, answer)) = self.next[from].take_if(|(number, _)| *number == row) else { continue };
            self.read(from)?;
            return Ok(match from {
                0 => Ok(answer),
                _ => Err(reason(&answer)),
            });
        }
        Ok(Err("the batch ended before this row".to_owned()))
    }
}

/// The content of a line of the error file.
fn reason(line: &Value) -> String {
    let body = &line["response"]["body"];
    let said = [&line["error"]["message"], &body["error"]["message"], &body["error"]];
    match said.into_iter().find_map(Value::as_str) {
        Some(message) => message.to_owned(),
        None => line["response"].to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_one_vector() {
        let answer = |rows: Value| json!({"response": {"body": {"data": rows}}});
        let of_window =
            |window: u64| json!({"index": 0, "window": window, "start": 0, "end": 3, "embedding": [1.0, 2.0]});
        assert_eq!(vector(answer(json!([of_window(0)])), 2), Ok(vec![1.0, 2.0]));
        let error = vector(answer(json!([of_window(0), of_window(1)])), 2).unwrap_err();
        assert!(
            error.starts_with("the answer has 2 vectors, one for each window, expected one for the row"),
            "{error}"
        );
        let narrow = vector(answer(json!([{"embedding": [1.0]}])), 2).unwrap_err();
        assert_eq!(narrow, "the answer has a vector of 1 numbers, expected 2 as in other rows");
    }
}
