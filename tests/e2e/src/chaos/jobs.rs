//! Durable work beside the load: requests that are answered later, and batches over a file, one after the other.
//!
//! A request that a gateway has accepted with 202, and a batch with 200, have to get their answers, whatever fails meanwhile. There is no deadline: a client
//! of durable work sends again until it is accepted, and looks until there is an answer. The answer to a request stays the same, and a
//! batch's output has every line once, in the order of the file. Right answers are known without a quiet run: they were computed without
//! the product.
//!
//! Not here: the requests and their right answers (`questions`).

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Error, ErrorKind, Read, Result};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ask;
use super::member::Doors;
use super::questions::{Question, Verdict};
use crate::{Golden, Request, Response};

/// Clients that send durable requests: how many requests each of them sends at once, and its pause after them. Gateways write the records of
/// requests that come at once in groups.
const CLIENTS: [(usize, Duration); 5] = {
    let single = (1, Duration::from_millis(50));
    [single, single, single, single, (80, Duration::from_secs(2))]
};

/// How long one call may be refused or broken off before the client complains: longer than any fault.
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// How long the store may not know an accepted request or batch: a broker that was cut off answers from its own copy.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(40);

/// How long there may be no answer at all, and how long a batch may stand still.
const SILENCE: Duration = Duration::from_secs(180);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_millis(50);

/// The route of the lines, whose model is that of [`Question::line`].
const ENDPOINT: &str = "/v2/models/tiny_embedding/infer";

/// Complaints about the lines of one batch that are kept.
const COMPLAINTS: usize = 5;

/// The outcome of durable work.
#[derive(Debug, Default)]
pub(super) struct JobTally {
    /// Durable requests that were accepted.
    pub accepted: usize,
    /// Number of them with one answer, the right one.
    pub answered: usize,
    /// Batches whose output was whole, in order and right.
    pub batches: usize,
    /// Their lines.
    pub lines: usize,
    /// Everything that went wrong.
    pub complaints: Vec<String>,
}

/// The phase of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// They begin more and more.
    Begin,
    /// They begin nothing more, and wait for the accepted work.
    Finish,
    /// The run is broken off: they wait for nothing.
    GiveUp,
}

/// The clients of durable work.
pub(super) struct Jobs<'a> {
    doors: &'a Doors,
    golden: &'a [Golden],
    lines: usize,
    next: AtomicUsize,
    door: AtomicUsize,
    phase: AtomicU8,
    tally: Mutex<JobTally>,
}

/// The outcome of a look at a durable request.
enum Look {
    /// No answer so far.
    Waits,
    /// The store knows no such request.
    Unknown,
    /// A right answer, as a digest.
    Right(u64),
    /// Anything else; it is in the complaints.
    Wrong,
}

// === impl Jobs ===

impl<'a> Jobs<'a> {
    /// Clients whose batches have so many lines; none with 0.
    pub fn new(doors: &'a Doors, golden: &'a [Golden], lines: usize) -> Jobs<'a> {
        let (next, door) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Jobs { doors, golden, lines, next, door, phase: AtomicU8::new(Phase::Begin as u8), tally: Mutex::default() }
    }

    /// Starts the clients.
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Vec<ScopedJoinHandle<'scope, ()>> {
        if self.lines == 0 {
            return Vec::new();
        }
        let requests = CLIENTS.map(|(at_once, pause)| scope.spawn(move || self.requests(at_once, pause))).into_iter();
        requests.chain([scope.spawn(|| self.batches())]).collect()
    }

    /// The clients begin nothing more. They wait for the accepted work, unless the run was broken off.
    pub fn stop(&self, is_broken_off: bool) {
        let phase = if is_broken_off { Phase::GiveUp } else { Phase::Finish };
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// The outcome; `None` without durable work.
    pub fn into_tally(self) -> Option<JobTally> {
        (self.lines > 0).then(|| self.tally.into_inner().expect("no holder panics"))
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn note(&self, note: impl FnOnce(&mut JobTally)) {
        note(&mut self.tally.lock().expect("no holder panics"));
    }

    fn complain(&self, text: String) {
        // A run that was broken off has a reason of its own.
        if !self.is(Phase::GiveUp) {
            self.note(|tally| tally.complaints.push(text));
        }
    }

    /// Sends durable requests, and looks at those that wait for their answer. In the end each answer is read a second time.
    fn requests(&self, at_once: usize, pause: Duration) {
        let (mut waiting, mut right) = (VecDeque::new(), Vec::new());
        while self.is(Phase::Begin) {
            let accepted = std::thread::scope(|scope| {
                let accept = || {
                    let number = self.next.fetch_add(1, Ordering::Relaxed);
                    self.accept(number).map(|location| (number, location, None))
                };
                let sent: Vec<_> = (0..at_once).map(|_| scope.spawn(accept)).collect();
                sent.into_iter().filter_map(|sent| sent.join().expect("it does not panic")).collect::<Vec<_>>()
            });
            waiting.extend(accepted);
            (0..at_once).for_each(|_| self.look_at_first(&mut waiting, &mut right));
            std::thread::sleep(pause);
        }
        let (mut count, mut moved) = (waiting.len(), Instant::now());
        while !waiting.is_empty() && !self.is(Phase::GiveUp) {
            self.look_at_first(&mut waiting, &mut right);
            if waiting.len() < count {
                (count, moved) = (waiting.len(), Instant::now());
            }
            if moved.elapsed() > SILENCE {
                let numbers: Vec<_> = waiting.iter().take(COMPLAINTS).map(|(number, ..)| number).collect();
                return self.complain(format!("{count} durable requests have no answer, such as {numbers:?}"));
            }
            std::thread::sleep(RETRY / 10);
        }
        for (number, location, digest) in right {
            if self.is(Phase::GiveUp) {
                return;
            }
            match self.look(number, &location) {
                Look::Right(again) if again == digest => self.note(|tally| tally.answered += 1),
                Look::Right(_) => self.complain(format!("{number}: a second answer in place of the first one")),
                Look::Waits | Look::Unknown => self.complain(format!("{number}: its answer is gone ({location})")),
                Look::Wrong => {}
            }
        }
    }

    /// Looks at the request that was looked at least recently. `waiting` has since when the store does not know a request.
    fn look_at_first(
        &self,
        waiting: &mut VecDeque<(usize, String, Option<Instant>)>,
        right: &mut Vec<(usize, String, u64)>,
    ) {
        let Some((number, location, unknown)) = waiting.pop_front() else { return };
        match self.look(number, &location) {
            Look::Waits => waiting.push_back((number, location, None)),
            Look::Unknown => match unknown.unwrap_or_else(Instant::now) {
                since if since.elapsed() > UNKNOWN_LIMIT => {
                    self.complain(format!("{number}: lost, although it was accepted ({location})"))
                }
                since => waiting.push_back((number, location, Some(since))),
            },
            Look::Right(digest) => right.push((number, location, digest)),
            Look::Wrong => {}
        }
    }

    /// Sends a request until it is accepted; returns where its answer will be.
    fn accept(&self, number: usize) -> Option<String> {
        let request = ask::request(&Question::durable(number, self.golden))
            .header("Prefer", "respond-async")
            .header("Idempotency-Key", &format!("chaos-{number}"));
        let answer = self.call(&format!("durable request {number}"), |address| request.send(address))?;
        match (answer.status, answer.header("location")) {
            (202, Some(location)) => {
                self.note(|tally| tally.accepted += 1);
                Some(location.to_owned())
            }
            (status, _) => {
                self.complain(format!("{number}: not accepted: {status} {}", answer.text()));
                None
            }
        }
    }

    fn look(&self, number: usize, location: &str) -> Look {
        let request = Request::get(&format!("{location}/response"));
        let what = format!("the answer to durable request {number}");
        let Some(answer) = self.call(&what, |address| request.send(address)) else { return Look::Wrong };
        let question = Question::durable(number, self.golden);
        match answer.status {
            202 => Look::Waits,
            404 => Look::Unknown,
            _ if question.judge(&ask::read(&question, &answer)) == Verdict::Right => {
                let mut digest = DefaultHasher::new();
                answer.body.hash(&mut digest);
                Look::Right(digest.finish())
            }
            status => {
                let text: String = answer.text().chars().take(300).collect();
                self.complain(format!("{number} ({}): {status} {text}", question.model));
                Look::Wrong
            }
        }
    }

    /// Runs batches over one file, one after the other; at least one, because the load may be over before the file is there.
    fn batches(&self) {
        let Some(file) = self.upload() else { return };
        let (mut has_run, mut unknown) = (false, None);
        while self.is(Phase::Begin) || !(has_run || self.is(Phase::GiveUp)) {
            let body = json!({"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"});
            let request = Request::post("/v1/batches", body.to_string());
            let Some(begun) = self.call("a batch", |address| request.send(address)) else { return };
            let id = match (begun.status, begun.json()["id"].as_str()) {
                (200, Some(id)) => id.to_owned(),
                // A broker that was cut off may not have the file yet.
                (404 | 400, _) if !self.is(Phase::GiveUp) => {
                    if unknown.get_or_insert_with(Instant::now).elapsed() > UNKNOWN_LIMIT {
                        return self.complain(format!("file {file} is lost, although it was accepted"));
                    }
                    std::thread::sleep(LOOK);
                    continue;
                }
                (status, _) => return self.complain(format!("no batch is begun: {status} {}", begun.text())),
            };
            let Some(batch) = self.ended(&id) else { return };
            self.check(&batch);
            (has_run, unknown) = (true, None);
        }
    }

    fn upload(&self) -> Option<String> {
        let lines: String = (0..self.lines).map(|number| self.line(number)).collect();
        let form = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: \
             form-data; name=\"file\"; filename=\"lines.jsonl\"\r\nContent-Type: application/jsonl\r\n\r\n{lines}\r\n--edge--\r\n"
        );
        let request = Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=edge");
        let answer = self.call("a file", |address| request.send(address))?;
        let id = answer.json()["id"].as_str().map(str::to_owned);
        if id.is_none() {
            self.complain(format!("a file is not taken: {} {}", answer.status, answer.text()));
        }
        id
    }

    fn line(&self, number: usize) -> String {
        let body = ask::body(&Question::line(number, self.golden), false);
        let line = json!({"custom_id": number.to_string(), "method": "POST", "url": ENDPOINT, "body": body});
        format!("{line}\n")
    }

    /// The record of a batch that has ended; `None`, with a complaint, if it stands still.
    fn ended(&self, id: &str) -> Option<Value> {
        let request = Request::get(&format!("/v1/batches/{id}"));
        let (mut before, mut moved) = (Value::Null, Instant::now());
        let mut unknown = None;
        while !self.is(Phase::GiveUp) {
            let answer = self.call("the state of a batch", |address| request.send(address))?;
            if answer.status == 404 {
                if unknown.get_or_insert_with(Instant::now).elapsed() > UNKNOWN_LIMIT {
                    self.complain(format!("batch {id} is lost, although it was accepted"));
                    return None;
                }
                std::thread::sleep(LOOK);
                continue;
            }
            unknown = None;
            let batch = answer.json();
            if ["completed", "failed", "expired", "cancelled"].contains(&batch["status"].as_str().unwrap_or_default()) {
                return Some(batch);
            }
            if batch["request_counts"] != before {
                (before, moved) = (batch["request_counts"].clone(), Instant::now());
            }
            if moved.elapsed() > SILENCE {
                self.complain(format!("batch {id} stands still: {batch}"));
                return None;
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    /// Checks the output of a batch, and deletes it.
    fn check(&self, batch: &Value) {
        let lines = self.lines;
        let all = json!({"total": lines, "completed": lines, "failed": 0});
        let output = match (batch["status"].as_str(), batch["output_file_id"].as_str()) {
            (Some("completed"), Some(output)) if batch["request_counts"] == all => output,
            _ => {
                return self
                    .complain(format!("a batch of {lines} lines ended as {batch}; {}", self.first_error(batch)));
            }
        };
        let request = Request::get(&format!("/v1/files/{output}/content"));
        let Some(content) = self.call("the output of a batch", |address| whole(&request, address)) else { return };
        let (mut wrong, mut count) = (Vec::new(), 0);
        for (number, line) in content.text().lines().enumerate() {
            count += 1;
            if let Some(why) = self.wrong(number, line)
                && wrong.len() < COMPLAINTS
            {
                wrong.push(why);
            }
        }
        if count != lines {
            wrong.push(format!("the output has {count} lines, expected {lines}"));
        }
        if wrong.is_empty() {
            self.note(|tally| (tally.batches, tally.lines) = (tally.batches + 1, tally.lines + lines));
        }
        wrong.into_iter().for_each(|why| self.complain(why));
        let delete = Request::new("DELETE", &format!("/v1/files/{output}"));
        // The file of an answer that got lost is deleted already.
        if let Some(deleted) = self.call("the end of a file", |address| delete.send(address))
            && ![200, 404].contains(&deleted.status)
        {
            self.complain(format!("the output cannot be deleted: {} {}", deleted.status, deleted.text()));
        }
    }

    /// Why a line of the output is wrong; `None` if it is right.
    fn wrong(&self, number: usize, line: &str) -> Option<String> {
        let found: Value = match serde_json::from_str(line) {
            Ok(found) => found,
            Err(error) => return Some(format!("line {number} of the output is no JSON ({error})")),
        };
        if found["custom_id"].as_str() != Some(&*number.to_string()) {
            return Some(format!("line {number} of the output is that of {}", found["custom_id"]));
        }
        let (response, question) = (&found["response"], Question::line(number, self.golden));
        let status = response["status_code"].as_u64().and_then(|status| status.try_into().ok()).unwrap_or(0);
        let body = response["body"].to_string().into_bytes();
        let said = ask::read(&question, &Response { status, headers: Vec::new(), body, rest: Vec::new() });
        (question.judge(&said) != Verdict::Right).then(|| format!("line {number} of the output is wrong: {line}"))
    }

    /// The first line of a batch's errors, for a complaint.
    fn first_error(&self, batch: &Value) -> String {
        let Some(errors) = batch["error_file_id"].as_str() else { return "it has no errors".to_owned() };
        let request = Request::get(&format!("/v1/files/{errors}/content"));
        let content = self.call("the errors of a batch", |address| whole(&request, address));
        content.map(|content| content.text().chars().take(400).collect()).unwrap_or_default()
    }

    /// Sends a request until a gateway answers anything but that it cannot be served right now, for a limited time.
    fn call(&self, what: &str, send: impl Fn(SocketAddr) -> Result<Response>) -> Option<Response> {
        let give_up = Instant::now() + CALL_LIMIT;
        let mut last = "no gateway is open".to_owned();
        while Instant::now() < give_up && !self.is(Phase::GiveUp) {
            let number = self.door.fetch_add(1, Ordering::Relaxed);
            let address = {
                let doors = self.doors.lock().expect("no holder panics");
                (!doors.is_empty()).then(|| doors[number % doors.len()].http)
            };
            match address.map(&send) {
                Some(Ok(answer)) if ![429, 503].contains(&answer.status) => return Some(answer),
                Some(Ok(answer)) => last = answer.text(),
                Some(Err(error)) => last = error.to_string(),
                None => {}
            }
            std::thread::sleep(RETRY);
        }
        self.complain(format!("{what}: no gateway takes it for {} s: {last}", CALL_LIMIT.as_secs()));
        None
    }
}

/// Sends a request whose answer is large.
fn whole(request: &Request, address: SocketAddr) -> Result<Response> {
    let mut received = Vec::new();
    request.start(address)?.read_to_end(&mut received)?;
    Response::parse(&received)?.ok_or_else(|| Error::new(ErrorKind::UnexpectedEof, "the answer broke off"))
}
