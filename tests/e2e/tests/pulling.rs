//! Workers of different speed on one queue: each does its share, and neither holds requests that the other could
//! execute.

use std::time::{Duration, Instant};

use serde_json::json;
use trireme_e2e::{Mode, ModelFolder, Request, Response, Setup, Stage};

/// How long a request takes in each of the two workers.
const FAST: Duration = Duration::from_millis(60);
const SLOW: Duration = Duration::from_millis(300);

/// Number of requests in the burst: a quarter of them takes the fast worker alone two seconds.
const BURST: usize = 120;

/// An answer: when it arrived, whether the slow worker computed it, and how long its request waited in that worker.
struct Answered {
    at: Instant,
    slow: bool,
    queued: Duration,
}

/// Reads the one hop of `Server-Timing`.
fn read(response: &Response) -> Answered {
    assert_eq!(response.status, 200, "{}", response.text());
    let timing = response.header("server-timing").expect("the ledger comes back as Server-Timing");
    let millis = |name: &str| {
        let value =
            timing.split([';', '"', ' ']).find_map(|part| part.strip_prefix(name)).expect("an entry of the hop");
        Duration::from_secs_f64(value.parse::<f64>().expect("milliseconds") / 1e3)
    };
    Answered { at: Instant::now(), slow: millis("dur=") >= SLOW, queued: millis("queue=") }
}

#[test]
fn a_slow_worker_leaves_the_rest_to_a_fast_one() {
    let models = ModelFolder::new().slow("shared", FAST.as_millis() as u64);
    let setup = Setup::new(Mode::Services).repository(models.path());
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    // The next worker loads a slower configuration of the model.
    let models = models.slow("shared", SLOW.as_millis() as u64);
    sandbox.start_worker(Stage::Model);
    sandbox.wait_ready();

    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
    let request = Request::infer("shared", &body);
    let burst = |count: usize| -> Vec<Answered> {
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..count).map(|_| scope.spawn(|| read(&sandbox.send(&request)))).collect();
            asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
        })
    };
    // Workers know their pace only after they have executed requests.
    burst(8);
    let answers = burst(BURST);
    let (slow, fast): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.slow);
    println!("{} by the fast worker, {} by the slow one", fast.len(), slow.len());
    assert!(fast.len() >= 3 * slow.len(), "the fast one is held back: {} to {}", fast.len(), slow.len());
    assert!(8 * slow.len() >= fast.len(), "the slow one helps: {} to {}", fast.len(), slow.len());

    let last = |answers: &[Answered]| answers.iter().map(|answer| answer.at).max().expect("each has answered");
    let tail = last(&slow).saturating_duration_since(last(&fast));
    let longest = slow.iter().map(|answer| answer.queued).max().expect("it has answered");
    println!("the slow one ends {tail:?} after the fast one; requests waited in it for up to {longest:?}");
    // The slow worker may hold a request in progress and another taken shortly before, not the eight that it has room for.
    assert!(tail < 3 * SLOW, "the slow one goes on for {tail:?} when the fast one has nothing left");
    assert!(longest < 3 * SLOW, "a request waited for {longest:?} in the slow one");
    drop(models);
}
