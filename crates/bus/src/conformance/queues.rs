//! Properties of queues: what goes in comes out, once, at one worker, and only so much goes in.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use trireme_inference::ModelKey;

use super::Setup;
use super::fixtures::{
    LARGE, assert_idle, full_message, heavy_message, message, message_at, model, number, patient_options, take, within,
};
use crate::{Bus, BusError, Delivery, LevelPolicy, Puller, QueueOptions, QueueStatus, WaitTimeout, WorkMessage};

/// Time in which a message that is not to come would have come.
const A_WHILE: Duration = Duration::from_millis(200);

pub async fn a_message_arrives_whole_at_exactly_one_worker(setup: &Setup) {
    let (gateway, one, two) = (setup.connect().await, setup.connect().await, setup.connect().await);
    let model = model("whole");
    one.declare_queue(&model, &patient_options()).await.expect("a queue is made");
    let mut pullers = [open(&*one, &model).await, open(&*two, &model).await];

    let sent = full_message(&model);
    publish(&*gateway, &sent).await;
    let [first, second] = &mut pullers;
    let delivery = within("the message at one of two workers", async {
        tokio::select! {
            deliveries = first.next(1) => deliveries,
            deliveries = second.next(1) => deliveries,
        }
    });
    let delivery = only(delivery.await);
    assert_eq!(delivery.message, sent);
    assert_eq!(delivery.attempt, 1);
    for puller in &mut pullers {
        assert_idle(puller, A_WHILE, "the message was delivered").await;
    }
    delivery.acker.ack().await.expect("acknowledged");
}

pub async fn publishing_to_a_queue_that_nobody_declared_says_so(setup: &Setup) {
    let bus = setup.connect().await;
    let model = model("undeclared");
    let published = within("an answer about the queue", bus.publish(&message(&model, 0))).await;
    assert!(matches!(published, Err(BusError::NoQueue { model: ref named }) if *named == model), "{published:?}");
    // A bus may know at once, or when it asks for work.
    let pulled = within("an answer about the queue", async { bus.pull(&model).await?.next(1).await }).await;
    assert!(matches!(pulled, Err(BusError::NoQueue { model: ref named }) if *named == model), "{pulled:?}");
}

pub async fn a_queue_can_be_declared_again_and_by_many_at_once(setup: &Setup) {
    let (one, two) = (setup.connect().await, setup.connect().await);
    let (model, options) = (model("declared"), patient_options());
    let declare = |bus| within("a queue", Bus::declare_queue(bus, &model, &options));
    for declared in join_all([&*one, &*two, &*one, &*two, &*one, &*two].map(declare)).await {
        declared.expect("any number may declare a queue at once");
    }
    publish(&*one, &message(&model, 7)).await;
    declare(&*two).await.expect("a queue may be declared again");
    let delivery = take(&mut open(&*two, &model).await, "what was in the queue before").await;
    assert_eq!(number(&delivery), 7);
    delivery.acker.ack().await.expect("acknowledged");
}

pub async fn a_step_published_twice_is_delivered_once(setup: &Setup) {
    let (bus, model) = declared(setup, "twice", &patient_options()).await;
    let sent = message(&model, 1);
    publish(&*bus, &sent).await;
    publish(&*setup.connect().await, &sent).await;
    let mut puller = open(&*bus, &model).await;
    let delivery = take(&mut puller, "the message").await;
    publish(&*bus, &sent).await;
    assert_idle(&mut puller, A_WHILE, "the same step").await;
    delivery.acker.ack().await.expect("acknowledged");
    // The request's next step is another message, even if the same model runs it.
    let mut next = sent.clone();
    next.route = trireme_inference::Route::resume(model.clone(), false, 1, sent.route.remaining().to_vec());
    publish(&*bus, &next).await;
    take(&mut puller, "the next step").await.acker.ack().await.expect("acknowledged");
}

pub async fn a_queue_full_by_count_refuses_until_there_is_room(setup: &Setup) {
    let (bus, model) = declared(setup, "count", &QueueOptions { max_messages: 2, ..patient_options() }).await;
    publish(&*bus, &message(&model, 1)).await;
    publish(&*bus, &message(&model, 2)).await;
    refuses_until_acknowledged(&*bus, &model, &message(&model, 3)).await;
}

pub async fn a_queue_full_by_bytes_refuses_until_there_is_room(setup: &Setup) {
    let (bus, model) = declared(setup, "bytes", &QueueOptions { max_bytes: 64 << 10, ..patient_options() }).await;
    publish(&*bus, &heavy_message(&model, 40 << 10)).await;
    refuses_until_acknowledged(&*bus, &model, &heavy_message(&model, 40 << 10)).await;
}

pub async fn what_was_cancelled_and_taken_back_makes_room(setup: &Setup) {
    let (bus, model) = declared(setup, "taken-back", &QueueOptions { max_messages: 2, ..patient_options() }).await;
    let worker = setup.connect().await;
    let (gone, stays) = (message(&model, 1), message(&model, 2));
    let queued = within("a publish", bus.publish(&gone)).await.expect("the queue takes the message");
    publish(&*bus, &stays).await;
    let take_back = async || {
        within("a cancellation", bus.cancel(&gone.request_id)).await.expect("it is sent");
        within("taking it back", bus.take_back(&queued)).await.expect("it is out of the queue");
    };
    take_back().await;
    publish(&*bus, &message(&model, 3)).await;
    let mut puller = open(&*worker, &model).await;
    for expected in [2, 3] {
        let delivery = take(&mut puller, "those that stayed").await;
        assert_eq!(number(&delivery), expected);
        delivery.acker.ack().await.expect("acknowledged");
    }
    // It is not there any more.
    take_back().await;
    assert_idle(&mut puller, A_WHILE, "the other message was taken back").await;
}

/// The queue is full for `refused`, also while a worker has a message, and takes it once that is acknowledged.
async fn refuses_until_acknowledged(bus: &dyn Bus, model: &ModelKey, refused: &WorkMessage) {
    let full = |published| matches!(published, Err(BusError::Full { model: ref named }) if named == model);
    assert!(full(within("a refusal", bus.publish(refused)).await), "the queue is full");
    let delivery = take(&mut open(bus, model).await, "the first message").await;
    assert!(full(within("a refusal", bus.publish(refused)).await), "a delivered message still takes its place");
    delivery.acker.ack().await.expect("acknowledged");
    within("room after an acknowledgement", async {
        while let Err(error) = bus.publish(refused).await {
            assert!(full(Err(error)), "nothing else is wrong");
            // The acknowledgement is on its way.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub async fn one_worker_gets_messages_in_order(setup: &Setup) {
    let (bus, model) = declared(setup, "order", &patient_options()).await;
    let mut puller = open(&*bus, &model).await;
    for n in 0..50 {
        publish(&*bus, &message(&model, n)).await;
    }
    let mut numbers = Vec::new();
    while numbers.len() < 50 {
        let deliveries = within("the next messages", puller.next(8)).await.expect("work");
        assert!((1..=8).contains(&deliveries.len()), "got {} deliveries for room of 8", deliveries.len());
        for delivery in deliveries {
            numbers.push(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
}

pub async fn higher_levels_are_taken_first_and_no_level_is_forgotten(setup: &Setup) {
    let levels = [1, 2, 3].map(|level| (level, LevelPolicy::default())).into();
    let (bus, model) = declared(setup, "levels", &QueueOptions { levels, ..patient_options() }).await;
    for n in 0..12 {
        publish(&*bus, &message_at(&model, 3 - n % 3, i64::from(n))).await;
    }
    let mut puller = open(&*bus, &model).await;
    let mut taken = Vec::new();
    for room in [1, 2, 3, 1, 5] {
        let deliveries = within("messages of all levels", puller.next(room)).await.expect("work");
        assert_eq!(deliveries.len(), room, "there is more than enough");
        for delivery in deliveries {
            taken.push(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    assert_eq!(taken, [2, 5, 8, 11, 1, 4, 7, 10, 0, 3, 6, 9], "by level, then in order");
    // Also with less room than there are levels, and whichever it waited for.
    for (n, level) in [3, 1, 2, 3, 3, 2, 1].into_iter().enumerate() {
        let waiting = tokio::time::timeout(Duration::from_millis(30), puller.next(1 + n % 4)).await;
        assert!(waiting.is_err(), "the queue is empty, got {waiting:?}");
        publish(&*bus, &message_at(&model, level, n as i64)).await;
        let delivery = take(&mut puller, "the one message").await;
        assert_eq!((number(&delivery), delivery.message.level(), delivery.attempt), (n as i64, level, 1));
        delivery.acker.ack().await.expect("acknowledged");
    }
    let elsewhere = within("a refusal", bus.publish(&message_at(&model, 4, 0))).await;
    assert!(matches!(elsewhere, Err(BusError::NoQueue { .. })), "there is no such level: {elsewhere:?}");
    let left = within("the end of a worker", puller.stop()).await;
    assert!(left.is_none(), "nothing was left, got {left:?}");
}

/// At most so many wait at a level.
fn at_most(count: u64) -> LevelPolicy {
    LevelPolicy { max_waiting: Some(count), ..LevelPolicy::default() }
}

/// Publishes to a level until it is full; how many that took.
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
    let fill = async |level| fill(&*bus, &model, level).await;
    assert_eq!((fill(1).await, fill(2).await), (1, 3));
    within("a change", bus.declare_queue(&model, &options(5))).await.expect("limits can be raised");
    assert_eq!((fill(1).await, fill(2).await), (4, 0));
    within("a change", bus.declare_queue(&model, &options(2))).await.expect("limits can be lowered");
    let mut puller = open(&*bus, &model).await;
    for _ in 0..8 {
        take(&mut puller, "a message from before").await.acker.ack().await.expect("acknowledged");
    }
    assert_idle(&mut puller, A_WHILE, "nothing was lost, nothing else is there").await;
    // Whoever waited for more gives back what comes to it.
    let no_room = tokio::time::timeout(A_WHILE, puller.next(0)).await;
    assert!(no_room.is_err(), "the queue is empty, got {no_room:?}");
    assert_eq!((fill(1).await, fill(2).await), (2, 3));
}

pub async fn what_workers_have_does_not_wait(setup: &Setup) {
    let levels = [(1, at_most(2)), (2, at_most(1))].into();
    let options = QueueOptions { levels, ..patient_options() };
    let (bus, model) = declared(setup, "in-hand", &options).await;
    let workers = [setup.connect().await, setup.connect().await];
    for worker in &workers {
        within("a queue", worker.declare_queue(&model, &options)).await.expect("as each worker does");
    }
    let mut pullers = [open(&*workers[0], &model).await, open(&*workers[1], &model).await];
    let mut in_hand: Vec<Delivery> = Vec::new();
    // Batches that are not full, of one level and of several.
    for (worker, levels, room) in [(0, &[1][..], 3), (1, &[1, 1, 2][..], 5), (0, &[2][..], 1), (1, &[1, 2][..], 2)] {
        for (n, &level) in levels.iter().enumerate() {
            publish(&*bus, &message_at(&model, level, n as i64)).await;
        }
        let before = in_hand.len();
        while in_hand.len() < before + levels.len() {
            let left = room - (in_hand.len() - before);
            in_hand.extend(within("all that wait", pullers[worker].next(left)).await.expect("work"));
        }
    }
    assert!(in_hand.iter().all(|delivery| delivery.attempt == 1));
    let status = bus.queue_status(&model, &[1, 2], true).await.expect("status");
    assert_eq!((status.waiting, status.delivered), (0, 7));
    for puller in &mut pullers {
        let no_room = tokio::time::timeout(A_WHILE, puller.next(0)).await;
        assert!(no_room.is_err(), "nothing waits, got {no_room:?}");
    }
    assert_eq!((fill(&*bus, &model, 1).await, fill(&*bus, &model, 2).await), (2, 1), "as if nothing were executed");
    let status = bus.queue_status(&model, &[1, 2], true).await.expect("status");
    assert_eq!((status.waiting, status.delivered), (3, 7));
    for delivery in in_hand {
        delivery.acker.ack().await.expect("acknowledged");
    }
    for _ in 0..3 {
        take(&mut pullers[0], "what waited").await.acker.ack().await.expect("acknowledged");
    }
    assert_idle(&mut pullers[1], A_WHILE, "each came once").await;
}

pub async fn a_worker_that_became_busy_takes_nothing_before_higher_levels(setup: &Setup) {
    let levels = [1, 2, 3].map(|level| (level, LevelPolicy::default())).into();
    let (bus, model) = declared(setup, "busy", &QueueOptions { levels, ..patient_options() }).await;
    let mut puller = open(&*bus, &model).await;
    for round in 0..5 {
        // It waits for all levels, gets one, and is busy from then on.
        let waiting = tokio::time::timeout(Duration::from_millis(30), puller.next(1)).await;
        assert!(waiting.is_err(), "the queue is empty, got {waiting:?}");
        publish(&*bus, &message_at(&model, 2, 0)).await;
        let first = take(&mut puller, "the first message").await;
        for (n, level) in [3, 3, 2, 1].into_iter().enumerate() {
            publish(&*bus, &message_at(&model, level, n as i64)).await;
        }
        let busy = tokio::time::timeout(Duration::from_millis(50 * round), puller.next(0)).await;
        assert!(busy.is_err(), "there is no room, got {busy:?}");
        first.acker.ack().await.expect("acknowledged");
        for expected in [3, 2, 0, 1] {
            let delivery = take(&mut puller, "the next by level, then by age").await;
            assert_eq!((number(&delivery), delivery.attempt), (expected, 1), "round {round}");
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
}

pub async fn what_waits_too_long_can_be_taken_without_room(setup: &Setup) {
    let age = Duration::from_millis(300);
    let patient =
        LevelPolicy { timeout: Some(WaitTimeout::Reject(Duration::from_secs(600))), ..LevelPolicy::default() };
    let impatient = LevelPolicy { timeout: Some(WaitTimeout::Reject(age)), ..LevelPolicy::default() };
    let levels = [(1, patient), (2, impatient)].into();
    let (bus, model) = declared(setup, "overdue", &QueueOptions { levels, ..patient_options() }).await;
    let mut puller = open(&*bus, &model).await;
    let started = std::time::Instant::now();
    for n in 0..100 {
        publish(&*bus, &message_at(&model, 2, n)).await;
    }
    publish(&*bus, &message_at(&model, 1, 100)).await;
    let early = within("a look", puller.overdue()).await.expect("a look");
    assert!(early.is_empty() || started.elapsed() >= age, "nothing has waited so long, got {early:?}");
    drop(early);
    tokio::time::sleep(age).await;
    publish(&*bus, &message_at(&model, 2, 101)).await;
    let mut numbers = Vec::new();
    while numbers.len() < 100 {
        for delivery in within("a look", puller.overdue()).await.expect("a look") {
            numbers.push(number(&delivery));
            assert_eq!(delivery.attempt, 1, "nobody has begun it");
            delivery.acker.ack().await.expect("acknowledged");
        }
        assert!(started.elapsed() < Duration::from_secs(20), "overdue messages are found, so far {numbers:?}");
    }
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    let young = take(&mut puller, "that of the patient level").await;
    assert_eq!(number(&young), 100);
    young.acker.ack().await.expect("acknowledged");
}

pub async fn what_waits_too_long_goes_behind_others_of_its_level(setup: &Setup) {
    let (age, level) = (Duration::from_millis(400), LevelPolicy::default());
    let delaying = LevelPolicy { timeout: Some(WaitTimeout::Delay(age)), ..level };
    let options = QueueOptions { levels: [(1, delaying), (2, level)].into(), ..patient_options() };
    let (bus, model) = declared(setup, "delayed", &options).await;
    let mut puller = open(&*bus, &model).await;
    publish(&*bus, &message_at(&model, 2, 9)).await;
    for n in 0..3 {
        publish(&*bus, &message_at(&model, 1, n)).await;
    }
    tokio::time::sleep(age + Duration::from_millis(50)).await;
    let started = std::time::Instant::now();
    for n in 3..6 {
        publish(&*bus, &message_at(&model, 1, n)).await;
    }
    let mut taken = Vec::new();
    for room in [1, 1, 2, 1, 1, 1] {
        let deliveries = within("the next messages", puller.next(room)).await.expect("work");
        for delivery in deliveries {
            assert_eq!(delivery.attempt, 1, "to be let behind is no attempt");
            taken.push(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    if started.elapsed() < age {
        assert_eq!(taken, [3, 4, 5, 0, 1, 2, 9]);
    }
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2, 3, 4, 5, 9], "each came once");
    assert_idle(&mut puller, A_WHILE, "each came once").await;
}

pub async fn a_worker_takes_no_more_than_it_has_room_for(setup: &Setup) {
    let (bus, model) = declared(setup, "room", &patient_options()).await;
    let (one, two) = (setup.connect().await, setup.connect().await);
    let (mut busy, mut peer) = (open(&*one, &model).await, open(&*two, &model).await);
    // The busy worker waits first, so that all of the queue is its to take.
    assert_idle(&mut busy, A_WHILE, "an empty queue").await;
    for n in 0..20 {
        publish(&*bus, &message(&model, n)).await;
    }
    let mut taken: Vec<Delivery> = Vec::new();
    while taken.len() < 3 {
        let more = within("work for the busy worker", busy.next(3 - taken.len())).await.expect("work");
        taken.extend(more);
    }
    assert_eq!(taken.len(), 3);
    let mut numbers: HashSet<i64> = taken.iter().map(number).collect();
    for _ in taken.len()..20 {
        let delivery = take(&mut peer, "what the busy worker has no room for").await;
        assert!(numbers.insert(number(&delivery)), "message {} came twice", number(&delivery));
        delivery.acker.ack().await.expect("acknowledged");
    }
    for delivery in taken {
        delivery.acker.ack().await.expect("acknowledged");
    }
}

pub async fn a_worker_that_stops_gets_what_was_sent_to_it(setup: &Setup) {
    let (bus, model) = declared(setup, "stopping", &patient_options()).await;
    let (one, two) = (setup.connect().await, setup.connect().await);
    let (mut stopping, mut peer) = (open(&*one, &model).await, open(&*two, &model).await);
    let waiting = tokio::time::timeout(A_WHILE, stopping.next(3)).await;
    assert!(waiting.is_err(), "the queue is empty, got {waiting:?}");
    for n in 0..6 {
        publish(&*bus, &message(&model, n)).await;
    }
    // A broker sends what was asked for, though nobody looks.
    tokio::time::sleep(A_WHILE).await;
    let mut numbers = HashSet::new();
    while let Some(deliveries) = within("the end of a worker", stopping.stop()).await {
        for delivery in deliveries {
            assert_eq!(delivery.attempt, 1, "nothing was handed back");
            numbers.insert(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    while numbers.len() < 6 {
        let delivery = take(&mut peer, "what the worker that stopped was not sent").await;
        assert_eq!(delivery.attempt, 1, "nothing was handed back");
        assert!(numbers.insert(number(&delivery)), "message {} came twice", number(&delivery));
        delivery.acker.ack().await.expect("acknowledged");
    }
}

pub async fn waiting_for_work_can_be_cancelled_without_loss(setup: &Setup) {
    const MESSAGES: i64 = 300;
    let (bus, model) = declared(setup, "cancelled", &patient_options()).await;
    let worker = setup.connect().await;
    let mut puller = open(&*worker, &model).await;
    let publishing = async {
        for n in 0..MESSAGES {
            publish(&*bus, &message(&model, n)).await;
            if n % 3 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let pulling = async {
        let mut numbers = HashSet::new();
        for round in 0u64.. {
            if numbers.len() as i64 == MESSAGES {
                return;
            }
            // Also given up before it could wait at all.
            let patience = Duration::from_micros(500 * (round % 4));
            let Ok(deliveries) = tokio::time::timeout(patience, puller.next(3)).await else { continue };
            for delivery in deliveries.expect("work") {
                assert_eq!(delivery.attempt, 1, "nothing was let go");
                assert!(numbers.insert(number(&delivery)), "message {} came twice", number(&delivery));
                delivery.acker.ack().await.expect("acknowledged");
            }
        }
    };
    within("every message in spite of cancelled waits", async { tokio::join!(publishing, pulling) }).await;
}

pub async fn many_publishers_and_workers_lose_and_repeat_nothing(setup: &Setup) {
    const PARTIES: usize = 4;
    const MESSAGES: usize = 2000;
    let (bus, model) = declared(setup, "many", &patient_options()).await;
    let others = [setup.connect().await, setup.connect().await, setup.connect().await];
    let buses = [&bus, &others[0], &others[1], &others[2]];
    let (left, numbers) = (AtomicUsize::new(MESSAGES), Mutex::new(HashSet::new()));

    let (model, left, numbers) = (&model, &left, &numbers);
    let publishing = (0..PARTIES).map(|party| async move {
        for n in (party..MESSAGES).step_by(PARTIES) {
            publish(&**buses[party], &message(model, n as i64)).await;
        }
    });
    let pulling = (0..PARTIES).map(|party| async move {
        let mut puller = open(&**buses[party], model).await;
        while left.load(Ordering::Relaxed) > 0 {
            // A worker that gets none of the last messages has to notice the end.
            let Ok(deliveries) = tokio::time::timeout(A_WHILE, puller.next(16)).await else { continue };
            for delivery in deliveries.expect("work") {
                assert!(numbers.lock().insert(number(&delivery)), "message {} came twice", number(&delivery));
                delivery.acker.ack().await.expect("acknowledged");
                left.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
    within("all messages", async { tokio::join!(join_all(publishing), join_all(pulling)) }).await;
    assert_eq!(numbers.lock().len(), MESSAGES);
    assert_idle(&mut open(&**buses[0], model).await, A_WHILE, "everything was acknowledged").await;
}

pub async fn a_large_message_passes_and_can_be_delivered_again(setup: &Setup) {
    let (bus, model) = declared(setup, "large", &QueueOptions { max_bytes: 64 << 20, ..patient_options() }).await;
    let worker = setup.connect().await;
    let mut puller = open(&*worker, &model).await;
    let (large, small) = (heavy_message(&model, LARGE), message(&model, 1));
    publish(&*bus, &large).await;
    publish(&*bus, &large).await;
    publish(&*bus, &small).await;
    let mut deliveries = vec![take(&mut puller, "one message").await, take(&mut puller, "the other").await];
    // One whose body has to be fetched may come later.
    deliveries.sort_by_key(|delivery| delivery.message.request_id != large.request_id);
    assert_eq!(deliveries[0].message, large);
    assert_eq!(deliveries[1].message, small);
    let again = deliveries.remove(0).acker;
    deliveries.remove(0).acker.ack().await.expect("acknowledged");
    again.nak(Duration::ZERO).await.expect("refused");
    let again = take(&mut puller, "the large message again").await;
    assert_eq!((&again.message, again.attempt), (&large, 2));
    again.acker.ack().await.expect("acknowledged");
    assert_idle(&mut puller, A_WHILE, "both messages were acknowledged").await;
}

async fn declared(setup: &Setup, name: &str, options: &QueueOptions) -> (std::sync::Arc<dyn Bus>, ModelKey) {
    let (bus, model) = (setup.connect().await, model(name));
    within("a queue", bus.declare_queue(&model, options)).await.expect("a queue is made");
    (bus, model)
}

async fn open(bus: &dyn Bus, model: &ModelKey) -> Box<dyn Puller> {
    within("a hold on the queue", bus.pull(model)).await.expect("the queue can be worked on")
}

async fn publish(bus: &dyn Bus, message: &WorkMessage) {
    within("a publish", bus.publish(message)).await.expect("the queue takes the message");
}

fn only(deliveries: Result<Vec<Delivery>, BusError>) -> Delivery {
    let mut deliveries = deliveries.expect("work");
    assert_eq!(deliveries.len(), 1, "one message was published");
    deliveries.remove(0)
}

pub async fn a_queue_says_how_full_it_is(setup: &Setup) {
    let (bus, model) = (setup.connect().await, model("full"));
    let unknown = bus.queue_status(&model, &[0], false).await;
    assert!(matches!(unknown, Err(BusError::NoQueue { .. })), "a queue that was never declared: {unknown:?}");
    bus.declare_queue(&model, &patient_options()).await.expect("declare");
    assert_eq!(bus.queue_status(&model, &[0], false).await.expect("status"), QueueStatus::default());
    for n in 0..3 {
        bus.publish(&message(&model, n)).await.expect("publish");
    }
    let mut puller = bus.pull(&model).await.expect("pull");
    let first = take(&mut puller, "the first message").await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let status = bus.queue_status(&model, &[0], false).await.expect("status");
    assert_eq!((status.waiting, status.delivered), (2, 1));
    assert!(status.oldest >= Duration::from_millis(25) && status.oldest < Duration::from_secs(20), "{status:?}");
    first.acker.ack().await.expect("ack");
    for _ in 0..2 {
        take(&mut puller, "the others").await.acker.ack().await.expect("ack");
    }
    within("an empty queue", async {
        while bus.queue_status(&model, &[0], false).await.expect("status") != QueueStatus::default() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
