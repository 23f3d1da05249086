//! Steady load whose answers are checked one by one.
//!
//! A client does what a load balancer and a patient caller do together: it sends a request to a gateway that is not
//! closing; when the connection breaks because that gateway was killed or told to end, it sends the request to another.
//! Nothing else is repeated.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::cluster::{Door, Doors};
use crate::{Golden, ModelFolder, Request, Response};

/// How long a caller waits in all. Gateways answer at the deadline, which is sooner.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause of a client that finds no open door.
const NO_DOOR: Duration = Duration::from_millis(5);

/// How far numbers may be from what was computed elsewhere.
const TOLERANCE: f32 = 1e-5;

/// What became of all requests.
#[derive(Debug, Default)]
pub struct Tally {
    /// Answered as they should be: when, counted from the start of the load.
    pub right: Vec<Duration>,
    /// Answered with something else, under status 200.
    pub wrong: Vec<String>,
    /// Not answered, or answered that their deadline has passed.
    pub lost: Vec<String>,
    /// More than one answer on one connection.
    pub doubled: Vec<String>,
    /// Answered with an error before their deadline.
    pub failed: Vec<String>,
    /// Connections that broke although their gateway was not closing.
    pub broken: Vec<String>,
    /// Sent again because their gateway was killed or told to end.
    pub moved: usize,
    /// The longest that one took.
    pub slowest: Duration,
}

/// The load.
pub struct Clients<'a> {
    doors: &'a Doors,
    golden: &'a [Golden],
    started: Instant,
    /// Time from one request to the next, all clients together; zero is as fast as answers come.
    pace: Duration,
    next: AtomicUsize,
    enough: AtomicBool,
    tally: Mutex<Tally>,
}

/// What one attempt brought.
enum Attempt {
    Answer(Response, bool),
    Broken(String),
}

/// The models that the load asks for: three stages, one after the other, and one that takes its time.
pub fn models() -> ModelFolder {
    ModelFolder::basic(&["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"]).slow("slow", 2)
}

// === impl Clients ===

impl<'a> Clients<'a> {
    /// Clients of this cluster.
    pub fn new(doors: &'a Doors, golden: &'a [Golden]) -> Clients<'a> {
        Clients {
            doors,
            golden,
            started: Instant::now(),
            pace: Duration::ZERO,
            next: AtomicUsize::new(0),
            enough: AtomicBool::new(false),
            tally: Mutex::default(),
        }
    }

    /// The same with this many requests per second, all clients together, and no more.
    pub fn at_rate(self, rate: f64) -> Clients<'a> {
        Clients { pace: Duration::from_secs_f64(1.0 / rate), ..self }
    }

    /// One client: request after request until it is enough.
    pub fn run(&self) {
        while !self.enough.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let due = self.pace.mul_f64(number as f64);
            std::thread::sleep(due.saturating_sub(self.elapsed()));
            self.request(number);
        }
    }

    /// No more requests; those on their way are waited for.
    pub fn stop(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Requests answered so far.
    pub fn answered(&self) -> usize {
        self.tally.lock().expect("no holder panics").right.len()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What became of the requests.
    pub fn into_tally(self) -> Tally {
        self.tally.into_inner().expect("no holder panics")
    }

    /// Sends one request until it is answered, and notes how that went.
    fn request(&self, number: usize) {
        let (request, output, expected) = self.question(number);
        let started = Instant::now();
        let mut moved = 0;
        let (answer, more) = loop {
            let Some(door) = self.door(number + moved) else {
                if started.elapsed() > PATIENCE {
                    return self.note(started, moved, |tally| tally.lost.push(format!("{number}: no gateway")));
                }
                std::thread::sleep(NO_DOOR);
                continue;
            };
            match attempt(&request, &door) {
                Attempt::Answer(answer, more) => break (answer, more),
                Attempt::Broken(_) if door.closing.load(Ordering::SeqCst) && started.elapsed() < PATIENCE => moved += 1,
                Attempt::Broken(reason) => {
                    return self.note(started, moved, |tally| tally.broken.push(format!("{number}: {reason}")));
                }
            }
        };
        self.note(started, moved, |tally| {
            let text = || format!("{number}: {} {}", answer.status, answer.text());
            if more {
                tally.doubled.push(text());
            }
            match answer.status {
                200 if is_right(&answer, output, &expected) => tally.right.push(self.started.elapsed()),
                200 => tally.wrong.push(text()),
                _ if answer.text().contains("timeout expired") => tally.lost.push(text()),
                _ => tally.failed.push(text()),
            }
        });
    }

    fn note(&self, started: Instant, moved: usize, note: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.lock().expect("no holder panics");
        tally.moved += moved;
        tally.slowest = tally.slowest.max(started.elapsed());
        note(&mut tally);
    }

    fn door(&self, number: usize) -> Option<std::sync::Arc<Door>> {
        let doors = self.doors.lock().expect("no holder panics");
        (!doors.is_empty()).then(|| doors[number % doors.len()].clone())
    }

    /// The request of this number, its output, and what that has to hold.
    fn question(&self, number: usize) -> (Request, &'static str, Vec<f32>) {
        if number.is_multiple_of(2) {
            let golden = |index: usize| &self.golden[(number / 2 + index) % self.golden.len()];
            let wanted: Vec<&Golden> = (0..=number % 3).map(golden).collect();
            let texts: Vec<&str> = wanted.iter().map(|golden| golden.text.as_str()).collect();
            let body =
                json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts}]});
            let expected = wanted.iter().flat_map(|golden| golden.embedding.clone()).collect();
            (Request::infer("tiny_embedding", &body), "embedding", expected)
        } else {
            let data = vec![number as f32, -1.0];
            let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": data}]});
            (Request::infer("slow", &body), "OUTPUT0", data)
        }
    }
}

fn attempt(request: &Request, door: &Door) -> Attempt {
    let exchange = || -> std::io::Result<(Response, bool)> {
        let mut stream = request.start(door.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let answer = Response::read(&mut stream)?;
        Ok((answer, anything_left(&mut stream)))
    };
    match exchange() {
        Ok((answer, more)) => Attempt::Answer(answer, more),
        Err(error) => Attempt::Broken(error.to_string()),
    }
}

/// Whether more comes on a connection whose request has been answered. The server closes it, so this does not wait long.
fn anything_left(stream: &mut TcpStream) -> bool {
    let _ = stream.flush();
    let mut byte = [0];
    matches!(stream.read(&mut byte), Ok(length) if length > 0)
}

fn is_right(answer: &Response, output: &str, expected: &[f32]) -> bool {
    let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let found = json["outputs"].as_array().into_iter().flatten().find(|found| found["name"] == output);
    let numbers: Vec<f32> = found
        .and_then(|found| found["data"].as_array())
        .map(|data| data.iter().filter_map(|number| Some(number.as_f64()? as f32)).collect())
        .unwrap_or_default();
    numbers.len() == expected.len() && numbers.iter().zip(expected).all(|(a, b)| (a - b).abs() <= TOLERANCE)
}

/// Starts `count` clients in `scope`.
pub fn start<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, clients: &'scope Clients<'_>, count: usize) {
    for _ in 0..count {
        scope.spawn(|| clients.run());
    }
}
