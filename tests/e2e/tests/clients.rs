//! The official Triton client, and comparisons with Python's onnxruntime and tokenizers: `tests/clients/*.py`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use trireme_e2e::{
    Mode, ModelFolder, Sandbox, Setup, Stage, demo_repository, in_one_mode, python, seed_repository, workspace,
};

/// Names a folder with reference embeddings (`data/`) and the model they were made with (`models/`).
const REFERENCES: &str = "TRIREME_REFERENCE_DIR";

in_one_mode!(
    a_published_tutorial_runs,
    a_published_translation_tutorial_runs,
    a_published_sentiment_tutorial_runs,
    json_and_binary_tensors_travel,
    the_http_extensions_work,
    grpc_clients_work,
    shared_memory_works,
    curl_works,
    the_demo_gives_what_python_computes,
    real_texts_give_the_reference_embeddings,
);

/// Runs a script against the sandbox; it prints the result of each check.
#[track_caller]
fn run(sandbox: &Sandbox, script: &str, arguments: &[&str]) {
    run_at(sandbox.address, script, arguments);
}

/// Runs a script against this address.
#[track_caller]
pub fn run_at(address: SocketAddr, script: &str, arguments: &[&str]) {
    let path = workspace().join("tests/clients").join(script);
    let output = Command::new(python()).arg(path).arg("--url").arg(address.to_string()).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("{} does not run: {error}; run `make setup`", python().display()));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{script} found:\n{said}{errors}");
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("paths of this project are text")
}

fn a_published_tutorial_runs(mode: Mode) {
    let sandbox = Setup::new(mode).repository(&seed_repository()).replicas(Stage::Postprocess, 0).shared();
    run(&sandbox, "seed_000.py", &[]);
}

/// The tutorial's model, with the backend that replaces the tutorial's script for the `python` backend.
fn a_published_translation_tutorial_runs(mode: Mode) {
    let config = "backend: 'generation' max_batch_size: 0
        input [ { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] },
                { name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] } ]
        output [ { name: 'generated_indices' data_type: TYPE_INT64 dims: [ -1, -1 ] } ]
        instance_group [ { count: 1 kind: KIND_CPU } ]";
    let models = ModelFolder::copy_of(&workspace().join("examples/translation"))
        .model_like("generator", "m2m100_translation_model")
        .file("m2m100_translation_model/config.pbtxt", config);
    let sandbox = Setup::new(mode).repository(models.path()).start();
    run(&sandbox, "seed_001.py", &[]);
}

fn a_published_sentiment_tutorial_runs(mode: Mode) {
    let models = ModelFolder::copy_of(&workspace().join("tests/repositories/sentiment"));
    let models = models.with_basic(&["tiny_tokenizer"]);
    let mut sandbox = Setup::new(mode).repository(models.path()).replicas(Stage::Postprocess, 0).start();
    let grpc = sandbox.grpc_address().to_string();
    run(&sandbox, "seed_003.py", &["--grpc-url", &grpc]);
}

fn json_and_binary_tensors_travel(mode: Mode) {
    run(&Sandbox::shared(mode), "http_json_binary.py", &[]);
}

fn the_http_extensions_work(mode: Mode) {
    run(&Sandbox::start(mode), "http_extras.py", &[]);
}

fn grpc_clients_work(mode: Mode) {
    let mut sandbox = Sandbox::start(mode);
    run_at(sandbox.grpc_address(), "grpc_infer.py", &[]);
}

fn shared_memory_works(mode: Mode) {
    let mut sandbox = Setup::new(mode).gateway_arguments(&["--allow-client-shm"]).start();
    let grpc = sandbox.grpc_address().to_string();
    run(&sandbox, "shared_memory.py", &["--grpc-url", &grpc]);
}

fn curl_works(mode: Mode) {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("left out: there is no curl on this machine");
        return;
    }
    let sandbox = Sandbox::shared(mode);
    let script = workspace().join("tests/clients/curl.sh");
    let output = Command::new("bash").arg(script).arg(format!("http://{}", sandbox.address)).output();
    let output = output.expect("bash runs");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "curl.sh found:\n{said}{errors}");
}

fn the_demo_gives_what_python_computes(mode: Mode) {
    let repository = demo_repository();
    let sandbox = Setup::new(mode).repository(&repository).start();
    run(&sandbox, "reference_demo.py", &["--repository", utf8(&repository)]);
}

/// Each text alone, and again with 64 requests in flight: the cosine to the reference has to be at least 0.99999.
fn real_texts_give_the_reference_embeddings(mode: Mode) {
    let Some(references) = std::env::var_os(REFERENCES) else {
        println!("left out: {REFERENCES} does not name a folder with reference embeddings");
        return;
    };
    let references = Path::new(&references);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let assembled = Command::new(workspace().join("scripts/assemble-repository.sh"))
        .args([&references.join("models/minilm-l6-v2-fp32"), folder.path()])
        .status();
    assert!(assembled.is_ok_and(|status| status.success()), "scripts/assemble-repository.sh has to succeed");
    let sandbox = Setup::new(mode).repository(folder.path()).start();
    let data = references.join("data");
    let mut arguments = vec!["--references", utf8(&data), "--tokenizer", "tokenizer", "--min-cosine", "0.99999"];
    arguments.extend(["--concurrency", "64", "--ways", "alone", "concurrent"]);
    run(&sandbox, "reference_embeddings.py", &arguments);
}
