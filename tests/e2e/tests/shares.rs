//! Owners share a model by their weights, however much each of them asks for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, in_one_mode};

in_one_mode!(ten_owners_share_a_model_evenly_and_a_weight_of_four_gets_four_times_as_much);

/// How long the model takes for a request. It executes one after the other.
const RUN_MS: u64 = 10;

/// Owners without a weight of their own.
const OWNERS: usize = 10;

/// How long requests are counted, after the first ones.
const TIME: Duration = Duration::from_secs(8);

fn number() -> Value {
    json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]})
}

/// Each of these keys sends requests on so many connections, again and again. Returns how many of each were answered.
fn answered(sandbox: &Sandbox, keys: &[(String, usize)]) -> Vec<f64> {
    let counts: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    let begun = Instant::now();
    // All of them wait before anything is counted.
    let (from, until) = (begun + Duration::from_secs(1), begun + Duration::from_secs(1) + TIME);
    std::thread::scope(|scope| {
        for ((key, connections), count) in keys.iter().zip(&counts) {
            for _ in 0..*connections {
                scope.spawn(move || {
                    while Instant::now() < until {
                        let answer = sandbox.send(&Request::infer("slow", &number()).header("X-API-Key", key));
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        if (from..until).contains(&Instant::now()) {
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
    });
    counts.into_iter().map(|count| count.into_inner() as f64).collect()
}

fn ten_owners_share_a_model_evenly_and_a_weight_of_four_gets_four_times_as_much(mode: Mode) {
    let models = ModelFolder::new().slow("slow", RUN_MS);
    let key = |owner: usize| format!("the-key-of-owner-{owner}");
    let mut flags: Vec<String> =
        (0..OWNERS + 1).map(|owner| format!("--api-key=owner-{owner}={}", key(owner))).collect();
    flags.push(format!("--owner=owner-{OWNERS}:weight=4"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let setup =
        Setup::new(mode).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0);
    let sandbox = setup.gateway_arguments(&flags).start();

    // The first owner has as many connections as eight others together.
    let keys: Vec<_> = (0..OWNERS).map(|owner| (key(owner), if owner == 0 { 16 } else { 2 })).collect();
    let counts = answered(&sandbox, &keys);
    let (sum, squares) = counts.iter().fold((0.0, 0.0), |(sum, squares), own| (sum + own, squares + own * own));
    let jain = sum * sum / (OWNERS as f64 * squares);
    assert!(jain >= 0.98 && sum > 100.0, "Jain's index {jain} of {counts:?}");

    let counts = answered(&sandbox, &[(key(0), 12), (key(OWNERS), 12)]);
    let ratio = counts[1] / counts[0];
    assert!((3.4..4.6).contains(&ratio), "{counts:?}");

    // Alone it has everything, and not its share among those that were there before. A machine that gets busier meanwhile takes less than half.
    let alone = answered(&sandbox, &[(key(1), 4)]);
    assert!(alone[0] >= 0.5 * (counts[0] + counts[1]), "{alone:?} beside {counts:?}");
}
