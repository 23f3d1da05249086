//! Overload: more requests than the system can take, in an open loop, and what becomes of them.
//!
//! Requests are sent at the times a schedule gives, answered or not, as a crowd of independent callers does, and an answer
//! counts from when its request was due. One step takes a fixed time, so that the system's capacity is known and nothing
//! but queueing is seen. A [`Scene`] says what stands around that step, which bus there is, and what bounds the waiting: a
//! short queue, or the deadline of each request before a queue that is never full.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Mode, ModelFolder, Request, Sandbox, Setup, Stage};

/// Instances of the model that takes its time. That time and they together say what the system can do.
const WORKERS: usize = 3;

/// Messages that a queue holds where it bounds the waiting: a request that gets in waits a fraction of a second.
const QUEUE: &str = "32";

/// Callers. Each waits for its answer, so there have to be more than the system holds requests.
const CALLERS: usize = 2000;

/// What a caller's thread needs.
const STACK: usize = 128 << 10;

/// What bounds how long requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The queue: it holds 32 messages.
    Queue,
    /// The deadline, so long after a request is sent; the queue is as large as it is by default.
    Deadline(Duration),
}

/// A system and what bounds the waiting in it.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The bus.
    pub mode: Mode,
    /// Whether the model is the second of four steps: after a tokenizer, before an encoder and a step of postprocess.
    pub pipeline: bool,
    /// What bounds the waiting.
    pub bound: Bound,
    /// How long the model takes.
    pub run: Duration,
}

/// What was measured at one load.
#[derive(Clone, Debug)]
pub struct Level {
    /// Where.
    pub scene: Scene,
    /// Requests offered a second, as a multiple of what the system can do.
    pub load: f64,
    /// Requests offered a second.
    pub offered: f64,
    /// Requests answered with a result a second.
    pub goodput: f64,
    /// Requests refused a second because a queue was full: status 503.
    pub refused: f64,
    /// Requests a second whose time ran out: status 503.
    pub expired: f64,
    /// Anything else.
    pub other: usize,
    /// Latencies of results: median and 99th percentile.
    pub latency: [Duration; 2],
    /// Latencies of refusals, likewise.
    pub refusal: [Duration; 2],
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    Refused,
    Expired,
    Other,
}

/// Offers each load, a multiple of what the system can do, for `duration`, after as long as it takes to get full.
///
/// # Panics
/// When the system does not get ready.
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
            Bound::Queue => setup.worker_arguments(&["--queue-max-messages", QUEUE]),
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
            Bound::Deadline(timeout) => json!({"timeout": timeout.as_micros() as u64}),
        };
        Request::infer(model, &json!({"inputs": [input], "parameters": parameters}))
    }

    fn offer(&self, sandbox: &Sandbox, load: f64, duration: Duration) -> Level {
        let request = self.request();
        let rate = load * WORKERS as f64 / self.run.as_secs_f64();
        // Queues get full in that time, or as old as they get.
        let warm_up = match self.bound {
            Bound::Queue => Duration::from_secs(1),
            Bound::Deadline(timeout) => timeout,
        };
        let warm_up = warm_up + self.run * 5;
        let until = warm_up + duration;
        let (next, count) = (AtomicUsize::new(0), (rate * until.as_secs_f64()) as usize);
        let ends = Mutex::new(Vec::with_capacity(count));
        let started = Instant::now();
        let call = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                let due = Duration::from_secs_f64(number as f64 / rate);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
                let end = match request.send(sandbox.address) {
                    Ok(answer) if answer.status == 200 => End::Good,
                    Ok(answer) if answer.status == 503 && answer.error().ends_with("queue size") => End::Refused,
                    Ok(answer) if answer.status == 503 && answer.error().ends_with("timeout expired") => End::Expired,
                    _ => End::Other,
                };
                let at = started.elapsed();
                ends.lock().expect("no holder panics").push((end, at, at.saturating_sub(due)));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..CALLERS.min(count) {
                let caller = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, call);
                caller.expect("threads can be started");
            }
        });
        let ends = ends.into_inner().expect("joined");
        let measured = |of: End| -> Vec<Duration> {
            let times = ends.iter().filter(|(end, at, _)| *end == of && (warm_up..until).contains(at));
            times.map(|(_, _, took)| *took).collect()
        };
        let a_second = |times: &[Duration]| times.len() as f64 / duration.as_secs_f64();
        let (good, refused, expired) = (measured(End::Good), measured(End::Refused), measured(End::Expired));
        Level {
            scene: *self,
            load,
            offered: rate,
            goodput: a_second(&good),
            refused: a_second(&refused),
            expired: a_second(&expired),
            other: ends.iter().filter(|(end, _, _)| *end == End::Other).count(),
            latency: percentiles(good),
            refusal: percentiles(refused),
        }
    }
}

/// The models of `tiny_embedding`, with the one that takes its time after the tokenizer.
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

fn percentiles(mut times: Vec<Duration>) -> [Duration; 2] {
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
    pub const HEAD: &str =
        " load   offered/s   goodput/s   refused/s   expired/s   other   p50 ms   p99 ms   refusal p50   refusal p99";

    /// The same as an object for programs; times in milliseconds.
    pub fn json(&self) -> Value {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "scene": self.scene.to_string(), "load": self.load, "offered": self.offered, "goodput": self.goodput,
            "refused": self.refused, "expired": self.expired, "other": self.other,
            "latency_ms": self.latency.map(millis), "refusal_ms": self.refusal.map(millis),
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99] = self.latency.map(|time| time.as_secs_f64() * 1e3);
        let [refusal50, refusal99] = self.refusal.map(|time| time.as_secs_f64() * 1e3);
        let Level { load, offered, goodput, refused, expired, other, .. } = self;
        write!(f, "{load:>5.2}{offered:>12.1}{goodput:>12.1}{refused:>12.1}{expired:>12.1}{other:>8}")?;
        write!(f, "{p50:>9.1}{p99:>9.1}{refusal50:>14.2}{refusal99:>14.2}")
    }
}
