//! The response caches: of a model that is a step of an ensemble, whose worker answers equal requests once; and of gateways, whose answers are
//! those of the content that is served.

use std::fs;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, in_one_mode};

in_one_mode!(a_step_is_answered_from_its_workers_cache, a_cache_answers_with_the_content_that_is_served);

const ENSEMBLE: &str = "platform: 'ensemble'
    input [{ name: 'X' data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: 'Y' data_type: TYPE_FP32 dims: [-1] }]
    ensemble_scheduling { step { model_name: 'cached' model_version: -1
        input_map { key: 'INPUT0' value: 'X' } output_map { key: 'OUTPUT0' value: 'Y' } } }";

fn ask(sandbox: &Sandbox, model: &str, input: &str, output: &str, value: f32) {
    let body = json!({"inputs": [{"name": input, "datatype": "FP32", "shape": [1], "data": [value]}]});
    assert_eq!(sandbox.infer(model, &body).numbers(output), [value]);
}

/// The counts of the model that is the step: executions, successes, and look-ups that found something or nothing.
fn counted(sandbox: &Sandbox) -> [u64; 4] {
    let statistics: Value = sandbox.get("/v2/models/cached/stats").json();
    let model = &statistics["model_stats"][0];
    let count = |name: &str| model["inference_stats"][name]["count"].as_u64().expect("a number");
    [model["execution_count"].as_u64().expect("a number"), count("success"), count("cache_hit"), count("cache_miss")]
}

fn a_step_is_answered_from_its_workers_cache(mode: Mode) {
    let models = ModelFolder::new()
        .slow("cached", 0)
        .with_setting("cached", "response_cache { enable: true }")
        .model("around", ENSEMBLE);
    let cache = ["--cache-config", "local,size=1000000"];
    let setup = Setup::new(mode).repository(models.path()).gateway_arguments(&cache);
    let setup = match mode {
        Mode::AllInOne => setup,
        Mode::Services => setup.worker_arguments(&cache),
    };
    let sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();

    for value in [1.5, 2.5, 1.5, 2.5, 1.5] {
        ask(&sandbox, "around", "X", "Y", value);
    }
    assert_eq!(counted(&sandbox), [2, 5, 3, 2], "two were executed, three were there");
    // The gateway looks for requests for the model itself in its own cache.
    (0..2).for_each(|_| ask(&sandbox, "cached", "INPUT0", "OUTPUT0", 1.5));
    assert_eq!(counted(&sandbox), [3, 7, 4, 3]);
}

/// An ensemble of `tiny_pool` alone.
const POOL: &str = "platform: 'ensemble' response_cache { enable: true }
    input [{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [-1, -1, 8] },
        { name: 'attention_mask' data_type: TYPE_INT64 dims: [-1, -1] }]
    output [{ name: 'embedding' data_type: TYPE_FP32 dims: [-1, 8] }]
    ensemble_scheduling { step { model_name: 'tiny_pool' model_version: -1
        input_map { key: 'last_hidden_state' value: 'last_hidden_state' }
        input_map { key: 'attention_mask' value: 'attention_mask' }
        output_map { key: 'embedding' value: 'embedding' } } }";

fn a_cache_answers_with_the_content_that_is_served(mode: Mode) {
    let models = ModelFolder::basic(&["tiny_pool"])
        .with_setting("tiny_pool", "response_cache { enable: true }")
        .model("around", POOL);
    let cache = ["--cache-config", "local,size=1000000"];
    let control = ["--model-control-mode=explicit", "--load-model=around"];
    // The one process has the flags of workers.
    let gateway = if mode == Mode::Services { [&cache[..], &control].concat() } else { cache.to_vec() };
    let setup = Setup::new(mode).repository(models.path()).worker_arguments(&control).gateway_arguments(&gateway);
    let sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Model, 0).start();
    let states: Vec<f32> = (0..16).map(|number| (number * number) as f32).collect();
    let body = json!({"inputs": [
        {"name": "last_hidden_state", "datatype": "FP32", "shape": [1, 2, 8], "data": states},
        {"name": "attention_mask", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]},
    ]});
    let answers = || ["tiny_pool", "around"].map(|model| sandbox.infer(model, &body).numbers("embedding"));
    let before = answers();
    assert_eq!(answers(), before);
    let hits = |model: &str| {
        let statistics: Value = sandbox.get(&format!("/v2/models/{model}/stats")).json();
        statistics["model_stats"][0]["inference_stats"]["cache_hit"]["count"].clone()
    };
    assert_eq!([hits("tiny_pool"), hits("around")], [1, 1]);

    let config = models.path().join("tiny_pool/config.pbtxt");
    let text = fs::read_to_string(&config).expect("a file").replace("pool:mean", "pool:max");
    fs::write(&config, text).expect("a file");
    let loaded = sandbox.send(&Request::post("/v2/repository/models/tiny_pool/load", "{}"));
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    let after = answers();
    assert!(after[0] == after[1] && after[0] != before[0] && after[1] != before[1], "{before:?} {after:?}");
}
