//! Compares Trireme's answers over HTTP and gRPC with those of a real Triton: `tests/compat`.

use std::path::PathBuf;
use std::process::Command;

use trireme_e2e::{Mode, Setup, Stage, in_every_mode, python, workspace};

in_every_mode!(
    every_scenario_is_answered_as_expected,
    models_are_controlled_as_expected,
    shared_memory_is_used_as_expected,
    sequences_are_run_as_expected,
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

/// Recordings, expectations, divergences and docs/compatibility.md are consistent.
#[test]
fn what_is_written_down_is_consistent() {
    run(&["--check"]);
}
