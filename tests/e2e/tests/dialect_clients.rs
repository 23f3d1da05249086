//! Unmodified clients of other servers from PyPI, against Trireme: `tests/clients/dialects/*.py`. `make clients-test` installs
//! them and runs this.

use std::path::PathBuf;
use std::process::Command;

use trireme_e2e::{Mode, Sandbox, Setup, in_every_mode, workspace};

/// Names the Python that has the clients, if `scripts/setup-clients.sh` did not make it.
const PYTHON: &str = "TRIREME_CLIENTS_PYTHON";

const KEY: &str = "a-key-of-this-test";

in_every_mode!(openai, langchain, cohere, huggingface_hub, llama_index, haystack, infinity, rerankers);

/// The Python that has the clients; prints a note and returns `None` if it is missing.
fn python() -> Option<PathBuf> {
    let made = workspace().join(".cache/clients-python/bin/python");
    let path = std::env::var_os(PYTHON).map_or(made, PathBuf::from);
    if !path.is_file() {
        println!("left out: the clients are not there: run `make clients-test`, or name their Python with {PYTHON}");
        return None;
    }
    Some(path)
}

fn openai(mode: Mode) {
    run("openai_client.py", mode);
}

fn langchain(mode: Mode) {
    run("langchain_client.py", mode);
}

fn cohere(mode: Mode) {
    run("cohere_client.py", mode);
}

fn huggingface_hub(mode: Mode) {
    run("huggingface_client.py", mode);
}

fn llama_index(mode: Mode) {
    run("llama_index_client.py", mode);
}

fn haystack(mode: Mode) {
    run("haystack_client.py", mode);
}

fn infinity(mode: Mode) {
    run("infinity_checks.py", mode);
}

fn rerankers(mode: Mode) {
    run("rerankers_client.py", mode);
}

/// Runs a script against a server that serves, and against one that is full.
fn run(script: &str, mode: Mode) {
    let Some(python) = python() else { return };
    let setup = Setup::new(mode).repository(&workspace().join("tests/repositories/texts"));
    let serving = setup.clone().gateway_arguments(&["--api-key", KEY]).start();
    run_at(&python, script, &serving, &[]);
    let full = setup.gateway_arguments(&["--api-key", KEY, "--max-in-flight", "0"]).start();
    run_at(&python, script, &full, &["--full"]);
}

#[track_caller]
fn run_at(python: &PathBuf, script: &str, sandbox: &Sandbox, arguments: &[&str]) {
    let path = workspace().join("tests/clients/dialects").join(script);
    let mut command = Command::new(python);
    command.arg(path).args(["--url", &sandbox.address.to_string(), "--key", KEY]).args(arguments);
    // The clients do not ask the Hugging Face hub.
    let output = command.env("HF_HUB_DISABLE_TELEMETRY", "1").env("HAYSTACK_TELEMETRY_ENABLED", "False").output();
    let output = output.unwrap_or_else(|error| panic!("{} does not run: {error}", python.display()));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{script} found:\n{said}{errors}");
}
