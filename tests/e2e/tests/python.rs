//! Models in the form of a model.py, with real interpreters: in one process, and as a service over NATS.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Sandbox, Setup, Stage, children, product, python, wait_until, workspace,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Threads that send requests, and how many children die meanwhile.
const SENDERS: usize = 8;
const DEATHS: usize = 6;

/// Starts only the processes that host models of backend `python`.
fn setup(mode: Mode, repository: &Path, pythons: usize) -> Setup {
    let python = python().display().to_string();
    [Stage::Tokenizer, Stage::Model, Stage::Postprocess]
        .into_iter()
        .fold(Setup::new(mode), |setup, stage| setup.replicas(stage, 0))
        .replicas(Stage::Python, pythons)
        .repository(repository)
        .worker_arguments(&["--python", &python])
}

/// The process that hosts the models: the only one, or the first of the service.
fn worker(sandbox: &mut Sandbox, mode: Mode) -> &mut Process {
    match mode {
        Mode::AllInOne => &mut sandbox.gateway,
        Mode::Services => sandbox.worker(Stage::Python, 0),
    }
}

fn kill(child: Pid) {
    // It may have ended by itself.
    let _ = kill_process(child, Signal::KILL);
}

fn words(text: &str) -> Request {
    let inputs = json!([{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]);
    Request::infer("words", &json!({ "inputs": inputs }))
}

fn killed_under_load(mode: Mode) {
    let mut sandbox = setup(mode, &workspace().join("tests/repositories/python"), 2).start();
    let (address, done, answered) = (sandbox.address, AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (done, answered) = (&done, &answered);
                scope.spawn(move || {
                    for number in 0.. {
                        if done.load(Ordering::Acquire) {
                            return;
                        }
                        let text = format!("text {sender} {number}");
                        let response = words(&text).send(address).expect("an answer");
                        assert_eq!(response.status, 200, "{}", response.text());
                        assert_eq!(response.output("WORDS")["data"], json!([text.to_uppercase()]));
                        assert_eq!(response.output("LENGTH")["data"], json!([text.len()]));
                        answered.fetch_add(1, Ordering::AcqRel);
                    }
                })
            })
            .collect();
        let host = worker(&mut sandbox, mode).id();
        for _ in 0..DEATHS {
            let before = answered.load(Ordering::Acquire);
            wait_until("requests are answered", LIMIT, || {
                let are_there = children(host).len() == 3 && answered.load(Ordering::Acquire) > before + 2 * SENDERS;
                (are_there || senders.iter().any(|sender| sender.is_finished())).then_some(())
            });
            children(host).into_iter().take(2).for_each(kill);
        }
        done.store(true, Ordering::Release);
    });
    // Some of them are killed before they are ready.
    let lost = ["the model's process has ended; starting it again", "the model could not be loaded again; trying on"];
    assert!(lost.map(|message| worker(&mut sandbox, mode).count(message)).iter().sum::<usize>() >= DEATHS);
    let said = worker(&mut sandbox, mode).events().into_iter().any(|event| {
        event["message"].as_str().is_some_and(|text| text.starts_with("counting as count_0_0"))
            && event["model"] == "count"
    });
    assert!(said, "the model's own line is in the log");
}

#[test]
fn children_killed_under_load_cost_no_request_in_one_process() {
    killed_under_load(Mode::AllInOne);
}

#[test]
fn children_killed_under_load_cost_no_request_over_nats() {
    killed_under_load(Mode::Services);
}

/// A model that is initialized when a file is there.
const GATED: &str = "
import os, time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        while not os.path.exists(os.path.join(args['model_repository'], 'open')):
            time.sleep(0.01)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())]) for request in requests]
    def finalize(self):
        open(os.path.join(os.path.dirname(os.path.dirname(__file__)), 'finalized'), 'w').close()
";

const ECHO: &str = "backend: 'python' input [{ name: 'IN' data_type: TYPE_INT32 dims: [1] }]
                    output [{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }] instance_group [{ count: 1 kind: KIND_CPU }]";

fn echo(number: i32) -> Value {
    json!({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [number]}]})
}

fn not_ready_while_it_recovers(mode: Mode) {
    let models = ModelFolder::new().model("gated", ECHO).file("gated/1/model.py", GATED).file("gated/open", "");
    let mut sandbox = setup(mode, models.path(), 1).start();
    assert_eq!(sandbox.infer("gated", &echo(1)).output("OUT")["data"], json!([1]));
    fs::remove_file(models.path().join("gated/open")).expect("it was there");
    let host = worker(&mut sandbox, mode).id();
    children(host).into_iter().for_each(kill);
    wait_until("the model is not ready", LIMIT, || (sandbox.model_ready("gated") == 400).then_some(()));
    assert!(!sandbox.is_ready(), "nor is the server");
    let address = sandbox.address;
    let waiting = std::thread::spawn(move || Request::infer("gated", &echo(2)).send(address).expect("an answer"));
    // The request waits. A process that could execute it would answer at once.
    sandbox.wait_queued("gated", 1);
    assert_eq!(sandbox.model_ready("gated"), 400);
    fs::write(models.path().join("gated/open"), "").expect("it can be written");
    let response = waiting.join().expect("no panic");
    assert_eq!((response.status, &response.output("OUT")["data"]), (200, &json!([2])), "{}", response.text());
    wait_until("the model is ready again", LIMIT, || (sandbox.model_ready("gated") == 200).then_some(()));

    let child = children(host);
    worker(&mut sandbox, mode).terminate();
    worker(&mut sandbox, mode).wait_exit(LIMIT);
    assert!(models.path().join("gated/finalized").exists(), "SIGTERM finalizes the model");
    assert!(child.iter().all(|child| !Path::new(&format!("/proc/{}", child.as_raw_nonzero())).exists()));
}

#[test]
fn a_model_is_not_ready_while_it_recovers_and_its_requests_wait_in_one_process() {
    not_ready_while_it_recovers(Mode::AllInOne);
}

#[test]
fn a_model_is_not_ready_while_it_recovers_and_its_requests_wait_over_nats() {
    not_ready_while_it_recovers(Mode::Services);
}

/// During a long load the index shows LOADING and the present part of the load, and so does the log every few seconds.
fn a_long_load_says_what_it_does(mode: Mode) {
    let models = ModelFolder::new().model("gated", ECHO).file("gated/1/model.py", GATED);
    let mut sandbox = setup(mode, models.path(), 1).start_gateway();
    if mode == Mode::Services {
        sandbox.start_worker(Stage::Python);
    }
    sandbox.wait_listening();
    let state = |sandbox: &Sandbox| {
        let index = Request::post("/v2/repository/index", "{}").send(sandbox.address).expect("an answer").json();
        index[0].clone()
    };
    wait_until("the index says LOADING", LIMIT, || (state(&sandbox)["state"] == "LOADING").then_some(()));
    assert_eq!(state(&sandbox)["reason"], "waiting for initialize of model.py");
    wait_until("the log says it", LIMIT, || (worker(&mut sandbox, mode).count("still loading") > 1).then_some(()));
    let said = worker(&mut sandbox, mode).events().into_iter().find(|event| event["message"] == "still loading");
    let said = said.expect("it was counted");
    assert_eq!((&said["model"], &said["doing"]), (&json!("gated"), &json!("waiting for initialize of model.py")));
    fs::write(models.path().join("gated/open"), "").expect("it can be written");
    wait_until("the index says READY", LIMIT, || (state(&sandbox)["state"] == "READY").then_some(()));
    sandbox.wait_ready();
    assert_eq!(sandbox.infer("gated", &echo(1)).output("OUT")["data"], json!([1]));
}

#[test]
fn a_long_load_says_what_it_does_in_one_process() {
    a_long_load_says_what_it_does(Mode::AllInOne);
}

#[test]
fn a_long_load_says_what_it_does_over_nats() {
    a_long_load_says_what_it_does(Mode::Services);
}

/// Doubles its rows. As many public models do, it declares more dimensions than it gives.
const ROWS: &str = "
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy() * 2)]) for request in requests]
";

/// All models batch, so an ensemble of them changes no shape, as in Triton: neither on the way to the client, nor between its steps.
fn an_ensemble_keeps_the_shape_of_a_step_s_output(mode: Mode) {
    let tensors = |input: &str, output: &str| {
        format!(
            "max_batch_size: 8 input [{{ name: 'IN' data_type: TYPE_FP32 dims: {input} }}]
             output [{{ name: 'OUT' data_type: TYPE_FP32 dims: {output} }}]"
        )
    };
    let step = |model: &str, from: &str, to: &str| {
        format!(
            "step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'IN' value: '{from}' }}
             output_map {{ key: 'OUT' value: '{to}' }} }} "
        )
    };
    let ensemble =
        |steps: &str| format!("platform: 'ensemble' {} ensemble_scheduling {{ {steps} }}", tensors("[3]", "[-1, 3]"));
    let rows = |input: &str| format!("backend: 'python' {}", tensors(input, "[-1, 3]"));
    let models = ModelFolder::new()
        .model("rows", &rows("[3]"))
        .file("rows/1/model.py", ROWS)
        .model("again", &rows("[-1, 3]"))
        .file("again/1/model.py", ROWS)
        .model("pair", &ensemble(&step("rows", "IN", "OUT")))
        .model("through", &ensemble(&(step("rows", "IN", "between") + &step("again", "between", "OUT"))));
    let sandbox = setup(mode, models.path(), 1).start();
    for count in 1..=3 {
        let numbers: Vec<f32> = (0..3 * count).map(|number| number as f32).collect();
        let request = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [count, 3], "data": numbers}]});
        let doubled: Vec<f32> = numbers.iter().map(|number| number * 2.0).collect();
        for model in ["rows", "pair"] {
            let response = sandbox.infer(model, &request);
            assert_eq!(response.output("OUT")["shape"], json!([count, 3]), "{model}: {}", response.text());
            assert_eq!(response.numbers("OUT"), doubled);
        }
        let refused = sandbox.infer("through", &request);
        let expected =
            format!("unexpected shape for input 'IN' for model 'again'. Expected [-1,-1,3], got [{count},3]");
        assert!(refused.status == 400 && refused.text().contains(&expected), "{}", refused.text());
    }
}

#[test]
fn an_ensemble_keeps_the_shape_of_a_step_s_output_in_one_process() {
    an_ensemble_keeps_the_shape_of_a_step_s_output(Mode::AllInOne);
}

#[test]
fn an_ensemble_keeps_the_shape_of_a_step_s_output_over_nats() {
    an_ensemble_keeps_the_shape_of_a_step_s_output(Mode::Services);
}

#[test]
fn children_do_not_outlive_a_worker_that_is_killed() {
    let models = ModelFolder::new().model("gated", ECHO).file("gated/1/model.py", GATED).file("gated/open", "");
    let mut sandbox = setup(Mode::AllInOne, models.path(), 1).start();
    let left = children(sandbox.gateway.id());
    assert_eq!(left.len(), 1);
    sandbox.gateway.kill();
    wait_until("the child is gone", LIMIT, || {
        left.iter().all(|child| !Path::new(&format!("/proc/{}", child.as_raw_nonzero())).exists()).then_some(())
    });
}

#[test]
fn an_execution_past_the_limit_costs_its_process_and_not_the_worker() {
    let code = "
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] == 666:
            time.sleep(3600)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())]) for request in requests]
";
    let models = ModelFolder::new().model("hangs", ECHO).file("hangs/1/model.py", code);
    let setup = setup(Mode::AllInOne, models.path(), 1);
    let python = python().display().to_string();
    let mut sandbox = setup.worker_arguments(&["--python", &python, "--execution-limit-secs", "1"]).start();
    let response = sandbox.infer("hangs", &echo(666));
    let told = "its process was lost while it had the request: an execution has passed the execution limit (--execution-limit-secs)";
    assert!(response.status == 503 && response.text().contains(told), "{}", response.text());
    assert_eq!(sandbox.infer("hangs", &echo(1)).output("OUT")["data"], json!([1]));
    assert!(sandbox.gateway.exited().is_none());
}

/// Of so many requests one has rubbish for an answer.
const ONE_IN: usize = 50;

/// One request in [`ONE_IN`] answers with a value that no model may give, or raises an exception that none may raise. Each such request has one
/// error, is executed once, and costs neither the process nor another request.
fn rubbish_of_a_model_under_load(mode: Mode) {
    let code = fs::read_to_string(workspace().join("services/python/tests/model/rubbish.py")).expect("it is there");
    let config = "backend: 'python' input [{ name: 'IN' data_type: TYPE_STRING dims: [1] }] output [{ name: 'OUT' data_type: TYPE_STRING dims: [-1] }]
                  parameters { key: 'sends' value { string_value: 'false' } }";
    let models = ModelFolder::new().model("rubbish", config).file("rubbish/1/model.py", code);
    let sandbox = setup(mode, models.path(), 1).start();
    let ask = |text: &str| {
        let inputs = json!([{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [text]}]);
        Request::infer("rubbish", &json!({ "inputs": inputs })).send(sandbox.address).expect("an answer")
    };
    let answer = |text: &str| {
        let response = ask(text);
        assert_eq!(response.status, 200, "{text}: {}", response.text());
        response.output("OUT")["data"].clone()
    };
    let process = answer("who");
    let kinds: Vec<String> = serde_json::from_value(answer("every")).expect("texts");
    let (next, texts) = (AtomicUsize::new(0), kinds.len() * ONE_IN);
    let text_of = |number: usize| match number % ONE_IN {
        0 => kinds[number / ONE_IN].clone(),
        _ => format!("text {number}"),
    };
    std::thread::scope(|scope| {
        for _ in 0..SENDERS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::AcqRel);
                    if number >= texts {
                        return;
                    }
                    let text = text_of(number);
                    match number % ONE_IN {
                        0 => {
                            let response = ask(&text);
                            assert!(
                                response.status == 500 && !response.text().is_empty(),
                                "{text}: {}",
                                response.status
                            );
                        }
                        _ => assert_eq!(answer(&text), process, "{text}"),
                    }
                }
            });
        }
    });
    for number in (0..texts).step_by(ONE_IN / 2) {
        assert_eq!(answer(&format!("count {}", text_of(number))), json!(["1"]), "{}", text_of(number));
    }
}

#[test]
fn rubbish_of_a_model_costs_no_other_request_in_one_process() {
    rubbish_of_a_model_under_load(Mode::AllInOne);
}

#[test]
fn rubbish_of_a_model_costs_no_other_request_over_nats() {
    rubbish_of_a_model_under_load(Mode::Services);
}

#[test]
fn code_that_comes_with_a_request_to_load_it_does_not_run() {
    let models = ModelFolder::new().model("gated", ECHO).file("gated/1/model.py", GATED).file("gated/open", "");
    let setup = setup(Mode::AllInOne, models.path(), 1);
    let sandbox = setup.gateway_arguments(&["--model-control-mode", "explicit", "--load-model", "gated"]).start();
    let config = json!({
        "backend": "python", "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
    });
    let files = json!({"parameters": {"config": config.to_string(), "file:1/model.py": "aW1wb3J0IG9z"}});
    let response = sandbox.send(&Request::post("/v2/repository/models/mine/load", files.to_string()));
    assert!(response.status == 400 && response.text().contains("--allow-python=uploads"), "{}", response.text());
    let replaced = json!({"parameters": {"config": config.to_string()}});
    let response = sandbox.send(&Request::post("/v2/repository/models/gated/load", replaced.to_string()));
    assert!(response.status == 400 && response.text().contains("--allow-python=uploads"), "{}", response.text());
    // A program anywhere on this host.
    let mark = models.path().join("ran");
    let mut program = config.clone();
    program["backend"] = json!("process");
    program["parameters"] = json!({"command": {"string_value": format!("touch {}", mark.display())}});
    for name in ["gated", "program"] {
        let load = json!({"parameters": {"config": program.to_string(), "file:1/x": "AAAA"}});
        let path = format!("/v2/repository/models/{name}/load");
        let response = sandbox.send(&Request::post(&path, load.to_string()));
        assert!(response.status == 400 && response.text().contains("--allow-python=uploads"), "{}", response.text());
    }
    assert!(!mark.exists());
    assert_eq!(sandbox.infer("gated", &echo(3)).output("OUT")["data"], json!([3]), "what was served is served on");
}

/// A web server that lists a folder, until the value is dropped.
struct WebServer(std::process::Child, String);

impl WebServer {
    fn start(folder: &Path) -> WebServer {
        let mut command = Command::new(python());
        command.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]).arg(folder);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("python runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("it says where it listens");
        let port = line.split_whitespace().skip_while(|word| *word != "port").nth(1).expect("it names the port");
        WebServer(child, format!("http://127.0.0.1:{port}/"))
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn downloaded_code_does_not_run_by_default() {
    let models = ModelFolder::new().model("gated", ECHO).file("gated/1/model.py", GATED).file("gated/open", "");
    let (web, cache) = (WebServer::start(models.path()), tempfile::tempdir().expect("a temporary folder"));
    let serve = |name: &str, more: &[&str]| {
        let mut command = product("trireme");
        command.args(["serve", "--model-repository", &web.1, "--python"]).arg(python()).args(more);
        command.env("TRIREME_DOWNLOAD_CACHE", cache.path());
        Process::start(name, &mut command, cache.path())
    };
    let mut refused = serve("refused", &[]);
    assert!(!refused.wait_exit(LIMIT).success());
    let words = refused.last_words().join(" ");
    assert!(words.contains("'gated'") && words.contains("--allow-python allows it"), "{words}");
    let allowed = serve("allowed", &["--allow-python"]);
    wait_until("the model is served", LIMIT, || (allowed.count("ready") > 0).then_some(()));
}
