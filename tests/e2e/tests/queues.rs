//! Queue policy: how many requests may wait, for how long, and in which order.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Response, Sandbox, Setup, Stage, in_every_mode};

in_every_mode!(
    as_many_wait_as_the_policy_says,
    a_batch_goes_when_a_request_comes_that_cannot_join_it,
    a_full_queue_is_429_where_that_is_asked_for,
    a_client_may_wait_for_room_in_a_full_queue,
    clients_that_wait_get_room_in_the_order_in_which_they_came,
    what_waits_too_long_is_refused_in_time,
    higher_priorities_go_first,
    each_level_holds_what_its_policy_says,
    a_request_may_lower_the_timeout_of_a_queue_that_lets_it,
    callers_that_leave_and_time_that_runs_out_make_room,
    a_request_of_more_parts_than_the_queue_holds_is_answered,
);

/// The most requests beyond its policy that a queue on a broker takes: as many as its worker may hold.
const IN_HAND: usize = 16;

/// How many more requests may wait than the policy says: on a broker, those that workers may hold do not count.
fn excess(mode: Mode) -> usize {
    match mode {
        Mode::AllInOne => 0,
        Mode::Services => IN_HAND,
    }
}

/// How long the models here take for a request: long enough to see that other requests wait, on any machine.
const RUN: Duration = Duration::from_secs(6);

/// The same for tests that fill a queue meanwhile.
const LONG_RUN: Duration = Duration::from_secs(20);

/// A refusal comes well within this time.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);

/// The same for tests in which several runs follow one another.
const SHORT_RUN: Duration = Duration::from_secs(2);

/// A model that executes one request at a time, under a queue policy.
fn queueing(batching: &str, run: Duration) -> ModelFolder {
    queueing_in(ModelFolder::new(), batching, run)
}

/// The same in an existing folder.
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

/// Sends a request; returns the answer and how long it took.
fn ask(address: SocketAddr, value: usize, parameters: Value) -> JoinHandle<(Response, Duration)> {
    std::thread::spawn(move || {
        let started = Instant::now();
        let response = Request::infer("queue", &number(value, parameters)).send(address).expect("an answer");
        (response, started.elapsed())
    })
}

/// Waits until this many requests are delivered to workers, and no other request waits.
fn wait_taken(sandbox: &Sandbox, count: u64) {
    sandbox.wait_delivered("queue", count);
    sandbox.wait_queued("queue", count);
}

/// Sends requests one after the other until one is refused. Returns those that wait, and the refusal.
fn until_refused<T>(mut ask: impl FnMut(usize) -> JoinHandle<T>) -> (Vec<JoinHandle<T>>, T) {
    let mut waiting = Vec::new();
    loop {
        let asked = ask(waiting.len());
        let begun = Instant::now();
        while !asked.is_finished() && begun.elapsed() < REFUSED_WITHIN {
            std::thread::sleep(Duration::from_millis(5));
        }
        match asked.is_finished() {
            true => return (waiting, asked.join().expect("no panic")),
            false => waiting.push(asked),
        }
        assert!(waiting.len() <= 3 + IN_HAND, "there is a limit");
    }
}

fn as_many_wait_as_the_policy_says(mode: Mode) {
    let models = queueing("default_queue_policy { max_queue_size: 3 }", LONG_RUN);
    let sandbox = setup(mode, &models).start();
    let running = ask(sandbox.address, 0, json!({}));
    wait_taken(&sandbox, 1);
    let (waiting, (refused, took)) = until_refused(|_| ask(sandbox.address, 1, json!({"trireme_timeout_ms": 8_000})));
    assert!((3..=3 + excess(mode)).contains(&waiting.len()), "{} wait", waiting.len());
    assert_eq!(
        (refused.status, refused.error().as_str()),
        (503, "[request id: <id_unknown>] Exceeds maximum queue size")
    );
    assert!(took < REFUSED_WITHIN, "refused at once, not after {took:?}");
    for request in waiting {
        let (expired, _) = request.join().expect("no panic");
        assert!(expired.error().contains("timeout expired"), "{}", expired.text());
    }
    assert_eq!(running.join().expect("no panic").0.numbers("OUTPUT0"), [0.0], "what was taken is answered");
    assert_eq!(sandbox.infer("queue", &number(7, json!({}))).status, 200, "there is room again");
}

/// The batch may wait for company for longer than anybody here does.
fn a_batch_goes_when_a_request_comes_that_cannot_join_it(mode: Mode) {
    const SOON: Duration = Duration::from_secs(20);
    let models = ModelFolder::new().model(
        "queue",
        "backend: 'identity' max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 120000000 }
         input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
         output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]",
    );
    let sandbox = setup(mode, &models).start();
    let ask = |rows: usize, columns: usize| {
        let input =
            json!({"name": "INPUT0", "datatype": "FP32", "shape": [rows, columns], "data": vec![1; rows * columns]});
        let (address, request) = (sandbox.address, Request::infer("queue", &json!({"inputs": [input]})));
        std::thread::spawn(move || request.send(address).expect("it is answered"))
    };
    let begun = Instant::now();
    let first = ask(1, 1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!first.is_finished(), "it waits for company");
    let second = ask(1, 2);
    assert_eq!(first.join().expect("it does not panic").status, 200);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(ask(4, 3).join().expect("it does not panic").status, 200, "a full batch");
    assert_eq!(second.join().expect("it does not panic").status, 200);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

fn a_full_queue_is_429_where_that_is_asked_for(mode: Mode) {
    let models = queueing("default_queue_policy { max_queue_size: 3 }", LONG_RUN);
    let sandbox = setup(mode, &models).gateway_arguments(&["--full-queue-status", "429"]).start();
    let (waiting, (refused, _)) = until_refused(|_| ask(sandbox.address, 0, json!({"trireme_timeout_ms": 8_000})));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert!(refused.error().ends_with("Exceeds maximum queue size"), "{}", refused.error());
    drop(waiting);
}

fn a_client_may_wait_for_room_in_a_full_queue(mode: Mode) {
    // A run that does not end during the test.
    let models = queueing("default_queue_policy { max_queue_size: 3 }", Duration::from_secs(600));
    let sandbox = setup(mode, &models).start();
    let _running = ask(sandbox.address, 0, json!({}));
    wait_taken(&sandbox, 1);
    let (waiting, (refused, _)) = until_refused(|_| ask(sandbox.address, 1, json!({"trireme_timeout_ms": 15_000})));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let prefer = |seconds: u32| {
        let request = Request::infer("queue", &number(2, json!({}))).header("Prefer", &format!("wait={seconds}"));
        let address = sandbox.address;
        std::thread::spawn(move || request.send(address).expect("an answer"))
    };
    let begun = Instant::now();
    let refused = prefer(1).join().expect("no panic");
    assert!(refused.error().ends_with("Exceeds maximum queue size"), "{}", refused.error());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(begun.elapsed() >= Duration::from_secs(1), "after {:?}", begun.elapsed());
    let patient = prefer(40);
    for request in waiting {
        request.join().expect("no panic");
    }
    sandbox.wait_queued("queue", 2);
    assert!(!patient.is_finished(), "it waits in the queue now, behind the run");
}

fn clients_that_wait_get_room_in_the_order_in_which_they_came(mode: Mode) {
    const CLIENTS: usize = 48;
    const REQUESTS: usize = 5;
    let models = queueing("default_queue_policy { max_queue_size: 3 }", Duration::from_millis(40));
    let sandbox = setup(mode, &models).start();
    let address = sandbox.address;
    let client = move || -> Vec<Duration> {
        let patient = Request::infer("queue", &number(0, json!({}))).header("Prefer", "wait=60");
        let times = (0..REQUESTS).map(|_| {
            let begun = Instant::now();
            let answer = patient.send(address).expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text());
            begun.elapsed()
        });
        times.collect()
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| std::thread::spawn(client)).collect();
    let mut times: Vec<Duration> = clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect();
    times.sort_unstable();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    assert!(slowest < median * 2, "{slowest:?}, and half of the requests took less than {median:?}");
}

fn what_waits_too_long_is_refused_in_time(mode: Mode) {
    let models = queueing("default_queue_policy { default_timeout_microseconds: 300000 }", RUN);
    let sandbox = setup(mode, &models).start();
    // More than a worker holds, so some wait in the shared queue.
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
        // It was not refused only at the end of the run before it.
        assert!(took < RUN * 3 / 4, "after {took:?}");
    }
    assert_eq!(running.join().expect("no panic").0.status, 200);
}

/// As Triton's L0_client_timeout has it for a queue; elsewhere the parameter means nothing.
fn a_request_may_lower_the_timeout_of_a_queue_that_lets_it(mode: Mode) {
    let policy = |lets| {
        format!("default_queue_policy {{ default_timeout_microseconds: 60000000 allow_timeout_override: {lets} }}")
    };
    for (policy, lets) in [(&*policy(true), true), (&*policy(false), false), ("", false)] {
        let models = queueing(policy, Duration::from_secs(2));
        let sandbox = setup(mode, &models).start();
        let running = ask(sandbox.address, 0, json!({}));
        wait_taken(&sandbox, 1);
        // Clients pass seconds where microseconds are meant.
        let (waited, _) = ask(sandbox.address, 1, json!({"timeout": 30})).join().expect("no panic");
        assert_eq!(waited.status, if lets { 503 } else { 200 }, "{policy}: {}", waited.text());
        assert_eq!(running.join().expect("no panic").0.status, 200, "what runs is not refused");
    }
}

fn callers_that_leave_and_time_that_runs_out_make_room(mode: Mode) {
    // A run that does not end during the test.
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
        drop(waiting);
        sandbox.wait_queued("queue", 1);

        let (waiting, (refused, _)) = until_refused(|n| ask(sandbox.address, n, json!({"trireme_timeout_ms": 12_000})));
        assert!((3..=3 + excess(mode)).contains(&waiting.len()), "{} wait", waiting.len());
        assert!(refused.error().ends_with("queue size"), "{}", refused.text());
        for request in waiting {
            let (expired, _) = request.join().expect("no panic");
            assert!(expired.error().contains("timeout expired"), "{}", expired.text());
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
    // 11 at a time: 3 that wait, and two batches that the worker holds.
    let rows: Vec<f32> = (0..40u8).map(f32::from).collect();
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [rows.len(), 1], "data": rows}]});
    let response = sandbox.infer("parts", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.numbers("OUTPUT0"), rows);
}

/// After the broker's restart the queue is shorter: requests that were accepted before wait until it has room.
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

/// An execution takes longer than its limit: the worker ends with an error, and another one does the work.
#[test]
fn a_worker_that_hangs_is_noticed_and_replaced() {
    let models = ModelFolder::new().slow("queue", 3_600_000);
    let mut sandbox = setup(Mode::Services, &models).worker_arguments(&["--execution-limit-secs", "2"]).start();
    let waiting = ask(sandbox.address, 5, json!({}));
    let mut hung = sandbox.take_worker(Stage::Model, 0);
    let status = hung.wait_exit(Duration::from_secs(60));
    assert_eq!(status.code(), Some(1), "{}", hung.log_tail());
    // The new worker serves a model that does not hang.
    let _models = models.slow("queue", 0);
    sandbox.start_worker(Stage::Model);
    assert_eq!(waiting.join().expect("no panic").0.numbers("OUTPUT0"), [5.0]);
}

fn higher_priorities_go_first(mode: Mode) {
    let models = queueing("priority_levels: 3 default_priority_level: 2", SHORT_RUN);
    let sandbox = setup(mode, &models).start();
    let running = ask(sandbox.address, 0, json!({}));
    wait_taken(&sandbox, 1);
    // Low, default (without priority, and an unknown one), high; all of them at once.
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

/// With batches that are not full, and several levels, each level has a limit of its own.
fn each_level_holds_what_its_policy_says(mode: Mode) {
    let config = format!(
        "backend: 'identity' max_batch_size: 8 instance_group [{{ count: 2 kind: KIND_CPU }}]
         dynamic_batching {{
             priority_levels: 2 default_priority_level: 2 default_queue_policy {{ max_queue_size: 3 }}
             priority_queue_policy {{ key: 1 value {{ max_queue_size: 2 }} }}
         }}
         input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
        LONG_RUN.as_millis()
    );
    let models = ModelFolder::new().model("queue", &config);
    let sandbox = setup(mode, &models).start();
    let ask = |level: usize| {
        let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [level]});
        let (address, body) = (sandbox.address, json!({"parameters": {"priority": level}, "inputs": [input]}));
        std::thread::spawn(move || Request::infer("queue", &body).send(address).ok())
    };
    // Two instances, each with one request where it could have eight.
    let mut accepted = Vec::new();
    for (number, level) in [(1, 2), (2, 1)] {
        accepted.push(ask(level));
        wait_taken(&sandbox, number);
    }
    for (level, most) in [(2, 3), (1, 2)] {
        let before = accepted.len();
        let refused = loop {
            let asked = ask(level);
            std::thread::sleep(REFUSED_WITHIN);
            match asked.is_finished() {
                true => break asked.join().expect("no panic").expect("an answer"),
                false => accepted.push(asked),
            }
        };
        assert_eq!((refused.status, refused.error().ends_with("queue size")), (503, true), "{}", refused.text());
        let waiting = accepted.len() - before;
        // Two instances, each of which may hold a batch of eight and the next one.
        let excess = if mode == Mode::Services { 4 * 8 } else { 0 };
        assert!((most..=most + excess).contains(&waiting), "{waiting} wait at level {level}");
    }
}

/// This holds among the requests in a worker and, in one process, among all that wait.
#[test]
fn what_waits_too_long_goes_behind_what_came_later() {
    let mode = Mode::AllInOne;
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
