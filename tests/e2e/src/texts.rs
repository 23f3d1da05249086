//! The models of `tests/repositories/texts` in each state in which a client may find a server: it serves, its queue is full, or
//! its models are not ready.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, python, wait_until, workspace};

/// The key of the servers here.
pub const KEY: &str = "a-key-of-this-test";

/// Most bytes of a body that the servers here take.
pub const MAX_BODY: usize = 64 << 10;

/// How long a state may take to come about.
const LIMIT: Duration = Duration::from_secs(60);

/// Refusals one after the other that show a queue to be full.
const IN_A_ROW: usize = 20;

/// A model that gives its texts back after ten minutes. One request may wait for it.
const GATE: &str = "backend: 'identity' instance_group [{ count: 1 kind: KIND_CPU }]
    input [{ name: 'INPUT0' data_type: TYPE_STRING dims: [-1] }]
    output [{ name: 'OUTPUT0' data_type: TYPE_STRING dims: [-1] }]
    dynamic_batching { default_queue_policy { max_queue_size: 1 } }
    parameters { key: 'execute_delay_ms' value { string_value: '600000' } }";

/// The first step of an ensemble: the gate.
const GATE_STEP: &str = "step [ { model_name: 'gate' model_version: -1 input_map { key: 'INPUT0' value: 'TEXT' }
    output_map { key: 'OUTPUT0' value: 'gated' } },";

/// The encoder as a model that does not finish loading.
const LOADING: &str = "import time
class TritonPythonModel:
    def initialize(self, args):
        time.sleep(600)
";

/// In which state a client finds a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextsState {
    /// It serves.
    Serving,
    /// The queue of each model's first step is full (`max_queue_size`).
    Full,
    /// No model is ready: in one process the encoder is still loading, as services its worker was killed.
    Unready,
}

/// A server of the models of texts.
pub struct TextsServer {
    /// The server. Requests need the key [`KEY`].
    pub sandbox: Sandbox,
    /// The requests that fill its queue.
    _waiting: Vec<TcpStream>,
    _models: ModelFolder,
    /// Durable work, in one process.
    _jobs: TempDir,
}

/// `tests/repositories/texts`: models that embed, rerank and classify.
pub fn texts_repository() -> PathBuf {
    workspace().join("tests/repositories/texts")
}

// === impl TextsServer ===

impl TextsServer {
    /// Starts a server in this state.
    ///
    /// # Panics
    /// When it does not get into the state.
    #[track_caller]
    pub fn start(mode: Mode, state: TextsState) -> TextsServer {
        let models = ModelFolder::copy_of(&texts_repository());
        let limit = MAX_BODY.to_string();
        let jobs = tempfile::tempdir().expect("a temporary folder");
        let directory = jobs.path().display().to_string();
        let arguments =
            ["--api-key", KEY, "--http-max-input-size", &limit, "--oip-health-bodies", "--data-dir", &directory];
        let count = if mode == Mode::AllInOne { arguments.len() } else { arguments.len() - 2 };
        let setup = Setup::new(mode).gateway_arguments(&arguments[..count]);
        let (sandbox, waiting, models) = match (state, mode) {
            (TextsState::Serving, _) => {
                let sandbox = setup.repository(models.path()).start();
                (sandbox, Vec::new(), models)
            }
            (TextsState::Full, _) => {
                let models =
                    ["embedding", "reranker", "classifier"].into_iter().fold(models.model("gate", GATE), gated);
                let sandbox = setup.repository(models.path()).start();
                let waiting = fill(&sandbox);
                (sandbox, waiting, models)
            }
            (TextsState::Unready, Mode::AllInOne) => {
                let python = python().display().to_string();
                let models = edited(models, "encoder", "\"onnxruntime\"", "\"python\"");
                let models = models.without("encoder/1/model.onnx").file("encoder/1/model.py", LOADING);
                let setup = setup.repository(models.path()).worker_arguments(&["--python", &python]);
                let mut sandbox = setup.start_gateway();
                sandbox.wait_listening();
                wait_until("the tokenizer is ready", LIMIT, || is_ready(&sandbox, "words").then_some(()));
                (sandbox, Vec::new(), models)
            }
            (TextsState::Unready, Mode::Services) => {
                let mut sandbox = setup.repository(models.path()).start();
                sandbox.worker(Stage::Model, 0).kill();
                wait_until("the worker is forgotten", LIMIT, || (!is_ready(&sandbox, "embedding")).then_some(()));
                (sandbox, Vec::new(), models)
            }
        };
        TextsServer { sandbox, _waiting: waiting, _models: models, _jobs: jobs }
    }
}

/// A request with the server's key.
fn with_key(request: Request) -> Request {
    request.header("Authorization", &format!("Bearer {KEY}"))
}

fn is_ready(sandbox: &Sandbox, model: &str) -> bool {
    sandbox.send(&with_key(Request::get(&format!("/v2/models/{model}/ready")))).status == 200
}

/// Puts the gate before a model.
fn gated(models: ModelFolder, model: &str) -> ModelFolder {
    let models = edited(models, model, r#"key: "TEXT" value: "TEXT""#, r#"key: "TEXT" value: "gated""#);
    edited(models, model, "step [", GATE_STEP)
}

/// Replaces text in a model's configuration.
fn edited(models: ModelFolder, model: &str, from: &str, to: &str) -> ModelFolder {
    let path = format!("{model}/config.pbtxt");
    let config = std::fs::read_to_string(models.path().join(&path)).expect("the model has a configuration");
    assert!(config.contains(from), "{path} has {from}");
    models.file(&path, config.replace(from, to))
}

/// Sends requests to the gate until it has no room for another one for a while: workers take some from a full queue.
fn fill(sandbox: &Sandbox) -> Vec<TcpStream> {
    let text = |timeout: u64| -> Value {
        let input = json!({"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["a"]});
        json!({"parameters": {"trireme_timeout_ms": timeout}, "inputs": [input]})
    };
    let (mut waiting, mut refused) = (Vec::new(), 0);
    wait_until("the queue is full", LIMIT, || {
        let probe = sandbox.send(&with_key(Request::infer("gate", &text(100))));
        refused = if probe.error().ends_with("Exceeds maximum queue size") { refused + 1 } else { 0 };
        if refused == 0 {
            let request = with_key(Request::infer("gate", &text(600_000)));
            waiting.push(request.start(sandbox.address).expect("the gateway listens"));
        }
        (refused == IN_A_ROW).then_some(())
    });
    waiting
}
