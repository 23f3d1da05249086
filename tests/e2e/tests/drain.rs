//! No request is lost: workers that are stopped finish their requests, and other workers execute those of killed
//! workers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use trireme_e2e::{
    Golden, Mode, ModelFolder, Process, Request, Response, Sandbox, Setup, Stage, golden, load, wait_until,
};
use trireme_testkit::{NatsServer, assert_close};

const REQUESTS: usize = 1000;
const CONCURRENCY: usize = 32;

/// The exit timeout of a worker, and some time to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(35);

/// `slow` runs one request at a time, with two model workers, so at any time of the load every worker holds several
/// requests.
fn models() -> ModelFolder {
    ModelFolder::basic(&["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"]).slow("slow", 5)
}

/// Every second request goes through all three stages, with one to three texts of its own; the others keep the model
/// workers busy. Checks the answer.
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

/// Sends SIGTERM to one of two workers of `stage` in the middle of the load. The `ack_wait` is so long that requests
/// which the worker dropped would not come back in time. So it has to finish or give back each of them.
#[track_caller]
fn drain_one_of_two(stage: Stage) {
    const ACK_WAIT: Duration = Duration::from_secs(40);
    let models = models();
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(stage, 2)
        .queue_arguments(&["--ack-wait-ms", &ACK_WAIT.as_millis().to_string()])
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

/// Sends SIGTERM to four of six idle workers at once. They finish the requests that the broker delivers to them
/// meanwhile, and no other delivery counts as an attempt.
fn drain_four_of_six(max_deliver: u32) {
    let models = ModelFolder::new().slow("slow", 5);
    let ack_wait = Duration::from_secs(40);
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(Stage::Tokenizer, 0)
        .replicas(Stage::Postprocess, 0)
        .replicas(Stage::Model, 6)
        .queue_arguments(&[
            "--max-deliver",
            &max_deliver.to_string(),
            "--ack-wait-ms",
            &ack_wait.as_millis().to_string(),
        ])
        .start();
    let mut leaving: Vec<_> = (0..4).map(|_| sandbox.take_worker(Stage::Model, 0)).collect();
    let ask = |number: usize| {
        let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [number]}]});
        assert_eq!(sandbox.infer("slow", &body).numbers("OUTPUT0"), [number as f32]);
    };
    let outcome = load(REQUESTS, 4, ask, || {
        leaving.iter().for_each(Process::terminate);
        for worker in &mut leaving {
            assert_eq!(worker.wait_exit(EXIT_LIMIT).code(), Some(0), "{}", worker.log_tail());
        }
    });
    outcome.assert_all_right(REQUESTS);
    assert!(outcome.slowest < ack_wait / 2, "a request took {:?}: it had been lost", outcome.slowest);
}

#[test]
fn workers_that_stop_together_cost_no_attempts() {
    for max_deliver in [1, 3] {
        drain_four_of_six(max_deliver);
    }
}

#[test]
fn what_a_killed_worker_had_is_done_by_another() {
    const ACK_WAIT: Duration = Duration::from_secs(2);
    let models = models();
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(Stage::Model, 2)
        .queue_arguments(&["--ack-wait-ms", &ACK_WAIT.as_millis().to_string()])
        .start();
    let golden = golden();
    let mut killed = sandbox.take_worker(Stage::Model, 1);
    let kill = || {
        // Halted first, so that it holds deliveries when it is killed.
        killed.pause();
        std::thread::sleep(ACK_WAIT / 4);
        killed.kill();
    };
    let outcome = load(REQUESTS, CONCURRENCY, |number| ask(&sandbox, &golden, number), kill);
    outcome.assert_all_right(REQUESTS);
    // It must have held requests, or this test would show nothing.
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
    // The server has all of them: the first ones have been answered, and each takes 100 ms.
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

/// Services under load that are stopped while the broker is gone or hangs end within their limit, plus the short limit
/// of their last messages. Each worker has many models, whose entries it would withdraw.
#[track_caller]
fn everybody_stops_without_the_broker(lose: impl FnOnce(&mut NatsServer)) {
    const LIMIT: [&str; 2] = ["--exit-timeout-secs", "5"];
    let mut sandbox = Setup::new(Mode::Services).worker_arguments(&LIMIT).gateway_arguments(&LIMIT).start();
    let (address, golden) = (sandbox.address, golden());
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..CONCURRENCY {
            let (over, answered, text) = (&over, &answered, &golden[number % golden.len()].text);
            let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]});
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let answer = Request::infer("tiny_embedding", &body).send(address);
                    answered.fetch_add(usize::from(answer.is_ok_and(|answer| answer.status == 200)), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let load = || (answered.load(Ordering::Relaxed) > 2 * CONCURRENCY).then_some(());
            wait_until("the load is there", EXIT_LIMIT, load);
            let mut nats = sandbox.nats.take().expect("this mode has a broker");
            lose(&mut nats);
            // Requests of every client wait for the lost broker.
            std::thread::sleep(Duration::from_millis(500));
            let stages = [Stage::Tokenizer, Stage::Model, Stage::Postprocess];
            let mut leaving: Vec<_> = stages.into_iter().map(|stage| sandbox.take_worker(stage, 0)).collect();
            leaving.iter().for_each(Process::terminate);
            sandbox.gateway.terminate();
            for process in leaving.iter_mut().chain([&mut sandbox.gateway]) {
                let status = process.wait_exit(EXIT_LIMIT);
                assert_eq!(status.code(), Some(0), "{}", process.log_tail());
            }
        }));
        over.store(true, Ordering::Relaxed);
        // A service that has not ended would keep its clients waiting.
        sandbox.gateway.kill();
        ended.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

#[test]
fn services_stop_while_the_broker_is_away() {
    everybody_stops_without_the_broker(NatsServer::kill);
}

#[test]
fn services_stop_while_the_broker_stands_still() {
    everybody_stops_without_the_broker(|nats| nats.pause());
}

/// A worker that is stopped while some of its models are still being loaded finishes the requests of the others.
#[test]
fn a_worker_drains_though_it_has_not_loaded_everything() {
    let warmup = "model_warmup [{ name: 'sample' batch_size: 1 inputs { key: 'INPUT0'
        value { data_type: TYPE_FP32 dims: [1] zero_data: true } } }]";
    let models = ModelFolder::new().slow("early", 6000).slow("late", 600_000).with_setting("late", warmup);
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .queue_arguments(&["--ack-wait-ms", "120000"])
        .start_gateway();
    sandbox.wait_listening();
    sandbox.start_worker(Stage::Model);
    wait_until("the first model is ready", EXIT_LIMIT, || (sandbox.model_ready("early") == 200).then_some(()));
    let address = sandbox.address;
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [7.0]}]});
    let asked = std::thread::spawn(move || Request::infer("early", &body).send(address));
    sandbox.wait_delivered("early", 1);
    let mut worker = sandbox.take_worker(Stage::Model, 0);
    worker.terminate();
    let response = asked.join().expect("the request's thread does not panic").expect("an answer");
    assert_eq!(response.numbers("OUTPUT0"), [7.0]);
    assert_eq!(worker.wait_exit(EXIT_LIMIT).code(), Some(0), "{}", worker.log_tail());
}

/// Opens a connection and sends a health check over HTTP/2 at once: preface, settings, a call, and an empty message.
fn begin_call(address: SocketAddr) -> TcpStream {
    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, stream]);
        frame.extend(payload);
        frame
    }
    let literal = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    // HPACK: POST and http from the static table, then path, authority and content type by their names there, and `te`.
    let headers = [
        vec![0x83, 0x86],
        literal(&[0x04], "/grpc.health.v1.Health/Check"),
        literal(&[0x01], "trireme"),
        literal(&[0x0f, 0x10], "application/grpc"),
        literal(b"\0\x02te", "trailers"),
    ];
    let mut call = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    call.extend(frame(4, 0, 0, &[]));
    call.extend(frame(1, 4, 1, &headers.concat()));
    call.extend(frame(0, 1, 1, &[0; 5]));
    let mut stream = TcpStream::connect(address).expect("the kernel takes the connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit can be set");
    stream.write_all(&call).expect("the kernel takes the call");
    stream
}

/// Reads frames until the call's message has arrived.
fn finish_call(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload)?;
        if (head[3], head[8]) == (0, 1) {
            return Ok(payload);
        }
    }
}

/// A gateway answers the requests that had reached the kernel before the signal. The test halts the gateway while
/// clients connect and send, and then signals it to stop.
#[test]
fn a_gateway_that_is_told_to_stop_answers_who_had_connected() {
    let models = ModelFolder::new().slow("slow", 1);
    let setup = Setup::new(Mode::Services).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0);
    let mut sandbox = setup.repository(models.path()).start();
    let (http, grpc) = (sandbox.address, sandbox.grpc_address());
    sandbox.gateway.pause();
    let body =
        |number: usize| json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [number]}]});
    let requests: Vec<TcpStream> = (0..20)
        .map(|number| Request::infer("slow", &body(number)).start(http).expect("the kernel takes the request"))
        .collect();
    let calls: Vec<TcpStream> = (0..20).map(|_| begin_call(grpc)).collect();
    sandbox.gateway.terminate();
    sandbox.gateway.resume();
    for (number, mut stream) in requests.into_iter().enumerate() {
        let response = Response::read(&mut stream).unwrap_or_else(|error| panic!("request {number}: {error}"));
        assert_eq!(response.numbers("OUTPUT0"), [number as f32]);
    }
    for (number, mut stream) in calls.into_iter().enumerate() {
        let message = finish_call(&mut stream).unwrap_or_else(|error| panic!("call {number}: {error}"));
        assert_eq!(&message[..5], [0, 0, 0, 0, 2], "a message of a status");
    }
    let status = sandbox.gateway.wait_exit(EXIT_LIMIT);
    assert_eq!(status.code(), Some(0), "{}", sandbox.gateway.log_tail());
}
