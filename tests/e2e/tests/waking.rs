//! Stages that are scaled to none: jobs wait where a scaler sees them, and go on when it has started a worker.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Process, Request, Setup, Stage, Wire, WireMessage, product, texts_repository, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// So short that a job's calls are repeated while no worker is there.
const TIMEOUT_MS: &str = "3000";

/// The numbers of the first and of the last message in a stream.
fn numbers(nats: &str, stream: &str) -> Option<(u64, u64)> {
    let state = answer(nats, &format!("$JS.API.STREAM.INFO.{stream}"))?["state"].clone();
    Some((state["first_seq"].as_u64()?, state["last_seq"].as_u64()?))
}

/// The messages of a queue that KEDA's scaler counts: those that wait, and those that are being executed. `None` if there is no
/// such stream, which the scaler takes for an error.
fn lag(nats: &str, stream: &str) -> Option<u64> {
    let info = answer(nats, &format!("$JS.API.CONSUMER.INFO.{stream}.workers"))?;
    Some(info["num_pending"].as_u64()? + info["num_ack_pending"].as_u64()?)
}

/// The broker's answer to an empty message.
fn answer(nats: &str, subject: &str) -> Option<Value> {
    let mut wire = Wire::open(nats);
    wire.subscribe("answers");
    wire.publish(&WireMessage {
        subject: subject.to_owned(),
        reply: Some("answers".to_owned()),
        ..WireMessage::default()
    });
    serde_json::from_slice(&wire.next(Duration::from_secs(5))?.body).ok()
}

/// Starts a gateway of its own on the broker; returns where it listens.
fn gateway(name: &str, nats: &str, folder: &Path) -> (Process, SocketAddr) {
    let mut command = product("trireme-gateway");
    command.args(["--nats-url", nats, "--keep-models", "--default-timeout-ms", TIMEOUT_MS, "--model-repository"]);
    command.arg(texts_repository());
    let gateway = Process::start(name, &mut command, folder);
    let address = wait_until("the gateway listens", LIMIT, || {
        let listener = gateway.events().into_iter().find(|event| event["message"] == "HTTP listener")?;
        listener["address"].as_str()?.parse().ok()
    });
    (gateway, address)
}

/// The model time of the bulk requests that wait for a model, as a gateway's metrics say it.
fn work_seconds(gateway: &Process, model: &str) -> Option<f64> {
    let events = gateway.events();
    let listener = events.iter().find(|event| event["message"] == "metrics listener")?;
    let metrics = Request::get("/metrics").send(listener["address"].as_str()?.parse().ok()?).ok()?.text();
    let name = format!(r#"trireme_queue_work_seconds{{lane="bulk",model="{model}",version="1"}} "#);
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

#[test]
fn a_batch_wakes_a_model_that_has_no_worker() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let arguments = ["--keep-models", "--default-timeout-ms", TIMEOUT_MS];
    let mut sandbox = Setup::new(Mode::Services).repository(&texts_repository()).gateway_arguments(&arguments).start();
    let nats = sandbox.nats.as_ref().expect("services have a broker").url();
    let body = json!({"model": "embedding", "input": "a"});
    let live = || Request::post("/v1/embeddings", body.to_string());
    assert_eq!(live().send(sandbox.address).expect("an answer").status, 200);

    // The scaler's streams are there although no bulk request ever came.
    let stages = [Stage::Tokenizer, Stage::Model, Stage::Postprocess];
    let streams = wait_until("the bulk lanes", LIMIT, || {
        let models = sandbox.get("/v2/trireme/status").json()["models"].as_array()?.clone();
        let served = models.iter().filter(|model| model["queue"].is_object());
        let names: Vec<_> = served.filter_map(|model| model["name"].as_str().map(str::to_owned)).collect();
        let streams: Vec<_> = names.iter().map(|name| format!("trireme_work_{name}_1-10000")).collect();
        (!streams.is_empty() && streams.iter().all(|stream| lag(&nats, stream) == Some(0))).then_some(streams)
    });

    // Every worker leaves, and the gateway is restarted: it finds no worker's entry in the registry.
    for stage in stages {
        let mut worker = sandbox.take_worker(stage, 0);
        worker.terminate();
        assert_eq!(worker.wait_exit(LIMIT).code(), Some(0));
    }
    sandbox.gateway.terminate();
    assert_eq!(sandbox.gateway.wait_exit(LIMIT).code(), Some(0));
    let (restarted, address) = gateway("restarted-gateway", &nats, folder.path());

    let line = |number: usize| {
        json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/embeddings", "body": body}).to_string()
            + "\n"
    };
    let lines: String = (0..100).map(line).collect();
    let form = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: \
         form-data; name=\"file\"; filename=\"lines.jsonl\"\r\n\r\n{lines}\r\n--edge--\r\n"
    );
    let upload = Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=edge");
    let file = upload.send(address).expect("an answer").json()["id"].clone();
    let begin = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let batch = Request::post("/v1/batches", begin.to_string()).send(address).expect("an answer").json();
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("an id"));

    // A scaler: where messages wait for a stage without a worker, it starts one.
    let first = wait_until("a stage has work", LIMIT, || streams.iter().find(|stream| lag(&nats, stream) > Some(0)));
    let state = Request::get(&path).send(address).expect("an answer").json();
    assert_eq!(state["status"], "in_progress", "{state}");
    assert_eq!(state["request_counts"]["failed"], 0, "{state}");
    // Also after the deadline of the first calls, which the job repeats.
    let (_, called) = numbers(&nats, first).expect("the stream is there");
    wait_until("the first calls are over", LIMIT, || (numbers(&nats, first)?.0 > called).then_some(()));
    wait_until("work is still seen", LIMIT, || (lag(&nats, first) > Some(0)).then_some(()));
    // The seconds of work that wait are there without a worker, too.
    let model = first.trim_start_matches("trireme_work_").trim_end_matches("_1-10000");
    wait_until("seconds of work", LIMIT, || (work_seconds(&restarted, model)? > 0.0).then_some(()));
    for stage in stages {
        sandbox.start_worker(stage);
    }
    let batch = wait_until("the end of the batch", Duration::from_secs(120), || {
        let batch = Request::get(&path).send(address).ok()?.json();
        (batch["status"] == "completed").then_some(batch)
    });
    assert_eq!(batch["request_counts"], json!({"total": 100, "completed": 100, "failed": 0}));
    assert!(streams.iter().all(|stream| lag(&nats, stream) == Some(0)), "the scaler may stop the stages again");
    assert_eq!(live().send(address).expect("an answer").status, 200);
}
