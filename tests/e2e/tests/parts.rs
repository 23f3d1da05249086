//! Requests that are too large for one message: they travel in parts, or by claim.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Setup, Stage, basic_repository, golden, in_one_mode, wait_until,
};
use trireme_testkit::assert_close;

in_one_mode!(
    many_rows_are_answered_in_order,
    rows_above_the_largest_batch_travel_in_parts_where_that_is_declared,
    one_bad_part_is_the_requests_error,
    rows_that_are_only_claimed_cost_nothing,
    tensors_above_the_brokers_limit_pass_both_ways,
);

const TINY: [&str; 4] = ["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"];

/// `tiny_embedding` with its models; its requests travel in parts of 16 rows.
fn embedding_in_parts() -> ModelFolder {
    let config = std::fs::read_to_string(basic_repository().join("tiny_embedding/config.pbtxt"))
        .expect("the basic repository has it");
    let config = format!("{config}\n{}", max_rows(16));
    ModelFolder::basic(&TINY).file("tiny_embedding/config.pbtxt", config)
}

fn max_rows(rows: u32) -> String {
    format!("parameters {{ key: 'max_rows_per_message' value {{ string_value: '{rows}' }} }}")
}

/// An identity model of batches of at most 4 rows of numbers.
fn batches_of_four(rest: &str) -> String {
    format!(
        "backend: 'identity' max_batch_size: 4 {rest} instance_group [{{ count: 1 kind: KIND_CPU }}]
         input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]"
    )
}

fn rows(count: usize) -> Value {
    let numbers: Vec<f32> = (0..count).map(|n| n as f32).collect();
    json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [count, 1], "data": numbers}]})
}

fn only_models(mode: Mode, models: &ModelFolder) -> Setup {
    Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

/// A hundred bytes that claim more rows than fit into memory, or more messages than should be sent.
fn rows_that_are_only_claimed_cost_nothing(mode: Mode) {
    let numbers = |rank: usize| {
        let dims = vec!["-1"; rank].join(", ");
        format!(
            "backend: 'identity' {} input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [{dims}] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [{dims}] }}]",
            max_rows(2)
        )
    };
    let models =
        ModelFolder::new().model("free", &numbers(2)).model("batched", &format!("{} max_batch_size: 4", numbers(1)));
    let mut sandbox = only_models(mode, &models).start();
    let ask = |model: &str, shape: [u64; 2]| {
        let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": []});
        sandbox.infer(model, &json!({"inputs": [input]}))
    };
    for (model, shape) in
        [("free", [1 << 45, 0]), ("free", [1_000_000_000_000_000, 0]), ("batched", [4_000_000_000, 0])]
    {
        let response = ask(model, shape);
        assert_eq!(response.status, 400, "{}", response.text());
        assert!(response.error().contains("exceed the maximum size of 16777216"), "{}", response.error());
    }
    for model in ["free", "batched"] {
        let response = ask(model, [1 << 24, 0]);
        assert_eq!(response.status, 400, "{}", response.text());
        assert!(response.error().contains("takes more than 16384 messages"), "{}", response.error());
        assert_eq!(ask(model, [3, 0]).output("OUTPUT0")["shape"], json!([3, 0]), "an ordinary empty tensor is one");
    }
    sandbox.check_running();
}

fn many_rows_are_answered_in_order(mode: Mode) {
    const ROWS: usize = 1000;
    let models = embedding_in_parts();
    let sandbox = Setup::new(mode).repository(models.path()).replicas(Stage::Model, 2).start();
    let golden = golden();
    let texts: Vec<&str> = golden.iter().map(|g| g.text.as_str()).cycle().take(ROWS).collect();
    let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [ROWS], "data": texts}]});
    let response = sandbox.infer("tiny_embedding", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.output("embedding")["shape"], json!([ROWS, 8]));
    let expected: Vec<f32> = golden.iter().cycle().take(ROWS).flat_map(|g| g.embedding.clone()).collect();
    assert_close(&response.numbers("embedding"), &expected, 1e-5);
    let timing = response.header("server-timing").expect("the ledger comes back as Server-Timing");
    assert_eq!(timing.split(", ").count(), 3, "one entry for each step, whatever the number of parts: {timing}");
}

fn rows_above_the_largest_batch_travel_in_parts_where_that_is_declared(mode: Mode) {
    let models =
        ModelFolder::new().model("strict", &batches_of_four("")).model("parts", &batches_of_four(&max_rows(100)));
    let sandbox = only_models(mode, &models).start();
    let refused = sandbox.infer("strict", &rows(5));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.error(), "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'strict'");
    for count in [1, 4, 5, 999] {
        let response = sandbox.infer("parts", &rows(count));
        assert_eq!(response.status, 200, "{count} rows: {}", response.text());
        assert_eq!(response.output("OUTPUT0")["shape"], json!([count, 1]));
        assert_eq!(response.numbers("OUTPUT0"), (0..count).map(|n| n as f32).collect::<Vec<_>>());
    }
}

/// Number of requests of `model` that a worker has executed, from its own metrics.
fn executed(worker: &Process, model: &str) -> f64 {
    let address: SocketAddr = wait_until("the admin listener", Duration::from_secs(60), || {
        let listening = worker.events().into_iter().find(|event| event["message"] == "admin listener")?;
        listening["address"].as_str()?.parse().ok()
    });
    let metrics = Request::get("/metrics").send(address).expect("an answer").text();
    let name = format!("trireme_stage_compute_seconds_count{{model=\"{model}\",stage=\"model\",version=\"1\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0.0)
}

/// Texts of mixed length, divided by length: every replica works on the one request, and the rows come back in order.
#[test]
fn one_request_of_many_texts_keeps_every_replica_busy() {
    const ROWS: usize = 1000;
    let models = embedding_in_parts();
    let admin = ["--admin-address", "127.0.0.1:0"];
    let setup = Setup::new(Mode::Services).repository(models.path()).replicas(Stage::Model, 2).worker_arguments(&admin);
    let mut sandbox = setup.start();
    let golden = golden();
    let texts: Vec<&str> = golden.iter().map(|g| g.text.as_str()).cycle().take(ROWS).collect();
    let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [ROWS], "data": texts}]});
    let response = sandbox.infer("tiny_embedding", &body);
    let expected: Vec<f32> = golden.iter().cycle().take(ROWS).flat_map(|g| g.embedding.clone()).collect();
    assert_close(&response.numbers("embedding"), &expected, 1e-5);
    let parts = [0, 1].map(|number| executed(sandbox.worker(Stage::Model, number), "tiny_encoder"));
    assert_eq!(parts.iter().sum::<f64>(), 63.0, "1000 rows in parts of 16: {parts:?}");
    assert!(parts.iter().all(|&parts| parts > 0.0), "both workers have made some: {parts:?}");
}

fn one_bad_part_is_the_requests_error(mode: Mode) {
    let models = embedding_in_parts();
    let sandbox = Setup::new(mode).repository(models.path()).start();
    let mut data = Vec::new();
    for row in 0..100 {
        let text: &[u8] = if row == 70 { b"\xff" } else { b"text" };
        data.extend((text.len() as u32).to_le_bytes());
        data.extend(text);
    }
    let header = json!({"inputs": [{
        "name": "TEXT", "datatype": "BYTES", "shape": [100], "parameters": {"binary_data_size": data.len()}
    }]});
    let response = sandbox.send(&Request::infer_binary("tiny_embedding", &header, &data));
    assert_eq!(response.status, 400, "{}", response.text());
    assert!(response.error().contains("in ensemble 'tiny_embedding', "), "{}", response.error());
}

fn tensors_above_the_brokers_limit_pass_both_ways(mode: Mode) {
    const NUMBERS: usize = (24 << 20) / 4;
    let models = ModelFolder::new().slow("large", 0);
    let sandbox = only_models(mode, &models).queue_arguments(&["--queue-max-bytes", "104857600"]).start();
    let data: Vec<u8> = (0..NUMBERS).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let header = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [{
            "name": "INPUT0", "datatype": "FP32", "shape": [NUMBERS], "parameters": {"binary_data_size": data.len()}
        }]
    });
    for _ in 0..2 {
        let response = sandbox.send(&Request::infer_binary("large", &header, &data));
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body[..200.min(response.body.len())]));
        assert!(response.body.ends_with(&data), "the same bytes come back");
    }
}

#[test]
fn a_large_request_outlives_the_worker_that_has_it() {
    const NUMBERS: usize = (12 << 20) / 4;
    let models = ModelFolder::new().slow("large", 600);
    let mut sandbox = only_models(Mode::Services, &models).queue_arguments(&["--ack-wait-ms", "500"]).start();
    let data: Vec<u8> = (0..NUMBERS).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let header = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [{
            "name": "INPUT0", "datatype": "FP32", "shape": [NUMBERS], "parameters": {"binary_data_size": data.len()}
        }]
    });
    let (address, request) = (sandbox.address, Request::infer_binary("large", &header, &data));
    let waiting = std::thread::spawn(move || request.send(address));
    std::thread::sleep(Duration::from_millis(400));
    sandbox.worker(Stage::Model, 0).kill();
    sandbox.start_worker(Stage::Model);
    let response = waiting.join().expect("the request's thread does not panic").expect("an answer");
    assert_eq!(response.status, 200);
    assert!(response.body.ends_with(&data), "the same bytes come back");
}
