//! Ensembles with branches, which run at the same time and join at the gateway.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Response, Sandbox, Setup, Stage, in_every_mode};

in_every_mode!(
    branches_run_at_the_same_time_and_join,
    branches_that_nobody_asked_for_do_not_run,
    a_failing_branch_is_the_requests_error_and_cancels_the_others,
    rows_travel_in_parts_and_each_part_forks,
    a_decoupled_step_between_branches_gives_one_answer_or_an_error,
);

/// How long each of the two branches takes.
const DELAY: Duration = Duration::from_millis(1200);

/// An identity model of two tensors.
const PAIR: &str = "backend: 'identity' instance_group [{ count: 1 kind: KIND_CPU }]
    input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }, { name: 'INPUT1' data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }, { name: 'OUTPUT1' data_type: TYPE_FP32 dims: [-1] }]";

/// A step of an ensemble: its model, and its maps as `model's name: ensemble's tensor`.
fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let maps = |name: &str, pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(key, value)| format!("{name} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let (inputs, outputs) = (maps("input_map", inputs), maps("output_map", outputs));
    format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }}")
}

/// split -> (left -> left_on, right) -> pair, with A and B through different branches. The outputs are those of the
/// pair, and that of the left branch.
fn diamond(rest: &str) -> ModelFolder {
    let steps = [
        step("split", &[("INPUT0", "A"), ("INPUT1", "B")], &[("OUTPUT0", "a"), ("OUTPUT1", "b")]),
        step("left", &[("INPUT0", "a")], &[("OUTPUT0", "l")]),
        step("right", &[("INPUT0", "b")], &[("OUTPUT0", "r")]),
        step("left_on", &[("INPUT0", "l")], &[("OUTPUT0", "LEFT")]),
        step("pair", &[("INPUT0", "LEFT"), ("INPUT1", "r")], &[("OUTPUT0", "FIRST"), ("OUTPUT1", "SECOND")]),
    ];
    let tensor = |name: &str| format!("{{ name: '{name}' data_type: TYPE_FP32 dims: [-1] }}");
    let tensors = |names: &[&str]| names.iter().map(|name| tensor(name)).collect::<Vec<_>>().join(", ");
    let ensemble = format!(
        "platform: 'ensemble' input [{}] output [{}] ensemble_scheduling {{ {} }} {rest}",
        tensors(&["A", "B"]),
        tensors(&["FIRST", "SECOND", "LEFT"]),
        steps.join(" ")
    );
    let delay = u64::try_from(DELAY.as_millis()).expect("a short time");
    let models = ModelFolder::new().model("split", PAIR).model("pair", PAIR).slow("left_on", 0);
    models.slow("left", delay).slow("right", delay).model("diamond", &ensemble)
}

fn numbers(a: &[f32], b: &[f32]) -> Value {
    let tensor = |name, data: &[f32]| json!({"name": name, "datatype": "FP32", "shape": [data.len()], "data": data});
    json!({"inputs": [tensor("A", a), tensor("B", b)]})
}

/// The executed steps, in the order of `Server-Timing`.
fn steps(response: &Response) -> Vec<String> {
    let timing = response.header("server-timing").expect("the ledger comes back as Server-Timing");
    timing.split(", ").filter_map(|hop| hop.split(';').next()).map(str::to_owned).collect()
}

fn only_models(mode: Mode, models: &ModelFolder) -> Setup {
    Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

/// How often a model was executed.
fn executions(sandbox: &Sandbox, model: &str) -> Value {
    sandbox.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0]["execution_count"].clone()
}

fn branches_run_at_the_same_time_and_join(mode: Mode) {
    let models = diamond("");
    let sandbox = only_models(mode, &models).start();
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        let response = sandbox.infer("diamond", &numbers(&[1.0, 2.0], &[3.0]));
        fastest = fastest.min(started.elapsed());
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.numbers("FIRST"), [1.0, 2.0]);
        assert_eq!(response.numbers("SECOND"), [3.0]);
        assert_eq!(response.numbers("LEFT"), [1.0, 2.0]);
        assert_eq!(steps(&response), ["split", "left", "left_on", "right", "pair"], "the hops of all branches");
    }
    assert!(fastest >= DELAY && fastest < DELAY * 2, "one after the other they take {:?}: {fastest:?}", DELAY * 2);
    for model in ["split", "left", "left_on", "right", "pair", "diamond"] {
        assert_eq!(executions(&sandbox, model), 3, "{model}");
    }
}

fn branches_that_nobody_asked_for_do_not_run(mode: Mode) {
    let models = diamond("");
    let sandbox = only_models(mode, &models).start();
    let mut body = numbers(&[1.0], &[2.0]);
    body["outputs"] = json!([{"name": "LEFT"}]);
    let response = sandbox.infer("diamond", &body);
    assert_eq!(response.numbers("LEFT"), [1.0]);
    assert_eq!(steps(&response), ["split", "left", "left_on"]);
    assert_eq!(executions(&sandbox, "right"), 0);
}

fn a_failing_branch_is_the_requests_error_and_cancels_the_others(mode: Mode) {
    const SLOW: Duration = Duration::from_secs(6);
    let ensemble = format!(
        "platform: 'ensemble'
         input [{{ name: 'TEXT' data_type: TYPE_STRING dims: [-1] }}, {{ name: 'X' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'IDS' data_type: TYPE_INT64 dims: [-1, -1] }}, {{ name: 'Y' data_type: TYPE_FP32 dims: [-1] }}]
         ensemble_scheduling {{ {} {} }}",
        step("tiny_tokenizer", &[("TEXT", "TEXT")], &[("input_ids", "IDS")]),
        step("slow", &[("INPUT0", "X")], &[("OUTPUT0", "Y")]),
    );
    let models = ModelFolder::basic(&["tiny_tokenizer"]).slow("slow", SLOW.as_millis() as u64).model("fork", &ensemble);
    let sandbox = Setup::new(mode).repository(models.path()).replicas(Stage::Postprocess, 0).start();
    let ask = |text: &[u8]| {
        let header = json!({"inputs": [
            {"name": "X", "datatype": "FP32", "shape": [1], "data": [4.5]},
            {"name": "TEXT", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": text.len() + 4}}
        ]});
        let data = [&u32::try_from(text.len()).expect("a short text").to_le_bytes()[..], text].concat();
        sandbox.send(&Request::infer_binary("fork", &header, &data))
    };
    let started = Instant::now();
    for _ in 0..3 {
        let refused = ask(b"\xff");
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.error().contains("in ensemble 'fork', "), "{}", refused.error());
    }
    assert!(started.elapsed() < SLOW, "an error does not wait for the other branch: {:?}", started.elapsed());
    let response = ask(b"text");
    assert_eq!(response.numbers("Y"), [4.5]);
    assert_eq!(response.output("IDS")["shape"][0], 1);
    assert!(
        started.elapsed() < SLOW * 4,
        "waiting branches of failed requests were cancelled: {:?}",
        started.elapsed()
    );
}

fn rows_travel_in_parts_and_each_part_forks(mode: Mode) {
    let models = diamond("parameters { key: 'max_rows_per_message' value { string_value: '2' } }");
    let sandbox = only_models(mode, &models).start();
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..5).map(|n| n as f32).collect(), (5..10).map(|n| n as f32).collect());
    let response = sandbox.infer("diamond", &numbers(&a, &b));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!((response.numbers("FIRST"), response.numbers("SECOND")), (a, b));
    assert_eq!(executions(&sandbox, "pair"), 3, "three parts");
}

/// (first, delay) -> repeat -> (left, right) -> pair: the step between the branches is decoupled, so the ensemble is
/// decoupled.
fn decoupled() -> ModelFolder {
    let tensor =
        |name: &str, datatype: &str, dims: &str| format!("{{ name: '{name}' data_type: {datatype} dims: [{dims}] }}");
    let (values, delays) = (tensor("IN", "TYPE_FP32", "-1"), tensor("DELAY", "TYPE_UINT32", "-1"));
    let repeat = format!(
        "backend: 'repeat' model_transaction_policy {{ decoupled: true }} input [{values}, {delays}] output [{}, {}]",
        tensor("OUT", "TYPE_FP32", "1"),
        tensor("IDX", "TYPE_UINT32", "1")
    );
    let delay = format!(
        "backend: 'identity' input [{}] output [{}]",
        tensor("INPUT0", "TYPE_UINT32", "-1"),
        tensor("OUTPUT0", "TYPE_UINT32", "-1")
    );
    let steps = [
        step("first", &[("INPUT0", "IN")], &[("OUTPUT0", "i")]),
        step("delay", &[("INPUT0", "DELAY")], &[("OUTPUT0", "d")]),
        step("repeat", &[("IN", "i"), ("DELAY", "d")], &[("OUT", "o")]),
        step("left", &[("INPUT0", "o")], &[("OUTPUT0", "l")]),
        step("right", &[("INPUT0", "o")], &[("OUTPUT0", "r")]),
        step("pair", &[("INPUT0", "l"), ("INPUT1", "r")], &[("OUTPUT0", "FIRST"), ("OUTPUT1", "SECOND")]),
    ];
    let ensemble = format!(
        "platform: 'ensemble' input [{values}, {delays}] output [{}, {}] ensemble_scheduling {{ {} }}",
        tensor("FIRST", "TYPE_FP32", "-1"),
        tensor("SECOND", "TYPE_FP32", "-1"),
        steps.join(" ")
    );
    let models = ModelFolder::new().slow("first", 0).slow("left", 0).slow("right", 50).model("delay", &delay);
    models.model("repeat", &repeat).model("pair", PAIR).model("fork", &ensemble)
}

/// For a request for one answer, the decoupled step has to give exactly one; a stream takes all of them in order.
fn a_decoupled_step_between_branches_gives_one_answer_or_an_error(mode: Mode) {
    let models = decoupled();
    let sandbox = only_models(mode, &models).start();
    let ask = |path: &str, values: &[f32]| {
        let body = json!({"IN": values, "DELAY": vec![0; values.len()]});
        sandbox.send(&Request::post(&format!("/v2/models/fork/{path}"), body.to_string()))
    };
    let one = ask("generate", &[4.5]);
    assert_eq!(one.status, 200, "{}", one.text());
    assert_eq!((&one.json()["FIRST"], &one.json()["SECOND"]), (&json!(4.5), &json!(4.5)));
    for values in [&[4.5, 5.5, 6.5][..], &[]] {
        let refused = ask("generate", values);
        assert_eq!(refused.status, 400, "{}", refused.text());
        let text = "generate expects model to produce exactly 1 response, use generate stream for model that may \
                    generate various number of responses";
        assert!(refused.error().contains("in ensemble 'fork', "), "{}", refused.error());
        assert!(refused.error().ends_with(text), "{}", refused.error());
    }
    let plain = sandbox.infer("fork", &json!({"inputs": []}));
    assert_eq!(plain.status, 501, "{}", plain.text());
    assert_eq!(plain.error(), "HTTP end point doesn't support models with decoupled transaction policy");

    let stream = ask("generate_stream", &[4.5, 5.5, 6.5]).text();
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.map(|event| serde_json::from_str::<Value>(event).expect("an event is JSON"));
    let found: Vec<_> = events.map(|event| (event["FIRST"].clone(), event["SECOND"].clone())).collect();
    assert_eq!(found, [4.5, 5.5, 6.5].map(|value| (json!(value), json!(value))), "{stream}");
}

#[test]
fn branches_outlive_the_worker_that_has_them() {
    let models = diamond("");
    let mut sandbox = only_models(Mode::Services, &models).queue_arguments(&["--ack-wait-ms", "500"]).start();
    let (address, request) = (sandbox.address, Request::infer("diamond", &numbers(&[1.0], &[2.0])));
    let waiting = std::thread::spawn(move || request.send(address));
    std::thread::sleep(DELAY / 2);
    sandbox.worker(Stage::Model, 0).kill();
    sandbox.start_worker(Stage::Model);
    let response = waiting.join().expect("the request's thread does not panic").expect("an answer");
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!((response.numbers("FIRST"), response.numbers("SECOND")), (vec![1.0], vec![2.0]));
}

/// When the broker loses its queues and their messages, each branch is sent again under a new name.
#[test]
fn branches_outlive_the_broker() {
    let models = diamond("");
    let mut sandbox = only_models(Mode::Services, &models).start();
    let (address, request) = (sandbox.address, Request::infer("diamond", &numbers(&[1.0], &[2.0])));
    let waiting = std::thread::spawn(move || request.send(address));
    std::thread::sleep(DELAY / 2);
    sandbox.nats.as_mut().expect("this mode has a broker").restart();
    let response = waiting.join().expect("the request's thread does not panic").expect("an answer");
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!((response.numbers("FIRST"), response.numbers("SECOND")), (vec![1.0], vec![2.0]));
}
