//! Models that leave the memory while they are idle (`--keep-alive`): the memory falls, clients see them ready, and no request fails.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Process, Request, Sandbox, Setup, Stage, demo_repository, in_one_mode, load, wait_until};

in_one_mode!(an_idle_model_gives_its_memory_back_and_answers_as_before);

const LIMIT: Duration = Duration::from_secs(60);

/// The model of the demo with weights, of 22 MB.
const MODEL: &str = "minilm";

/// The bytes of memory that have to come back.
const GIVEN_BACK: u64 = 15 << 20;

fn text(number: usize) -> Value {
    let text = format!("text number {number}");
    json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]})
}

/// How often the model's process has logged this about it.
fn logged(process: &Process, message: &str) -> usize {
    let events = process.events();
    let is_it = |event: &&Value| {
        event["model"] == "minilm:1" && event["message"].as_str().is_some_and(|text| text.starts_with(message))
    };
    events.iter().filter(is_it).count()
}

fn an_idle_model_gives_its_memory_back_and_answers_as_before(mode: Mode) {
    let keep = ["--keep-alive", "1500ms"];
    let mut sandbox = Setup::new(mode).repository(&demo_repository()).worker_arguments(&keep).start();
    let process = match mode {
        Mode::AllInOne => sandbox.gateway.id(),
        Mode::Services => sandbox.worker(Stage::Model, 0).id(),
    };
    let address = sandbox.address;
    let answer = |number: usize| {
        let response = Request::infer("sentence_embedding", &text(number)).send(address).expect("an answer");
        assert_eq!(response.status, 200, "{}", response.text());
        response.numbers("embedding")
    };
    let before = answer(0);
    let of_host = |sandbox: &Sandbox, read: fn(&Process) -> u64| {
        let host = sandbox.processes().find(|host| host.id() == process).expect("it runs");
        read(host)
    };
    let awake = of_host(&sandbox, Process::resident_bytes);
    let unloads = |process: &Process| logged(process, "unloaded from memory") as u64;
    wait_until("the model leaves the memory", LIMIT, || (of_host(&sandbox, unloads) == 1).then_some(()));
    wait_until("the memory falls", LIMIT, || {
        (of_host(&sandbox, Process::resident_bytes) + GIVEN_BACK < awake).then_some(())
    });

    // Clients see no difference.
    for model in [MODEL, "sentence_embedding"] {
        assert_eq!(sandbox.model_ready(model), 200);
        assert_eq!(sandbox.get(&format!("/v2/models/{model}/config")).status, 200);
    }
    let index = sandbox.send(&Request::post("/v2/repository/index", r#"{"ready": true}"#)).json();
    let listed = index.as_array().expect("a list").iter().any(|entry| entry["name"] == MODEL);
    assert!(listed, "{index}");

    // People do.
    let status = sandbox.get("/v2/trireme/status").json();
    let hosted = status["workers"].as_array().expect("workers").iter().flat_map(|worker| worker["models"].as_array());
    let hosted = hosted.flatten().find(|hosted| hosted["model"] == MODEL).expect("it is served");
    let model = status["models"].as_array().expect("models").iter().find(|model| model["name"] == MODEL);
    let model = model.expect("it is known");
    assert_eq!((&hosted["state"], &model["ready"]), (&json!("ASLEEP"), &json!(true)));
    assert!([hosted, model].iter().all(|of| of["asleep_seconds"].as_f64() > Some(0.0)), "{status}");

    // Several requests at once load it once.
    load(16, 8, |number| assert_eq!(answer(number).len(), before.len()), || {}).assert_all_right(16);
    assert_eq!(of_host(&sandbox, |process| logged(process, "loaded again") as u64), 1);
    assert_eq!(answer(0), before);

    // A process whose models sleep ends as any other.
    wait_until("it sleeps again", LIMIT, || (of_host(&sandbox, unloads) == 2).then_some(()));
    let host = match mode {
        Mode::AllInOne => &mut sandbox.gateway,
        Mode::Services => sandbox.worker(Stage::Model, 0),
    };
    host.terminate();
    assert_eq!(host.wait_exit(LIMIT).code(), Some(0));
}
