//! Behaviour of instances besides answering: they stop unwanted executions, and execute canary requests when idle.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, in_one_mode, wait_until};

in_one_mode!(a_run_stops_when_all_its_callers_are_gone, canary_requests_run_without_traffic_and_count_nowhere,);

/// Some µs each, so seconds in all.
const STEPS: i64 = 1_000_000;

const PATIENCE: Duration = Duration::from_secs(60);

fn lasting() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../repositories/lasting")
}

fn only_models(mode: Mode, repository: &std::path::Path) -> Setup {
    Setup::new(mode).repository(repository).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

fn count(steps: i64) -> Value {
    json!({"inputs": [{"name": "COUNT", "datatype": "INT64", "shape": [1, 1], "data": [steps]}]})
}

fn a_run_stops_when_all_its_callers_are_gone(mode: Mode) {
    let sandbox = only_models(mode, &lasting()).start();
    let timed = |steps: i64| {
        let started = Instant::now();
        let steps_made = sandbox.infer("countdown", &count(steps)).output("STEPS")["data"][0].as_i64();
        assert_eq!(steps_made, Some(steps));
        started.elapsed()
    };
    let whole = timed(STEPS);
    let begin = || Request::infer("countdown", &count(STEPS)).start(sandbox.address).expect("the gateway listens");

    // Two requests in one run, of which one is cancelled.
    let leaving = begin();
    std::thread::scope(|scope| {
        let staying = scope.spawn(|| timed(STEPS));
        std::thread::sleep(whole / 4);
        drop(leaving);
        staying.join().expect("it is answered in full");
    });

    let leaving = [begin(), begin()];
    std::thread::sleep(whole / 4);
    drop(leaving);
    let next = timed(1);
    assert!(next < whole / 2, "the next one waited {next:?} behind a run of {whole:?} that nobody waits for");
}

fn statistics(sandbox: &Sandbox, model: &str) -> (u64, u64) {
    let statistics = sandbox.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone();
    let count = |value: &Value| value.as_u64().expect("a count");
    (count(&statistics["execution_count"]), count(&statistics["inference_stats"]["success"]["count"]))
}

fn canary_requests_run_without_traffic_and_count_nowhere(mode: Mode) {
    let arguments = ["--canary-secs", "1", "--log-verbose", "1"];
    let mut sandbox = only_models(mode, &lasting()).worker_arguments(&arguments).start();
    let canaries = |sandbox: &mut Sandbox| match mode {
        Mode::AllInOne => sandbox.gateway.count("canary request succeeded"),
        Mode::Services => sandbox.worker(Stage::Model, 0).count("canary request succeeded"),
    };
    wait_until("canary requests", PATIENCE, || (canaries(&mut sandbox) > 1).then_some(()));
    assert_eq!(statistics(&sandbox, "countdown"), (0, 0));
    assert_eq!(sandbox.infer("countdown", &count(3)).output("STEPS")["data"], json!([3]));
    assert_eq!(statistics(&sandbox, "countdown"), (1, 1));
}

#[test]
fn a_worker_ends_whose_canary_request_does_not() {
    let slow = ModelFolder::new().slow("slow", 4000);
    let config = std::fs::read_to_string(slow.path().join("slow/config.pbtxt")).expect("it was just written");
    let input = "inputs { key: 'INPUT0' value { data_type: TYPE_FP32 dims: [1] zero_data: true } }";
    let slow = slow.model("slow", &format!("{config} model_warmup [{{ name: 'one' batch_size: 1 {input} }}]"));
    // The limit does not apply to its warm-up.
    let arguments = ["--execution-limit-secs", "1", "--canary-secs", "1"];
    let mut sandbox = only_models(Mode::Services, slow.path()).worker_arguments(&arguments).start();
    let worker = sandbox.worker(Stage::Model, 0);
    assert!(!worker.wait_exit(PATIENCE).success());
    let told = "an execution has not ended for 1 s (--execution-limit-secs): this worker gives its work back and ends";
    assert_eq!(worker.count(told), 1, "{}", worker.log_tail());
    wait_until("its model is not ready", PATIENCE, || (sandbox.model_ready("slow") == 400).then_some(()));
}
