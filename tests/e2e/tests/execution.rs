//! Answers that need no execution (the response cache), and stages that share a process.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Sandbox, Setup, Stage, basic_repository, golden, in_every_mode, load, product,
};
use trireme_testkit::assert_close;

in_every_mode!(
    answers_are_kept_and_identical_requests_computed_once,
    without_a_cache_everything_is_computed,
    a_request_that_is_taken_early_does_not_close_its_batch,
);

const DELAY_MS: u64 = 1500;

fn number(value: f32) -> Value {
    json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [value]}]})
}

fn cached_model() -> ModelFolder {
    ModelFolder::new().slow("slow", DELAY_MS).with_setting("slow", "response_cache { enable: true }")
}

fn start(mode: Mode, models: &ModelFolder, arguments: &[&str]) -> Sandbox {
    let setup = Setup::new(mode).repository(models.path()).gateway_arguments(arguments);
    setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start()
}

fn answers_are_kept_and_identical_requests_computed_once(mode: Mode) {
    let models = cached_model();
    let sandbox = start(mode, &models, &["--cache-config", "local,size=1000000", "--coalesce-requests"]);
    let ask = |_: usize| assert_eq!(sandbox.infer("slow", &number(7.0)).numbers("OUTPUT0"), [7.0]);
    let outcome = load(8, 8, ask, || {});
    outcome.assert_all_right(8);
    // One after the other they would take eight times as long.
    assert!(outcome.slowest < Duration::from_millis(5 * DELAY_MS), "the slowest took {:?}", outcome.slowest);
    let again = sandbox.infer("slow", &number(7.0));
    assert!(!again.header("server-timing").unwrap_or_default().contains("slow"), "no hop: it was computed before");
    let statistics = sandbox.get("/v2/models/slow/stats").json()["model_stats"][0]["inference_stats"].clone();
    let count = |what: &str| statistics[what]["count"].as_u64().expect("a count");
    assert_eq!((count("cache_hit"), count("cache_miss")), (8, 1), "{statistics}");
    assert_eq!((count("success"), count("queue"), count("compute_infer")), (9, 9, 1), "{statistics}");
    assert!(sandbox.infer("slow", &number(8.0)).header("server-timing").unwrap_or_default().contains("slow"));
}

fn without_a_cache_everything_is_computed(mode: Mode) {
    let models = cached_model();
    let sandbox = start(mode, &models, &[]);
    for _ in 0..2 {
        let response = sandbox.infer("slow", &number(7.0));
        assert!(response.header("server-timing").unwrap_or_default().contains("slow"));
    }
}

#[test]
fn model_and_postprocess_share_a_process() {
    let mut sandbox = Setup::new(Mode::Services).start_gateway();
    sandbox.start_worker(Stage::Tokenizer);
    let url = sandbox.nats.as_ref().expect("services are on NATS").url();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = product("trireme");
    command.args(["worker", "--stages", "model,postprocess", "--nats-url", &url, "--model-repository"]);
    let worker = Process::start("worker", command.arg(basic_repository()), folder.path());
    sandbox.wait_ready();
    for expected in golden() {
        let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [expected.text]}]});
        let response = sandbox.infer("tiny_embedding", &body);
        assert_close(&response.numbers("embedding"), &expected.embedding, 1e-5);
        let timing = response.header("server-timing").expect("the ledger comes back as Server-Timing");
        let hops: Vec<_> = timing.split(", ").filter_map(|hop| hop.split(';').next()).collect();
        assert_eq!(hops, ["tiny_tokenizer", "tiny_encoder", "tiny_pool"], "{timing}");
    }
    assert!(worker.log().contains("ready"));
}

/// A worker takes requests while its instance is busy. All that come until it is free run together.
fn a_request_that_is_taken_early_does_not_close_its_batch(mode: Mode) {
    const RUN: Duration = Duration::from_secs(2);
    let models = ModelFolder::new().model(
        "queue",
        &format!(
            "backend: 'identity' max_batch_size: 8 dynamic_batching {{}} instance_group [{{ count: 1 kind: KIND_CPU }}]
             input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [1] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [1] }}]
             parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
            RUN.as_millis()
        ),
    );
    let sandbox = start(mode, &models, &[]);
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]});
    // From then on the worker knows how long a run takes, and asks for requests shortly before its end.
    assert_eq!(sandbox.infer("queue", &body).status, 200);
    std::thread::scope(|scope| {
        let ask = || scope.spawn(|| assert_eq!(sandbox.infer("queue", &body).status, 200));
        let mut asked = vec![ask()];
        std::thread::sleep(RUN / 6);
        // Alone for a while.
        asked.push(ask());
        std::thread::sleep(RUN / 6);
        asked.extend((0..6).map(|_| ask()));
        asked.into_iter().for_each(|asked| asked.join().expect("it is answered"));
    });
    let statistics = sandbox.get("/v2/models/queue/stats").json()["model_stats"][0].clone();
    assert_eq!((statistics["inference_count"].as_u64(), statistics["execution_count"].as_u64()), (Some(9), Some(3)));
}
