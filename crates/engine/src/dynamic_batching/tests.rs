//! Single decisions, and properties of any queue.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::batching::Description;

use super::*;

fn batcher(max_batch_size: u32, preferred: &[u32], delay: Duration) -> DynamicBatcher {
    let settings = DynamicBatching {
        preferred_batch_sizes: preferred.to_vec(),
        max_queue_delay: delay,
        ..DynamicBatching::default()
    };
    DynamicBatcher::new(&settings, max_batch_size)
}

fn candidate(arrived: Instant, rows: u32) -> Candidate {
    Candidate { arrived, priority: 1, description: Description { rows, length: 1, signature: 0 } }
}

fn of(signature: u64, mut candidate: Candidate) -> Candidate {
    candidate.description.signature = signature;
    candidate
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn without_delay_whatever_waits_runs() {
    let now = Instant::now();
    let policy = batcher(8, &[], Duration::ZERO);
    assert_eq!(policy.decide(&[], now), Decision::Wait);
    let waiting: Vec<_> = (0..3).map(|_| candidate(now, 1)).collect();
    assert_eq!(policy.decide(&waiting, now), Decision::Run(vec![0, 1, 2]));
    assert_eq!(policy.max_rows(), 8);
}

#[test]
fn a_batch_waits_for_its_oldest_request_to_age() {
    let start = Instant::now();
    let policy = batcher(8, &[], 10 * MS);
    let waiting = [candidate(start, 1), candidate(start + 4 * MS, 1)];
    assert_eq!(policy.decide(&waiting, start + 5 * MS), Decision::WaitUntil(start + 10 * MS));
    assert_eq!(policy.decide(&waiting, start + 10 * MS), Decision::Run(vec![0, 1]));
}

#[test]
fn preferred_sizes_run_at_once_and_the_largest_reachable_wins() {
    let now = Instant::now();
    let policy = batcher(8, &[2, 4, 100], 10 * MS);
    let waiting: Vec<_> = (0..5).map(|_| candidate(now, 1)).collect();
    assert_eq!(policy.decide(&waiting[..1], now), Decision::WaitUntil(now + 10 * MS));
    assert_eq!(policy.decide(&waiting[..3], now), Decision::Run(vec![0, 1]));
    assert_eq!(policy.decide(&waiting, now), Decision::Run(vec![0, 1, 2, 3]));
    // After the delay all pending requests go, not only a preferred size.
    assert_eq!(policy.decide(&waiting, now + 10 * MS), Decision::Run(vec![0, 1, 2, 3, 4]));
    // No preferred size can be reached: the members within the largest size go at once.
    let waiting = [candidate(now, 3), candidate(now, 3)];
    assert_eq!(policy.decide(&waiting, now), Decision::Run(vec![0]));
}

#[test]
fn a_full_batch_does_not_wait_and_is_never_split() {
    let now = Instant::now();
    let policy = batcher(8, &[], 10 * MS);
    let rows = |rows: &[u32]| rows.iter().map(|&r| candidate(now, r)).collect::<Vec<_>>();
    assert_eq!(policy.decide(&rows(&[4, 4, 1]), now), Decision::Run(vec![0, 1]));
    // The third fits beside the first, but the second came before it.
    assert_eq!(policy.decide(&rows(&[5, 4, 1]), now), Decision::Run(vec![0]));
    // A request larger than the largest batch runs alone, and the backend decides about it.
    assert_eq!(policy.decide(&rows(&[20, 1]), now), Decision::Run(vec![0]));
}

#[test]
fn nobody_waits_for_company_once_a_request_has_come_that_cannot_join() {
    let start = Instant::now();
    let policy = batcher(4, &[], 10 * MS);
    let with = |signature, at: Duration| of(signature, candidate(start + at, 1));
    let waiting = [with(1, Duration::ZERO), with(2, MS)];
    assert_eq!(policy.decide(&waiting[..1], start), Decision::WaitUntil(start + 10 * MS));
    assert_eq!(policy.decide(&waiting, start + MS), Decision::Run(vec![0]));
    assert_eq!(policy.decide(&waiting[1..], start + MS), Decision::WaitUntil(start + 11 * MS));
    // A preferred size still goes first, and the rest after it.
    let policy = batcher(4, &[2], 10 * MS);
    let waiting = [with(1, Duration::ZERO), with(1, MS), with(1, MS), with(2, MS)];
    assert_eq!(policy.decide(&waiting, start + MS), Decision::Run(vec![0, 1]));
    assert_eq!(policy.decide(&waiting[2..], start + MS), Decision::Run(vec![0]));
}

#[test]
fn signatures_fill_side_by_side() {
    let start = Instant::now();
    let policy = batcher(2, &[], 10 * MS);
    let with = |signature, at: Duration| of(signature, candidate(start + at, 1));
    // Requests that arrived while the instance was busy: the oldest goes first, together with others of its shape.
    let waiting = [with(1, Duration::ZERO), with(2, MS), with(1, MS)];
    assert_eq!(policy.decide(&waiting, start + MS), Decision::Run(vec![0, 2]));
}

#[test]
fn higher_priority_goes_first() {
    let now = Instant::now();
    let policy = batcher(2, &[], Duration::ZERO);
    let with = |priority| Candidate { priority, ..candidate(now, 1) };
    assert_eq!(policy.decide(&[with(2), with(2), with(1)], now), Decision::Run(vec![2, 0]));
}

/// Plays a trace of (arrival in ms, signature) with one row each on one instance of a model that takes `run` per batch;
/// returns the batch sizes.
fn simulate(policy: &DynamicBatcher, trace: &[(u32, u64)], run: Duration) -> Vec<usize> {
    let start = Instant::now();
    let mut arrivals = trace
        .iter()
        .map(|&(at, signature)| of(signature, candidate(start + at * MS, 1)))
        .collect::<std::collections::VecDeque<_>>();
    let (mut now, mut waiting, mut sizes) = (start, Vec::<Candidate>::new(), Vec::new());
    loop {
        while arrivals.front().is_some_and(|next| next.arrived <= now) {
            waiting.extend(arrivals.pop_front());
        }
        let next = arrivals.front().map(|next| next.arrived);
        now = match (policy.decide(&waiting, now), next) {
            (Decision::Run(batch), _) => {
                sizes.push(batch.len());
                let mut index = 0;
                waiting.retain(|_| {
                    index += 1;
                    !batch.contains(&(index - 1))
                });
                now + run
            }
            (Decision::WaitUntil(due), Some(next)) => due.min(next),
            (Decision::WaitUntil(due), None) => due,
            (Decision::Wait, Some(next)) => next,
            (Decision::Wait, None) => return sizes,
        };
    }
}

#[test]
fn batches_grow_with_load() {
    let same = |count: u32, every: u32| (0..count).map(|i| (i * every, 0)).collect::<Vec<_>>();
    let eager = batcher(8, &[], Duration::ZERO);
    // Arrivals are slower than runs: there is nothing to batch.
    assert_eq!(simulate(&eager, &same(6, 20), 10 * MS), [1; 6]);
    // Five arrive per run, so batches reach that size although no request waits for others.
    assert_eq!(simulate(&eager, &same(21, 2), 10 * MS), [1, 5, 5, 5, 5]);
    // A delay fills batches even under light load.
    assert_eq!(simulate(&batcher(4, &[], 50 * MS), &same(8, 10), MS), [4, 4]);
    // Alternating shapes run alone while there is nothing else to do, and batch under load.
    let mixed: Vec<_> = (0..17).map(|i| (i, u64::from(i % 2))).collect();
    let alone = simulate(&batcher(4, &[], 50 * MS), &mixed[..8], MS);
    assert_eq!(alone, [1; 8]);
    assert_eq!(simulate(&batcher(4, &[], 50 * MS), &mixed, 8 * MS), [1, 4, 4, 4, 4]);
}

prop_compose! {
    fn any_candidate()(at in 0u32..50, rows in 0u32..12, signature in 0u64..3, priority in 1u32..4) -> (u32, Candidate) {
        (at, Candidate { priority, ..of(signature, candidate(Instant::now(), rows)) })
    }
}

proptest! {
    #[test]
    fn every_request_runs_once_in_legal_batches(
        mut queue in proptest::collection::vec(any_candidate(), 0..40),
        max in 1u32..10,
        preferred in proptest::collection::vec(0u32..12, 0..3),
        delay in 0u32..20,
    ) {
        let start = Instant::now();
        queue.sort_by_key(|(at, _)| *at);
        let policy = batcher(max, &preferred, delay * MS);
        let mut arrivals = queue.into_iter().map(|(at, c)| Candidate { arrived: start + at * MS, ..c })
            .enumerate().collect::<std::collections::VecDeque<_>>();
        let (mut now, mut waiting) = (start, Vec::<(usize, Candidate)>::new());
        let (total, mut done) = (arrivals.len(), 0);
        while done < total {
            while arrivals.front().is_some_and(|(_, next)| next.arrived <= now) {
                waiting.extend(arrivals.pop_front());
            }
            let seen: Vec<_> = waiting.iter().map(|(_, c)| c.clone()).collect();
            match policy.decide(&seen, now) {
                Decision::Run(batch) => {
                    prop_assert!(!batch.is_empty());
                    let signature = seen[batch[0]].description.signature;
                    prop_assert!(batch.iter().all(|&i| seen[i].description.signature == signature), "mixed signatures");
                    let rows: u32 = batch.iter().map(|&i| seen[i].description.rows.max(1)).sum();
                    prop_assert!(rows <= max || batch.len() == 1, "{rows} rows of {max}");
                    for &i in &batch {
                        let passed = (0..i).find(|j| !batch.contains(j)
                            && seen[*j].description.signature == seen[i].description.signature && seen[*j].priority == seen[i].priority);
                        prop_assert!(passed.is_none(), "{i} overtook {passed:?}");
                    }
                    done += batch.len();
                    let mut index = 0;
                    waiting.retain(|_| { index += 1; !batch.contains(&(index - 1)) });
                }
                Decision::WaitUntil(due) => {
                    prop_assert!(due > now, "asked to wait for the past");
                    let oldest = seen.iter().map(|c| c.arrived).min().expect("only a waiting request has a deadline");
                    prop_assert!(due <= oldest + delay * MS, "waits longer than the oldest may");
                    now = arrivals.front().map_or(due, |(_, next)| next.arrived.min(due));
                }
                Decision::Wait => {
                    prop_assert!(seen.is_empty(), "requests wait for nothing");
                    now = arrivals.front().expect("not all have run, so some are yet to come").1.arrived;
                }
            }
        }
    }
}
