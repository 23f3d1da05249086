//! Nothing is lost: workers that are told to stop finish what they have, and what killed workers had is done by others.

use std::time::{Duration, Instant};

use serde_json::json;
use trireme_e2e::{Golden, Mode, ModelFolder, Request, Sandbox, Setup, Stage, golden, load};
use trireme_testkit::assert_close;

const REQUESTS: usize = 1000;
const CONCURRENCY: usize = 32;

/// The exit timeout of a worker that is told to stop, and some time to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(35);

/// Two model workers with a queue in front of each: `slow` runs one request at a time, so at any time of the load
/// every worker has several in hand.
fn models() -> ModelFolder {
    ModelFolder::basic(&["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"]).slow("slow", 5)
}

/// Every second request goes through all three stages, with one to three texts of its own; the others keep the model
/// workers busy. Each answer is checked.
fn ask(sandbox: &Sandbox, golden: &[Golden], number: usize) {
    if number.is_multiple_of(2) {
        let wanted: Vec<&Golden> = (0..=number % 3).map(|i| &golden[(number / 2 + i) % golden.len()]).collect();
        let texts: Vec<&str> = wanted.iter().map(|g| g.text.as_str()).collect();
        let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts}]});
        let expected: Vec<f32> = wanted.iter().flat_map(|g| g.embedding.clone()).collect();
        assert_close(&sandbox.infer("tiny_embedding", &body).numbers("embedding"), &expected, 1e-5);
    } else {
        let data = [number as f32, -1.0];
        let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": data}]});
        assert_eq!(sandbox.infer("slow", &body).numbers("OUTPUT0"), data);
    }
}

/// SIGTERM to one of two workers of `stage` in the middle of the load. Its `ack_wait` is so long that anything it had
/// dropped would not come back in time: all it had is done by itself or was given back.
#[track_caller]
fn drain_one_of_two(stage: Stage) {
    const ACK_WAIT: Duration = Duration::from_secs(40);
    let models = models();
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(stage, 2)
        .worker_arguments(&["--ack-wait-ms", &ACK_WAIT.as_millis().to_string()])
        .start();
    let golden = golden();
    let mut leaving = sandbox.take_worker(stage, 0);
    let mut status = None;
    let outcome = load(
        REQUESTS,
        CONCURRENCY,
        |number| ask(&sandbox, &golden, number),
        || {
            leaving.terminate();
            status = Some(leaving.wait_exit(EXIT_LIMIT));
        },
    );
    outcome.assert_all_right(REQUESTS);
    assert_eq!(status.and_then(|status| status.code()), Some(0), "the worker's log ends:\n{}", leaving.log_tail());
    assert!(
        outcome.slowest < ACK_WAIT / 2,
        "a request took {:?}: it was redelivered, so it had been lost",
        outcome.slowest
    );
    assert_eq!(leaving.count("stopped"), 1, "{}", leaving.log_tail());
}

#[test]
fn a_model_worker_drains_under_load() {
    drain_one_of_two(Stage::Model);
}

#[test]
fn a_tokenizer_drains_under_load() {
    drain_one_of_two(Stage::Tokenizer);
}

#[test]
fn what_a_killed_worker_had_is_done_by_another() {
    const ACK_WAIT: Duration = Duration::from_secs(2);
    let models = models();
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(Stage::Model, 2)
        .worker_arguments(&["--ack-wait-ms", &ACK_WAIT.as_millis().to_string()])
        .start();
    let golden = golden();
    let mut killed = sandbox.take_worker(Stage::Model, 1);
    let kill = || {
        // Halted first: what the broker sends it meanwhile is in its hands.
        killed.pause();
        std::thread::sleep(ACK_WAIT / 4);
        killed.kill();
    };
    let outcome = load(REQUESTS, CONCURRENCY, |number| ask(&sandbox, &golden, number), kill);
    outcome.assert_all_right(REQUESTS);
    // It had work in hand, or this test would show nothing.
    let slowest = outcome.slowest;
    assert!(slowest > ACK_WAIT / 2, "nothing was redelivered: the slowest request took {slowest:?}");
    assert!(slowest < 15 * ACK_WAIT, "redelivery takes about one ack_wait, but the slowest request took {slowest:?}");
}

#[test]
fn all_in_one_answers_what_it_has_before_it_exits() {
    let models = ModelFolder::new().slow("slow", 100);
    let mut sandbox = Setup::new(Mode::AllInOne).repository(models.path()).start();
    let address = sandbox.address;
    let in_flight: Vec<_> = (0..16)
        .map(|number| {
            let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [number]}]});
            std::thread::spawn(move || Request::infer("slow", &body).send(address))
        })
        .collect();
    // All of them are in the server's hands: the first ones have been answered, one takes 100 ms.
    let started = Instant::now();
    while in_flight.iter().filter(|request| request.is_finished()).count() < 2 {
        assert!(started.elapsed() < Duration::from_secs(60), "the first requests are answered");
        std::thread::sleep(Duration::from_millis(5));
    }
    sandbox.gateway.terminate();
    for (number, request) in in_flight.into_iter().enumerate() {
        let response = request.join().expect("the request's thread does not panic");
        let response = response.unwrap_or_else(|error| panic!("request {number} was not answered: {error}"));
        assert_eq!(response.numbers("OUTPUT0"), [number as f32]);
    }
    let status = sandbox.gateway.wait_exit(EXIT_LIMIT);
    assert_eq!(status.code(), Some(0), "{}", sandbox.gateway.log_tail());
    assert!(Request::get("/v2/health/live").send(address).is_err(), "nobody listens any more");
}
