//! Which models are served, and how that changes while the system runs: control modes, loading by request, polling.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Response, Sandbox, Setup, Stage, in_one_mode, wait_until};
use trireme_testkit::NatsServer;

const PATIENCE: Duration = Duration::from_secs(60);
const POLLING: &[&str] = &["--model-control-mode=poll", "--repository-poll-secs=1"];

in_one_mode!(
    models_are_loaded_and_unloaded_by_request,
    a_load_brings_its_configuration_and_files,
    a_load_may_change_how_requests_wait,
    ensembles_are_loaded_with_what_they_are_made_of,
    what_cannot_be_loaded_says_why,
    a_changed_repository_is_followed,
    nothing_is_lost_while_a_version_takes_over,
    what_is_broken_does_not_stop_the_rest,
    a_server_is_ready_without_folders_that_are_no_models,
);

/// An identity model on two numbers.
fn identity(more: &str) -> String {
    format!(
        "backend: 'identity' max_batch_size: 4
         input [{{ name: 'INPUT0' data_type: TYPE_INT32 dims: [2] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: [2] }}]
         instance_group [{{ count: 1 kind: KIND_CPU }}] {more}"
    )
}

/// The same as JSON.
fn identity_json(name: &str, max_batch_size: i64) -> Value {
    json!({
        "name": name, "backend": "identity", "max_batch_size": max_batch_size,
        "input": [{ "name": "INPUT0", "data_type": "TYPE_INT32", "dims": [2] }],
        "output": [{ "name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [2] }],
        "instance_group": [{ "count": 1, "kind": "KIND_CPU" }]
    })
}

/// `a` and then `b`.
fn chain(second: &str) -> String {
    format!(
        "platform: 'ensemble' max_batch_size: 4
         input [{{ name: 'INPUT0' data_type: TYPE_INT32 dims: [2] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: [2] }}]
         ensemble_scheduling {{ step [
           {{ model_name: 'a' model_version: -1 input_map {{ key: 'INPUT0' value: 'INPUT0' }}
              output_map {{ key: 'OUTPUT0' value: 'x' }} }},
           {{ model_name: '{second}' model_version: -1 input_map {{ key: 'INPUT0' value: 'x' }}
              output_map {{ key: 'OUTPUT0' value: 'OUTPUT0' }} }} ] }}"
    )
}

fn models() -> ModelFolder {
    ModelFolder::new()
        .model("a", &identity(""))
        .model("b", &identity(""))
        .model("c", &identity(""))
        .model("chain", &chain("b"))
        .model("lost", &chain("gone"))
        .model("unsupported", &identity("").replace("identity", "nonsense"))
        .model("broken", "nonsense: 1")
}

fn explicit(mode: Mode, models: &ModelFolder) -> Setup {
    flags(mode, models, &["--model-control-mode=explicit", "--load-model=c"])
}

fn flags(mode: Mode, models: &ModelFolder, flags: &[&str]) -> Setup {
    let setup =
        Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0);
    match mode {
        Mode::AllInOne => setup.worker_arguments(flags),
        Mode::Services => setup.worker_arguments(flags).gateway_arguments(flags),
    }
}

fn load(sandbox: &Sandbox, model: &str, parameters: Value) -> Response {
    let body = json!({ "parameters": parameters });
    sandbox.send(&Request::post(&format!("/v2/repository/models/{model}/load"), body.to_string()))
}

fn unload(sandbox: &Sandbox, model: &str, dependents: bool) -> Response {
    let body = json!({ "parameters": { "unload_dependents": dependents } });
    sandbox.send(&Request::post(&format!("/v2/repository/models/{model}/unload"), body.to_string()))
}

fn infer(sandbox: &Sandbox, model: &str) -> Response {
    let input = json!({ "name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "data": [1, 2] });
    sandbox.infer(model, &json!({ "inputs": [input] }))
}

/// The entries of the index for a model.
fn index(sandbox: &Sandbox, model: &str) -> Vec<Value> {
    let answer = sandbox.send(&Request::post("/v2/repository/index", "{}")).json();
    let lines = answer.as_array().expect("the index is a list").clone();
    lines.into_iter().filter(|line| line["name"] == model).collect()
}

fn max_batch_size(sandbox: &Sandbox, model: &str) -> Value {
    sandbox.get(&format!("/v2/models/{model}/config")).json()["max_batch_size"].clone()
}

#[track_caller]
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    wait_until(what, PATIENCE, || holds().then_some(()));
}

/// A gateway is ready before its first worker is there. The load that comes then waits for the worker.
#[test]
fn the_first_load_waits_for_a_worker_that_starts() {
    let models = models();
    let mut sandbox = flags(Mode::Services, &models, &["--model-control-mode=explicit"]).start_gateway();
    sandbox.wait_listening();
    wait_for("the gateway is ready", || sandbox.is_ready());
    sandbox.start_worker(Stage::Model);
    let loaded = load(&sandbox, "a", json!({}));
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    assert_eq!(infer(&sandbox, "a").status, 200);
}

fn models_are_loaded_and_unloaded_by_request(mode: Mode) {
    let models = models();
    let mut sandbox = explicit(mode, &models).start();
    assert_eq!(index(&sandbox, "a"), [json!({ "name": "a" })]);
    assert_eq!(index(&sandbox, "c"), [json!({ "name": "c", "version": "1", "state": "READY" })]);
    assert_eq!(infer(&sandbox, "a").error(), "Request for unknown model: 'a' is not found");

    let loaded = load(&sandbox, "a", json!({}));
    assert_eq!((loaded.status, loaded.body.len()), (200, 0), "{}", loaded.text());
    assert_eq!(infer(&sandbox, "a").status, 200);
    assert_eq!(index(&sandbox, "a"), [json!({ "name": "a", "version": "1", "state": "READY" })]);

    assert_eq!(unload(&sandbox, "a", false).status, 200);
    let refused = infer(&sandbox, "a");
    assert_eq!(
        (refused.status, refused.error()),
        (404, "Request for unknown model: 'a' has no available versions".to_owned())
    );
    let state = index(&sandbox, "a")[0]["state"].clone();
    assert!(state == "UNLOADING" || state == "UNAVAILABLE", "{state}");
    wait_for("the model is unloaded", || {
        index(&sandbox, "a") == [json!({ "name": "a", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded" })]
    });
    assert!(sandbox.is_ready(), "what was unloaded by request is not missing");
    let refused = sandbox.infer("a/versions/1", &json!({ "inputs": [] }));
    assert_eq!(refused.status, 503, "{}", refused.text());

    assert_eq!(load(&sandbox, "a", json!({})).status, 200);
    assert_eq!(infer(&sandbox, "a").status, 200, "loaded again");
    assert_eq!(unload(&sandbox, "nothing", false).status, 200, "as Triton has it");

    if mode == Mode::Services {
        // A process that starts later serves the same: the models that were loaded by request, and not those that were
        // unloaded.
        assert_eq!(load(&sandbox, "b", json!({ "config": identity_json("b", 7).to_string() })).status, 200);
        assert_eq!(unload(&sandbox, "c", false).status, 200);
        sandbox.worker(Stage::Model, 0).kill();
        let number = sandbox.start_worker(Stage::Model);
        wait_for("the new worker is ready", || sandbox.worker(Stage::Model, number).count("ready") > 0);
        wait_for("it serves what was loaded", || {
            infer(&sandbox, "b").status == 200 && infer(&sandbox, "a").status == 200
        });
        assert_eq!(max_batch_size(&sandbox, "b"), 7, "with the configuration it was loaded with");
        assert_eq!(infer(&sandbox, "c").status, 404, "what was unloaded stays so");
    }
}

/// `--exit-on-error=false` outlives a model repository that is not there, and one that is named twice is read once.
#[test]
fn what_there_is_of_the_repositories_is_served() {
    let models = ModelFolder::new().model("a", &identity(""));
    let folder = models.path().display().to_string();
    let named = ["--exit-on-error=false", "--model-repository", &folder, "--model-repository", "/nowhere/models"];
    let mut sandbox = Setup::new(Mode::AllInOne).repository(models.path()).worker_arguments(&named).start_gateway();
    sandbox.wait_listening();
    wait_for("the model is served", || infer(&sandbox, "a").status == 200);
    assert!(!sandbox.is_ready(), "a repository is missing");
}

#[test]
fn readiness_that_is_not_strict_begins_with_the_first_model() {
    // No worker serves the tokenizer.
    let models = ModelFolder::basic(&["tiny_tokenizer"]).model("a", &identity(""));
    let setup = Setup::new(Mode::Services).repository(models.path());
    let mut sandbox = setup.gateway_arguments(&["--strict-readiness=false"]).start_gateway();
    sandbox.wait_listening();
    assert!(!sandbox.is_ready(), "nothing is loaded");
    sandbox.start_worker(Stage::Model);
    wait_for("the server is ready", || sandbox.is_ready());
    assert_eq!((infer(&sandbox, "a").status, sandbox.model_ready("tiny_tokenizer")), (200, 400));
}

/// The broker comes back without the stream; the gateway writes the changes by request again.
#[test]
fn what_was_loaded_by_request_outlives_its_stream() {
    let models = models();
    let store = tempfile::tempdir().expect("a temporary folder");
    let nats = NatsServer::start_with_store(store.path());
    let mut sandbox = explicit(Mode::Services, &models).start_on(Some(nats));
    // Larger than a message, so the store keeps it in parts.
    let large = json!({ "config": identity_json("large", 5).to_string(), "file:1/note.txt": "AAAA".repeat(3 << 20) });
    assert_eq!(load(&sandbox, "large", large).status, 200);
    assert_eq!(load(&sandbox, "b", json!({ "config": identity_json("b", 7).to_string() })).status, 200);
    assert_eq!(unload(&sandbox, "c", false).status, 200);

    let nats = sandbox.nats.as_mut().expect("this mode has a broker");
    nats.kill();
    let stream = store.path().join("jetstream/$G/streams/KV_trireme_models");
    fs::remove_dir_all(stream).expect("the broker keeps the stream there");
    nats.restart();
    const WRITTEN: &str = "the store had lost what is wanted of the model; wrote it again";
    wait_for("the gateway writes again what the store has lost", || sandbox.gateway.count(WRITTEN) == 3);

    sandbox.worker(Stage::Model, 0).kill();
    let number = sandbox.start_worker(Stage::Model);
    wait_for("the new worker is ready", || sandbox.worker(Stage::Model, number).count("ready") > 0);
    wait_for("it serves what was loaded", || ["large", "b"].iter().all(|model| infer(&sandbox, model).status == 200));
    assert_eq!(max_batch_size(&sandbox, "b"), 7, "with the configuration it was loaded with");
    assert_eq!(infer(&sandbox, "c").status, 404, "what was unloaded stays so");
}

fn a_load_may_change_how_requests_wait(mode: Mode) {
    let models = models();
    let sandbox = explicit(mode, &models).start();
    let level = json!({ "max_queue_size": 3 });
    let levels = json!({ "priority_levels": 2, "default_priority_level": 2, "default_queue_policy": level });
    for batching in [None, Some(&levels), None, Some(&json!({ "default_queue_policy": level })), Some(&levels)] {
        let mut config = identity_json("a", 4);
        if let Some(batching) = batching {
            config["dynamic_batching"] = batching.clone();
        }
        let loaded = load(&sandbox, "a", json!({ "config": config.to_string() }));
        assert_eq!(loaded.status, 200, "{}", loaded.text());
        for priority in [0, 1, 2] {
            let inputs = json!([{ "name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "data": [1, 2] }]);
            let parameters = json!({ "priority": priority, "trireme_timeout_ms": 20_000 });
            let response = sandbox.infer("a", &json!({ "parameters": parameters, "inputs": inputs }));
            assert_eq!(response.status, 200, "{batching:?} {priority}: {}", response.text());
        }
    }
}

fn a_load_brings_its_configuration_and_files(mode: Mode) {
    let models = models();
    let mut sandbox = explicit(mode, &models).start();
    assert_eq!(load(&sandbox, "a", json!({ "config": identity_json("a", 7).to_string() })).status, 200);
    assert_eq!(max_batch_size(&sandbox, "a"), 7);
    assert_eq!(infer(&sandbox, "a").status, 200);

    // A load that fails leaves the model as it was.
    let mut wrong = identity_json("a", 7);
    wrong["backend"] = json!("nope");
    assert_eq!(load(&sandbox, "a", json!({ "config": wrong.to_string() })).status, 400);
    assert_eq!(max_batch_size(&sandbox, "a"), 7);
    assert_eq!(infer(&sandbox, "a").status, 200);

    assert_eq!(load(&sandbox, "a", json!({})).status, 200);
    assert_eq!(max_batch_size(&sandbox, "a"), 7, "without a configuration it keeps the one that came last");
    let file = models.path().join("a/config.pbtxt");
    let text = fs::read(&file).expect("the copy of the repository has it");
    fs::write(&file, text).expect("the copy of the repository can be written");
    assert_eq!(load(&sandbox, "a", json!({})).status, 200);
    assert_eq!(max_batch_size(&sandbox, "a"), 4, "until the repository's is written again");
    assert_eq!(load(&sandbox, "a", json!({ "config": identity_json("a", 7).to_string() })).status, 200);
    assert_eq!(unload(&sandbox, "a", false).status, 200);
    assert_eq!(load(&sandbox, "a", json!({})).status, 200);
    assert_eq!(max_batch_size(&sandbox, "a"), 4, "or the model is unloaded");

    // The identity backend reads no files, but the files define the versions.
    let files = json!({ "config": identity_json("a", 5).to_string(), "file:2/note.txt": "aGVsbG8=" });
    let loaded = load(&sandbox, "a", files);
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    assert_eq!(infer(&sandbox, "a").json()["model_version"], "2");
    let fresh = json!({ "config": identity_json("fresh", 5).to_string(), "file:1/note.txt": "" });
    assert_eq!(load(&sandbox, "fresh", fresh).status, 200);
    assert_eq!(infer(&sandbox, "fresh").status, 200, "a model that is in no repository");

    // Larger than a NATS message; and the store has to keep it for processes that start later.
    let large = json!({ "config": identity_json("large", 5).to_string(), "file:1/note.txt": "AAAA".repeat(3 << 20) });
    let loaded = load(&sandbox, "large", large);
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    assert_eq!(infer(&sandbox, "large").status, 200);
    if mode == Mode::Services {
        sandbox.worker(Stage::Model, 0).kill();
        sandbox.start_worker(Stage::Model);
        wait_for("a new worker serves what was loaded", || infer(&sandbox, "large").status == 200);
    }

    for (parameters, status, text) in [
        (json!({ "file:2/note.txt": "" }), 500, "failed to load 'a', failed to poll from model repository"),
        (json!({ "config": "{" }), 500, "failed to load 'a', failed to poll from model repository"),
        (json!({ "config": 1 }), 500, "attempt to access JSON non-string as string"),
        (
            json!({ "config": identity_json("a", 5).to_string(), "file:../2/note.txt": "" }),
            500,
            "failed to load 'a', failed to poll from model repository: model 'a': file path '../2/note.txt' is outside",
        ),
    ] {
        let refused = load(&sandbox, "a", parameters);
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.error().starts_with(text), "{}", refused.error());
    }
}

fn ensembles_are_loaded_with_what_they_are_made_of(mode: Mode) {
    let models = models();
    let sandbox = explicit(mode, &models).start();
    assert_eq!(load(&sandbox, "b", json!({})).status, 200);
    let loaded = load(&sandbox, "chain", json!({}));
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    assert_eq!(infer(&sandbox, "chain").status, 200);
    assert_eq!(infer(&sandbox, "a").status, 200, "loaded along");

    // The ensemble is not available without one of its models, and comes back with it.
    assert_eq!(unload(&sandbox, "b", false).status, 200);
    assert_eq!(infer(&sandbox, "chain").status, 404);
    assert_eq!(
        index(&sandbox, "chain"),
        [json!({ "name": "chain", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded" })]
    );
    assert_eq!(load(&sandbox, "b", json!({})).status, 200);
    assert_eq!(infer(&sandbox, "chain").status, 200);

    // Models that were loaded only for the ensemble go with it; a model that was loaded by name stays.
    assert_eq!(unload(&sandbox, "chain", true).status, 200);
    assert_eq!(infer(&sandbox, "chain").status, 404);
    assert_eq!(infer(&sandbox, "a").status, 404);
    assert_eq!(infer(&sandbox, "b").status, 200);

    let lost = load(&sandbox, "lost", json!({}));
    assert_eq!(lost.status, 400);
    let text =
        "load failed for model 'lost': ensemble lost contains models that are not available or ambiguous: gone\n";
    assert_eq!(lost.error(), text);
}

fn what_cannot_be_loaded_says_why(mode: Mode) {
    let models = models();
    let sandbox = explicit(mode, &models).start();
    let refused = load(&sandbox, "nothing", json!({}));
    let text = "failed to load 'nothing', failed to poll from model repository";
    assert_eq!((refused.status, refused.error()), (500, text.to_owned()));
    let refused = load(&sandbox, "broken", json!({}));
    assert_eq!(refused.status, 500);
    assert!(refused.error().starts_with("failed to load 'broken', failed to poll from model repository"));
    assert_eq!(index(&sandbox, "broken"), [json!({ "name": "broken" })]);

    let refused = load(&sandbox, "unsupported", json!({}));
    assert_eq!(refused.status, 400);
    let reason = "Invalid argument: model 'unsupported': unable to find backend library for backend 'nonsense', try \
                  specifying runtime on the model configuration";
    let start = format!("load failed for model 'unsupported': version 1 is at UNAVAILABLE state: {reason}");
    assert!(refused.error().starts_with(&start), "{}", refused.error());
    wait_for("the index says why", || {
        index(&sandbox, "unsupported").iter().any(|line| {
            line["state"] == "UNAVAILABLE" && line["reason"].as_str().is_some_and(|found| found.starts_with(reason))
        })
    });
    assert_eq!(infer(&sandbox, "unsupported").status, 404);
    assert!(!sandbox.is_ready());
}

fn write(models: &ModelFolder, path: &str, text: &str) {
    let path = models.path().join(path);
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("the temporary folder can be written");
    fs::write(path, text).expect("the temporary folder can be written");
}

fn a_changed_repository_is_followed(mode: Mode) {
    let models = ModelFolder::new().model("a", &identity("")).model("b", &identity("")).model("chain", &chain("b"));
    let sandbox = flags(mode, &models, POLLING).start();
    let refused = load(&sandbox, "a", json!({}));
    let text = "explicit model load / unload is not allowed if polling is enabled";
    assert_eq!((refused.status, refused.error()), (503, text.to_owned()));

    write(&models, "fresh/config.pbtxt", &identity(""));
    fs::create_dir(models.path().join("fresh/1")).expect("the temporary folder can be written");
    wait_for("a new model is served", || infer(&sandbox, "fresh").status == 200);
    write(&models, "fresh/config.pbtxt", &identity("").replace("max_batch_size: 4", "max_batch_size: 9"));
    wait_for("its new configuration is there", || max_batch_size(&sandbox, "fresh") == 9);
    write(&models, "fresh/config.pbtxt", "nonsense: 1");
    wait_for("the fault is logged", || sandbox.processes().any(|process| process.log().contains("nonsense")));
    assert_eq!(infer(&sandbox, "fresh").status, 200, "what served goes on");
    write(&models, "fresh/config.pbtxt", &identity(""));
    fs::create_dir(models.path().join("fresh/2")).expect("the temporary folder can be written");
    wait_for("a new version takes over", || infer(&sandbox, "fresh").json()["model_version"] == "2");
    fs::remove_dir_all(models.path().join("fresh")).expect("the temporary folder can be written");
    wait_for("what is deleted is not served", || infer(&sandbox, "fresh").status == 404);
    assert_eq!(infer(&sandbox, "chain").status, 200);
}

/// Sends requests without a pause while their model is loaded again with another configuration, and with a newer
/// version.
fn nothing_is_lost_while_a_version_takes_over(mode: Mode) {
    let models = models();
    let mut setup = explicit(mode, &models);
    if mode == Mode::Services {
        setup = setup.replicas(Stage::Model, 2);
    }
    let sandbox = setup.start();
    assert_eq!(load(&sandbox, "chain", json!({})).status, 200);
    let (stop, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let answer = infer(&sandbox, "chain");
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for size in [5, 6, 7] {
            let loaded = load(&sandbox, "a", json!({ "config": identity_json("a", size).to_string() }));
            assert_eq!(loaded.status, 200, "{}", loaded.text());
        }
        fs::create_dir(models.path().join("b/2")).expect("the temporary folder can be written");
        assert_eq!(load(&sandbox, "b", json!({})).status, 200);
        assert_eq!(infer(&sandbox, "b").json()["model_version"], "2");
        let before = answers.load(Ordering::Relaxed);
        assert!(before > 4, "only {before} requests were answered meanwhile");
        wait_for("answers of the new version", || answers.load(Ordering::Relaxed) > before + 20);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("every request is answered"));
    });
}

fn what_is_broken_does_not_stop_the_rest(mode: Mode) {
    let models = models();
    let mut sandbox = flags(mode, &models, &["--exit-on-error=false"]).start_gateway();
    if mode == Mode::Services {
        sandbox.start_worker(Stage::Model);
    }
    sandbox.wait_listening();
    wait_for("the others are served", || ["a", "chain"].iter().all(|model| infer(&sandbox, model).status == 200));
    for (model, reason) in [("unsupported", "unable to find backend library"), ("broken", "nonsense"), ("lost", "gone")]
    {
        let says = |line: &Value| line["reason"].as_str().is_some_and(|found| found.contains(reason));
        wait_for("the index says why", || says(&index(&sandbox, model)[0]));
        let line = &index(&sandbox, model)[0];
        assert_eq!(line["state"], "UNAVAILABLE", "{line}");
    }
    assert!(!sandbox.is_ready());
}

/// As in Triton, only a model that could be read and not loaded keeps a server from being ready.
fn a_server_is_ready_without_folders_that_are_no_models(mode: Mode) {
    let models = ModelFolder::new().model("a", &identity("")).model("broken", "nonsense: 1");
    fs::create_dir(models.path().join("scripts")).expect("the folder can be written");
    let mut sandbox = flags(mode, &models, &["--exit-on-error=false"]).start_gateway();
    if mode == Mode::Services {
        sandbox.start_worker(Stage::Model);
    }
    sandbox.wait_ready();
    assert_eq!(infer(&sandbox, "a").status, 200);
    let line = &index(&sandbox, "broken")[0];
    assert!(
        line["state"] == "UNAVAILABLE" && line["reason"].as_str().is_some_and(|why| why.contains("nonsense")),
        "{line}"
    );
    assert_eq!(index(&sandbox, "scripts"), [json!({ "name": "scripts" })]);
    for model in ["broken", "scripts"] {
        assert_eq!((infer(&sandbox, model).status, sandbox.model_ready(model)), (404, 400), "{model}");
    }
    let status = sandbox.get("/v2/trireme/status").text();
    assert!(status.contains("the directory of model 'scripts' is broken: "), "{status}");
}
