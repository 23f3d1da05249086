//! Properties of queues with a policy: the order of waiting messages, their number and their time.
//!
//! Not here: properties of every queue (`queues`).

use std::time::{Duration, Instant};

use trireme_inference::{Lane, ModelKey};

use super::queues::{A_WHILE, declare, declared, open, publish};
use super::setup::Setup;
use trireme_bus::fixtures::{assert_idle, message_at, number, patient_options, take, within};
use trireme_bus::{Bus, BusError, Delivery, LevelPolicy, QueueOptions, WaitTimeout};

pub async fn higher_levels_are_taken_first_and_no_level_is_forgotten(setup: &Setup) {
    let levels = [1, 2, 3].map(|level| (level, LevelPolicy::default())).into();
    let (bus, model) = declared(setup, "levels", &QueueOptions { levels, ..patient_options() }).await;
    for n in 0..12 {
        publish(&*bus, &message_at(&model, 3 - n % 3, i64::from(n))).await;
    }
    let mut consumer = open(&*bus, &model).await;
    let mut taken = Vec::new();
    for room in [1, 2, 3, 1, 5] {
        let deliveries = within("messages of all levels", consumer.next(room)).await.expect("work");
        assert_eq!(deliveries.len(), room, "there is more than enough");
        for delivery in deliveries {
            taken.push(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    assert_eq!(taken, [2, 5, 8, 11, 1, 4, 7, 10, 0, 3, 6, 9], "by level, then in order");
    // The order also holds with less room than there are levels, and for any level at which the consumer waited before.
    for (n, level) in [3, 1, 2, 3, 3, 2, 1].into_iter().enumerate() {
        let waiting = tokio::time::timeout(Duration::from_millis(30), consumer.next(1 + n % 4)).await;
        assert!(waiting.is_err(), "the queue is empty, got {waiting:?}");
        publish(&*bus, &message_at(&model, level, n as i64)).await;
        let delivery = take(&mut consumer, "the one message").await;
        assert_eq!((number(&delivery), delivery.message.level(), delivery.deliveries), (n as i64, level, 1));
        delivery.acker.ack().await.expect("acknowledged");
    }
    let elsewhere = within("a refusal", bus.publish(&message_at(&model, 4, 0))).await;
    assert!(matches!(elsewhere, Err(BusError::NoQueue { .. })), "there is no such level: {elsewhere:?}");
    let left = within("the end of a worker", consumer.stop()).await;
    assert!(left.is_none(), "nothing was left, got {left:?}");
}

pub async fn the_bulk_lane_comes_with_its_first_message(setup: &Setup) {
    let (bus, model) = declared(setup, "lanes", &patient_options()).await;
    let bulk = |n| message_at(&model, Lane::Bulk.level(0), n);
    let worker = setup.connect().await;
    declare(setup, &*worker, &model, &patient_options()).await;
    let mut later =
        within("a hold on the lane", worker.pull_bulk(&model)).await.expect("a hold on a lane that may come");
    assert_idle(&mut later, A_WHILE, "there is no such lane").await;
    let mut live = open(&*bus, &model).await;
    let gateway = setup.connect_gateway().await;
    publish(&*gateway, &bulk(1)).await;
    assert_idle(&mut live, A_WHILE, "bulk messages wait in a lane of their own").await;
    let delivery = take(&mut later, "the first message of the lane").await;
    assert_eq!((number(&delivery), delivery.message.lane()), (1, Lane::Bulk));
    delivery.acker.nak(Duration::ZERO).await.expect("refused");
    let delivery = take(&mut later, "the message again").await;
    assert_eq!((number(&delivery), delivery.deliveries), (1, 2));
    publish(&*bus, &message_at(&model, 0, 2)).await;
    let in_live = take(&mut live, "the live message").await;
    assert_eq!((number(&in_live), in_live.message.lane()), (2, Lane::Live));
    let levels = [0, Lane::Bulk.level(0)];
    assert_eq!(bus.queue_status(&model, &levels).await.expect("status").delivered, 2, "one in each lane");
    in_live.acker.ack().await.expect("acknowledged");
    delivery.acker.ack().await.expect("acknowledged");
    let left = within("the end of a worker", later.stop()).await;
    assert!(left.is_none(), "nothing was left, got {left:?}");
}

/// A policy with at most `count` waiting messages.
fn at_most(count: u64) -> LevelPolicy {
    LevelPolicy { max_waiting: Some(count), ..LevelPolicy::default() }
}

/// Publishes to a level until it is full; returns the number of messages.
async fn fill(bus: &dyn Bus, model: &ModelKey, level: u32) -> usize {
    let mut taken = 0;
    loop {
        match within("a publish", bus.publish(&message_at(model, level, taken as i64))).await {
            Ok(_) => taken += 1,
            Err(BusError::Full { .. }) => return taken,
            Err(error) => panic!("only too many messages are refused, found {error}"),
        }
    }
}

pub async fn each_level_has_a_limit_of_its_own_that_can_be_changed(setup: &Setup) {
    let options = |first| QueueOptions { levels: [(1, at_most(first)), (2, at_most(3))].into(), ..patient_options() };
    let (bus, model) = declared(setup, "limits", &options(1)).await;
    // Workers know only themselves; gateways know all workers and set the limits of existing queues.
    let gateway = setup.connect_gateway().await;
    let fill = async |level| fill(&*bus, &model, level).await;
    assert_eq!((fill(1).await, fill(2).await), (1, 3));
    within("a change", gateway.declare_queue(&model, &options(5))).await.expect("limits can be raised");
    assert_eq!((fill(1).await, fill(2).await), (4, 0));
    within("a change", gateway.declare_queue(&model, &options(2))).await.expect("limits can be lowered");
    let mut consumer = open(&*bus, &model).await;
    for _ in 0..8 {
        take(&mut consumer, "a message from before").await.acker.ack().await.expect("acknowledged");
    }
    assert_idle(&mut consumer, A_WHILE, "nothing was lost, nothing else is there").await;
    let no_room = tokio::time::timeout(A_WHILE, consumer.next(0)).await;
    assert!(no_room.is_err(), "the queue is empty, got {no_room:?}");
    assert_eq!((fill(1).await, fill(2).await), (2, 3));
}

pub async fn what_workers_have_is_beside_the_limit(setup: &Setup) {
    let levels = [(1, at_most(2)), (2, at_most(1))].into();
    let options = QueueOptions { levels, in_hand: 3, ..patient_options() };
    let (bus, model) = declared(setup, "in-hand", &options).await;
    let mut consumer = open(&*bus, &model).await;
    let mut in_hand: Vec<Delivery> = Vec::new();
    for n in 0..3 {
        publish(&*bus, &message_at(&model, 1, n)).await;
        in_hand.push(take(&mut consumer, "a message").await);
    }
    assert_eq!(fill(&*bus, &model, 1).await, 2, "as if nothing were executed");
    let status = bus.queue_status(&model, &[1, 2]).await.expect("status");
    assert_eq!((status.waiting, status.delivered), ([2, 0], 3));
    for delivery in in_hand {
        delivery.acker.ack().await.expect("acknowledged");
    }
    for _ in 0..2 {
        take(&mut consumer, "what waited").await.acker.ack().await.expect("acknowledged");
    }
    assert_idle(&mut consumer, A_WHILE, "each came once").await;
}

pub async fn what_waits_too_long_can_be_taken_without_room(setup: &Setup) {
    let age = Duration::from_millis(300);
    let patient =
        LevelPolicy { timeout: Some(WaitTimeout::Reject(Duration::from_secs(600))), ..LevelPolicy::default() };
    let impatient = LevelPolicy { timeout: Some(WaitTimeout::Reject(age)), ..LevelPolicy::default() };
    let levels = [(1, patient), (2, impatient)].into();
    let (bus, model) = declared(setup, "overdue", &QueueOptions { levels, ..patient_options() }).await;
    let mut consumer = open(&*bus, &model).await;
    let started = Instant::now();
    for n in 0..100 {
        publish(&*bus, &message_at(&model, 2, n)).await;
    }
    publish(&*bus, &message_at(&model, 1, 100)).await;
    let early = within("a look", consumer.overdue()).await.expect("a look");
    assert!(early.is_empty() || started.elapsed() >= age, "nothing has waited so long, got {early:?}");
    let mut numbers = Vec::new();
    for delivery in early {
        numbers.push(number(&delivery));
        delivery.acker.ack().await.expect("acknowledged");
    }
    tokio::time::sleep(age).await;
    publish(&*bus, &message_at(&model, 2, 101)).await;
    while numbers.len() < 100 {
        for delivery in within("a look", consumer.overdue()).await.expect("a look") {
            numbers.push(number(&delivery));
            assert_eq!(delivery.deliveries, 1, "nobody has begun it");
            delivery.acker.ack().await.expect("acknowledged");
        }
        assert!(started.elapsed() < Duration::from_secs(20), "overdue messages are found, so far {numbers:?}");
    }
    // On a busy machine message 101 may be overdue by then, too.
    assert_eq!(numbers[..100], (0..100).collect::<Vec<_>>());
    let young = take(&mut consumer, "that of the patient level").await;
    assert_eq!(number(&young), 100);
    young.acker.ack().await.expect("acknowledged");
}

pub async fn what_was_taken_back_makes_no_other_message_overdue(setup: &Setup) {
    let age = Duration::from_millis(900);
    let policy = LevelPolicy { timeout: Some(WaitTimeout::Reject(age)), ..LevelPolicy::default() };
    let (bus, model) =
        declared(setup, "gaps", &QueueOptions { levels: [(1, policy)].into(), ..patient_options() }).await;
    let (mut consumer, mut published) = (open(&*bus, &model).await, Vec::new());
    // Whole runs of messages are taken back, between others that go on waiting.
    for n in 0..72 {
        let message = message_at(&model, 1, n);
        published.push(Instant::now());
        let position = bus.publish(&message).await.expect("published");
        if n % 36 > 3 {
            // As a gateway does: in process, the cancellation alone takes it back.
            bus.cancel(&message.request_id).await.expect("cancelled");
            bus.take_back(&position).await.expect("taken back");
        }
    }
    tokio::time::sleep(age).await;
    for n in 72..136 {
        published.push(Instant::now());
        publish(&*bus, &message_at(&model, 1, n)).await;
    }
    let mut numbers = Vec::new();
    within("all messages that are overdue", async {
        while numbers.len() < 8 {
            for delivery in consumer.overdue().await.expect("a look") {
                let number = number(&delivery);
                let waited = published[number as usize].elapsed();
                assert!(waited > age, "{number} has waited for {waited:?}");
                numbers.push(number);
                delivery.acker.ack().await.expect("acknowledged");
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(numbers[..8], [0, 1, 2, 3, 36, 37, 38, 39]);
}
