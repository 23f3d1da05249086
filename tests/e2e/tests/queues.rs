//! Queue policy: how many requests may wait, for how long, and in which order.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Response, Sandbox, Setup, Stage, in_every_mode};

in_every_mode!(
    as_many_wait_as_the_policy_says_and_no_more,
    a_full_queue_is_429_where_that_is_asked_for,
    what_waits_too_long_is_refused_in_time,
    higher_priorities_go_first,
    each_level_holds_what_its_policy_says_whatever_is_executed,
    what_waits_too_long_goes_behind_what_came_later,
    callers_that_leave_and_time_that_runs_out_make_room,
    a_request_of_more_parts_than_the_queue_holds_is_answered,
);

/// How long the models here take for a request: longer than it takes to see that others wait for it, on any machine.
const RUN: Duration = Duration::from_secs(6);

/// The same where several of them follow one another.
const SHORT_RUN: Duration = Duration::from_secs(2);

/// A model that executes one request at a time, under a queue policy.
fn queueing(batching: &str, run: Duration) -> ModelFolder {
    queueing_in(ModelFolder::new(), batching, run)
}

/// The same in place of another.
fn queueing_in(models: ModelFolder, batching: &str, run: Duration) -> ModelFolder {
    let config = format!(
        "backend: 'identity' dynamic_batching {{ {batching} }} instance_group [{{ count: 1 kind: KIND_CPU }}]
         input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
        run.as_millis()
    );
    models.model("queue", &config)
}

fn setup(mode: Mode, models: &ModelFolder) -> Setup {
    Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

fn number(value: usize, parameters: Value) -> Value {
    json!({"parameters": parameters, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [value]}]})
}

/// Sends a request; gives the answer and how long it took.
fn ask(address: SocketAddr, value: usize, parameters: Value) -> JoinHandle<(Response, Duration)> {
    std::thread::spawn(move || {
        let started = Instant::now();
        let response = Request::infer("queue", &number(value, parameters)).send(address).expect("an answer");
        (response, started.elapsed())
    })
}

/// Waits until workers have so many requests, and none is left where it waited.
fn wait_taken(sandbox: &Sandbox, count: u64) {
    sandbox.wait_delivered("queue", count);
    sandbox.wait_queued("queue", count);
}

/// One executes, three wait: the next is refused.
fn fill(sandbox: &Sandbox) -> Vec<JoinHandle<(Response, Duration)>> {
    let mut waiting = vec![ask(sandbox.address, 0, json!({}))];
    wait_taken(sandbox, 1);
    waiting.extend((1..4).map(|n| ask(sandbox.address, n, json!({}))));
    sandbox.wait_queued("queue", 4);
    waiting
}

fn as_many_wait_as_the_policy_says_and_no_more(mode: Mode) {
    let models = queueing("default_queue_policy { max_queue_size: 3 }", RUN);
    let sandbox = setup(mode, &models).start();
    let waiting = fill(&sandbox);
    for n in 0..3 {
        let (refused, took) = ask(sandbox.address, n, json!({})).join().expect("no panic");
        assert_eq!(
            (refused.status, refused.error().as_str()),
            (503, "[request id: <id_unknown>] Exceeds maximum queue size")
        );
        assert!(took < RUN, "refused at once, not after {took:?}");
    }
    for (n, request) in waiting.into_iter().enumerate() {
        let (response, _) = request.join().expect("no panic");
        assert_eq!(response.numbers("OUTPUT0"), [n as f32], "what was taken is answered");
    }
    assert_eq!(sandbox.infer("queue", &number(7, json!({}))).status, 200, "there is room again");
}

fn a_full_queue_is_429_where_that_is_asked_for(mode: Mode) {
    let models = queueing("default_queue_policy { max_queue_size: 3 }", RUN);
    let sandbox = setup(mode, &models).gateway_arguments(&["--full-queue-status", "429"]).start();
    let waiting = fill(&sandbox);
    let (refused, _) = ask(sandbox.address, 9, json!({})).join().expect("no panic");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert!(refused.error().ends_with("Exceeds maximum queue size"), "{}", refused.error());
    for request in waiting {
        assert_eq!(request.join().expect("no panic").0.status, 200);
    }
}

fn what_waits_too_long_is_refused_in_time(mode: Mode) {
    let models = queueing("default_queue_policy { default_timeout_microseconds: 300000 }", RUN);
    let sandbox = setup(mode, &models).start();
    // More than a worker takes in: some wait in the shared queue.
    let running = ask(sandbox.address, 0, json!({}));
    sandbox.wait_queued("queue", 1);
    let waiting: Vec<_> = (1..30).map(|n| ask(sandbox.address, n, json!({}))).collect();
    for request in waiting {
        let (refused, took) = request.join().expect("no panic");
        assert_eq!(
            (refused.status, refused.error().as_str()),
            (503, "[request id: <id_unknown>] Request timeout expired")
        );
        assert!(took >= Duration::from_millis(290), "not before its time: {took:?}");
        // Not by the run that it waited for.
        assert!(took < RUN * 3 / 4, "after {took:?}");
    }
    assert_eq!(running.join().expect("no panic").0.status, 200);
}

fn callers_that_leave_and_time_that_runs_out_make_room(mode: Mode) {
    // One that nobody sees the end of.
    let models = queueing("default_queue_policy { max_queue_size: 3 }", Duration::from_secs(600));
    let sandbox = setup(mode, &models).start();
    let begin = |parameters| {
        Request::infer("queue", &number(0, parameters)).start(sandbox.address).expect("the gateway listens")
    };
    let _running = begin(json!({}));
    wait_taken(&sandbox, 1);
    for _ in 0..2 {
        let waiting: Vec<_> = (0..3).map(|_| begin(json!({}))).collect();
        sandbox.wait_queued("queue", 4);
        let refused = sandbox.infer("queue", &number(0, json!({})));
        assert_eq!((refused.status, refused.error().ends_with("queue size")), (503, true), "{}", refused.text());
        drop(waiting);
        sandbox.wait_queued("queue", 1);

        let waiting: Vec<_> = (0..3).map(|n| ask(sandbox.address, n, json!({"timeout": 500_000}))).collect();
        for request in waiting {
            let (expired, _) = request.join().expect("no panic");
            assert!(expired.error().ends_with("timeout expired"), "{}", expired.text());
        }
        sandbox.wait_queued("queue", 1);
    }
}

fn a_request_of_more_parts_than_the_queue_holds_is_answered(mode: Mode) {
    let config = "backend: 'identity' max_batch_size: 4 instance_group [{ count: 1 kind: KIND_CPU }]
         dynamic_batching { default_queue_policy { max_queue_size: 3 } }
         input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
         output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]
         parameters [
           { key: 'max_rows_per_message' value { string_value: '1' } },
           { key: 'execute_delay_ms' value { string_value: '200' } }
         ]";
    let models = ModelFolder::new().model("parts", config);
    let sandbox = setup(mode, &models).start();
    // 11 at a time: 3 that wait, and two batches that the worker has.
    let rows: Vec<f32> = (0..40u8).map(f32::from).collect();
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [rows.len(), 1], "data": rows}]});
    let response = sandbox.infer("parts", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.numbers("OUTPUT0"), rows);
}

/// The queue that comes back with the broker is shorter: what had been accepted waits until it has room.
#[test]
fn what_was_accepted_is_not_refused_after_a_restart_of_the_broker() {
    let models = queueing("default_queue_policy { max_queue_size: 8 }", RUN);
    let mut sandbox = setup(Mode::Services, &models).start();
    let waiting: Vec<_> = (0..6).map(|n| ask(sandbox.address, n, json!({}))).collect();
    sandbox.wait_queued("queue", 6);
    sandbox.take_worker(Stage::Model, 0).kill();
    sandbox.nats.as_mut().expect("services have a broker").restart();
    let _models = queueing_in(models, "default_queue_policy { max_queue_size: 1 }", SHORT_RUN);
    sandbox.start_worker(Stage::Model);
    for (n, request) in waiting.into_iter().enumerate() {
        let (response, _) = request.join().expect("no panic");
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.numbers("OUTPUT0"), [n as f32]);
    }
}

/// An execution that takes longer than it may: the worker ends with an error, a peer does the work.
#[test]
fn a_worker_that_hangs_is_noticed_and_replaced() {
    let models = ModelFolder::new().slow("queue", 3_600_000);
    let mut sandbox = setup(Mode::Services, &models).worker_arguments(&["--execution-limit-secs", "2"]).start();
    let waiting = ask(sandbox.address, 5, json!({}));
    let mut hung = sandbox.take_worker(Stage::Model, 0);
    let status = hung.wait_exit(Duration::from_secs(60));
    assert_eq!(status.code(), Some(1), "{}", hung.log_tail());
    // What replaces it serves a model that does not hang.
    let _models = models.slow("queue", 0);
    sandbox.start_worker(Stage::Model);
    assert_eq!(waiting.join().expect("no panic").0.numbers("OUTPUT0"), [5.0]);
}

fn higher_priorities_go_first(mode: Mode) {
    let models = queueing("priority_levels: 3 default_priority_level: 2", SHORT_RUN);
    let sandbox = setup(mode, &models).start();
    let running = ask(sandbox.address, 0, json!({}));
    wait_taken(&sandbox, 1);
    // Low, default (none, 0, unknown), high; all of them at once.
    let started = Instant::now();
    let asked = [json!({"priority": 3}), json!({}), json!({"priority": 9}), json!({"priority": 1})];
    let asked: Vec<_> =
        asked.into_iter().map(|parameters| (Instant::now(), ask(sandbox.address, 1, parameters))).collect();
    let ended: Vec<_> = asked
        .into_iter()
        .map(|(asked, request)| {
            let (response, took) = request.join().expect("no panic");
            assert_eq!(response.status, 200, "{}", response.text());
            (asked - started) + took
        })
        .collect();
    assert_eq!(running.join().expect("no panic").0.status, 200);
    let [low, default, unknown, high] = ended[..] else { unreachable!("as many as were asked") };
    assert!(high < default.min(unknown) && default.max(unknown) < low, "by level: {ended:?}");
}

/// Batches that are not full, and several levels: neither changes how many wait.
fn each_level_holds_what_its_policy_says_whatever_is_executed(mode: Mode) {
    let config = format!(
        "backend: 'identity' max_batch_size: 8 instance_group [{{ count: 2 kind: KIND_CPU }}]
         dynamic_batching {{
             priority_levels: 2 default_priority_level: 2 default_queue_policy {{ max_queue_size: 3 }}
             priority_queue_policy {{ key: 1 value {{ max_queue_size: 2 }} }}
         }}
         input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
        RUN.as_millis()
    );
    let models = ModelFolder::new().model("queue", &config);
    let sandbox = setup(mode, &models).start();
    let body = |level: usize| {
        let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [level]});
        json!({"parameters": {"priority": level}, "inputs": [input]})
    };
    let ask = |level| {
        let (address, body) = (sandbox.address, body(level));
        std::thread::spawn(move || Request::infer("queue", &body).send(address).expect("an answer"))
    };
    // Two instances, each with one request of the eight that it could have.
    let mut accepted = Vec::new();
    for (number, level) in [(1, 2), (2, 1)] {
        accepted.push(ask(level));
        wait_taken(&sandbox, number);
    }
    for (level, most) in [(2, 3), (1, 2)] {
        let before = accepted.len() as u64;
        accepted.extend((0..most).map(|_| ask(level)));
        sandbox.wait_queued("queue", before + most);
        let refused = sandbox.infer("queue", &body(level));
        assert_eq!((refused.status, refused.error().ends_with("queue size")), (503, true), "{}", refused.text());
    }
    for request in accepted {
        let response = request.join().expect("no panic");
        assert_eq!(response.status, 200, "{}", response.text());
    }
}

fn what_waits_too_long_goes_behind_what_came_later(mode: Mode) {
    let (run, patience) = (Duration::from_secs(4), Duration::from_secs(2));
    let policy =
        format!("default_timeout_microseconds: {} timeout_action: DELAY max_queue_size: 3", patience.as_micros());
    let models = queueing(&format!("default_queue_policy {{ {policy} }}"), run);
    let sandbox = setup(mode, &models).start();
    let started = Instant::now();
    let running = ask(sandbox.address, 0, json!({}));
    wait_taken(&sandbox, 1);
    let old: Vec<_> = (1..3).map(|n| (Instant::now(), ask(sandbox.address, n, json!({})))).collect();
    sandbox.wait_queued("queue", 3);
    std::thread::sleep((started + run * 3 / 4).saturating_duration_since(Instant::now()));
    let young = (Instant::now(), ask(sandbox.address, 3, json!({})));
    sandbox.wait_queued("queue", 4);
    let refused = sandbox.infer("queue", &number(4, json!({})));
    assert_eq!((refused.status, refused.error().ends_with("queue size")), (503, true), "{}", refused.text());
    let ended = |(asked, request): (Instant, JoinHandle<(Response, Duration)>)| {
        let (response, took) = request.join().expect("no panic");
        assert_eq!(response.status, 200, "{}", response.text());
        asked + took
    };
    let young = ended(young);
    for old in old {
        assert!(young < ended(old), "what waited too long goes last");
    }
    assert_eq!(running.join().expect("no panic").0.status, 200);
}
