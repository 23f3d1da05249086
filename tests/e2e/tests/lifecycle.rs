//! Workers, brokers and clients that come and go, and timeouts.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::chaos::{Proxy, SmallDisk};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Sandbox, Setup, Stage, basic_repository, golden, in_one_mode, load, wait_until,
};
use trireme_testkit::{NatsServer, assert_close};

/// A worker's entries lapse when its heartbeats have been missing for 8 s; the limit leaves some more time.
const LAPSE_LIMIT: Duration = Duration::from_secs(60);

in_one_mode!(a_request_past_its_timeout_is_answered_at_once, clients_that_leave_take_their_work_along);

fn text(number: usize) -> Value {
    let golden = golden();
    json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden[number % golden.len()].text]}]})
}

fn number(value: f32) -> Value {
    json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [value]}]})
}

#[track_caller]
fn assert_embeds(sandbox: &Sandbox, number: usize) {
    let golden = golden();
    let response = sandbox.infer("tiny_embedding", &text(number));
    assert_close(&response.numbers("embedding"), &golden[number % golden.len()].embedding, 1e-5);
}

/// Arguments of a process with an admin listener.
const ADMIN: [&str; 2] = ["--admin-address", "127.0.0.1:0"];

/// The answer of a process at `/readyz`: the status, and a line.
fn readyz(process: &Process) -> (u16, String) {
    let listening = process.events().into_iter().find(|event| event["message"] == "admin listener");
    let address = listening.and_then(|event| event["address"].as_str()?.parse().ok());
    let address = address.unwrap_or_else(|| panic!("{} has no admin listener", process.name()));
    let answer = Request::get("/readyz").send(address).expect("the admin listener answers");
    (answer.status, answer.text().trim_end().to_owned())
}

/// Waits until every process says this of itself; the line begins with `words`.
#[track_caller]
fn wait_readyz(sandbox: &Sandbox, status: u16, words: &str) {
    for process in sandbox.processes() {
        let mut last = (0, String::new());
        wait_until(&format!("{} says {status} {words}", process.name()), LAPSE_LIMIT, || {
            last = readyz(process);
            (last.0 == status && last.1.starts_with(words)).then_some(())
        });
    }
}

fn problems(sandbox: &Sandbox) -> Vec<String> {
    let status = sandbox.get("/v2/trireme/status").json();
    let problems = status["problems"].as_array().expect("the status has problems");
    problems.iter().map(|problem| problem.as_str().expect("a sentence").to_owned()).collect()
}

/// A sandbox of only model services, with these models.
fn only_models(mode: Mode, models: &ModelFolder) -> Setup {
    Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

// === Workers ===

#[test]
fn models_of_a_dead_worker_are_not_ready_until_another_comes() {
    let mut sandbox = Setup::new(Mode::Services).gateway_arguments(&ADMIN).start();
    assert_embeds(&sandbox, 0);
    assert_eq!(problems(&sandbox), [""; 0]);
    sandbox.worker(Stage::Model, 0).kill();
    // Its entries lapse one after the other, in the order in which they were written.
    for model in ["simple", "slow_identity", "tiny_encoder", "tiny_embedding"] {
        wait_until("its models are not ready", LAPSE_LIMIT, || (sandbox.model_ready(model) == 400).then_some(()));
    }
    assert_eq!(sandbox.get("/v2/health/ready").status, 400);
    assert_eq!(sandbox.model_ready("tiny_tokenizer"), 200, "others do not suffer");
    assert_eq!(sandbox.infer("tiny_tokenizer", &text(0)).status, 200);
    assert_eq!(readyz(&sandbox.gateway), (200, "ready".to_owned()), "the gateway still takes their requests");
    let problem = problems(&sandbox).into_iter().find(|problem| problem.ends_with("of model 'tiny_embedding'"));
    let problem = problem.expect("the ensemble is among the problems");
    assert!(problem.starts_with("no live worker for step 2 (tiny_encoder)"), "{problem}");
    let readiness = sandbox.get("/v2/models/tiny_embedding/ready");
    assert_eq!((readiness.status, readiness.error().as_str()), (400, "Model version not ready"));

    let started = Instant::now();
    for (model, body) in [("slow_identity", number(1.0)), ("tiny_embedding", text(0))] {
        let response = sandbox.infer(model, &body);
        let expected = format!("Request for unknown model: '{model}' version 1 is not at ready state");
        assert_eq!(response.status, 503, "{}", response.text());
        assert!(response.error().starts_with(&expected), "{}", response.error());
    }
    assert!(started.elapsed() < Duration::from_secs(30), "refused at once, not at the deadline");

    sandbox.start_worker(Stage::Model);
    sandbox.wait_ready();
    assert_embeds(&sandbox, 1);
}

#[test]
fn requests_wait_for_a_worker_that_is_replaced() {
    let mut sandbox = Sandbox::start(Mode::Services);
    let address = sandbox.address;
    sandbox.worker(Stage::Model, 0).kill();
    // The gateway does not know yet that the worker is gone, so these requests wait in its queue.
    let waiting: Vec<_> =
        (0..8).map(|n| std::thread::spawn(move || Request::infer("tiny_embedding", &text(n)).send(address))).collect();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.iter().all(|request| !request.is_finished()), "there is nobody to answer");
    sandbox.start_worker(Stage::Model);
    let golden = golden();
    for (n, request) in waiting.into_iter().enumerate() {
        let response = request.join().expect("the request's thread does not panic").expect("an answer");
        assert_close(&response.numbers("embedding"), &golden[n % golden.len()].embedding, 1e-5);
    }
}

#[test]
fn requests_for_a_stage_that_is_scaled_to_none_wait_for_its_next_worker() {
    let mut sandbox = Setup::new(Mode::Services).gateway_arguments(&["--keep-models"]).start();
    assert_embeds(&sandbox, 0);
    for stage in [Stage::Tokenizer, Stage::Model] {
        let mut worker = sandbox.take_worker(stage, 0);
        worker.terminate();
        assert_eq!(worker.wait_exit(LAPSE_LIMIT).code(), Some(0));
    }
    assert!(sandbox.is_ready(), "the gateway takes requests for models that nobody serves right now");
    let request = Request::infer("tiny_embedding", &text(1));
    let address = sandbox.address;
    let waiting = std::thread::spawn(move || request.send(address));
    sandbox.start_worker(Stage::Tokenizer);
    wait_until("the tokenizer is ready", LAPSE_LIMIT, || {
        (sandbox.worker(Stage::Tokenizer, 0).count("ready") > 0).then_some(())
    });
    assert!(!waiting.is_finished(), "nobody executes the encoder yet");
    sandbox.start_worker(Stage::Model);
    let response = waiting.join().expect("the client does not panic").expect("the request is answered");
    assert_close(&response.numbers("embedding"), &golden()[1].embedding, 1e-5);
}

#[test]
fn a_worker_that_leaves_in_order_is_missed_at_once() {
    let mut sandbox = Sandbox::start(Mode::Services);
    let mut leaving = sandbox.take_worker(Stage::Tokenizer, 0);
    leaving.terminate();
    assert_eq!(leaving.wait_exit(Duration::from_secs(35)).code(), Some(0), "{}", leaving.log_tail());
    wait_until("its model is not ready", LAPSE_LIMIT, || (sandbox.model_ready("tiny_tokenizer") == 400).then_some(()));
    // The worker withdrew its entries itself; they did not lapse.
    sandbox.assert_never_logged("a worker is not heard any more");
    sandbox.start_worker(Stage::Tokenizer);
    sandbox.wait_ready();
    assert_embeds(&sandbox, 2);
}

// === The broker ===

/// The broker loses all queues and the registry, which are in memory. Requests in flight are answered within their
/// deadline, and later requests are answered, too.
fn survives_the_broker(away: Duration) {
    const REQUESTS: usize = 200;
    let mut sandbox = Sandbox::start(Mode::Services);
    let mut nats = sandbox.nats.take().expect("this mode has a broker");
    let golden = golden();
    let ask = |number: usize| {
        // Light load: a few requests at a time with a pause between them, so that the load lasts longer than the
        // outage.
        std::thread::sleep(Duration::from_millis(20));
        if number.is_multiple_of(2) {
            let response = sandbox.infer("tiny_embedding", &text(number));
            assert_close(&response.numbers("embedding"), &golden[number % golden.len()].embedding, 1e-5);
        } else {
            assert_eq!(
                sandbox.infer("slow_identity", &self::number(number as f32)).numbers("OUTPUT0"),
                [number as f32]
            );
        }
    };
    let restart = || {
        nats.kill();
        std::thread::sleep(away);
        nats.restart();
    };
    let outcome = load(REQUESTS, 4, ask, restart);
    sandbox.nats = Some(nats);
    outcome.assert_all_right(REQUESTS);
    assert!(outcome.slowest >= away, "some requests had to wait, but the slowest took {:?}", outcome.slowest);
    assert!(outcome.slowest < away + Duration::from_secs(45), "the slowest request took {:?}", outcome.slowest);
    sandbox.wait_ready();
    assert_embeds(&sandbox, 3);
}

#[test]
fn a_broker_that_restarts_delays_requests() {
    survives_the_broker(Duration::from_millis(500));
}

#[test]
fn a_broker_that_is_away_longer_than_registry_entries_live_delays_requests() {
    survives_the_broker(Duration::from_secs(11));
}

/// Longer than registry entries last without heartbeats.
const STANDSTILL: Duration = Duration::from_secs(11);

/// Requests that are sent at any time of a standstill are answered after it.
#[track_caller]
fn assert_outlived(sandbox: &Sandbox, begin: impl FnOnce(), end: impl FnOnce()) {
    const REQUESTS: u32 = 18;
    let address = sandbox.address;
    begin();
    let asked: Vec<_> = (0..REQUESTS)
        .map(|n| {
            std::thread::sleep(STANDSTILL / REQUESTS);
            let body = text(n as usize);
            std::thread::spawn(move || Request::infer("tiny_embedding", &body).send(address))
        })
        .collect();
    end();
    let golden = golden();
    for (n, request) in asked.into_iter().enumerate() {
        let response = request.join().expect("the request's thread does not panic").expect("an answer");
        assert_eq!(response.status, 200, "request {n}: {}", response.text());
        assert_close(&response.numbers("embedding"), &golden[n % golden.len()].embedding, 1e-5);
    }
}

#[test]
fn a_broker_that_stands_still_delays_requests() {
    let sandbox = Sandbox::start(Mode::Services);
    let nats = sandbox.nats.as_ref().expect("this mode has a broker");
    assert_outlived(&sandbox, || nats.pause(), || nats.resume());
}

#[test]
fn a_gateway_that_is_cut_off_delays_its_requests() {
    let nats = NatsServer::start();
    let proxy = Proxy::start(&nats.url());
    let sandbox = Setup::new(Mode::Services).gateway_through(proxy.url()).start_on(Some(nats));
    assert_outlived(&sandbox, || proxy.cut(), || proxy.mend());
}

/// Every process says that it misses the broker, until the broker is back. Requests end with an error that says so.
fn everybody_misses_the_broker(leave: impl FnOnce(&mut NatsServer), come_back: impl FnOnce(&mut NatsServer)) {
    let mut sandbox = Setup::new(Mode::Services).gateway_arguments(&ADMIN).worker_arguments(&ADMIN).start();
    wait_readyz(&sandbox, 200, "ready");
    let mut nats = sandbox.nats.take().expect("this mode has a broker");
    leave(&mut nats);
    let mut late = text(0);
    late["parameters"] = json!({"trireme_timeout_ms": 8_000});
    let address = sandbox.address;
    let late = std::thread::spawn(move || Request::infer("tiny_embedding", &late).send(address));
    let impatient = Request::infer("tiny_embedding", &text(0)).start(address).expect("the gateway listens");

    wait_readyz(&sandbox, 503, "not ready: the broker cannot be reached, since ");
    drop(impatient);
    assert!(!sandbox.is_ready());
    assert_eq!(sandbox.model_ready("tiny_tokenizer"), 400);
    assert_eq!(sandbox.get("/v2/health/live").status, 200);
    let problem = problems(&sandbox).remove(0);
    assert!(problem.starts_with("the broker cannot be reached, since "), "{problem}");
    let late = late.join().expect("the request's thread does not panic").expect("an answer");
    assert_eq!(late.status, 503, "{}", late.text());
    assert!(late.error().contains("Request timeout expired: the broker cannot be reached"), "{}", late.error());

    come_back(&mut nats);
    sandbox.nats = Some(nats);
    wait_readyz(&sandbox, 200, "ready");
    wait_until("the server is ready", LAPSE_LIMIT, || sandbox.is_ready().then_some(()));
    assert_embeds(&sandbox, 0);
    // The status may be half a second old.
    wait_until("no problem is left", LAPSE_LIMIT, || problems(&sandbox).is_empty().then_some(()));
    let status = sandbox.get("/v2/trireme/status").json();
    let models = status["models"].as_array().expect("the status has models");
    let ensemble = models.iter().find(|model| model["name"] == "tiny_embedding").expect("the model is known");
    let failures = &ensemble["counters"]["failures"];
    assert_eq!((&failures["BROKER"], &failures["CANCELED"]), (&json!(2), &json!(0)), "{failures}");
}

#[test]
fn a_broker_that_died_is_missed() {
    everybody_misses_the_broker(NatsServer::kill, NatsServer::restart);
}

#[test]
fn a_broker_that_stands_still_is_missed() {
    everybody_misses_the_broker(|nats| nats.pause(), |nats| nats.resume());
}

/// A broker whose disk is full takes no durable work, and no requests if its queues are on the disk.
#[test]
fn a_full_disk_of_the_broker_is_said() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("not run: no disk can be mounted here");
        return;
    };
    for (storage, status, words) in [("memory", 200, "ready, but the broker"), ("file", 503, "not ready: the broker")] {
        let nats = NatsServer::start_with_store(&disk.store().join(storage));
        let setup = Setup::new(Mode::Services).gateway_arguments(&ADMIN).worker_arguments(&ADMIN);
        let mut sandbox = setup.queue_arguments(&["--queue-storage", storage]).start_on(Some(nats));
        wait_readyz(&sandbox, 200, "ready");
        disk.fill();
        wait_readyz(&sandbox, status, words);
        let problem = problems(&sandbox).remove(0);
        assert!(problem.contains("its disk"), "{problem}");
        assert_eq!(sandbox.is_ready(), status == 200);
        if status == 200 {
            assert_embeds(&sandbox, 0);
        }
        disk.free();
        // As an orchestrator does: this broker writes no more to a stream for which the disk was full.
        sandbox.nats.as_mut().expect("this mode has a broker").restart();
        wait_readyz(&sandbox, 200, "ready");
        wait_until("no problem is left", LAPSE_LIMIT, || problems(&sandbox).is_empty().then_some(()));
        wait_until("the server is ready", LAPSE_LIMIT, || sandbox.is_ready().then_some(()));
        assert_embeds(&sandbox, 1);
    }
}

/// Each worker has its own queue created again. A result for a queue that does not exist yet waits; its step is not
/// executed again.
#[test]
fn a_worker_that_finds_the_broker_late_is_waited_for() {
    const LATE: Duration = Duration::from_secs(3);
    let models = ModelFolder::copy_of(&basic_repository()).with_pooling_apart();
    let mut sandbox = Setup::new(Mode::Services).repository(models.path()).start();
    sandbox.worker(Stage::Postprocess, 0).pause();
    sandbox.nats.as_mut().expect("this mode has a broker").restart();
    let (address, started) = (sandbox.address, Instant::now());
    let waiting = std::thread::spawn(move || Request::infer("tiny_embedding", &text(0)).send(address));
    std::thread::sleep(LATE);
    sandbox.worker(Stage::Postprocess, 0).resume();
    let response = waiting.join().expect("the request's thread does not panic").expect("an answer");
    assert_close(&response.numbers("embedding"), &golden()[0].embedding, 1e-5);
    assert!(started.elapsed() >= LATE, "answered without its last step after {:?}", started.elapsed());
}

// === Clients ===

/// Four hundred requests to a model that takes 50 ms for each are twenty seconds of work. A client that comes after all
/// others have gone does not wait for that.
fn clients_that_leave_take_their_work_along(mode: Mode) {
    let models = ModelFolder::basic(&["slow_identity"]);
    let sandbox = only_models(mode, &models).start();
    let connections: Vec<_> = (0..400)
        .map(|n| Request::infer("slow_identity", &number(n as f32)).start(sandbox.address).expect("the server listens"))
        .collect();
    // The work is queued: a request that came now would have to wait for it.
    std::thread::sleep(Duration::from_millis(300));
    drop(connections);
    let started = Instant::now();
    assert_eq!(sandbox.infer("slow_identity", &number(-1.0)).numbers("OUTPUT0"), [-1.0]);
    let waited = started.elapsed();
    assert!(waited < Duration::from_secs(12), "waited {waited:?} for work that nobody waits for");
}

// === Time ===

fn a_request_past_its_timeout_is_answered_at_once(mode: Mode) {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let models = ModelFolder::new().slow("slow", 6000).slow("fast", 0);
    let sandbox = only_models(mode, &models).start();
    let with_timeout = |id: &str, timeout: Duration| {
        let mut body = number(1.0);
        body["id"] = json!(id);
        body["parameters"] = json!({"trireme_timeout_ms": timeout.as_millis() as u64});
        body
    };
    let started = Instant::now();
    let response = sandbox.infer("slow", &with_timeout("seven", TIMEOUT));
    let took = started.elapsed();
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(
        response.error(),
        "[request id: seven] Request timeout expired: no answer within the 300 ms that the client waits"
    );
    assert!(took >= TIMEOUT && took < Duration::from_secs(5), "answered after {took:?}");

    // The worker still executes it; requests that expire while they wait are not executed at all.
    let behind: Vec<_> = (0..4)
        .map(|_| {
            let (address, body) = (sandbox.address, with_timeout("", TIMEOUT));
            std::thread::spawn(move || Request::infer("slow", &body).send(address))
        })
        .collect();
    for request in behind {
        let response = request.join().expect("the request's thread does not panic").expect("an answer");
        assert!(
            response.error().starts_with("[request id: <id_unknown>] Request timeout expired"),
            "{}",
            response.error()
        );
    }
    let patient = sandbox.infer("slow", &with_timeout("", Duration::from_secs(60)));
    assert_eq!(patient.numbers("OUTPUT0"), [1.0]);
    let waited = started.elapsed();
    assert!(waited < Duration::from_secs(24), "two executions of 6 s, not six: {waited:?}");
    assert_eq!(sandbox.infer("fast", &with_timeout("", Duration::from_secs(60))).numbers("OUTPUT0"), [1.0]);
}
