//! Overload by a closed loop: each of many clients sends its next request when the last one is answered, so the system is always
//! full, and nobody is refused. Requests are served in turn if the slowest of them take about as long as the others.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{STACK, millis, percentiles};
use crate::{Mode, ModelFolder, Request, Setup, Stage};

/// Two steps, of which the second is slow.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// The bus.
    pub mode: Mode,
    /// Whether the steps are in two processes when there are services; otherwise one worker hosts both.
    pub apart: bool,
}

/// The measurements with a number of requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Clients, each with one request in flight, as a multiple of the room of the slow step.
    pub load: usize,
    /// Results per second, as a share of what the slow step can do.
    pub of_capacity: f64,
    /// Latency of results: median and 99th percentile.
    pub took: [Duration; 2],
    /// Number of answers that are no results.
    pub other: usize,
}

// === impl Loop ===

impl Loop {
    /// Rows of a run of the slow step, and the most requests that its worker holds: two runs.
    const BATCH: usize = 8;
    const ROOM: usize = 2 * Loop::BATCH;

    /// How long a run of the slow step takes.
    const RUN: Duration = Duration::from_millis(50);

    /// Measures with each load for `duration`, once the clients' first requests were answered.
    ///
    /// # Panics
    /// When the system does not become ready.
    pub fn measure(self, loads: &[usize], duration: Duration, mut progress: impl FnMut(&Round)) -> Vec<Round> {
        let (input, datatype) = if self.apart { ("TEXT", "TYPE_STRING") } else { ("INPUT0", "TYPE_INT64") };
        let first = match self.apart {
            true => {
                "model_name: 'tiny_tokenizer' input_map { key: 'TEXT' value: 'TEXT' } output_map { key: 'input_ids' value: 'ids' }"
            }
            false => {
                "model_name: 'fast' input_map { key: 'INPUT0' value: 'INPUT0' } output_map { key: 'OUTPUT0' value: 'ids' }"
            }
        };
        let io = "backend: 'identity' input [{ name: 'INPUT0' data_type: TYPE_INT64 dims: [-1] }]
            output [{ name: 'OUTPUT0' data_type: TYPE_INT64 dims: [-1] }] instance_group [{ count: 1 kind: KIND_CPU }]";
        let slow = format!(
            "{io} max_batch_size: {} dynamic_batching {{}}
             parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
            Loop::BATCH,
            Loop::RUN.as_millis()
        );
        let chain = format!(
            "platform: 'ensemble' max_batch_size: 0 input [{{ name: '{input}' data_type: {datatype} dims: [{}] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_INT64 dims: [-1, -1] }}]
             ensemble_scheduling {{ step [
                 {{ {first} model_version: -1 }},
                 {{ model_name: 'slow' model_version: -1 input_map {{ key: 'INPUT0' value: 'ids' }}
                    output_map {{ key: 'OUTPUT0' value: 'OUTPUT0' }} }}
             ] }}",
            if self.apart { "-1" } else { "-1, -1" },
        );
        let fast = format!("{io} max_batch_size: {}", Loop::BATCH);
        let mut models = ModelFolder::new().model("slow", &slow).model("chain", &chain);
        models = if self.apart { models.with_basic(&["tiny_tokenizer"]) } else { models.model("fast", &fast) };
        let sandbox = Setup::new(self.mode)
            .repository(models.path())
            .replicas(Stage::Tokenizer, usize::from(self.apart))
            .replicas(Stage::Postprocess, 0)
            .start();
        let input = match self.apart {
            true => json!({"name": input, "datatype": "BYTES", "shape": [1], "data": ["a short text"]}),
            false => json!({"name": input, "datatype": "INT64", "shape": [1, 1], "data": [7]}),
        };
        let request = Request::infer("chain", &json!({"inputs": [input]}));
        let round = |&load: &usize| {
            let calls = Mutex::new(Vec::new());
            let started = Instant::now();
            // The first requests wait while the queues fill.
            let measured = Loop::RUN * (2 * load * Loop::ROOM / Loop::BATCH) as u32;
            let measured = measured..measured + duration;
            thread::scope(|scope| {
                for _ in 0..load * Loop::ROOM {
                    let client = || {
                        while started.elapsed() < measured.end {
                            let sent = started.elapsed();
                            let is_result = request.send(sandbox.address).is_ok_and(|answer| answer.status == 200);
                            calls.lock().expect("no holder panics").push((is_result, sent, started.elapsed()));
                        }
                    };
                    thread::Builder::new().stack_size(STACK).spawn_scoped(scope, client).expect("a thread");
                }
            });
            let round = Round::of(load, &calls.into_inner().expect("no holder panics"), measured);
            progress(&round);
            round
        };
        loads.iter().map(round).collect()
    }
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bus = if self.mode == Mode::Services { "over NATS" } else { "in one process" };
        write!(f, "closed loop {bus}, steps {}", if self.apart { "apart" } else { "together" })
    }
}

// === impl Round ===

impl Round {
    /// The head of a table whose lines are rounds.
    pub const HEAD: &str = " load  of capacity   p50 ms   p99 ms  ratio  other";

    /// Summarises the requests that were answered in `during`. Latencies are also those of requests that were answered later, when the
    /// load had ended: some may have waited for that.
    fn of(load: usize, calls: &[(bool, Duration, Duration)], during: Range<Duration>) -> Round {
        let results = || calls.iter().filter(|(is_result, _, at)| *is_result && *at >= during.start);
        let rate =
            results().filter(|(_, _, at)| *at < during.end).count() as f64 / (during.end - during.start).as_secs_f64();
        Round {
            load,
            of_capacity: rate * Loop::RUN.as_secs_f64() / Loop::BATCH as f64,
            took: percentiles(results().map(|(_, sent, at)| *at - *sent)),
            other: calls.iter().filter(|(is_result, ..)| !is_result).count(),
        }
    }

    /// How many times the median the 99th percentile takes; 1 when requests are served in turn.
    pub fn of_median(&self) -> f64 {
        self.took[1].as_secs_f64() / self.took[0].as_secs_f64()
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { load, of_capacity, took: [p50, p99], other } = *self;
        let (p50, p99, ratio) = (millis(p50), millis(p99), self.of_median());
        write!(f, "{load:>4}x{of_capacity:>13.2}{p50:>9.1}{p99:>9.1}{ratio:>7.2}{other:>7}")
    }
}
