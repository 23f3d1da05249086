//! The models' answers through the whole pipeline.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Golden, Mode, ModelFolder, Sandbox, Setup, Stage, basic_repository, golden, in_every_mode, load, product,
    seed_repository,
};
use trireme_testkit::assert_close;

/// The models' numbers are sums of a few products; smaller differences are rounding.
const TOLERANCE: f32 = 1e-5;

in_every_mode!(
    tiny_embedding_gives_the_golden_values,
    concurrent_requests_do_not_notice_each_other,
    batches_of_one_model_keep_their_rows,
    waiting_requests_share_a_batch,
    what_goes_into_a_chain_comes_out,
    outputs_are_those_asked_for,
    auto_completed_models_show_what_they_are,
    a_published_ensemble_answers,
    a_person_asks_at_a_terminal,
);

fn texts(golden: &[Golden]) -> Value {
    let texts: Vec<&str> = golden.iter().map(|g| g.text.as_str()).collect();
    json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts}]})
}

fn simple(first: &[i64], second: &[i64]) -> Value {
    let input =
        |name, data: &[i64]| json!({"name": name, "datatype": "INT32", "shape": [data.len() / 16, 16], "data": data});
    json!({"inputs": [input("INPUT0", first), input("INPUT1", second)]})
}

fn numbers(values: impl Iterator<Item = i64>) -> Vec<f32> {
    values.map(|value| value as f32).collect()
}

fn tiny_embedding_gives_the_golden_values(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let golden = golden();
    for alone in &golden {
        let response = sandbox.infer("tiny_embedding", &texts(std::slice::from_ref(alone)));
        assert_close(&response.numbers("embedding"), &alone.embedding, TOLERANCE);
        assert_eq!(response.output("embedding")["shape"], json!([1, 8]));
    }
    let together = sandbox.infer("tiny_embedding", &texts(&golden));
    let expected: Vec<f32> = golden.iter().flat_map(|g| g.embedding.clone()).collect();
    assert_close(&together.numbers("embedding"), &expected, TOLERANCE);
    let json = together.json();
    assert_eq!((&json["model_name"], &json["model_version"]), (&json!("tiny_embedding"), &json!("1")));

    let timing = together.header("server-timing").expect("the ledger comes back as Server-Timing");
    let hops: Vec<&str> = timing.split(", ").filter_map(|hop| hop.split(';').next()).collect();
    assert_eq!(hops, ["tiny_tokenizer", "tiny_encoder", "tiny_pool"], "{timing}");
}

fn concurrent_requests_do_not_notice_each_other(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let golden = golden();
    let ask = |number: usize| {
        let expected = &golden[number % golden.len()];
        let response = sandbox.infer("tiny_embedding", &texts(std::slice::from_ref(expected)));
        assert_close(&response.numbers("embedding"), &expected.embedding, TOLERANCE);
    };
    load(256, 64, ask, || {}).assert_all_right(256);
}

fn batches_of_one_model_keep_their_rows(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let ask = |number: usize| {
        let rows = 1 + number % 3;
        let first: Vec<i64> = (0..16 * rows as i64).map(|i| i + number as i64).collect();
        let second: Vec<i64> = (0..16 * rows as i64).map(|i| i * number as i64).collect();
        let response = sandbox.infer("simple", &simple(&first, &second));
        let pairs = || first.iter().zip(&second);
        assert_eq!(response.numbers("OUTPUT0"), numbers(pairs().map(|(a, b)| a + b)));
        assert_eq!(response.numbers("OUTPUT1"), numbers(pairs().map(|(a, b)| a - b)));
        assert_eq!(response.output("OUTPUT0")["shape"], json!([rows, 16]));
    };
    load(192, 64, ask, || {}).assert_all_right(192);
}

fn waiting_requests_share_a_batch(mode: Mode) {
    let patient = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 20000000 }";
    let config = std::fs::read_to_string(basic_repository().join("simple/config.pbtxt")).expect("the model is there");
    let models = ModelFolder::basic(&["simple"]).model("simple", &config.replace("dynamic_batching { }", patient));
    let stages = [Stage::Tokenizer, Stage::Postprocess];
    let setup =
        stages.iter().fold(Setup::new(mode).repository(models.path()), |setup, &stage| setup.replicas(stage, 0));
    let sandbox = setup.start();
    let ask = |number: usize| {
        let response = sandbox.infer("simple", &simple(&[number as i64; 16], &[1; 16]));
        assert_eq!(response.numbers("OUTPUT0"), [number as f32 + 1.0; 16]);
        let timing = response.header("server-timing").expect("the ledger comes back as Server-Timing");
        assert!(timing.contains("batch=8"), "eight requests of one row run together: {timing}");
    };
    let outcome = load(8, 8, ask, || {});
    outcome.assert_all_right(8);
    assert!(
        outcome.slowest < Duration::from_secs(15),
        "a full batch does not wait, but one took {:?}",
        outcome.slowest
    );
}

fn what_goes_into_a_chain_comes_out(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let ask = |number: usize| {
        let data: Vec<f32> = (0..=number).map(|i| i as f32 + 0.5).collect();
        let body = json!({"id": format!("request {number}"), "inputs":
            [{"name": "INPUT0", "datatype": "FP32", "shape": [data.len()], "data": data}]});
        let response = sandbox.infer("identity_chain", &body);
        assert_eq!(response.numbers("OUTPUT0"), data);
        assert_eq!(response.json()["id"], format!("request {number}"));
    };
    load(128, 16, ask, || {}).assert_all_right(128);
}

fn outputs_are_those_asked_for(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let (first, second): (Vec<i64>, Vec<i64>) = ((0..16).collect(), (100..116).collect());
    let mut body = simple(&first, &second);
    let names = |response: &trireme_e2e::Response| -> Vec<Value> {
        let outputs = response.json()["outputs"].as_array().expect("outputs are a list").clone();
        outputs.into_iter().map(|output| output["name"].clone()).collect()
    };
    assert_eq!(names(&sandbox.infer("simple", &body)), ["OUTPUT0", "OUTPUT1"], "all of them unless some are named");
    body["outputs"] = json!([{"name": "OUTPUT1"}]);
    let subset = sandbox.infer("simple", &body);
    assert_eq!(names(&subset), ["OUTPUT1"]);
    assert_eq!(subset.numbers("OUTPUT1"), [-100.0; 16]);

    let tokens = json!({"inputs": texts(&golden()[..1])["inputs"], "outputs": [{"name": "attention_mask"}]});
    assert_eq!(names(&sandbox.infer("tiny_tokenizer", &tokens)), ["attention_mask"]);
}

fn auto_completed_models_show_what_they_are(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let config = sandbox.get("/v2/models/autocomplete/config").json();
    let metadata = sandbox.get("/v2/models/autocomplete").json();
    for (kind, plural) in [("input", "inputs"), ("output", "outputs")] {
        let (configured, shown) = (&config[kind][0], &metadata[plural][0]);
        assert_eq!(configured["data_type"], "TYPE_FP32", "{config}");
        assert_eq!(shown["datatype"], "FP32", "{metadata}");
        assert_eq!(configured["name"], shown["name"]);
        let dims = configured["dims"].as_array().expect("dims are a list");
        let batched: Vec<Value> = [json!(-1)].into_iter().chain(dims.iter().cloned()).collect();
        assert_eq!(shown["shape"], json!(batched), "the batch dimension comes first");
    }
    assert_eq!(config["max_batch_size"], 4, "the default of models that can batch");

    let (input, width) = (&metadata["inputs"][0], metadata["inputs"][0]["shape"][1].as_i64().expect("a dimension"));
    let data: Vec<f32> = (0..width.unsigned_abs().max(1)).map(|i| i as f32).collect();
    let body = json!({"inputs": [{"name": input["name"], "datatype": "FP32", "shape": [1, data.len()], "data": data}]});
    let output = metadata["outputs"][0]["name"].as_str().expect("the output has a name").to_owned();
    let doubled: Vec<f32> = data.iter().map(|x| 2.0 * x).collect();
    assert_eq!(sandbox.infer("autocomplete", &body).numbers(&output), doubled);
}

fn a_published_ensemble_answers(mode: Mode) {
    let sandbox = Setup::new(mode).repository(&seed_repository()).replicas(Stage::Postprocess, 0).shared();
    for expected in &golden() {
        let response = sandbox.infer("ensemble_model", &texts(std::slice::from_ref(expected)));
        let output = response.numbers("3391");
        assert_eq!(response.output("3391")["shape"], json!([1, 1024]));
        assert_close(&output[..8], &expected.ensemble_start, 1e-4);
    }
}

// === The command line ===

/// Runs `trireme infer` and returns its output.
fn ask_at_a_terminal(sandbox: &Sandbox, arguments: &[&str]) -> (bool, String) {
    let mut command = product("trireme");
    command.args(["infer", "--server", &sandbox.address.to_string()]).args(arguments);
    let output = command.stdin(std::process::Stdio::null()).output().expect("the command runs");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn a_person_asks_at_a_terminal(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let golden = golden();
    let (ok, text) = ask_at_a_terminal(&sandbox, &["tiny_embedding", &golden[0].text, &golden[1].text, "--timing"]);
    assert!(ok, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "embedding  FP32[2, 8]");
    for (line, golden) in lines[1..].iter().zip(&golden[..2]) {
        let numbers: Vec<f32> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        assert_close(&numbers, &golden.embedding[..numbers.len()], TOLERANCE);
        assert_eq!(numbers.len(), 6, "{line}");
    }
    assert!(text.contains("tiny_pool"), "{text}");

    let (ok, text) = ask_at_a_terminal(&sandbox, &["nothing", "text"]);
    assert!(!ok && text.contains("404: Request for unknown model: 'nothing' is not found"), "{text}");
}
