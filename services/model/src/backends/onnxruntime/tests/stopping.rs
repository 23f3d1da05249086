//! Long runs that are stopped from another thread.

use std::time::{Duration, Instant};

use trireme_inference::ErrorCode;

use super::*;

/// Each takes some µs: seconds in total.
const STEPS: i64 = 2_000_000;

/// A model that takes a requested number of steps.
fn countdown() -> LoadedModel {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/repositories/lasting/countdown");
    let text = std::fs::read_to_string(directory.join("config.pbtxt")).unwrap();
    load(&directory, &ModelConfig::parse(&text, "countdown").unwrap()).unwrap()
}

fn count(steps: i64) -> Vec<Tensor> {
    vec![Tensor::from_values("COUNT", [1, 1], vec![steps]).unwrap()]
}

#[test]
fn a_run_that_is_stopped_ends_at_once_and_its_instance_lives_on() {
    let mut model = countdown();
    let instance = model.instances[0].as_batch().unwrap();
    let started = Instant::now();
    let whole = instance.execute(&[request(&count(STEPS), &["STEPS"])]);
    assert_eq!(output(&whole[0]).values::<i64>().unwrap()[..], [STEPS]);
    let whole = started.elapsed();

    let requests = [request(&count(STEPS), &["STEPS"]), request(&count(1), &["STEPS"])];
    let stop = instance.stop().expect("its runs can be stopped");
    let (results, stopped, ended) = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| {
            std::thread::sleep(whole / 10);
            requests.iter().for_each(|request| request.cancelled.cancel());
            let stopped = Instant::now();
            stop.stop();
            stopped
        });
        let results = instance.execute(&requests);
        let ended = Instant::now();
        (results, stopping.join().unwrap(), ended)
    });
    assert!(results.len() == 2 && results.iter().all(Result::is_err), "{results:?}");
    let lasted = ended.saturating_duration_since(stopped);
    assert!(lasted < whole / 4, "it went on for {lasted:?}; a whole run takes {whole:?}");

    stop.stop();
    let after = instance.execute(&[request(&count(3), &["STEPS"])]);
    assert_eq!(output(&after[0]).values::<i64>().unwrap()[..], [3], "what was stopped is past");
}

#[test]
fn what_was_called_off_before_it_began_does_not_run() {
    let mut model = countdown();
    let request = request(&count(i64::MAX), &["STEPS"]);
    request.cancelled.cancel();
    let started = Instant::now();
    let results = model.instances[0].as_batch().unwrap().execute(std::slice::from_ref(&request));
    assert_eq!(results[0].as_ref().unwrap_err().code, ErrorCode::Cancelled);
    assert!(started.elapsed() < Duration::from_secs(10));
}
