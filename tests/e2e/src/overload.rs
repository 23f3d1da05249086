//! Overload: more requests than the system can take, in an open loop, and what becomes of them.
//!
//! Requests are sent at the times a schedule gives, answered or not, as a crowd of independent callers does. The system
//! is as services; its model takes a fixed time, so that its capacity is known and nothing but queueing is seen.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Mode, ModelFolder, Request, Sandbox, Setup, Stage};

/// How long the model takes, and how many workers there are: together they say what the system can do.
const SERVICE_TIME: Duration = Duration::from_millis(20);
const WORKERS: usize = 3;

/// Messages that the model's queue holds: a request that gets in waits a fraction of a second.
const QUEUE: &str = "32";

/// Callers. Each waits for its answer, so there have to be more than the system holds requests.
const CALLERS: usize = 128;

/// What was measured at one load.
#[derive(Clone, Debug)]
pub struct Level {
    /// Requests offered a second, as a multiple of what the system can do.
    pub load: f64,
    /// Requests offered a second.
    pub offered: f64,
    /// Requests answered with a result a second.
    pub goodput: f64,
    /// Requests refused a second, with status 503.
    pub refused: f64,
    /// Anything else.
    pub other: usize,
    /// Latencies of results: median and 99th percentile.
    pub latency: [Duration; 2],
    /// Latencies of refusals, likewise.
    pub refusal: [Duration; 2],
}

/// Offers each load, a multiple of what the system can do, for `duration`.
///
/// # Panics
/// When the system does not get ready.
pub fn overload(loads: &[f64], duration: Duration, mut progress: impl FnMut(&Level)) -> Vec<Level> {
    let models = ModelFolder::new().slow("slow", SERVICE_TIME.as_millis() as u64);
    let sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(Stage::Tokenizer, 0)
        .replicas(Stage::Postprocess, 0)
        .replicas(Stage::Model, WORKERS)
        .worker_arguments(&["--queue-max-messages", QUEUE])
        .start();
    let capacity = WORKERS as f64 / SERVICE_TIME.as_secs_f64();
    let measure = |&load: &f64| {
        let level = offer(&sandbox, load, capacity * load, duration);
        progress(&level);
        level
    };
    loads.iter().map(measure).collect()
}

fn offer(sandbox: &Sandbox, load: f64, rate: f64, duration: Duration) -> Level {
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
    let request = Request::infer("slow", &body);
    let (next, count) = (AtomicUsize::new(0), (rate * duration.as_secs_f64()) as usize);
    let (good, refused, other) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let due = Duration::from_secs_f64(number as f64 / rate);
                    std::thread::sleep(due.saturating_sub(started.elapsed()));
                    let sent = Instant::now();
                    let status = request.send(sandbox.address).map(|answer| answer.status);
                    match status {
                        Ok(200) => good.lock().expect("no holder panics").push(sent.elapsed()),
                        Ok(503) => refused.lock().expect("no holder panics").push(sent.elapsed()),
                        _ => drop(other.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            });
        }
    });
    let elapsed = started.elapsed().as_secs_f64();
    let (good, refused) = (good.into_inner().expect("joined"), refused.into_inner().expect("joined"));
    Level {
        load,
        offered: count as f64 / elapsed,
        goodput: good.len() as f64 / elapsed,
        refused: refused.len() as f64 / elapsed,
        other: other.into_inner(),
        latency: percentiles(good),
        refusal: percentiles(refused),
    }
}

fn percentiles(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort_unstable();
    [0.5, 0.99].map(|share| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default())
}

// === impl Level ===

impl Level {
    /// The head of a table whose lines are levels.
    pub const HEAD: &str =
        " load   offered/s   goodput/s   refused/s   other   p50 ms   p99 ms   refusal p50 ms   refusal p99 ms";

    /// The same as an object for programs; times in milliseconds.
    pub fn json(&self) -> Value {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "load": self.load, "offered": self.offered, "goodput": self.goodput, "refused": self.refused,
            "other": self.other, "latency_ms": self.latency.map(millis), "refusal_ms": self.refusal.map(millis),
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99] = self.latency.map(|time| time.as_secs_f64() * 1e3);
        let [refusal50, refusal99] = self.refusal.map(|time| time.as_secs_f64() * 1e3);
        let Level { load, offered, goodput, refused, other, .. } = self;
        write!(f, "{load:>5.2}{offered:>12.1}{goodput:>12.1}{refused:>12.1}{other:>8}")?;
        write!(f, "{p50:>9.1}{p99:>9.1}{refusal50:>17.2}{refusal99:>17.2}")
    }
}
