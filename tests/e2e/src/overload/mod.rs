//! Overload: more requests than the system can take, in an open loop, and their outcomes.
//!
//! Requests are sent at the times of a schedule, whether or not earlier ones were answered, as by many independent
//! callers. The latency of a result counts from the time at which its request was due, as its caller sees it. The
//! latency of a refusal counts from the time at which its request was sent: the harness has thousands of threads that
//! share the CPU with the system, and its delay is not the system's. Reports show both latencies.
//!
//! One step takes a fixed time, so that the system's capacity is known and only queueing is measured. A [`Scene`]
//! defines the steps around it, the bus, and what bounds the waiting: a short queue, or the deadline of each request in
//! front of a queue that is never full. The demanded figures are in `demands`.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Mode, ModelFolder, Request, Sandbox, Setup, Stage};

mod closed;
mod demands;

pub use closed::{Loop, Round};
pub use demands::{Demands, Summary};

/// Instances of the slow model. With the duration of a run they determine the system's capacity.
const WORKERS: usize = 3;

/// Size of a queue that bounds the waiting: an accepted request waits a fraction of a second.
const QUEUE: &str = "32";

/// Number of callers. Each waits for its answer, so there have to be more callers than requests in the system.
const CALLERS: usize = 2000;

/// How long after its deadline a result still counts as goodput.
const LATE: Duration = Duration::from_millis(100);

/// Stack size of a caller's thread.
const STACK: usize = 128 << 10;

/// The limit on how long requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The length of the queue: it holds 32 messages.
    Queue,
    /// A deadline this long after a request is sent; the queue has its default size.
    Deadline(Duration),
}

/// A system, and the limit on waiting in it.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The bus.
    pub mode: Mode,
    /// Whether the model is the second of four steps: after a tokenizer, before an encoder and a step of postprocess.
    pub pipeline: bool,
    /// The limit on waiting.
    pub bound: Bound,
    /// Duration of a run of the slow model.
    pub run: Duration,
}

/// The measurements at one load.
#[derive(Clone, Debug)]
pub struct Level {
    /// The scene.
    pub scene: Scene,
    /// Offered requests per second, as a multiple of the capacity.
    pub load: f64,
    /// Offered requests per second.
    pub offered: f64,
    /// Results per second; with deadlines, only those in time.
    pub goodput: f64,
    /// Requests per second that were refused because a queue was full: status 503.
    pub refused: f64,
    /// Requests per second whose time ran out: status 503.
    pub expired: f64,
    /// Results per second that came too late.
    pub late: f64,
    /// Number of other answers.
    pub other: usize,
    /// Latencies of results.
    pub result: Times,
    /// Latencies of refusals.
    pub refusal: Times,
    /// How long after their deadline callers got the answer that their time had run out: median and 99th percentile.
    pub overdue: [Duration; 2],
}

/// Latencies: each the median and the 99th percentile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Since the requests were due.
    pub due: [Duration; 2],
    /// Since they were sent.
    pub sent: [Duration; 2],
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
struct Call {
    end: End,
    /// When it was answered, since the beginning.
    at: Duration,
    /// Time since it was due.
    due: Duration,
    /// Time since it was sent.
    sent: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    Refused,
    Expired,
    Late,
    Other,
}

/// Offers each load, a multiple of the capacity, for `duration`, after a warm-up in which the queues fill.
///
/// # Panics
/// When the system does not become ready.
pub fn overload(scene: Scene, loads: &[f64], duration: Duration, mut progress: impl FnMut(&Level)) -> Vec<Level> {
    let (models, sandbox) = scene.start();
    let measure = |&load: &f64| {
        let level = scene.offer(&sandbox, load, duration);
        progress(&level);
        level
    };
    let levels = loads.iter().map(measure).collect();
    drop(models);
    levels
}

// === impl Bound ===

impl Bound {
    /// Whether a result that comes this long after its request was due counts as goodput.
    fn is_in_time(self, took: Duration) -> bool {
        match self {
            Bound::Queue => true,
            Bound::Deadline(timeout) => took <= timeout + LATE,
        }
    }
}

// === impl Scene ===

impl Scene {
    fn start(&self) -> (ModelFolder, Sandbox) {
        let instances = if self.mode == Mode::AllInOne { WORKERS } else { 1 };
        let tensors = match self.pipeline {
            true => [("0", "TYPE_INT64", "[-1, -1]"), ("1", "TYPE_INT64", "[-1, -1]")].to_vec(),
            false => [("0", "TYPE_FP32", "[-1]")].to_vec(),
        };
        let io = tensors.iter().map(|(n, datatype, dims)| {
            format!(
                "input [{{ name: 'INPUT{n}' data_type: {datatype} dims: {dims} }}]
                 output [{{ name: 'OUTPUT{n}' data_type: {datatype} dims: {dims} }}]"
            )
        });
        let slow = format!(
            "backend: 'identity' instance_group [{{ count: {instances} kind: KIND_CPU }}] {}
             parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
            io.collect::<String>(),
            self.run.as_millis()
        );
        let mut models = ModelFolder::new().model("slow", &slow);
        if self.pipeline {
            models = models.with_basic(&["tiny_tokenizer", "tiny_encoder", "tiny_pool"]).model("pipeline", PIPELINE);
        }
        let others = usize::from(self.pipeline);
        let setup = Setup::new(self.mode)
            .repository(models.path())
            .replicas(Stage::Tokenizer, others)
            .replicas(Stage::Postprocess, others)
            .replicas(Stage::Model, WORKERS);
        let setup = match self.bound {
            Bound::Queue => setup.queue_arguments(&["--queue-max-messages", QUEUE]),
            Bound::Deadline(_) => setup,
        };
        let sandbox = setup.start();
        (models, sandbox)
    }

    fn request(&self) -> Request {
        let (model, input) = match self.pipeline {
            true => ("pipeline", json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a short text"]})),
            false => ("slow", json!({"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]})),
        };
        let parameters = match self.bound {
            Bound::Queue => json!({}),
            Bound::Deadline(timeout) => json!({"trireme_timeout_ms": timeout.as_millis() as u64}),
        };
        Request::infer(model, &json!({"inputs": [input], "parameters": parameters}))
    }

    fn offer(&self, sandbox: &Sandbox, load: f64, duration: Duration) -> Level {
        let request = self.request();
        let rate = load * self.capacity();
        // In this time queues become full, or the oldest requests reach their deadline.
        let warm_up = match self.bound {
            Bound::Queue => Duration::from_secs(1),
            Bound::Deadline(timeout) => timeout,
        };
        let warm_up = warm_up + self.run * 5;
        let until = warm_up + duration;
        let (next, count) = (AtomicUsize::new(0), (rate * until.as_secs_f64()) as usize);
        let calls = Mutex::new(Vec::with_capacity(count));
        let started = Instant::now();
        let call = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                let due = Duration::from_secs_f64(number as f64 / rate);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
                let sent = started.elapsed();
                let answer = request.send(sandbox.address);
                let at = started.elapsed();
                let (due, sent) = (at.saturating_sub(due), at - sent);
                let end = match answer {
                    Ok(answer) if answer.status == 200 && self.bound.is_in_time(due) => End::Good,
                    Ok(answer) if answer.status == 200 => End::Late,
                    Ok(answer) if answer.status == 503 && answer.error().ends_with("queue size") => End::Refused,
                    Ok(answer) if answer.status == 503 && answer.error().contains("timeout expired") => End::Expired,
                    _ => End::Other,
                };
                calls.lock().expect("no holder panics").push(Call { end, at, due, sent });
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..CALLERS.min(count) {
                let caller = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, call);
                caller.expect("threads can be started");
            }
        });
        Level::of(*self, load, &calls.into_inner().expect("joined"), warm_up..until)
    }

    /// Requests per second that the system can process.
    fn capacity(&self) -> f64 {
        WORKERS as f64 / self.run.as_secs_f64()
    }
}

/// The models of `tiny_embedding`, with the slow model after the tokenizer.
const PIPELINE: &str = "platform: 'ensemble' max_batch_size: 0
    input [{ name: 'TEXT' data_type: TYPE_STRING dims: [-1] }]
    output [{ name: 'embedding' data_type: TYPE_FP32 dims: [-1, 8] }]
    ensemble_scheduling { step [
        { model_name: 'tiny_tokenizer' model_version: -1 input_map { key: 'TEXT' value: 'TEXT' }
          output_map [{ key: 'input_ids' value: 'ids' }, { key: 'attention_mask' value: 'mask' }] },
        { model_name: 'slow' model_version: -1
          input_map [{ key: 'INPUT0' value: 'ids' }, { key: 'INPUT1' value: 'mask' }]
          output_map [{ key: 'OUTPUT0' value: 'same_ids' }, { key: 'OUTPUT1' value: 'same_mask' }] },
        { model_name: 'tiny_encoder' model_version: -1
          input_map [{ key: 'input_ids' value: 'same_ids' }, { key: 'attention_mask' value: 'same_mask' }]
          output_map { key: 'last_hidden_state' value: 'states' } },
        { model_name: 'tiny_pool' model_version: -1
          input_map [{ key: 'last_hidden_state' value: 'states' }, { key: 'attention_mask' value: 'same_mask' }]
          output_map { key: 'embedding' value: 'embedding' } }
    ] }";

fn percentiles(times: impl Iterator<Item = Duration>) -> [Duration; 2] {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    [0.5, 0.99].map(|share| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default())
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.pipeline { "pipeline" } else { "model" };
        let bus = if self.mode == Mode::Services { "over NATS" } else { "in one process" };
        match self.bound {
            Bound::Queue => write!(f, "{what} {bus}, short queue"),
            Bound::Deadline(timeout) => write!(f, "{what} {bus}, {} s each", timeout.as_secs_f32()),
        }
    }
}

// === impl Level ===

impl Level {
    /// The head of a table whose lines are levels.
    pub const HEAD: &str = "                                                                        \
        result: since due / sent       refusal: since sent / due     overdue
 load   offered/s   goodput/s   refused/s   expired/s  late/s  other   \
        p50 ms   p99 ms   p99 ms     p50 ms   p99 ms   p99 ms      p99 ms";

    /// Summarises the requests that were answered in `during`.
    fn of(scene: Scene, load: f64, calls: &[Call], during: Range<Duration>) -> Level {
        let ended = |of: End| calls.iter().filter(move |call| call.end == of);
        let measured = |of: End| ended(of).filter(|call| during.contains(&call.at));
        let a_second = |of: End| measured(of).count() as f64 / (during.end - during.start).as_secs_f64();
        let times = |of: End| Times {
            due: percentiles(measured(of).map(|call| call.due)),
            sent: percentiles(measured(of).map(|call| call.sent)),
        };
        let timeout = match scene.bound {
            Bound::Queue => Duration::ZERO,
            Bound::Deadline(timeout) => timeout,
        };
        Level {
            scene,
            load,
            offered: load * scene.capacity(),
            goodput: a_second(End::Good),
            refused: a_second(End::Refused),
            expired: a_second(End::Expired),
            late: a_second(End::Late),
            other: ended(End::Other).count(),
            result: times(End::Good),
            refusal: times(End::Refused),
            overdue: percentiles(measured(End::Expired).map(|call| call.sent.saturating_sub(timeout))),
        }
    }

    /// The same as an object for programs; times in milliseconds.
    pub fn json(&self) -> Value {
        json!({
            "scene": self.scene.to_string(), "load": self.load, "offered": self.offered, "goodput": self.goodput,
            "refused": self.refused, "expired": self.expired, "late": self.late, "other": self.other,
            "latency_ms": self.result.due.map(millis), "latency_since_sent_ms": self.result.sent.map(millis),
            "refusal_ms": self.refusal.sent.map(millis), "refusal_since_due_ms": self.refusal.due.map(millis),
            "overdue_ms": self.overdue.map(millis),
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Level { load, offered, goodput, refused, expired, late, other, result, refusal, overdue, .. } = self;
        write!(f, "{load:>5.2}{offered:>12.1}{goodput:>12.1}{refused:>12.1}{expired:>12.1}{late:>8.1}{other:>7}   ")?;
        for time in [result.due[0], result.due[1], result.sent[1]] {
            write!(f, "{:>9.1}", millis(time))?;
        }
        write!(f, "  ")?;
        for time in [refusal.sent[0], refusal.sent[1], refusal.due[1]] {
            write!(f, "{:>9.2}", millis(time))?;
        }
        write!(f, "{:>12.1}", millis(overdue[1]))
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
