//! Answers that need no execution (the response cache), and stages that share a process.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Sandbox, Setup, Stage, Wire, WireMessage, basic_repository, golden, in_one_mode, load,
    product, wait_until,
};
use trireme_testkit::assert_close;

in_one_mode!(
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
    assert!(
        again.header("trireme-space").is_some_and(|space| !space.is_empty()),
        "the space of the answer that is repeated"
    );
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
    let models = ModelFolder::copy_of(&basic_repository()).with_pooling_apart();
    let mut sandbox = Setup::new(Mode::Services).repository(models.path()).start_gateway();
    sandbox.start_worker(Stage::Tokenizer);
    let url = sandbox.nats.as_ref().expect("services are on NATS").url();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = product("trireme");
    command.args(["worker", "--stages", "model,postprocess", "--nats-url", &url, "--model-repository"]);
    let worker = Process::start("worker", command.arg(models.path()), folder.path());
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

/// Sends each text of [`golden`] to the ensemble and returns the subjects on which work was sent meanwhile.
fn embed(sandbox: &Sandbox) -> BTreeSet<String> {
    let mut wire = Wire::open(&sandbox.nats.as_ref().expect("services are on NATS").url());
    wire.subscribe("trireme.work.>");
    for expected in golden() {
        let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [expected.text]}]});
        assert_close(&sandbox.infer("tiny_embedding", &body).numbers("embedding"), &expected.embedding, 1e-5);
    }
    let model = |message: WireMessage| message.subject.split('.').nth(2).map(str::to_owned);
    std::iter::from_fn(|| wire.next(Duration::from_millis(500))).filter_map(model).collect()
}

#[test]
fn the_model_service_pools_what_its_models_give() {
    let sandbox = Setup::new(Mode::Services).replicas(Stage::Postprocess, 0).start();
    let queues = BTreeSet::from(["tiny_tokenizer".to_owned(), "tiny_encoder".to_owned()]);
    assert_eq!(embed(&sandbox), queues, "the states of the encoder stay in its worker");
}

#[test]
fn a_model_that_is_to_be_apart_waits_for_the_postprocess_service() {
    let models = ModelFolder::copy_of(&basic_repository()).with_pooling_apart();
    let mut sandbox = Setup::new(Mode::Services).repository(models.path()).start_gateway();
    for stage in [Stage::Tokenizer, Stage::Model] {
        sandbox.start_worker(stage);
    }
    sandbox.wait_listening();
    wait_until("the encoder is served", Duration::from_secs(60), || {
        (sandbox.model_ready("tiny_encoder") == 200 && sandbox.model_ready("tiny_tokenizer") == 200).then_some(())
    });
    wait_until("the model service is ready", Duration::from_secs(60), || {
        (sandbox.worker(Stage::Model, 0).count("ready") > 0).then_some(())
    });
    assert_eq!((sandbox.model_ready("tiny_pool"), sandbox.model_ready("tiny_embedding")), (400, 400));
    sandbox.start_worker(Stage::Postprocess);
    sandbox.wait_ready();
    let queues = ["tiny_tokenizer", "tiny_encoder", "tiny_pool"].map(str::to_owned);
    assert_eq!(embed(&sandbox), BTreeSet::from(queues));
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
