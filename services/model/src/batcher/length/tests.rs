//! Single decisions, and comparisons with simpler policies in the simulator.

use proptest::prelude::*;

use super::super::padding::Steps;
use super::super::simulator::{Arrival, Report, Site, natural_lengths, simulate};
use super::*;

const MS: Duration = Duration::from_millis(1);

/// Measurements of a small transformer on one core, in seconds.
const MEASURED: CostModel = CostModel { run: 2.2e-3, token: 2.1e-4, pair: 1.5e-7 };

fn batcher() -> LengthBatcher {
    LengthBatcher {
        padding: Padding { inputs: Vec::new(), outputs: Vec::new(), steps: Steps::default() },
        cost: MEASURED,
        max_rows: 64,
        token_budget: 1024,
        max_overtake: Some(50 * MS),
        pace: Arc::default(),
        enough_tokens: 2048,
        delay: Duration::ZERO,
        enough_rows: 64,
    }
}

fn candidate(arrived: Instant, length: u32) -> Candidate {
    Candidate { arrived, priority: 1, description: Description { rows: 1, length, signature: 0 } }
}

fn candidates(arrived: Instant, lengths: &[u32]) -> Vec<Candidate> {
    lengths.iter().map(|&length| candidate(arrived, length)).collect()
}

fn run(decision: Decision) -> Vec<usize> {
    let Decision::Run(mut members) = decision else { panic!("expected a run, got {decision:?}") };
    members.sort_unstable();
    members
}

#[test]
fn a_lone_request_runs_at_once() {
    let now = Instant::now();
    assert_eq!(batcher().decide(&[], now), Decision::Wait);
    assert_eq!(batcher().decide(&candidates(now, &[300]), now), Decision::Run(vec![0]));
    assert_eq!(batcher().decide(&candidates(now, &[5000]), now), Decision::Run(vec![0]), "over the budget");
}

#[test]
fn like_lengths_run_together_and_long_ones_apart() {
    let now = Instant::now();
    let waiting = candidates(now, &[20, 120, 22, 21, 60, 20, 22, 20]);
    assert_eq!(run(batcher().decide(&waiting, now)), [0, 2, 3, 5, 6, 7]);
    // Padding 56 to 60 is cheaper than another run.
    assert_eq!(run(batcher().decide(&candidates(now, &[60, 56]), now)), [0, 1]);
    // Padding 40 to 60 is not.
    assert_eq!(run(batcher().decide(&candidates(now, &[60, 40]), now)).len(), 1);
}

#[test]
fn bounds_hold() {
    let now = Instant::now();
    let by_tokens = batcher().decide(&candidates(now, &[100; 20]), now);
    assert_eq!(run(by_tokens).len(), 10);
    let by_rows = LengthBatcher { max_rows: 8, ..batcher() }.decide(&candidates(now, &[10; 20]), now);
    assert_eq!(run(by_rows).len(), 8);
}

#[test]
fn who_was_overtaken_for_long_goes_next() {
    let now = Instant::now();
    let mut waiting = candidates(now, &[250]);
    waiting.extend(candidates(now + 49 * MS, &[20; 30]));
    assert_eq!(run(batcher().decide(&waiting, now + 49 * MS)).len(), 30);
    assert_eq!(run(batcher().decide(&waiting, now + 50 * MS)), [0]);
}

#[test]
fn higher_levels_go_first_and_alone() {
    let now = Instant::now();
    let mut waiting = candidates(now, &[20; 4]);
    waiting[2].priority = 0;
    assert_eq!(run(batcher().decide(&waiting, now + 100 * MS)), [2]);
}

#[test]
fn a_queue_delay_waits_for_company() {
    let now = Instant::now();
    let patient = LengthBatcher { delay: 10 * MS, enough_rows: 4, ..batcher() };
    let waiting = candidates(now, &[20; 5]);
    assert_eq!(patient.decide(&waiting[..3], now), Decision::WaitUntil(now + 10 * MS));
    assert_eq!(run(patient.decide(&waiting[..3], now + 10 * MS)).len(), 3);
    assert_eq!(run(patient.decide(&waiting, now)).len(), 5, "enough rows");
    assert_eq!(run(patient.decide(&candidates(now, &[256; 3]), now + 10 * MS)).len(), 3, "enough tokens");
    let mut other = waiting[..2].to_vec();
    other[1].description.signature = 1;
    other[1].arrived = now + MS;
    assert_eq!(run(patient.decide(&other, now + MS)), [0], "the second one cannot join");
    assert_eq!(patient.decide(&other[1..], now + MS), Decision::WaitUntil(now + 11 * MS));
}

#[test]
fn settings_come_from_the_configuration_then_the_measurement() {
    let declaration = |token_budget| Declaration {
        padding: Padding { inputs: Vec::new(), outputs: Vec::new(), steps: Steps::default() },
        max_rows: 32,
        token_budget,
        max_overtake: Some(MS),
        has_multiple: false,
        measure: true,
        check: true,
        alone: false,
        sample_rows: Vec::new(),
        longest_row: None,
        fixed_length: None,
        packing: None,
    };
    let fit = Fit { model: MEASURED, token_budget: 512, error: 0.0, steps: Steps { multiple: 16, longest: 512 } };
    let of =
        |text: &str| ModelConfig::parse(&format!("backend: 'onnxruntime' max_batch_size: 64 {text}"), "m").unwrap();
    let budget = |declared, fit: Option<&Fit>| LengthBatcher::new(&of(""), &declaration(declared), fit).token_budget;
    assert_eq!((budget(None, None), budget(None, Some(&fit)), budget(Some(300), Some(&fit))), (1024, 512, 300));
    let settings = of("dynamic_batching { preferred_batch_size: [64, 16, 8] max_queue_delay_microseconds: 3000 }");
    let batcher = LengthBatcher::new(&settings, &declaration(None), Some(&fit));
    assert_eq!((batcher.enough_rows, batcher.delay, batcher.max_rows()), (8, 3 * MS, 32));
    assert_eq!(batcher.in_hand(2), 64 + 2 * 32);
    // In steps of 16 it has the length 48 in its run.
    assert_eq!(batcher.cost(&[Description { rows: 2, length: 33, signature: 0 }]), MEASURED.cost(2, 48));
}

#[test]
fn deciding_is_quick() {
    let now = Instant::now();
    let waiting: Vec<_> = natural_lengths(64, 3).into_iter().map(|length| candidate(now, length)).collect();
    let batcher = batcher();
    let started = Instant::now();
    let rounds = 100;
    for _ in 0..rounds {
        std::hint::black_box(batcher.decide(std::hint::black_box(&waiting), now));
    }
    let each = started.elapsed() / rounds;
    println!("a decision about 64 requests takes {each:?} in this build");
    // Some microseconds when optimized; this limit only catches a change of its order.
    assert!(each < 5 * MS, "{each:?}");
}

/// First come, first served, up to a limit of rows or padded tokens: the behaviour of other servers.
struct InOrder {
    rows: usize,
    tokens: u32,
}

impl BatchPolicy for InOrder {
    fn decide(&self, waiting: &[Candidate], _now: Instant) -> Decision {
        let mut longest = 0;
        let fits = |(index, candidate): &(usize, &Candidate)| {
            longest = candidate.description.length.max(longest);
            *index == 0 || *index < self.rows && longest * (*index as u32 + 1) <= self.tokens
        };
        match waiting.iter().enumerate().take_while(fits).count() {
            0 => Decision::Wait,
            count => Decision::Run((0..count).collect()),
        }
    }

    fn max_rows(&self) -> u32 {
        self.rows as u32
    }
}

/// `per_second` requests of one row for ten seconds, of natural lengths.
fn natural_trace(per_second: u32) -> Vec<Arrival> {
    let lengths = natural_lengths(10 * per_second as usize, 7);
    let arrival = |(index, length)| Arrival {
        at: Duration::from_secs(1) * index as u32 / per_second,
        description: Description { rows: 1, length, signature: 0 },
        priority: 1,
    };
    lengths.into_iter().enumerate().map(arrival).collect()
}

/// One worker at full speed; requests come at the times of the trace.
fn one_worker<'a>(policy: &'a dyn BatchPolicy, workers: &'a [(usize, f64)]) -> Site<'a> {
    Site { policy, cost: MEASURED, workers, in_flight: None }
}

fn simulate_natural(policy: &dyn BatchPolicy, per_second: u32) -> Report {
    simulate(&one_worker(policy, &[(2, 1.0)]), &natural_trace(per_second))
}

#[test]
fn natural_lengths_are_like_real_ones() {
    let mut lengths = natural_lengths(10_000, 1);
    let mean = lengths.iter().sum::<u32>() as f64 / lengths.len() as f64;
    lengths.sort_unstable();
    assert!((33.0..37.0).contains(&mean) && (22..=26).contains(&lengths[5000]), "{mean} {}", lengths[5000]);
    assert!(lengths[9990] > 200);
}

#[test]
fn under_load_it_beats_every_simpler_way() {
    // More requests than can be executed, so that the throughput depends on the policy.
    let by_length = simulate_natural(&batcher(), 400);
    let alone = simulate_natural(&InOrder { rows: 1, tokens: u32::MAX }, 400);
    let unsorted = simulate_natural(&InOrder { rows: 8, tokens: u32::MAX }, 400);
    let budget_only = simulate_natural(&InOrder { rows: 64, tokens: 1024 }, 400);
    for (name, report) in
        [("by length", &by_length), ("alone", &alone), ("8 unsorted", &unsorted), ("budget only", &budget_only)]
    {
        println!(
            "{name}: {:.0} requests/s, padding {:.2}, {:.1} requests a run, queue p50 {:?} p99 {:?}",
            report.throughput(),
            report.padding_waste(),
            report.mean_batch(),
            report.queue_time(0.5),
            report.queue_time(0.99),
        );
    }
    assert!(by_length.throughput() > 1.15 * alone.throughput());
    assert!(by_length.throughput() > 1.8 * unsorted.throughput());
    assert!(by_length.throughput() > 1.8 * budget_only.throughput());
    assert!(by_length.padding_waste() < 0.1);
    assert!(by_length.mean_batch() > 4.0);
}

#[test]
fn under_light_load_it_costs_nothing() {
    let by_length = simulate_natural(&batcher(), 20);
    let alone = simulate_natural(&InOrder { rows: 1, tokens: u32::MAX }, 20);
    assert!(by_length.queue_time(0.5) <= alone.queue_time(0.5));
    assert!(by_length.queue_time(0.99) <= alone.queue_time(0.99) + 5 * MS);
}

#[test]
fn nobody_starves_among_short_ones() {
    // Short texts that fill the worker, and a few long ones that are never the best choice.
    let mut trace = natural_trace(200);
    trace.iter_mut().enumerate().for_each(|(index, arrival)| {
        arrival.description.length = if index % 40 == 0 { 256 } else { 8 };
    });
    let report = simulate(&one_worker(&batcher(), &[(1, 1.0)]), &trace);
    let longest = (0..trace.len()).step_by(40).map(|index| report.queued[index]).max().unwrap();
    assert!(longest < 300 * MS, "{longest:?}");
}

prop_compose! {
    fn any_arrival()(
        at in 0u64..60, rows in 0u32..6, length in 1u32..300, signature in 0u64..3, priority in 1u32..3,
    ) -> Arrival {
        Arrival { at: Duration::from_millis(at), description: Description { rows, length, signature }, priority }
    }
}

proptest! {
    #[test]
    fn its_promises_hold(
        mut trace in proptest::collection::vec(any_arrival(), 0..120),
        max_rows in 1u32..12,
        token_budget in 1u32..1200,
        overtake in 0u32..80,
        enough_tokens in 0u32..3000,
        delay in 0u32..20,
        instances in 1usize..3,
    ) {
        trace.sort_by_key(|arrival| arrival.at);
        let policy = LengthBatcher {
            max_rows, token_budget, max_overtake: Some(overtake * MS), enough_tokens, delay: delay * MS, enough_rows: max_rows, ..batcher()
        };
        let report = simulate(&one_worker(&policy, &[(instances, 1.0)]), &trace);
        let mut runs = vec![0; trace.len()];
        for execution in &report.executions {
            let of = |request: &usize| trace[*request].description;
            let first = execution.requests[0];
            let rows: u32 = execution.requests.iter().map(|r| of(r).rows.max(1)).sum();
            let length = execution.requests.iter().map(|r| of(r).length).max().unwrap();
            prop_assert!(execution.requests.len() == 1 || rows <= max_rows && rows * length <= token_budget);
            for request in &execution.requests {
                runs[*request] += 1;
                prop_assert_eq!(of(request).signature, of(&first).signature);
                prop_assert_eq!(trace[*request].priority, trace[first].priority);
            }
            let oldest = execution.requests.iter().min().unwrap();
            for left in &execution.left_waiting {
                let (own, chosen) = (trace[*left].priority, trace[first].priority);
                let received = report.received[*left];
                let waits_for_company = execution.at < received + delay * MS;
                prop_assert!(own >= chosen || waits_for_company, "a lower level went first");
                let overdue = execution.at >= received + overtake * MS;
                prop_assert!(
                    own != chosen || waits_for_company || !overdue || oldest < left,
                    "{left} had waited since {received:?} when {:?} ran at {:?}", execution.requests, execution.at
                );
            }
        }
        prop_assert!(runs.iter().all(|&runs| runs == 1), "each request runs once");
    }
}

/// A worker that takes as many requests as it may hold.
struct Hoarding(LengthBatcher);

impl BatchPolicy for Hoarding {
    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        self.0.decide(waiting, now)
    }

    fn max_rows(&self) -> u32 {
        self.0.max_rows()
    }

    fn in_hand(&self, instances: usize) -> usize {
        self.0.in_hand(instances)
    }

    fn appetite(&self) -> Appetite {
        Appetite { look_ahead: Duration::from_secs(3600), ..self.0.appetite() }
    }
}

#[test]
fn what_is_left_to_peers_costs_little_and_pays() {
    let play = |policy: &dyn BatchPolicy, workers: &[(usize, f64)], in_flight| {
        let site = Site { policy, cost: MEASURED, workers, in_flight: Some(in_flight) };
        let report = simulate(&site, &natural_trace(300));
        println!(
            "{workers:?}, {in_flight} in flight: {:.0} requests/s, p50 {:?}, p99 {:?}, padding {:.3}",
            report.throughput(),
            report.latency(0.5),
            report.latency(0.99),
            report.padding_waste(),
        );
        (report.throughput(), report.latency(0.99))
    };
    let (modest, hoarding) = (batcher(), Hoarding(batcher()));
    for in_flight in [16, 64, 256] {
        let (one, _) = play(&modest, &[(2, 1.0)], in_flight);
        let (most, _) = play(&hoarding, &[(2, 1.0)], in_flight);
        assert!(one > 0.96 * most, "alone: {one} of {most}");
    }
    // With a second worker that is four times as fast.
    let (throughput, p99) = play(&modest, &[(2, 1.0), (2, 4.0)], 64);
    let (held_back, long) = play(&hoarding, &[(2, 1.0), (2, 4.0)], 64);
    assert!(throughput > 1.8 * held_back && p99 < long, "{throughput} {p99:?} to {held_back} {long:?}");
}

#[test]
fn requests_are_overtaken_for_a_full_run() {
    let overtake = |run, token_budget, measured| {
        let cost = CostModel { run, token: 2e-4, pair: 0.0 };
        Pace::new("m", &cost, token_budget, measured).max_overtake()
    };
    assert_eq!(overtake(7.6e-3, 512, true), 110 * MS);
    assert_eq!(overtake(7.6e-3, 64, true), MIN_OVERTAKE, "short runs");
    assert_eq!(overtake(7.6e-3, 512, false), MIN_OVERTAKE, "not measured");
    assert_eq!(overtake(f64::INFINITY, 512, true), MIN_OVERTAKE);
}

#[test]
fn the_time_of_a_full_run_is_that_of_the_runs_that_serve() {
    let cost = CostModel { run: 7.6e-3, token: 2e-4, pair: 0.0 };
    let mut pace = Pace::new("m", &cost, 512, true);
    let run = |pace: &mut Pace, times: u32, slower: f64| {
        for rows in 0..times {
            let cost = cost.cost(1 + rows % 16, 32);
            pace.note(cost, Duration::from_secs_f64(cost * slower));
        }
        (pace.max_overtake().as_secs_f64() * 1e3).round()
    };
    assert_eq!(run(&mut pace, 31, 2.0), 110.0, "too few runs to go by");
    assert_eq!(run(&mut pace, 1, 2.0), 220.0);
    assert_eq!(pace.told, 220 * MS, "it is told");
    assert_eq!(run(&mut pace, 1000, 1.0), 110.0, "it follows");
    let unmeasured = &mut Pace::new("m", &CostModel::UNMEASURED, 512, false);
    for _ in 0..64 {
        unmeasured.note(CostModel::UNMEASURED.cost(16, 32), 200 * MS);
    }
    assert_eq!(unmeasured.max_overtake(), 200 * MS, "costs without a unit get one");
}

#[test]
fn under_load_the_younger_half_waits() {
    let now = Instant::now();
    // Both halves have texts of 20 and of 60 tokens; there are enough tokens in the older one.
    let older = candidates(now, &[20, 60].repeat(8));
    let younger = candidates(now + 30 * MS, &[20, 60].repeat(8));
    let batcher = LengthBatcher { enough_tokens: 600, ..batcher() };
    let all = [&older[..], &younger[..]].concat();
    let decided = run(batcher.decide(&all, now + 30 * MS));
    assert!(decided.iter().all(|&index| index < 16), "{decided:?}");
    let together = [&older[..], &candidates(now + 10 * MS, &[20, 60].repeat(8))].concat();
    let decided = run(batcher.decide(&together, now + 30 * MS));
    assert!(decided.iter().any(|&index| index >= 16), "they came together: {decided:?}");
    let few = LengthBatcher { enough_tokens: 2000, ..batcher };
    let decided = run(few.decide(&all, now + 30 * MS));
    assert!(decided.iter().any(|&index| index >= 16), "too little to choose from: {decided:?}");
}

/// Texts per second and the 99th percentile of latencies, over how many full runs requests may be overtaken for, and whether all waiting
/// requests are chosen from or the older half: what the defaults are chosen by. `make bench-overtake` prints it beside the real thing's.
#[test]
fn the_curve() {
    println!(
        "| | in flight | full runs | of the waiting ones | texts/s | p50 ms | p99 ms |\n|---|---|---|---|---|---|---|"
    );
    let full_run = MEASURED.cost(512 / USUAL_LENGTH, USUAL_LENGTH);
    let play = |in_flight, runs: f64, enough_tokens| {
        let max_overtake = Some(Duration::from_secs_f64(runs * full_run));
        // One process, where no other worker pulls.
        let policy = Hoarding(LengthBatcher { token_budget: 512, max_overtake, enough_tokens, ..batcher() });
        let site = Site { policy: &policy, cost: MEASURED, workers: &[(2, 1.0)], in_flight: Some(in_flight) };
        let report = simulate(&site, &natural_trace(300));
        let millis = |share| report.latency(share).as_secs_f64() * 1e3;
        let (rate, p50, p99) = (report.throughput(), millis(0.5), millis(0.99));
        let of = if enough_tokens == u32::MAX { "all" } else { "older half" };
        println!("| simulated | {in_flight} | {runs} | {of} | {rate:.0} | {p50:.0} | {p99:.0} |");
        (rate, p99)
    };
    for in_flight in [4, 16, 64, 256] {
        for enough_tokens in [u32::MAX, RUNS_TO_CHOOSE * 512] {
            for runs in [0.0, 0.5, 1.0, 2.0, 4.0, 8.0] {
                play(in_flight, runs, enough_tokens);
            }
        }
    }
    let default = |in_flight| play(in_flight, OVERTAKEN_RUNS, RUNS_TO_CHOOSE * 512);
    for in_flight in [16, 64] {
        let (rate, p99) = default(in_flight);
        let (strict_rate, strict_p99) = play(in_flight, 0.0, u32::MAX);
        assert!(rate >= 0.95 * strict_rate && p99 <= 1.15 * strict_p99, "{in_flight}: {rate} {p99}");
    }
    assert!(default(64).1 <= 0.9 * play(64, OVERTAKEN_RUNS, u32::MAX).1, "the older half has shorter tails");
    assert!(default(16).1 <= 0.75 * play(16, 2.0 * OVERTAKEN_RUNS, u32::MAX).1, "twice the time has longer ones");
}
