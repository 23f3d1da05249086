//! Compares Trireme's answers over HTTP and gRPC with those of a real Triton: `tests/compat`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use trireme_e2e::{Mode, ModelFolder, Sandbox, Setup, Stage, in_one_mode, python, workspace};

in_one_mode!(
    every_scenario_is_answered_as_expected,
    models_are_controlled_as_expected,
    shared_memory_is_used_as_expected,
    sequences_are_run_as_expected,
    models_in_python_answer_as_expected,
);

/// Runs `tests/compat/run.py`, which prints its findings.
#[track_caller]
fn run(arguments: &[&str]) {
    let output = Command::new(python()).arg("-B").arg(compat().join("run.py")).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("{} does not run: {error}; run `make setup`", python().display()));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "run.py found:\n{said}{errors}");
}

fn compat() -> PathBuf {
    workspace().join("tests/compat")
}

fn every_scenario_is_answered_as_expected(mode: Mode) {
    let setup = Setup::new(mode).repository(&compat().join("models/repository"));
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let (http, grpc) = (format!("http://{}", sandbox.address), sandbox.grpc_address().to_string());
    run(&["--url", &http, "--grpc", &grpc]);
}

fn models_are_controlled_as_expected(mode: Mode) {
    let flags = ["--model-control-mode=explicit", "--load-model=c"];
    let setup = Setup::new(mode).repository(&compat().join("models/control")).worker_arguments(&flags);
    let setup = if mode == Mode::Services { setup.gateway_arguments(&flags) } else { setup };
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let (http, grpc) = (format!("http://{}", sandbox.address), sandbox.grpc_address().to_string());
    run(&["--url", &http, "--grpc", &grpc, "--server", "explicit"]);
}

fn shared_memory_is_used_as_expected(mode: Mode) {
    let setup = Setup::new(mode).repository(&compat().join("models/repository"));
    let setup = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0);
    let mut sandbox = setup.gateway_arguments(&["--allow-client-shm"]).start();
    let (http, grpc) = (format!("http://{}", sandbox.address), sandbox.grpc_address().to_string());
    run(&["--url", &http, "--grpc", &grpc, "--server", "shared memory"]);
}

fn sequences_are_run_as_expected(mode: Mode) {
    let setup = Setup::new(mode).repository(&compat().join("models/sequences"));
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let (http, grpc) = (format!("http://{}", sandbox.address), sandbox.grpc_address().to_string());
    run(&["--url", &http, "--grpc", &grpc, "--server", "sequences"]);
}

/// The models write files into their repository, so each run has a copy.
fn models_in_python_answer_as_expected(mode: Mode) {
    let models = ModelFolder::copy_of(&compat().join("models/python"));
    let loaded: Vec<String> = fs::read_dir(models.path())
        .expect("it is there")
        .map(|entry| entry.expect("it can be read").file_name().into_string().expect("a name"))
        .filter(|name| !name.starts_with("broken_"))
        .map(|name| format!("--load-model={name}"))
        .collect();
    let control = ["--model-control-mode=explicit"].into_iter().chain(loaded.iter().map(String::as_str));
    let python = python().display().to_string();
    let (gateway, worker): (Vec<_>, Vec<_>) = match mode {
        Mode::AllInOne => (Vec::new(), control.chain(["--python", &python]).collect()),
        Mode::Services => (control.clone().collect(), control.chain(["--python", &python]).collect()),
    };
    let setup = [Stage::Tokenizer, Stage::Model, Stage::Postprocess]
        .into_iter()
        .fold(Setup::new(mode), |setup, stage| setup.replicas(stage, 0))
        .replicas(Stage::Python, 1)
        .repository(models.path());
    let mut sandbox = setup.gateway_arguments(&gateway).worker_arguments(&worker).start();
    let (http, grpc) = (format!("http://{}", sandbox.address), sandbox.grpc_address().to_string());
    let repository = models.path().display().to_string();
    run(&["--url", &http, "--grpc", &grpc, "--server", "python", "--repository", &repository]);

    // Settings of the log are each process's own, so only one process has all of Triton's lines and no others.
    if mode == Mode::AllInOne {
        let recorded = fs::read(compat().join("recorded/log/python.json")).expect("it is there");
        let recorded: Vec<(String, String)> = serde_json::from_slice(&recorded).expect("pairs");
        assert_eq!(marked_lines(&sandbox), recorded);
    }
}

/// The lines that models have marked: each its level's letter, as Triton has it, and its text.
fn marked_lines(sandbox: &Sandbox) -> Vec<(String, String)> {
    let marked = |event: serde_json::Value| {
        let text = event["message"].as_str().filter(|text| text.starts_with("marked: "))?.to_owned();
        Some((event["level"].as_str()?.chars().next()?.to_string(), text))
    };
    sandbox.gateway.events().into_iter().filter_map(marked).collect()
}

/// Recordings, expectations, divergences and docs/compatibility.md are consistent.
#[test]
fn what_is_written_down_is_consistent() {
    run(&["--check"]);
}
