//! Start: a wrong set-up ends in one line that names the remedy, and processes may start in any order.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Setup, Stage, basic_repository, golden, in_one_mode, product, python,
    wait_until, workspace,
};
use trireme_testkit::{NatsServer, assert_close};

/// How long a process may take to notice that it cannot start.
const LIMIT: Duration = Duration::from_secs(60);

/// Nothing listens on this port of this machine.
const NOBODY: &str = "nats://127.0.0.1:1";

const SERVICES: [&str; 4] = ["trireme-gateway", "trireme-tokenizer", "trireme-model", "trireme-postprocess"];

fn serve(repository: &Path) -> Command {
    let mut command = product("trireme");
    command.args(["serve", "--model-repository"]).arg(repository);
    command
}

fn service(binary: &str, nats_url: &str) -> Command {
    let mut command = product(binary);
    command.args(["--nats-url", nats_url, "--model-repository"]).arg(basic_repository());
    command
}

/// Runs a command that cannot start: it has to end soon, with an exit code that is not zero and a last line that
/// contains each of `parts`. Returns the process, so that its log can be checked.
#[track_caller]
fn ends(mut command: Command, parts: &[&str]) -> (Process, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut process = Process::start("broken", &mut command, folder.path());
    let code = process.wait_exit(LIMIT).code();
    assert!(code.is_some_and(|code| code != 0), "exit code {code:?}");
    let words = process.last_words();
    assert_eq!(words.len(), 1, "one line that says what to do, found {words:#?}");
    assert!(words[0].starts_with("error: "), "{}", words[0]);
    for part in parts {
        assert!(words[0].contains(part), "expected {part:?} in: {}", words[0]);
    }
    (process, folder)
}

// === The set-up around models ===

#[test]
fn no_onnx_runtime_library() {
    let said = ["/nowhere/libonnxruntime.so", "no such file", "make setup", "--onnxruntime-library", "ORT_DYLIB_PATH"];
    let mut by_variable = serve(&basic_repository());
    by_variable.env("ORT_DYLIB_PATH", "/nowhere/libonnxruntime.so");
    ends(by_variable, &said);

    let nats = NatsServer::start();
    let mut by_option = service("trireme-model", &nats.url());
    by_option.args(["--onnxruntime-library", "/nowhere/libonnxruntime.so"]);
    ends(by_option, &said);
}

#[test]
fn a_library_that_is_something_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("libonnxruntime.so");
    std::fs::write(&library, "no library").expect("the temporary folder can be written");
    let mut command = serve(&basic_repository());
    command.arg("--onnxruntime-library").arg(&library);
    ends(command, &["cannot use the ONNX Runtime library", &library.display().to_string(), "make setup"]);
}

#[test]
fn nats_that_is_not_there() {
    for binary in SERVICES {
        let started = Instant::now();
        let mut command = service(binary, NOBODY);
        command.args(["--nats-connect-timeout-secs", "2"]);
        let (process, _folder) = ends(command, &[NOBODY, "unreachable", "start the broker there", "--nats-url"]);
        assert!(started.elapsed() >= Duration::from_secs(2), "{binary} gave up early");
        let retries = process.log().matches("NATS is not there yet").count();
        assert!((1..=4).contains(&retries), "{binary} shows each retry, found {retries}:\n{}", process.log());
    }
}

#[test]
fn another_program_at_the_address_of_nats() {
    // It takes connections, and waits for a request.
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("nats://{}", silent.local_addr().expect("it is bound"));
    let (process, _folder) =
        ends(service("trireme-tokenizer", &url), &[&url, "does not greet as nats-server does", "--nats-url"]);
    assert!(!process.log().contains("NATS is not there yet"), "{}", process.log());
}

#[test]
fn nats_without_jetstream() {
    let nats = NatsServer::start_without_jetstream();
    for binary in SERVICES {
        ends(service(binary, &nats.url()), &["JetStream", "start nats-server with -js"]);
    }
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("it is bound");
    let port = ["--http-port", &address.port().to_string()];

    let mut all_in_one = serve(&basic_repository());
    all_in_one.args(port);
    ends(all_in_one, &[&address.to_string(), "--http-port"]);

    let nats = NatsServer::start();
    let mut gateway = service("trireme-gateway", &nats.url());
    gateway.args(port);
    ends(gateway, &[&address.to_string(), "--http-port"]);

    let mut worker = service("trireme-tokenizer", &nats.url());
    worker.args(["--admin-address", &address.to_string()]);
    ends(worker, &[&address.to_string(), "--admin-address"]);
}

// === Models ===

#[test]
fn a_repository_that_is_not_there() {
    ends(serve(Path::new("/nowhere/models")), &["model repository", "/nowhere/models"]);
}

#[test]
fn an_empty_repository() {
    let models = ModelFolder::new();
    let nats = NatsServer::start();
    let place = models.path().display().to_string();
    let said = [place.as_str(), "is empty: expected a directory for each model"];
    ends(serve(models.path()), &said);
    let mut model = product("trireme-model");
    model.args(["--nats-url", &nats.url(), "--model-repository"]).arg(models.path());
    ends(model, &said);
    let validated = product("trireme").arg("validate").arg(models.path()).output().expect("the command runs");
    assert_eq!(validated.status.code(), Some(1));
    let faults = String::from_utf8_lossy(&validated.stdout);
    assert!(said.iter().all(|part| faults.contains(*part)) && faults.lines().count() == 1, "{faults}");
}

#[test]
fn a_repository_without_a_model_for_the_service() {
    let models = ModelFolder::basic(&["simple"]);
    let nats = NatsServer::start();
    let mut tokenizer = product("trireme-tokenizer");
    tokenizer.args(["--nats-url", &nats.url(), "--model-repository"]).arg(models.path());
    ends(tokenizer, &[&models.path().display().to_string(), "no model for the tokenizer service"]);
}

#[test]
fn a_model_file_that_is_missing() {
    let models = ModelFolder::basic(&["simple"]).without("simple/1/model.onnx");
    ends(serve(models.path()), &["'simple'", "simple/1/model.onnx", "No such file"]);
    let models = ModelFolder::basic(&["tiny_tokenizer"]).without("tiny_tokenizer/1/tokenizer.json");
    ends(serve(models.path()), &["'tiny_tokenizer'", "tiny_tokenizer/1/tokenizer.json", "cannot read"]);
}

#[test]
fn a_model_file_that_is_corrupt() {
    let models = ModelFolder::basic(&["simple", "identity_fp32"]).file("simple/1/model.onnx", "no model");
    ends(serve(models.path()), &["'simple'", "simple/1/model.onnx"]);
    let models = ModelFolder::basic(&["tiny_tokenizer"]).file("tiny_tokenizer/1/tokenizer.json", "{");
    ends(serve(models.path()), &["'tiny_tokenizer'", "tiny_tokenizer/1/tokenizer.json", "not valid"]);
}

#[test]
fn a_configuration_with_an_unknown_field() {
    let models = ModelFolder::new().model("m", "backend: 'identity'\nmax_batch_sise: 8\n");
    ends(serve(models.path()), &["m/config.pbtxt", "line 2", "max_batch_sise"]);
}

#[test]
fn every_fault_is_reported_together() {
    let models = ModelFolder::new().model("first", "max_batch_sise: 8").model("second", "max_batch_sise: 8");
    ends(serve(models.path()), &["first/config.pbtxt", "second/config.pbtxt"]);
}

#[test]
fn a_backend_that_does_not_exist() {
    let models = ModelFolder::new().model("m", "backend: 'pytorch'").file("m/1/model.pt", "");
    ends(
        serve(models.path()),
        &[
            "'m'",
            "'pytorch'",
            "'python' (python service)",
            "'tokenizer' (tokenizer service)",
            "'onnxruntime' (model service)",
            "model.pt is a file of torch, which is not run here",
        ],
    );
    for named in ["platform: 'tensorrt_plan'", "backend: 'tensorflow'", "platform: 'tensorflow_savedmodel'"] {
        ends(serve(ModelFolder::new().model("m", named).path()), &["model.onnx", "platform: \"onnxruntime_onnx\""]);
    }
    let models = ModelFolder::new().model("m", "backend: 'python'").file("m/1/tokenizer.json", "{}");
    ends(serve(models.path()), &["'m'", "m/1/model.py", "for which backend: \"tokenizer\" needs no code"]);
}

fn groups_of_gpus_run_on_the_cpu_where_the_operator_says_so(mode: Mode) {
    let gpus = "instance_group [{ kind: KIND_GPU gpus: [0, 1] }]";
    let models = ModelFolder::basic(&["tiny_tokenizer", "tiny_encoder", "tiny_pool", "tiny_embedding"]);
    let models = ["tiny_tokenizer", "tiny_encoder"].iter().fold(models, |models, name| models.with_setting(name, gpus));
    let flag = "--gpu-groups-on-cpu";
    if mode == Mode::AllInOne {
        ends(serve(models.path()), &["'tiny_tokenizer'", "KIND_CPU", flag]);
        let validated = product("trireme").args(["validate", flag]).arg(models.path()).output();
        assert!(validated.is_ok_and(|validated| validated.status.success()));
    }
    let mut sandbox = Setup::new(mode).repository(models.path()).worker_arguments(&[flag]).start();
    assert_close(&sandbox.send(&embed()).numbers("embedding"), &golden()[0].embedding, 1e-5);
    let config: Value = sandbox.get("/v2/models/tiny_encoder/config").json();
    let kinds: Vec<_> = config["instance_group"].as_array().into_iter().flatten().map(|group| &group["kind"]).collect();
    assert_eq!(kinds, ["KIND_CPU", "KIND_CPU"]);
    let worker = match mode {
        Mode::AllInOne => &mut sandbox.gateway,
        _ => sandbox.worker(Stage::Model, 0),
    };
    let warned = worker.events().into_iter().filter(|event| event.to_string().contains(flag)).count();
    assert_eq!(warned, if mode == Mode::AllInOne { 2 } else { 1 }, "one for each model: {}", worker.log());
}

#[test]
fn an_ensemble_that_does_not_fit_together() {
    let ensemble = |step: &str, input: &str| {
        format!(
            "platform: 'ensemble' input [{{ name: 'IN' data_type: TYPE_FP32 dims: [-1] }}]
             output [{{ name: 'OUT' data_type: TYPE_FP32 dims: [-1] }}]
             ensemble_scheduling {{ step [{{ model_name: '{step}' model_version: -1
               input_map {{ key: '{input}' value: 'IN' }} output_map {{ key: 'OUTPUT0' value: 'OUT' }} }}] }}"
        )
    };
    let broken = |step: &str, input: &str, parts: &[&str]| {
        let models = ModelFolder::basic(&["identity_a", "identity_bytes"]).model("broken", &ensemble(step, input));
        ends(serve(models.path()), parts);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| broken("nix", "INPUT0", &["broken", "nix"]));
        scope.spawn(|| broken("identity_a", "INPUT7", &["broken", "IN", "INPUT7", "identity_a"]));
        scope.spawn(|| broken("identity_bytes", "INPUT0", &["broken", "TYPE_STRING", "TYPE_FP32"]));
    });
}

// === Order ===

fn embed() -> Request {
    Request::infer(
        "tiny_embedding",
        &json!({"inputs": [
        {"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden()[0].text]}]}),
    )
}

#[test]
fn the_gateway_first_and_the_model_last() {
    let mut sandbox = Setup::new(Mode::Services).start_gateway();
    sandbox.wait_listening();
    assert_eq!(sandbox.get("/v2/health/live").status, 200);
    assert_eq!(sandbox.get("/v2/health/ready").status, 400, "no model is served yet");
    for stage in [Stage::Postprocess, Stage::Tokenizer] {
        sandbox.start_worker(stage);
    }
    wait_until("the tokenizer is served", LIMIT, || (sandbox.model_ready("tiny_tokenizer") == 200).then_some(()));
    let response = sandbox.send(&embed());
    assert_eq!(response.status, 503, "{}", response.text());
    assert!(response.error().contains("tiny_encoder"), "it says which model is missing: {}", response.error());

    sandbox.start_worker(Stage::Model);
    sandbox.wait_ready();
    assert_close(&sandbox.send(&embed()).numbers("embedding"), &golden()[0].embedding, 1e-5);
}

#[test]
fn the_broker_last() {
    let mut nats = NatsServer::start();
    nats.stop();
    let mut sandbox = Setup::new(Mode::Services).start_gateway_on(Some(nats));
    for stage in [Stage::Model, Stage::Tokenizer, Stage::Postprocess] {
        sandbox.start_worker(stage);
    }
    wait_until("the model worker retries", LIMIT, || {
        sandbox.worker(Stage::Model, 0).log().contains("NATS is not there yet").then_some(())
    });
    sandbox.nats.as_mut().expect("this mode has a broker").restart();
    sandbox.wait_ready();
    assert_close(&sandbox.send(&embed()).numbers("embedding"), &golden()[0].embedding, 1e-5);
}

in_one_mode!(stops_when_told_to_while_idle, groups_of_gpus_run_on_the_cpu_where_the_operator_says_so);

fn stops_when_told_to_while_idle(mode: Mode) {
    let mut sandbox = Setup::new(mode).start();
    sandbox.gateway.terminate();
    assert_eq!(sandbox.gateway.wait_exit(LIMIT).code(), Some(0), "{}", sandbox.gateway.log_tail());
    if mode == Mode::Services {
        for stage in [Stage::Tokenizer, Stage::Model, Stage::Postprocess] {
            let worker = sandbox.worker(stage, 0);
            worker.terminate();
            assert_eq!(worker.wait_exit(LIMIT).code(), Some(0), "{}", worker.log_tail());
        }
    }
}

#[test]
fn stops_when_told_to_while_it_waits_for_the_broker() {
    for binary in SERVICES {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut process = Process::start(binary, &mut service(binary, NOBODY), folder.path());
        wait_until("it retries", LIMIT, || process.log().contains("NATS is not there yet").then_some(()));
        process.terminate();
        assert_eq!(process.wait_exit(LIMIT).code(), Some(0), "{}", process.log_tail());
    }
}

/// A command whose output is a terminal, and goes to its standard error from there. It logs as it would for a user.
fn at_terminal(command: &Command) -> Command {
    let mut terminal = Command::new(python());
    let spawn = "import os, pty, sys; os.dup2(2, 1); pty.spawn(sys.argv[1:])";
    terminal.args(["-c", spawn]).arg(command.get_program()).args(command.get_args()).env_remove("NO_COLOR");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    terminal.env_remove("TRIREME_LOG_FORMAT");
    terminal
}

fn folder_server(folder: &str) -> Command {
    let mut command = product("trireme");
    command.arg("serve").arg(workspace().join(folder));
    command
}

#[test]
fn a_terminal_is_shown_a_request_that_works() {
    let folders =
        ["reranker", "sentiment", "names", "sparse", "colbert"].map(|name| format!("examples/folders/{name}"));
    let plain = ModelFolder::basic(&["simple"]);
    let others = ["tests/repositories/basic".to_owned(), plain.path().display().to_string()];
    for folder in folders.into_iter().chain(others) {
        let logs = tempfile::tempdir().expect("a temporary folder");
        let process = Process::start("terminal", &mut at_terminal(&folder_server(&folder)), logs.path());
        let said = wait_until("it is ready", LIMIT, || Some(process.log()).filter(|said| said.contains("Ctrl-C")));
        let said = said.replace('\r', "");
        assert!(said.lines().count() < 10 && said.contains("/ui") && !said.contains("INFO"), "{folder}:\n{said}");
        let request =
            said.lines().find(|line| line.starts_with("  curl ")).unwrap_or_else(|| panic!("{folder}:\n{said}"));
        let command = request.replacen("curl", "curl -sSf --max-time 30", 1);
        let output = Command::new("bash").args(["-c", &command]).output().expect("bash runs");
        let answer = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        let is_answer = answer.is_array() || answer.is_object() && answer.get("error").is_none();
        assert!(output.status.success() && is_answer, "{folder}: {request}\n{output:?}");
    }
}

#[test]
fn log_lines_have_colours_where_the_user_wants_them() {
    let said = |at_terminal: &mut Command| {
        let logs = tempfile::tempdir().expect("a temporary folder");
        let mut process = Process::start("colours", at_terminal, logs.path());
        process.wait_exit(LIMIT);
        let said = process.log();
        assert!(said.contains("WARN"), "{said}");
        said
    };
    let mut gateway = service("trireme-tokenizer", NOBODY);
    gateway.args(["--nats-connect-timeout-secs", "2"]);
    assert!(said(&mut at_terminal(&gateway)).contains('\u{1b}'));
    assert!(said(at_terminal(&gateway).env("NO_COLOR", "")).contains('\u{1b}'), "an empty one is none");
    assert!(!said(at_terminal(&gateway).env("NO_COLOR", "1")).contains('\u{1b}'));
    assert!(!said(gateway.env_remove("TRIREME_LOG_FORMAT")).contains('\u{1b}'), "no terminal");
}

#[test]
fn a_fault_is_told_once() {
    let nats = NatsServer::start();
    let broken_file = ModelFolder::basic(&["simple"]).file("simple/1/model.onnx", "no graph");
    let broken_text = ModelFolder::basic(&["simple", "identity_fp32"]).file("simple/config.pbtxt", "no config");
    for (models, fault) in [(&broken_file, "Protobuf parsing failed"), (&broken_text, "failed to read text proto")] {
        let mut worker = product("trireme-model");
        worker.args(["--nats-url", &nats.url(), "--model-repository"]).arg(models.path());
        for command in [serve(models.path()), worker] {
            let (process, _folder) = ends(command, &[fault]);
            assert_eq!(process.log().matches(fault).count(), 1, "{}", process.log());
        }
        // The other models are served, and the process does not end.
        let logs = tempfile::tempdir().expect("a temporary folder");
        let process = Process::start("goes-on", serve(models.path()).arg("--exit-on-error=false"), logs.path());
        wait_until("it is ready", LIMIT, || (process.count("ready") > 0).then_some(()));
        assert_eq!(process.log().matches(fault).count(), 1, "{}", process.log());
    }
    let mut nobody = service("trireme-tokenizer", NOBODY);
    nobody.args(["--nats-connect-timeout-secs", "1"]);
    let (process, _folder) = ends(nobody, &["unreachable"]);
    assert_eq!(process.log().matches("unreachable").count(), 1, "{}", process.log());
}

#[test]
fn the_next_start_removes_what_killed_processes_left_and_only_that() {
    let (temporary, logs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let start = |name: &str| {
        let mut command = folder_server("examples/folders/sentiment");
        let process = Process::start(name, command.env("TMPDIR", temporary.path()), logs.path());
        wait_until("it is ready", LIMIT, || (process.count("ready") > 0).then_some(()));
        process
    };
    let folders = || -> BTreeSet<OsString> {
        let entries = std::fs::read_dir(temporary.path()).expect("the folder is there");
        entries.map(|entry| entry.expect("an entry").file_name()).collect()
    };
    let _alive = start("alive");
    let of_alive = folders();
    let mut killed = start("killed");
    killed.kill();
    let left: BTreeSet<_> = folders().difference(&of_alive).cloned().collect();
    assert!(!of_alive.is_empty() && !left.is_empty(), "a folder of models needs room: {of_alive:?} {left:?}");
    let mut next = start("next");
    assert!(folders().is_superset(&of_alive) && folders().is_disjoint(&left), "{of_alive:?} {left:?} {:?}", folders());
    next.terminate();
    assert!(next.wait_exit(LIMIT).success());
    assert_eq!(folders(), of_alive);
}
