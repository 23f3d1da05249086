//! `trireme bulk`: a file of texts in, a file of vectors out, through a running server's bulk lane.
//!
//! The output has one line for each line of the input, in the same order. So the lines that are there say where an earlier run has
//! stopped, and the next one goes on behind them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use serde_json::{Value, json};
use trireme_runtime::service;

use crate::client::{Answer, Client, ServerArgs};
use crate::output;

/// The header that puts requests into the bulk lane.
const BULK: (&str, &str) = ("priority", "u=7");

/// The pause before a request is sent again that the server could not take: the first one, which then doubles, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Time between two lines about the progress, on a terminal and elsewhere.
const TOLD: Duration = Duration::from_millis(500);
const TOLD_IN_LOGS: Duration = Duration::from_secs(30);

/// Groups of lines for each request in flight that may wait for an earlier group.
const AHEAD: usize = 4;

/// Flags of `trireme bulk`.
#[derive(Args)]
pub struct BulkArgs {
    /// File with a text in each line: as it is, as a JSON string, or as {"id": …, "text": …}
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// File for the vectors, a JSON object a line; an existing one is continued
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Model that embeds
    #[arg(long, value_name = "NAME")]
    model: String,

    #[command(flatten)]
    server: ServerArgs,

    /// Texts of a request
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    texts: u64,

    /// Requests in flight
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    window: u64,
}

/// A line of the input.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    id: Value,
    text: Result<String, String>,
}

/// Lines that are sent together, with their place among all groups.
struct Group {
    place: u64,
    lines: Vec<Line>,
}

/// A group's lines of the output.
struct Done {
    place: u64,
    text: String,
    lines: u64,
    errors: u64,
}

/// Why texts have no vectors.
#[derive(Debug, PartialEq)]
enum Refused {
    /// The server refuses these texts.
    Texts(String),
    /// The server would refuse every text: the key or the model is wrong.
    Everything(String),
}

/// How far the run is, for the terminal.
struct Progress {
    total: u64,
    before: u64,
    done: u64,
    errors: u64,
    began: Instant,
    told: Instant,
    is_terminal: bool,
}

/// Embeds a file. A failure says what to do.
pub fn run(args: &BulkArgs) -> ExitCode {
    match embed(args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => {
            let output = args.output.display();
            service::fail(&anyhow!("{errors} lines have no vector: {output} has the reasons"))
        }
        Err(error) => service::fail(&error),
    }
}

fn embed(args: &BulkArgs) -> anyhow::Result<u64> {
    let client = Client::new(&args.server)?;
    let open = || File::open(&args.input).with_context(|| format!("cannot read {}", args.input.display()));
    let total = BufReader::new(open()?).split(b'\n').try_fold(0, |count, line| line.map(|_| count + 1))?;
    let (output, before) = continued(&args.output)?;
    ensure!(before <= total, "{} has {before} lines, more than {}", args.output.display(), args.input.display());
    let lines = BufReader::new(open()?).split(b'\n').enumerate().skip(before as usize);
    let mut progress = Progress::new(total, before);
    let window = args.window as usize;
    let (send, waiting) = sync_channel::<Group>(window);
    let (finish, done) = sync_channel::<anyhow::Result<Done>>(window);
    // A place for each group that was read and not written.
    let (enter, leave) = sync_channel::<()>(AHEAD * window);
    let waiting = Mutex::new(waiting);
    let mut output = BufWriter::new(output);
    std::thread::scope(|threads| {
        let reader = threads.spawn(move || read(lines, args.texts as usize, &send, &enter));
        for _ in 0..window {
            let (client, waiting, finish) = (&client, &waiting, finish.clone());
            threads.spawn(move || work(client, &args.model, waiting, &finish));
        }
        drop(finish);
        let mut written = write(&done, &leave, &mut output, &mut progress);
        // Without their receivers the other threads end.
        drop((done, leave));
        if let Ok(Err(error)) = reader.join() {
            written = written.and(Err(error).with_context(|| format!("cannot read {}", args.input.display())));
        }
        written
    })?;
    progress.tell(true);
    Ok(progress.errors)
}

/// The output, open behind its last whole line, and the number of its lines.
fn continued(path: &Path) -> anyhow::Result<(File, u64)> {
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
    Ok((file, lines))
}

/// Groups lines until the end, or until nobody takes them.
fn read(
    lines: impl Iterator<Item = (usize, std::io::Result<Vec<u8>>)>,
    size: usize,
    send: &SyncSender<Group>,
    enter: &SyncSender<()>,
) -> std::io::Result<()> {
    let (mut group, mut place) = (Vec::with_capacity(size), 0);
    let mut pass = |lines: Vec<Line>| {
        let taken = enter.send(()).is_ok() && send.send(Group { place, lines }).is_ok();
        place += 1;
        taken
    };
    for (index, line) in lines {
        group.push(Line::of(index as u64 + 1, &line?));
        if group.len() == size && !pass(std::mem::take(&mut group)) {
            return Ok(());
        }
    }
    if !group.is_empty() {
        pass(group);
    }
    Ok(())
}

/// Sends groups until there are none.
fn work(client: &Client, model: &str, waiting: &Mutex<Receiver<Group>>, finish: &SyncSender<anyhow::Result<Done>>) {
    loop {
        let group = match waiting.lock() {
            Ok(waiting) => waiting.recv(),
            Err(_) => return,
        };
        let Ok(Group { place, lines }) = group else { return };
        let ask = |texts: &[&str]| vectors(client, model, texts);
        let done = outcomes(&lines, &ask).map(|outcomes| {
            let errors = outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64;
            let text = lines.iter().zip(outcomes).map(|(line, outcome)| line.result(outcome)).collect();
            Done { place, text, lines: lines.len() as u64, errors }
        });
        if finish.send(done).is_err() {
            return;
        }
    }
}

/// Writes the groups in their order. Ends with an error when the server would refuse every group; no line is written for that.
fn write(
    done: &Receiver<anyhow::Result<Done>>,
    leave: &Receiver<()>,
    output: &mut impl Write,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let (mut early, mut next) = (BTreeMap::new(), 0);
    for group in done {
        let group = group?;
        early.insert(group.place, group);
        while let Some(group) = early.remove(&next) {
            output.write_all(group.text.as_bytes()).and_then(|()| output.flush()).context("cannot write the output")?;
            let _ = leave.recv();
            next += 1;
            progress.done += group.lines;
            progress.errors += group.errors;
        }
        progress.tell(false);
    }
    Ok(())
}

/// The vector of each line, or the reason why the server gave no vector. A group that is refused is asked for line by line.
fn outcomes(
    lines: &[Line],
    ask: &impl Fn(&[&str]) -> Result<Vec<Value>, Refused>,
) -> anyhow::Result<Vec<Result<Value, String>>> {
    let vectors = |texts: &[&str]| match ask(texts) {
        Ok(vectors) => Ok(Ok(vectors.into_iter())),
        Err(Refused::Texts(why)) => Ok(Err(why)),
        Err(Refused::Everything(why)) => Err(anyhow!("{why}; the same command goes on once that is put right")),
    };
    let texts: Vec<&str> = lines.iter().filter_map(|line| line.text.as_deref().ok()).collect();
    let mut together = match texts.len() {
        0 | 1 => None,
        _ => vectors(&texts)?.ok(),
    };
    let first = |vectors: &mut std::vec::IntoIter<Value>| vectors.next().ok_or("no vector".to_owned());
    let outcome = |line: &Line| match (&line.text, &mut together) {
        (Err(why), _) => Ok(Err(why.clone())),
        (Ok(_), Some(vectors)) => Ok(first(vectors)),
        (Ok(text), None) => Ok(vectors(&[text])?.and_then(|mut vectors| first(&mut vectors))),
    };
    lines.iter().map(outcome).collect()
}

/// The vectors of texts. Asks again for as long as the server cannot be reached or has too much to do.
fn vectors(client: &Client, model: &str, texts: &[&str]) -> Result<Vec<Value>, Refused> {
    let body = json!({"model": model, "input": texts});
    let mut pause = FIRST_PAUSE;
    loop {
        let (why, after) = match client.try_post("/v1/embeddings", &[BULK], &body) {
            Ok(Answer { status: 200, body, .. }) => return read_vectors(body, texts.len()).map_err(Refused::Texts),
            Ok(Answer { status: status @ (408 | 429 | 502 | 503 | 504), retry_after, .. }) => {
                (format!("status {status}"), retry_after)
            }
            Ok(Answer { status, body, .. }) => {
                let error = &body["error"];
                let message = error["message"].as_str().or(error.as_str()).unwrap_or("no reason");
                let why = format!("status {status}: {message}");
                return Err(match status {
                    401 | 403 | 404 | 405 => Refused::Everything(why),
                    _ => Refused::Texts(why),
                });
            }
            Err(error) => (format!("{error:#}"), None),
        };
        if pause == FIRST_PAUSE * 8 {
            output::warn(&format!("the server takes no request now ({why}); trying on"));
        }
        std::thread::sleep(after.unwrap_or(pause).max(pause));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn read_vectors(mut body: Value, count: usize) -> Result<Vec<Value>, String> {
    let data = body["data"].as_array_mut().map(std::mem::take).unwrap_or_default();
    match data.len() == count {
        true => Ok(data.into_iter().map(|mut row| row["embedding"].take()).collect()),
        false => Err(format!("the server gave {} vectors for {count} texts", data.len())),
    }
}

// === impl Line ===

impl Line {
    /// The text and id in a line; the id of a line without one is its number.
    fn of(number: u64, line: &[u8]) -> Line {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let id = Value::from(number);
        let Ok(text) = std::str::from_utf8(line) else { return Line { id, text: Err("no UTF-8".to_owned()) } };
        match serde_json::from_str(text) {
            Ok(Value::String(text)) => Line { id, text: Ok(text) },
            Ok(Value::Object(mut fields)) => {
                let text = match fields.remove("text") {
                    Some(Value::String(text)) => Ok(text),
                    _ => Err("a JSON object without 'text'".to_owned()),
                };
                Line { id: fields.remove("id").unwrap_or(id), text }
            }
            _ => Line { id, text: Ok(text.to_owned()) },
        }
    }

    /// Its line of the output.
    fn result(&self, outcome: Result<Value, String>) -> String {
        let line = match outcome {
            Ok(vector) => json!({"id": self.id, "embedding": vector}),
            Err(error) => json!({"id": self.id, "error": error}),
        };
        format!("{line}\n")
    }
}

// === impl Progress ===

impl Progress {
    fn new(total: u64, before: u64) -> Progress {
        let (now, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        if before > 0 {
            eprintln!("goes on behind line {before} of {total}");
        }
        Progress { total, before, done: 0, errors: 0, began: now, told: now, is_terminal }
    }

    fn tell(&mut self, is_last: bool) {
        let every = if self.is_terminal { TOLD } else { TOLD_IN_LOGS };
        if !is_last && self.told.elapsed() < every {
            return;
        }
        self.told = Instant::now();
        let line = self.line(self.began.elapsed());
        match (self.is_terminal, is_last) {
            (true, false) => eprint!("\r\x1b[K{line}"),
            (true, true) => eprintln!("\r\x1b[K{line}"),
            (false, _) => eprintln!("{line}"),
        }
    }

    fn line(&self, took: Duration) -> String {
        let rate = self.done as f64 / took.as_secs_f64().max(1e-3);
        let (all, total) = (self.before + self.done, self.total);
        let left = (total - all) as f64 / rate.max(1e-3);
        let left = match left {
            _ if all == total => "done".to_owned(),
            left if left < 120.0 => format!("{left:.0} s left"),
            left if left < 7200.0 => format!("{:.0} min left", left / 60.0),
            left => format!("{:.1} h left", left / 3600.0),
        };
        format!("{all} of {total} texts, {rate:.0} texts/s, {} errors, {left}", self.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_names_one() {
        let of = |line: &str| Line::of(7, line.as_bytes());
        let line = |id: Value, text: &str| Line { id, text: Ok(text.to_owned()) };
        assert_eq!(of("a text\r"), line(json!(7), "a text"));
        assert_eq!(of("\"a \\\"text\\\"\""), line(json!(7), "a \"text\""));
        assert_eq!(of(r#"{"id": "x", "text": "a"}"#), line(json!("x"), "a"));
        assert_eq!(of(r#"{"text": "a"}"#), line(json!(7), "a"));
        assert_eq!(of("17"), line(json!(7), "17"), "a number is a text too");
        assert!(of(r#"{"id": 1}"#).text.is_err());
        assert!(Line::of(7, &[0xff]).text.is_err());
    }

    #[test]
    fn one_bad_text_costs_no_other_its_vector() {
        let lines: Vec<_> = ["a", "", "b"].map(|text| Line::of(1, text.as_bytes())).into();
        let ask = |texts: &[&str]| match texts.contains(&"") {
            true => Err(Refused::Texts("empty".to_owned())),
            false => Ok(texts.iter().map(|text| json!(text)).collect()),
        };
        assert_eq!(outcomes(&lines, &ask).unwrap(), [Ok(json!("a")), Err("empty".to_owned()), Ok(json!("b"))]);
    }

    #[test]
    fn a_wrong_model_is_no_fault_of_a_line() {
        let lines: Vec<_> = ["a", "b"].map(|text| Line::of(1, text.as_bytes())).into();
        let ask = |_: &[&str]| Err(Refused::Everything("status 404: no such model".to_owned()));
        let error = outcomes(&lines, &ask).unwrap_err().to_string();
        assert!(error.contains("no such model") && error.contains("goes on"), "{error}");
    }

    #[test]
    fn an_output_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        assert_eq!(continued(&path).unwrap().1, 0);
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let (mut file, lines) = continued(&path).unwrap();
        file.write_all(b"three\n").unwrap();
        assert_eq!((lines, std::fs::read_to_string(&path).unwrap().as_str()), (2, "one\ntwo\nthree\n"));
    }

    #[test]
    fn progress_names_the_rate_of_this_run() {
        let now = Instant::now();
        let progress =
            Progress { total: 1000, before: 400, done: 100, errors: 2, began: now, told: now, is_terminal: false };
        let line = progress.line(Duration::from_secs(10));
        assert_eq!(line, "500 of 1000 texts, 10 texts/s, 2 errors, 50 s left");
    }
}
