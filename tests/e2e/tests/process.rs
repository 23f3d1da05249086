//! Backend `process`: programs that are not a model.py, all in one and over NATS.

use serde_json::json;
use trireme_e2e::{Mode, ModelFolder, Setup, Stage, python, workspace};

fn config(datatype: &str, command: &str) -> String {
    format!(
        "backend: 'process' input [{{ name: 'IN' data_type: {datatype} dims: [-1] }}]
         output [{{ name: 'OUT' data_type: {datatype} dims: [-1] }}] instance_group [{{ count: 2 kind: KIND_CPU }}]
         parameters {{ key: 'command' value {{ string_value: '{command}' }} }}"
    )
}

fn programs_are_stages(mode: Mode) {
    let halves = std::fs::read_to_string(workspace().join("examples/stage/halves.py")).expect("it is there");
    let models = ModelFolder::new()
        .model("reverse", &config("TYPE_INT64", env!("CARGO_BIN_EXE_reverse")))
        .file("reverse/1/.keep", "")
        .model("halves", &config("TYPE_FP32", &format!("{} $$TRITON_MODEL_DIRECTORY/1/halves.py", python().display())))
        .file("halves/1/halves.py", &halves);
    let sandbox = [Stage::Tokenizer, Stage::Model, Stage::Postprocess]
        .into_iter()
        .fold(Setup::new(mode), |setup, stage| setup.replicas(stage, 0))
        .replicas(Stage::Python, 1)
        .repository(models.path())
        .start();
    let infer = |model: &str, datatype: &str, data: serde_json::Value| {
        let size = data.as_array().map_or(0, Vec::len);
        let input = json!({"name": "IN", "datatype": datatype, "shape": [size], "data": data});
        sandbox.infer(model, &json!({"inputs": [input]})).output("OUT")["data"].clone()
    };
    assert_eq!(infer("reverse", "INT64", json!([1, 2, 3])), json!([3, 2, 1]));
    // More than a frame holds.
    let many: Vec<i64> = (0..20_000).collect();
    let reversed: Vec<i64> = (0..20_000).rev().collect();
    assert_eq!(infer("reverse", "INT64", json!(many)), json!(reversed));
    assert_eq!(infer("halves", "FP32", json!([1.0, 3.0])), json!([0.5, 1.5]));
}

#[test]
fn programs_are_stages_in_one_process() {
    programs_are_stages(Mode::AllInOne);
}

#[test]
fn programs_are_stages_over_nats() {
    programs_are_stages(Mode::Services);
}

/// Runs `tests/stages/conformance.py`, which prints its findings.
#[track_caller]
fn conforms(datatype: &str, command: &[&str]) {
    let suite = workspace().join("tests/stages/conformance.py");
    let mut run = std::process::Command::new(python());
    run.arg("-B").arg(suite).args(["--datatype", datatype, "--"]).args(command);
    run.env("PYTHONPATH", workspace().join("services/python/python"));
    let output = run.output().expect("the tests' Python runs");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_sample_in_rust_speaks_the_protocol() {
    conforms("INT64", &[env!("CARGO_BIN_EXE_reverse")]);
}

#[test]
fn a_function_in_python_speaks_the_protocol() {
    let halves = workspace().join("examples/stage/halves.py");
    conforms("FP32", &[&python().display().to_string(), &halves.display().to_string()]);
}
