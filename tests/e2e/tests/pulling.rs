//! Workers of different speed on one queue: each does its share, and neither holds requests that the other could
//! execute.

use std::time::{Duration, Instant};

use serde_json::json;
use trireme_e2e::{Mode, ModelFolder, Request, Response, Setup, Stage, python};

/// How long a request takes in each of the two workers.
const FAST: Duration = Duration::from_millis(60);
const SLOW: Duration = Duration::from_millis(300);

/// Number of requests in the burst: a quarter of them takes the fast worker alone two seconds.
const BURST: usize = 120;

/// The variable with the seconds that a request takes, and the model: workers with other files would not share its queue.
const SECONDS: &str = "RUN_SECONDS";
const MODEL: &str = "import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(len(requests) * float(os.environ['RUN_SECONDS']))
        tensors = [pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', tensor)]) for tensor in tensors]
";

/// An answer: when it arrived, whether the slow worker computed it, and how long its request waited in that worker.
struct Answered {
    at: Instant,
    slow: bool,
    queued: Duration,
}

/// Reads the one hop of `Server-Timing`.
fn read(response: &Response) -> Answered {
    assert_eq!(response.status, 200, "{}", response.text());
    let timing = response.header("server-timing").expect("the ledger comes back as Server-Timing");
    let millis = |name: &str| {
        let value =
            timing.split([';', '"', ' ']).find_map(|part| part.strip_prefix(name)).expect("an entry of the hop");
        Duration::from_secs_f64(value.parse::<f64>().expect("milliseconds") / 1e3)
    };
    Answered { at: Instant::now(), slow: millis("dur=") >= SLOW, queued: millis("queue=") }
}

#[test]
fn a_slow_worker_leaves_the_rest_to_a_fast_one() {
    let config = "backend: 'python' input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
        output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }] instance_group [{ count: 1 kind: KIND_CPU }]";
    let models = ModelFolder::new().model("shared", config).file("shared/1/model.py", MODEL);
    let seconds = |run: Duration| run.as_secs_f64().to_string();
    let mut sandbox = [Stage::Tokenizer, Stage::Model, Stage::Postprocess]
        .into_iter()
        .fold(Setup::new(Mode::Services), |setup, stage| setup.replicas(stage, 0))
        .replicas(Stage::Python, 1)
        .repository(models.path())
        .worker_arguments(&["--python", &python().display().to_string(), "--python-environment", SECONDS])
        .environment(&[(SECONDS, &seconds(FAST))])
        .start();
    sandbox.set_environment(&[(SECONDS, &seconds(SLOW))]);
    sandbox.start_worker(Stage::Python);
    sandbox.wait_ready();

    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
    let request = Request::infer("shared", &body);
    let burst = |count: usize| -> Vec<Answered> {
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..count).map(|_| scope.spawn(|| read(&sandbox.send(&request)))).collect();
            asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
        })
    };
    // Workers know their pace only after they have executed requests.
    burst(8);
    let answers = burst(BURST);
    let (slow, fast): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.slow);
    println!("{} by the fast worker, {} by the slow one", fast.len(), slow.len());
    assert!(fast.len() >= 3 * slow.len(), "the fast one is held back: {} to {}", fast.len(), slow.len());
    assert!(8 * slow.len() >= fast.len(), "the slow one helps: {} to {}", fast.len(), slow.len());

    let last = |answers: &[Answered]| answers.iter().map(|answer| answer.at).max().expect("each has answered");
    let tail = last(&slow).saturating_duration_since(last(&fast));
    let longest = slow.iter().map(|answer| answer.queued).max().expect("it has answered");
    println!("the slow one ends {tail:?} after the fast one; requests waited in it for up to {longest:?}");
    // The slow worker may hold a request in progress and another taken shortly before, not the eight that it has room for.
    assert!(tail < 3 * SLOW, "the slow one goes on for {tail:?} when the fast one has nothing left");
    assert!(longest < 3 * SLOW, "a request waited for {longest:?} in the slow one");
    drop(models);
}
