//! The response cache of a model that is a step of an ensemble: the worker answers equal requests once.

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Sandbox, Setup, Stage, in_every_mode};

in_every_mode!(a_step_is_answered_from_its_workers_cache);

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
