//! An input that kills every worker that executes it is given up, and no other request fails because of it.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Response, Setup, Stage, Wire, WireMessage, product, wait_until};

/// The number on which the models here end their process.
const POISON: i32 = 666;

const LIMIT: Duration = Duration::from_secs(60);

/// The output of `trireme dead list`, one value for each dead letter.
fn dead(url: &str) -> Vec<Value> {
    let output = product("trireme").args(["dead", "list", "--json", "--nats-url", url]).output();
    let output = output.expect("the binary runs");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn workers(models: &ModelFolder) -> Setup {
    Setup::new(Mode::Services).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

/// One poisoned request and seven good ones reach one worker together. The worker is restarted whenever it dies.
fn seven_good_requests_outlive_a_poisoned_one(
    models: &ModelFolder,
    request: impl Fn(i32) -> Request,
    read: impl Fn(&Response) -> Option<f64>,
) {
    // The `ack_wait` is long enough that only deaths cause redeliveries, also on a busy machine. The deadline is long
    // enough for an attempt of each request in a batch of its own.
    let mut sandbox = workers(models)
        .queue_arguments(&["--max-deliver", "3", "--ack-wait-ms", "4000"])
        .gateway_arguments(&["--default-timeout-ms", "85000"])
        .start();
    let address = sandbox.address;
    let asked: Vec<_> = std::iter::once(POISON)
        .chain(1..=7)
        .map(|number| {
            let request = request(number);
            (number, std::thread::spawn(move || request.send(address)))
        })
        .collect();
    let (mut worker, mut deaths) = (0, 0);
    wait_until("everybody is answered", LIMIT * 2, || {
        if sandbox.worker(Stage::Model, worker).exited().is_some() {
            deaths += 1;
            worker = sandbox.start_worker(Stage::Model);
        }
        asked.iter().all(|(_, asked)| asked.is_finished()).then_some(())
    });
    for (number, asked) in asked {
        let response = asked.join().expect("no panic").expect("an answer");
        if number == POISON {
            assert_eq!(response.status, 500, "{}", response.text());
            assert!(response.text().contains("given up after 3 attempts"), "{}", response.text());
        } else {
            assert_eq!(response.status, 200, "request {number}: {}", response.text());
            assert_eq!(read(&response), Some(f64::from(number)));
        }
    }
    assert_eq!(deaths, 3);
    let letters = dead(&sandbox.nats.as_ref().expect("this mode has a broker").url());
    let attempts: Vec<_> = letters.iter().map(|letter| letter["attempts"].clone()).collect();
    assert_eq!(attempts, [json!(3)], "{letters:?}");
}

#[test]
fn a_poisoned_request_takes_none_of_its_batch_with_it() {
    let models = ModelFolder::new().model(
        "fragile",
        &format!(
            "backend: 'identity' max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 500000 }}
         input [{{ name: 'INPUT0' data_type: TYPE_INT32 dims: [1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: [1] }}]
         instance_group [{{ count: 1 kind: KIND_CPU }}]
         parameters {{ key: 'abort_on' value {{ string_value: '{POISON}' }} }}"
        ),
    );
    let body = |number| json!({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [number]}]});
    let read = |response: &Response| response.numbers("OUTPUT0").first().copied().map(f64::from);
    seven_good_requests_outlive_a_poisoned_one(&models, |number| Request::infer("fragile", &body(number)), read);
}

#[test]
fn a_poisoned_request_takes_none_of_its_stepwise_instance_with_it() {
    let models = ModelFolder::new().model("fragile", &format!(
        "backend: 'repeat' model_transaction_policy {{ decoupled: true }}
         input [{{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }}, {{ name: 'DELAY' data_type: TYPE_UINT32 dims: [-1] }}]
         output [{{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }}, {{ name: 'IDX' data_type: TYPE_UINT32 dims: [1] }}]
         instance_group [{{ count: 1 kind: KIND_CPU }}]
         parameters {{ key: 'abort_on' value {{ string_value: '{POISON}' }} }}"
    ));
    // The good requests stay in the instance longer than the poisoned one, in whatever order they arrive.
    let request = |number| {
        let delay = if number == POISON { 500 } else { 1500 };
        Request::post("/v2/models/fragile/generate", json!({"IN": [number], "DELAY": [delay]}).to_string())
    };
    seven_good_requests_outlive_a_poisoned_one(&models, request, |response| response.json()["OUT"].as_f64());
}

/// Sends a request to the broker.
fn ask(wire: &mut Wire, subject: &str, body: &Value) -> String {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let reply = Some("answers".to_owned());
    wire.publish(&WireMessage { subject: subject.to_owned(), reply, body, ..WireMessage::default() });
    let answer = wire.next(LIMIT).expect("the broker answers");
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn a_message_that_cannot_be_set_aside_is_kept_until_it_can() {
    let models = ModelFolder::new().slow("stuck", 3_600_000);
    let mut sandbox = workers(&models).queue_arguments(&["--max-deliver", "1", "--ack-wait-ms", "300"]).start();
    let url = sandbox.nats.as_ref().expect("this mode has a broker").url();
    // Another stream has the subjects of dead letters, so their stream cannot be created.
    let mut wire = Wire::open(&url);
    wire.subscribe("answers");
    let deleted = ask(&mut wire, "$JS.API.STREAM.DELETE.trireme_dead", &Value::Null);
    assert!(deleted.contains("\"success\":true"), "{deleted}");
    let config = json!({"name": "other", "subjects": ["trireme.dead.>"], "storage": "memory"});
    let made = ask(&mut wire, "$JS.API.STREAM.CREATE.other", &config);
    assert!(made.contains("\"created\""), "{made}");

    let address = sandbox.address;
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]});
    let waiting = std::thread::spawn(move || Request::infer("stuck", &body).send(address));
    sandbox.wait_delivered("stuck", 1);
    sandbox.worker(Stage::Model, 0).kill();
    let worker = sandbox.start_worker(Stage::Model);
    let message = "a message that was given up could not be set aside";
    wait_until("it cannot be set aside", LIMIT, || {
        (sandbox.worker(Stage::Model, worker).count(message) > 0).then_some(())
    });
    let deleted = ask(&mut wire, "$JS.API.STREAM.DELETE.other", &Value::Null);
    assert!(deleted.contains("\"success\":true"), "{deleted}");
    let response = waiting.join().expect("no panic").expect("an answer");
    assert_eq!(response.status, 500, "{}", response.text());
    assert_eq!(dead(&url).len(), 1);
}
