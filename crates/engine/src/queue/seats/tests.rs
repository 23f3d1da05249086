use std::collections::HashMap;
use std::sync::Arc;

use trireme_inference::{Lane, Name};
use trireme_model_repository::DynamicBatching;

use super::*;
use crate::batching::{BatchPolicy, OneAtATime};
use crate::dynamic_batching::DynamicBatcher;
use crate::queue::{Role, Taken, WorkQueue};

/// A request of an owner: its tokens.
type Asked = (Name, u32);

fn push(queue: &WorkQueue<Asked>, owner: &Owner, tokens: u32, priority: u32, deadline: u64) {
    let description = Description { rows: 1, length: tokens, signature: 0 };
    let candidate = Candidate { arrived: Instant::now(), priority, description };
    let seat = Seat { owner: owner.clone(), deadline: UnixMicros(deadline) };
    queue.push_at(Lane::Live, candidate, seat, (owner.name.clone(), tokens));
}

fn take(queue: &Arc<WorkQueue<Asked>>) -> Vec<Asked> {
    match queue.take_run(Role::Main, &mut 0, |_, _| false) {
        Some(Taken::Batch(batch, mut run)) => {
            run.executed = batch.len();
            batch
        }
        _ => panic!("a batch"),
    }
}

/// Serves `most` tokens while each owner keeps its number of requests waiting. Returns the tokens of each owner.
fn served(
    policy: Box<dyn BatchPolicy>,
    owners: &[(Owner, usize)],
    most: u32,
    mut tokens: impl FnMut(usize) -> u32,
) -> HashMap<Name, f64> {
    let queue = WorkQueue::new(policy, 4096, None);
    let mut sums = HashMap::new();
    for (index, (owner, waiting)) in owners.iter().enumerate() {
        (0..*waiting).for_each(|_| push(&queue, owner, tokens(index), 0, u64::MAX));
    }
    while sums.values().sum::<f64>() < f64::from(most) {
        for (name, count) in take(&queue) {
            let index = owners.iter().position(|(owner, _)| owner.name == name).unwrap();
            push(&queue, &owners[index].0, tokens(index), 0, u64::MAX);
            *sums.entry(name).or_default() += f64::from(count);
        }
    }
    sums
}

/// Lengths that look random.
struct Lengths(u64);

impl Lengths {
    /// A length from 1 on, below `most`.
    fn next(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (self.0 >> 33) as u32 % (most - 1)
    }
}

fn jain(sums: &HashMap<Name, f64>) -> f64 {
    let (sum, squares) = sums.values().fold((0.0, 0.0), |(sum, squares), own| (sum + own, squares + own * own));
    sum * sum / (sums.len() as f64 * squares)
}

fn batcher() -> Box<dyn BatchPolicy> {
    Box::new(DynamicBatcher::new(&DynamicBatching::default(), 16))
}

/// Ten seconds of a model that takes 10 000 tokens in a second. The owners keep from 10 to 100 requests waiting, of different lengths.
#[test]
fn ten_equal_owners_get_the_same_over_time_however_much_each_asks_for() {
    for policy in [Box::new(OneAtATime) as Box<dyn BatchPolicy>, batcher()] {
        let mut lengths = Lengths(7);
        let owners: Vec<_> = (1..=10).map(|n| (Owner::new(format!("owner {n}"), 1), 40 + 10 * n)).collect();
        let sums = served(policy, &owners, 100_000, |index| lengths.next(20 * (index as u32 + 1)));
        assert!(sums.len() == 10 && jain(&sums) >= 0.98, "{} {sums:?}", jain(&sums));
    }
}

#[test]
fn a_weight_of_four_gets_four_times_as_much() {
    for policy in [Box::new(OneAtATime) as Box<dyn BatchPolicy>, batcher()] {
        let mut lengths = Lengths(7);
        let owners = [(Owner::new("one", 1), 100), (Owner::new("four", 4), 100)];
        let sums = served(policy, &owners, 200_000, |_| lengths.next(100));
        let ratio = sums["four"] / sums["one"];
        assert!((3.9..4.1).contains(&ratio), "{ratio}");
    }
}

/// A million requests and a small job, scaled down: the small job is over after twice its own work.
#[test]
fn a_small_job_beside_a_large_one_ends_as_at_half_of_the_machine() {
    let (large, small) = (Owner::new("large", 1), Owner::new("small", 1));
    let queue = WorkQueue::new(batcher(), 20_000, None);
    (0..10_000).for_each(|_| push(&queue, &large, 10, 0, u64::MAX));
    take(&queue);
    (0..100).for_each(|_| push(&queue, &small, 10, 0, u64::MAX));
    let (mut runs, mut left) = (0, 100);
    while left > 0 {
        left -= take(&queue).iter().filter(|(owner, _)| *owner == small.name).count();
        runs += 1;
    }
    // Alone it takes 7 runs of 16 requests.
    assert!(runs <= 15, "{runs}");
}

#[test]
fn an_owner_alone_has_all_of_the_queue_and_nothing_is_counted() {
    let owner = Owner::new("alone", 1);
    let queue = WorkQueue::new(batcher(), 4096, None);
    (0..64).for_each(|_| push(&queue, &owner, 10, 0, u64::MAX));
    for _ in 0..4 {
        assert_eq!(take(&queue).len(), 16);
    }
    let seats = &queue.state.lock().lanes[Lane::Live as usize].seats;
    assert!(!seats.mixed && seats.contested.is_none());
}

#[test]
fn an_owners_requests_have_their_turns_by_priority_then_deadline() {
    let (one, other) = (Owner::new("one", 1), Owner::new("other", 1));
    let queue = WorkQueue::new(Box::new(OneAtATime), 64, None);
    push(&queue, &other, 1000, 0, u64::MAX);
    for (tokens, priority, deadline) in [(1, 4, 50), (2, 2, 90), (3, 2, 70), (4, 2, 80)] {
        push(&queue, &one, tokens, priority, deadline);
    }
    assert_eq!(take(&queue), [("other".into(), 1000)]);
    push(&queue, &other, 1000, 0, u64::MAX);
    let own: Vec<u32> = (0..4).map(|_| take(&queue)[0].1).collect();
    assert_eq!(own, [3, 4, 2, 1], "the other owner, with the higher priority, has had its turn");
}

#[test]
fn a_queue_takes_more_from_the_shared_one_while_several_owners_wait() {
    let queue = WorkQueue::<Asked>::new(Box::new(OneAtATime), 4, None);
    let mut state = queue.state.lock();
    let seats = &mut state.lanes[Lane::Live as usize].seats;
    let seat = |name: &str| Seat { owner: Owner::new(name, 1), ..Seat::default() };
    assert_eq!(seats.push(seat("one"), false, Instant::now()), None);
    assert_eq!(seats.most(4), 4);
    assert!(seats.push(seat("two"), false, Instant::now()).is_some());
    assert_eq!(seats.most(4), HELD);
    seats.remove(&[0, 1]);
    assert!(!seats.mixed);

    // A worker that holds one request while it executes another.
    let mut seats = Seats::default();
    for (name, busy) in [("one", false), ("one", true), ("two", false)] {
        assert_eq!(seats.push(seat(name), busy, Instant::now()), None, "{name}");
        seats.remove(&[0]);
    }
    assert!(seats.push(seat("one"), true, Instant::now()).is_some());
    assert_eq!(seats.most(4), HELD);
}

/// An owner's high priority, and requests that the policy prefers, do not keep another owner from its turns.
#[test]
fn a_high_priority_of_one_owner_does_not_starve_another() {
    let (high, low) = (Owner::new("high", 1), Owner::new("low", 1));
    let queue = WorkQueue::new(batcher(), 4096, None);
    (0..2000).for_each(|_| push(&queue, &high, 10, 2, u64::MAX));
    (0..160).for_each(|_| push(&queue, &low, 10, 4, u64::MAX));
    let taken: Vec<_> = (0..24).flat_map(|_| take(&queue)).collect();
    assert_eq!(taken.iter().filter(|(owner, _)| *owner == low.name).count(), 160);
}
