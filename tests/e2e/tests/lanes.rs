//! Lanes: bulk requests wait for live ones, and no live request waits for queued bulk requests.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Setup, Stage, in_every_mode, wait_until};

in_every_mode!(a_live_request_waits_for_no_queued_bulk_request);

/// How long the model takes for a request. It executes one after the other.
const RUN: Duration = Duration::from_millis(100);

/// Bulk requests that wait.
const BULK: usize = 100;

fn setup(mode: Mode, models: &ModelFolder) -> Setup {
    Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

fn models() -> ModelFolder {
    ModelFolder::new().slow("slow", RUN.as_millis() as u64)
}

fn number() -> Value {
    json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]})
}

/// Sends a request; returns the status of the answer and when it came.
fn ask(address: SocketAddr, request: Request) -> JoinHandle<(u16, Instant)> {
    std::thread::spawn(move || {
        let response = request.send(address).expect("an answer");
        (response.status, Instant::now())
    })
}

fn a_live_request_waits_for_no_queued_bulk_request(mode: Mode) {
    let models = models();
    let sandbox = setup(mode, &models).start();
    let bulk = || Request::infer("slow", &number()).header("Priority", "u=7, i");
    let waiting: Vec<_> = (0..BULK).map(|_| ask(sandbox.address, bulk())).collect();
    wait_until("most bulk requests wait", Duration::from_secs(10), || {
        let status = sandbox.get("/v2/trireme/status").json();
        let queue = &status["models"].as_array()?.iter().find(|found| found["name"] == "slow")?["queue"];
        (queue["waiting"].as_u64()? + queue["delivered"].as_u64()? > BULK as u64 * 3 / 4).then_some(())
    });
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(sandbox.infer("slow", &number()).status, 200);
        slowest = slowest.max(begun.elapsed());
    }
    let live_ended = Instant::now();
    let bulk: Vec<_> = waiting.into_iter().map(|waiting| waiting.join().expect("an answer")).collect();
    assert!(bulk.iter().all(|(status, _)| *status == 200), "bulk requests are answered too");
    let behind = bulk.iter().filter(|(_, at)| *at > live_ended).count();
    assert!(behind > BULK / 2, "only {behind} of {BULK} bulk requests were answered after the live ones");
    assert!(
        slowest < RUN * 10,
        "a live request took {slowest:?}, the bulk requests before it take {:?}",
        RUN * BULK as u32
    );
}

#[test]
fn a_key_chooses_the_lane() {
    let models = models();
    let keys = ["--api-key", "one", "--bulk-api-key", "two"];
    let sandbox = setup(Mode::AllInOne, &models).gateway_arguments(&keys).start();
    for (key, status) in [("one", 200), ("two", 200), ("two", 200), ("three", 401)] {
        let request = Request::infer("slow", &number()).header("X-API-Key", key);
        assert_eq!(sandbox.send(&request).status, status, "{key}");
    }
    let metrics = wait_until("the metrics", Duration::from_secs(10), || {
        let events = sandbox.gateway.events();
        let address =
            events.iter().find(|event| event["message"] == "metrics listener")?["address"].as_str()?.to_owned();
        Some(Request::get("/metrics").send(address.parse().ok()?).ok()?.text())
    });
    for (lane, count) in [("live", 1), ("bulk", 2)] {
        let line = format!(
            r#"trireme_stage_lane_queue_seconds_count{{lane="{lane}",model="slow",stage="model",version="1"}} {count}"#
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is missing from\n{metrics}");
    }
}
