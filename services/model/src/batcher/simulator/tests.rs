//! Workers of different speeds on one queue.

use trireme_engine::{Appetite, OneAtATime};
use trireme_model_repository::DynamicBatching;

use super::*;
use trireme_engine::DynamicBatcher;

const MS: Duration = Duration::from_millis(1);

/// Every run takes 50 ms at speed 1.
const FLAT: CostModel = CostModel { run: 0.05, token: 0.0, pair: 0.0 };

/// A slow worker and one that is four times as fast: 20 and 80 runs a second.
const ONE_TO_FOUR: &[(usize, f64)] = &[(1, 1.0), (1, 4.0)];

/// A policy whose worker takes as many requests as it may hold.
struct Hoarding<P>(P);

impl<P: BatchPolicy> BatchPolicy for Hoarding<P> {
    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        self.0.decide(waiting, now)
    }

    fn max_rows(&self) -> u32 {
        self.0.max_rows()
    }

    fn appetite(&self) -> Appetite {
        Appetite { look_ahead: Duration::from_secs(3600), ..self.0.appetite() }
    }
}

fn at(times: impl Iterator<Item = Duration>) -> Vec<Arrival> {
    let description = Description { rows: 1, length: 1, signature: 0 };
    times.map(|at| Arrival { at, description, priority: 1 }).collect()
}

fn play(policy: &dyn BatchPolicy, trace: &[Arrival], in_flight: Option<usize>) -> Report {
    let report = simulate(&Site { policy, cost: FLAT, workers: ONE_TO_FOUR, in_flight }, trace);
    println!(
        "{:.1} a second, queue p50 {:?} p99 {:?}, slow {} fast {}, end {:?}",
        report.throughput(),
        report.queue_time(0.5),
        report.queue_time(0.99),
        report.executed_by(0),
        report.executed_by(1),
        report.end,
    );
    report
}

#[test]
fn together_they_do_the_sum_of_what_each_does() {
    let trace = at((0..2000).map(|_| Duration::ZERO));
    for in_flight in [4, 8, 64] {
        let report = play(&OneAtATime, &trace, Some(in_flight));
        assert!(report.throughput() >= 0.95 * 100.0, "{in_flight} in flight: {}", report.throughput());
        assert!(report.executed_by(1) >= 7 * report.executed_by(0) / 2);
    }
}

#[test]
fn the_slow_one_does_not_make_requests_wait() {
    // Eight at a time, 80 a second. Both workers together can execute eight in 80 ms.
    let trace = at((0..4000u32).map(|n| n / 8 * 100 * MS));
    let report = play(&OneAtATime, &trace, None);
    // One worker as fast as both together needs 70 ms for the last of eight.
    assert!(report.queue_time(0.99) < 100 * MS, "{:?}", report.queue_time(0.99));
    let hoarding = play(&Hoarding(OneAtATime), &trace, None);
    assert!(hoarding.queue_time(0.99) > 2 * report.queue_time(0.99), "a look-ahead without bound shows");
}

#[test]
fn a_burst_ends_for_both_at_about_the_same_time() {
    let trace = at((0..500).map(|_| Duration::ZERO));
    let report = play(&OneAtATime, &trace, None);
    assert!(report.end < 5000 * MS + 100 * MS, "{:?}", report.end);
    let hoarding = play(&Hoarding(OneAtATime), &trace, None);
    assert!(hoarding.end > report.end + 100 * MS, "a look-ahead without bound shows: {:?}", hoarding.end);
}

#[test]
fn batches_are_full_where_there_is_enough_for_both() {
    let trace = at((0..4000).map(|_| Duration::ZERO));
    let batcher = DynamicBatcher::new(&DynamicBatching::default(), 8);
    let report = play(&batcher, &trace, Some(64));
    assert!(report.throughput() >= 0.95 * 800.0, "{}", report.throughput());
    assert!(report.mean_batch() > 7.5);
}
