//! Decoupled models: answers in parts over gRPC streams and server-sent events, while workers and the broker die, and
//! with clients that leave or read slowly.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, in_every_mode, python, workspace};

in_every_mode!(real_clients_stream, a_reader_that_leaves_frees_its_place);

/// `repeat`, and `repeat_echo`, which sends the parts of `repeat` through a second model whose instances let parts
/// overtake one another.
fn models(max_requests: usize) -> ModelFolder {
    let inputs =
        "input [{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }, { name: 'DELAY' data_type: TYPE_UINT32 dims: [-1] }]";
    let repeat = format!(
        "backend: 'repeat' {inputs} model_transaction_policy {{ decoupled: true }}
         output [{{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }}, {{ name: 'IDX' data_type: TYPE_UINT32 dims: [1] }}]
         instance_group [{{ count: 1 kind: KIND_CPU }}]
         parameters {{ key: 'max_requests' value {{ string_value: '{max_requests}' }} }}"
    );
    let echo = "backend: 'identity' input [{ name: 'INPUT0' data_type: TYPE_INT32 dims: [1] }]
        output [{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: [1] }] instance_group [{ count: 3 kind: KIND_CPU }]
        parameters { key: 'execute_delay_ms' value { string_value: '2' } }
        parameters { key: 'instance_wise_delay_multiplier' value { string_value: '3' } }";
    let ensemble = format!(
        "platform: 'ensemble' {inputs} output [{{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }}]
         ensemble_scheduling {{ step [
           {{ model_name: 'repeat' model_version: -1 input_map [{{ key: 'IN' value: 'IN' }}, {{ key: 'DELAY' value: 'DELAY' }}]
              output_map [{{ key: 'OUT' value: 'raw' }}] }},
           {{ model_name: 'echo' model_version: -1 input_map [{{ key: 'INPUT0' value: 'raw' }}]
              output_map [{{ key: 'OUTPUT0' value: 'OUT' }}] }}] }}"
    );
    ModelFolder::new().model("repeat", &repeat).model("echo", echo).model("repeat_echo", &ensemble)
}

fn start(mode: Mode, models: &ModelFolder) -> Sandbox {
    Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start()
}

/// The events of a stream: the value of `OUT`, or the text of an error.
struct Events(BufReader<TcpStream>);

impl Events {
    fn start(sandbox: &Sandbox, model: &str, count: usize, delay: usize) -> Events {
        let body = json!({"IN": (0..count).collect::<Vec<_>>(), "DELAY": vec![delay; count]});
        let request = Request::post(&format!("/v2/models/{model}/generate_stream"), body.to_string());
        Events(BufReader::new(request.start(sandbox.address).expect("the server listens")))
    }
}

impl Iterator for Events {
    type Item = Result<i64, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = String::new();
        while self.0.read_line(&mut line).expect("an answer in time") > 0 {
            if let Some(event) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(event).expect("an event is JSON");
                return Some(match event["OUT"].as_i64() {
                    Some(value) => Ok(value),
                    None => Err(event["error"].as_str().expect("a result or an error").to_owned()),
                });
            }
            line.clear();
        }
        None
    }
}

#[track_caller]
fn assert_rest(events: Events, range: std::ops::Range<i64>) {
    let rest: Vec<_> = events.collect();
    assert_eq!(rest, range.map(Ok).collect::<Vec<_>>(), "each piece once, and in order");
}

fn real_clients_stream(mode: Mode) {
    let models = models(64);
    let mut sandbox = start(mode, &models);
    let script = workspace().join("tests/clients/streams.py");
    let (http, grpc) = (sandbox.address.to_string(), sandbox.grpc_address().to_string());
    let output = Command::new(python()).arg(script).args(["--url", &http, "--grpc-url", &grpc]).output();
    let output = output.unwrap_or_else(|error| panic!("python does not run: {error}; run `make setup`"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

#[test]
fn a_worker_killed_in_mid_stream_neither_loses_nor_repeats_a_piece() {
    let models = models(64);
    let mut sandbox = start(Mode::Services, &models);
    let mut streams: Vec<_> = ["repeat", "repeat_echo", "repeat_echo"]
        .map(|model| Events::start(&sandbox, model, 150, 20))
        .into_iter()
        .collect();
    for events in &mut streams {
        let begun: Vec<_> = events.take(20).collect();
        assert_eq!(begun, (0..20).map(Ok).collect::<Vec<_>>());
    }
    sandbox.worker(Stage::Model, 0).kill();
    sandbox.start_worker(Stage::Model);
    for events in streams {
        assert_rest(events, 20..150);
    }
}

#[test]
fn a_broker_that_dies_in_mid_stream_neither_loses_nor_repeats_a_piece() {
    let models = models(64);
    let mut sandbox = start(Mode::Services, &models);
    let mut events = Events::start(&sandbox, "repeat_echo", 100, 20);
    let begun: Vec<_> = events.by_ref().take(20).collect();
    assert_eq!(begun, (0..20).map(Ok).collect::<Vec<_>>());
    sandbox.nats.as_mut().expect("this mode has a broker").restart();
    assert_rest(events, 20..100);
}

fn a_reader_that_leaves_frees_its_place(mode: Mode) {
    let models = models(1);
    let sandbox = start(mode, &models);
    let mut leaving = Events::start(&sandbox, "repeat_echo", 500, 50);
    assert_eq!(leaving.next(), Some(Ok(0)));
    drop(leaving);
    let started = Instant::now();
    assert_rest(Events::start(&sandbox, "repeat_echo", 3, 0), 0..3);
    let waited = started.elapsed();
    assert!(waited < Duration::from_secs(20), "waited {waited:?} for work that nobody waits for");
}

#[test]
fn a_reader_that_is_too_slow_is_told_so_and_misses_nothing_before() {
    let models = models(1);
    let sandbox = start(Mode::AllInOne, &models);
    let events = Events::start(&sandbox, "repeat", 300_000, 0);
    // Another request gets the place when the stream has ended, although no byte of it was read.
    assert_rest(Events::start(&sandbox, "repeat", 3, 0), 0..3);
    let mut read = 0;
    let mut error = None;
    for event in events {
        assert_eq!(error, None, "nothing follows an error");
        match event {
            Ok(value) => {
                assert_eq!(value, read);
                read += 1;
            }
            Err(text) => error = Some(text),
        }
    }
    let error = error.expect("a stream that was cut short says so");
    assert!(error.contains("replies or") && error.contains("behind"), "{error}");
    // The number depends on timing: events that were kept for the reader are dropped with the rest.
    assert!(read < 300_000, "{read}");
}

/// The head of a stream's answer arrives with the first event, not with the last.
#[test]
fn events_come_as_they_are_made() {
    let models = models(64);
    let sandbox = start(Mode::AllInOne, &models);
    let started = Instant::now();
    let mut events = Events::start(&sandbox, "repeat", 30, 300);
    assert_eq!(events.next(), Some(Ok(0)));
    assert!(started.elapsed() < Duration::from_secs(7), "the first of 9 s came after {:?}", started.elapsed());
    let mut rest = String::new();
    events.0.read_to_string(&mut rest).expect("an answer in time");
    assert_eq!(rest.matches("data: ").count(), 29);
}
