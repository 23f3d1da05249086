//! Unmodified clients of other servers from PyPI, against Trireme: `tests/clients/dialects/*.py`. `make clients-test` installs
//! them and runs this. Each runs against a server that serves, one whose queue is full, and one whose models are not ready.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use trireme_e2e::{KEY, Mode, TextsServer, TextsState, in_one_mode, workspace};

/// Clients of the newest versions. The variable names their Python, if `scripts/setup-clients.sh` did not make it.
const CLIENTS: Environment = Environment { folder: ".cache/clients-python", variable: "TRIREME_CLIENTS_PYTHON" };

/// Clients that need older versions of the same packages.
const INTEGRATIONS: Environment =
    Environment { folder: ".cache/integrations-python", variable: "TRIREME_INTEGRATIONS_PYTHON" };

/// Clients that need other versions again, and LiteLLM with those that are built on it.
const OTHERS: Environment = Environment { folder: ".cache/others-python", variable: "TRIREME_OTHERS_PYTHON" };

/// A Python environment with clients.
struct Environment {
    folder: &'static str,
    variable: &'static str,
}

in_one_mode!(
    openai,
    langchain,
    cohere,
    huggingface_hub,
    llama_index,
    haystack,
    infinity,
    rerankers,
    ollama,
    nvidia,
    base_urls,
    products,
    baseten,
    kserve,
    mistral,
    voyage,
    llama_index_jina,
    langchain_integrations,
    haystack_cohere,
    together,
    litellm,
    pydantic_ai,
    dspy,
    agno,
    chroma,
    langchain_others,
    llama_index_cohere,
    mlserver,
);

fn openai(mode: Mode) {
    run(&CLIENTS, "openai_client.py", mode);
}

fn langchain(mode: Mode) {
    run(&CLIENTS, "langchain_client.py", mode);
}

fn cohere(mode: Mode) {
    run(&CLIENTS, "cohere_client.py", mode);
}

fn huggingface_hub(mode: Mode) {
    run(&CLIENTS, "huggingface_client.py", mode);
}

fn llama_index(mode: Mode) {
    run(&CLIENTS, "llama_index_client.py", mode);
}

fn haystack(mode: Mode) {
    run(&CLIENTS, "haystack_client.py", mode);
}

fn infinity(mode: Mode) {
    run(&CLIENTS, "infinity_checks.py", mode);
}

fn rerankers(mode: Mode) {
    run(&CLIENTS, "rerankers_client.py", mode);
}

fn ollama(mode: Mode) {
    run(&CLIENTS, "ollama_client.py", mode);
}

fn nvidia(mode: Mode) {
    run(&CLIENTS, "nvidia_client.py", mode);
}

fn base_urls(mode: Mode) {
    run(&CLIENTS, "base_urls.py", mode);
}

fn products(mode: Mode) {
    run(&CLIENTS, "products.py", mode);
}

fn baseten(mode: Mode) {
    run(&CLIENTS, "baseten_client.py", mode);
}

fn mistral(mode: Mode) {
    run(&CLIENTS, "mistral_client.py", mode);
}

fn voyage(mode: Mode) {
    run(&CLIENTS, "voyage_client.py", mode);
}

fn kserve(mode: Mode) {
    run(&CLIENTS, "kserve_client.py", mode);
}

fn llama_index_jina(mode: Mode) {
    run(&CLIENTS, "llama_index_jina.py", mode);
}

fn langchain_integrations(mode: Mode) {
    run(&INTEGRATIONS, "langchain_integrations.py", mode);
}

fn haystack_cohere(mode: Mode) {
    run(&INTEGRATIONS, "haystack_cohere.py", mode);
}

fn together(mode: Mode) {
    run(&OTHERS, "together_client.py", mode);
}

fn litellm(mode: Mode) {
    run(&OTHERS, "litellm_client.py", mode);
}

fn pydantic_ai(mode: Mode) {
    run(&OTHERS, "pydantic_ai_client.py", mode);
}

fn dspy(mode: Mode) {
    run(&OTHERS, "dspy_client.py", mode);
}

fn agno(mode: Mode) {
    run(&OTHERS, "agno_client.py", mode);
}

fn chroma(mode: Mode) {
    run(&OTHERS, "chroma_client.py", mode);
}

fn langchain_others(mode: Mode) {
    run(&OTHERS, "langchain_others.py", mode);
}

fn llama_index_cohere(mode: Mode) {
    run(&OTHERS, "llama_index_cohere.py", mode);
}

fn mlserver(mode: Mode) {
    run(&OTHERS, "mlserver_codecs.py", mode);
}

/// Runs a script against a server in each state.
fn run(environment: &Environment, script: &str, mode: Mode) {
    let Some(python) = environment.python() else { return };
    for (state, name) in
        [(TextsState::Serving, "serving"), (TextsState::Full, "full"), (TextsState::Unready, "unready")]
    {
        let server = TextsServer::start(mode, state);
        run_at(&python, script, &server, name);
    }
}

#[track_caller]
fn run_at(python: &Path, script: &str, server: &TextsServer, state: &str) {
    let path = workspace().join("tests/clients/dialects").join(script);
    let mut command = Command::new(python);
    let url = server.sandbox.address.to_string();
    command.arg(path).args(["--url", &url, "--key", KEY, "--state", state]);
    let vocabularies = vocabularies();
    command.env("TIKTOKEN_CACHE_DIR", vocabularies.path());
    // The clients do not ask the Hugging Face hub.
    let output = command.env("HF_HUB_DISABLE_TELEMETRY", "1").env("HAYSTACK_TELEMETRY_ENABLED", "False").output();
    let output = output.unwrap_or_else(|error| panic!("{} does not run: {error}", python.display()));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{script}, {state}:\n{said}");
    assert!(output.status.success(), "{script}, {state}:\n{said}{errors}");
}

/// A folder with the vocabulary cl100k_base under the name by which tiktoken keeps it, which otherwise downloads it. The file is that
/// of the crate `tiktoken-rs`, which the gateway is built with.
fn vocabularies() -> TempDir {
    const NAME: &str = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4";
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo"))).expect("cargo has a home");
    let folders = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let crates = folders(&home.join("registry/src")).flat_map(|registry| folders(&registry).collect::<Vec<_>>());
    let files =
        crates.filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"tiktoken-rs-")));
    let file = files.map(|path| path.join("assets/cl100k_base.tiktoken")).find(|path| path.is_file());
    let file = file.unwrap_or_else(|| panic!("no source of tiktoken-rs in {}", home.display()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(file, folder.path().join(NAME)).expect("the temporary folder can be written");
    folder
}

// === impl Environment ===

impl Environment {
    /// Its Python; prints a note and returns `None` if it is missing.
    fn python(&self) -> Option<PathBuf> {
        let made = workspace().join(self.folder).join("bin/python");
        let path = std::env::var_os(self.variable).map_or(made, PathBuf::from);
        if !path.is_file() {
            let variable = self.variable;
            println!(
                "left out: the clients are not there: run `make clients-test`, or name their Python with {variable}"
            );
            return None;
        }
        Some(path)
    }
}
