//! Properties of queues: each message is delivered once and to one worker, and a queue has limits.
//!
//! Not here: queues with a policy (`policies`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use trireme_inference::ModelKey;

use super::setup::Setup;
use trireme_bus::fixtures::{
    LARGE, assert_idle, full_message, heavy_message, message, model, number, patient_options, take, unique, within,
};
use trireme_bus::{Bus, BusError, Consumer, Delivery, QueueOptions, QueueStatus, WorkMessage};

/// Time in which a wrong message would have arrived.
pub(super) const A_WHILE: Duration = Duration::from_millis(200);

pub async fn a_message_arrives_whole_at_exactly_one_worker(setup: &Setup) {
    let (gateway, one, two) = (setup.connect().await, setup.connect().await, setup.connect().await);
    let model = model("whole");
    declare(setup, &*one, &model, &patient_options()).await;
    let mut consumers = [open(&*one, &model).await, open(&*two, &model).await];

    let sent = full_message(&model);
    publish(&*gateway, &sent).await;
    let [first, second] = &mut consumers;
    let delivery = within("the message at one of two workers", async {
        tokio::select! {
            deliveries = first.next(1) => deliveries,
            deliveries = second.next(1) => deliveries,
        }
    });
    let delivery = only(delivery.await);
    assert_eq!(delivery.message, sent);
    assert_eq!(delivery.deliveries, 1);
    for consumer in &mut consumers {
        assert_idle(consumer, A_WHILE, "the message was delivered").await;
    }
    delivery.acker.ack().await.expect("acknowledged");
}

pub async fn publishing_to_a_queue_that_nobody_declared_says_so(setup: &Setup) {
    let bus = setup.connect().await;
    let model = model("undeclared");
    let published = within("an answer about the queue", bus.publish(&message(&model, 0))).await;
    assert!(matches!(published, Err(BusError::NoQueue { model: ref named }) if *named == model), "{published:?}");
    // One bus reports this when a consumer opens, another when it pulls.
    let pulled = within("an answer about the queue", async { bus.pull(&model).await?.next(1).await }).await;
    assert!(matches!(pulled, Err(BusError::NoQueue { model: ref named }) if *named == model), "{pulled:?}");
}

pub async fn a_queue_can_be_declared_again_and_by_many_at_once(setup: &Setup) {
    let (one, two) = (setup.connect_gateway().await, setup.connect_gateway().await);
    let (model, options) = (model("declared"), patient_options());
    let declare = |bus| within("a queue", Bus::declare_queue(bus, &model, &options));
    for declared in join_all([&*one, &*two, &*one, &*two, &*one, &*two].map(declare)).await {
        declared.expect("any number may declare a queue at once");
    }
    publish(&*one, &message(&model, 7)).await;
    declare(&*two).await.expect("a queue may be declared again");
    let worker = setup.connect().await;
    let delivery = take(&mut open(&*worker, &model).await, "what was in the queue before").await;
    assert_eq!(number(&delivery), 7);
    delivery.acker.ack().await.expect("acknowledged");
}

pub async fn a_step_published_twice_is_delivered_once(setup: &Setup) {
    let (bus, model) = declared(setup, "twice", &patient_options()).await;
    let sent = message(&model, 1);
    publish(&*bus, &sent).await;
    publish(&*setup.connect().await, &sent).await;
    let mut consumer = open(&*bus, &model).await;
    let delivery = take(&mut consumer, "the message").await;
    publish(&*bus, &sent).await;
    assert_idle(&mut consumer, A_WHILE, "the same step").await;
    delivery.acker.ack().await.expect("acknowledged");
    // The request's next step is another message, even if the same model runs it.
    let mut next = sent.clone();
    next.route = trireme_inference::Route::resume(model.clone(), false, 1, sent.route.remaining().to_vec());
    publish(&*bus, &next).await;
    take(&mut consumer, "the next step").await.acker.ack().await.expect("acknowledged");
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
    let mut consumer = open(&*worker, &model).await;
    for expected in [2, 3] {
        let delivery = take(&mut consumer, "those that stayed").await;
        assert_eq!(number(&delivery), expected);
        delivery.acker.ack().await.expect("acknowledged");
    }
    // The message is gone already.
    take_back().await;
    assert_idle(&mut consumer, A_WHILE, "the other message was taken back").await;
}

/// Checks that the queue is full for `refused`, also while a worker has a message, and accepts it after the
/// acknowledgement.
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
    let mut consumer = open(&*bus, &model).await;
    for n in 0..50 {
        publish(&*bus, &message(&model, n)).await;
    }
    let mut numbers = Vec::new();
    while numbers.len() < 50 {
        let deliveries = within("the next messages", consumer.next(8)).await.expect("work");
        assert!((1..=8).contains(&deliveries.len()), "got {} deliveries for room of 8", deliveries.len());
        for delivery in deliveries {
            numbers.push(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
}

pub async fn a_worker_takes_no_more_than_it_has_room_for(setup: &Setup) {
    let (bus, model) = declared(setup, "room", &patient_options()).await;
    let (one, two) = (setup.connect().await, setup.connect().await);
    let (mut busy, mut peer) = (open(&*one, &model).await, open(&*two, &model).await);
    // The busy worker waits first, so it could take all messages.
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
    // A broker sends the messages that were asked for, even if the worker does not read them.
    tokio::time::sleep(A_WHILE).await;
    let mut numbers = HashSet::new();
    while let Some(deliveries) = within("the end of a worker", stopping.stop()).await {
        for delivery in deliveries {
            assert_eq!(delivery.deliveries, 1, "nothing was given back");
            numbers.insert(number(&delivery));
            delivery.acker.ack().await.expect("acknowledged");
        }
    }
    while numbers.len() < 6 {
        let delivery = take(&mut peer, "what the worker that stopped was not sent").await;
        assert_eq!(delivery.deliveries, 1, "nothing was given back");
        assert!(numbers.insert(number(&delivery)), "message {} came twice", number(&delivery));
        delivery.acker.ack().await.expect("acknowledged");
    }
}

pub async fn waiting_for_work_can_be_cancelled_without_loss(setup: &Setup) {
    const MESSAGES: i64 = 300;
    let (bus, model) = declared(setup, "cancelled", &patient_options()).await;
    let worker = setup.connect().await;
    let mut consumer = open(&*worker, &model).await;
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
            // With no patience, the caller also gives up before the consumer has waited.
            let patience = Duration::from_micros(500 * (round % 4));
            let Ok(deliveries) = tokio::time::timeout(patience, consumer.next(3)).await else { continue };
            for delivery in deliveries.expect("work") {
                assert_eq!(delivery.deliveries, 1, "nothing was let go");
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
        let mut consumer = open(&**buses[party], model).await;
        while left.load(Ordering::Relaxed) > 0 {
            // A worker that gets none of the last messages still has to notice the end.
            let Ok(deliveries) = tokio::time::timeout(A_WHILE, consumer.next(16)).await else { continue };
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
    let mut consumer = open(&*worker, &model).await;
    let (large, small) = (heavy_message(&model, LARGE), message(&model, 1));
    publish(&*bus, &large).await;
    publish(&*bus, &large).await;
    publish(&*bus, &small).await;
    let mut deliveries = vec![take(&mut consumer, "one message").await, take(&mut consumer, "the other").await];
    // A message whose body has to be fetched may come later.
    deliveries.sort_by_key(|delivery| delivery.message.request_id != large.request_id);
    assert_eq!(deliveries[0].message, large);
    assert_eq!(deliveries[1].message, small);
    let again = deliveries.remove(0).acker;
    deliveries.remove(0).acker.ack().await.expect("acknowledged");
    again.nak(Duration::ZERO).await.expect("refused");
    let again = take(&mut consumer, "the large message again").await;
    assert_eq!((&again.message, again.deliveries), (&large, 2));
    again.acker.ack().await.expect("acknowledged");
    assert_idle(&mut consumer, A_WHILE, "both messages were acknowledged").await;
}

pub(super) async fn declared(setup: &Setup, name: &str, options: &QueueOptions) -> (std::sync::Arc<dyn Bus>, ModelKey) {
    let (bus, model) = (setup.connect().await, model(name));
    declare(setup, &*bus, &model, options).await;
    (bus, model)
}

/// A gateway makes a queue, and a worker waits for it.
pub(super) async fn declare(setup: &Setup, worker: &dyn Bus, model: &ModelKey, options: &QueueOptions) {
    let (gateway, waiting) = (setup.connect_gateway().await, worker.declare_queue(model, options));
    let (made, there) = within("a queue", async { tokio::join!(gateway.declare_queue(model, options), waiting) }).await;
    made.expect("a queue is made");
    there.expect("the queue is there");
}

pub(super) async fn open(bus: &dyn Bus, model: &ModelKey) -> Box<dyn Consumer> {
    within("a hold on the queue", bus.pull(model)).await.expect("the queue can be worked on")
}

pub(super) async fn publish(bus: &dyn Bus, message: &WorkMessage) {
    within("a publish", bus.publish(message)).await.expect("the queue takes the message");
}

fn only(deliveries: Result<Vec<Delivery>, BusError>) -> Delivery {
    let mut deliveries = deliveries.expect("work");
    assert_eq!(deliveries.len(), 1, "one message was published");
    deliveries.remove(0)
}

pub async fn a_queue_says_how_full_it_is(setup: &Setup) {
    let (bus, model) = (setup.connect().await, model("full"));
    let unknown = bus.queue_status(&model, &[0]).await;
    assert!(matches!(unknown, Err(BusError::NoQueue { .. })), "a queue that was never declared: {unknown:?}");
    declare(setup, &*bus, &model, &patient_options()).await;
    assert_eq!(bus.queue_status(&model, &[0]).await.expect("status"), QueueStatus::default());
    for n in 0..3 {
        bus.publish(&message(&model, n)).await.expect("publish");
    }
    let mut consumer = bus.pull(&model).await.expect("pull");
    let first = take(&mut consumer, "the first message").await;
    assert!(first.more, "two more wait");
    tokio::time::sleep(Duration::from_millis(30)).await;
    let status = bus.queue_status(&model, &[0]).await.expect("status");
    assert_eq!((status.waiting, status.delivered), ([2, 0], 1));
    let [live, bulk] = status.oldest;
    assert!(live >= Duration::from_millis(25) && live < Duration::from_secs(20), "{status:?}");
    assert_eq!(bulk, Duration::ZERO, "nothing waits in the other lane");
    let [second, third] = [take(&mut consumer, "the second").await, take(&mut consumer, "the third").await];
    assert_eq!((second.more, third.more), (true, false));
    let status = bus.queue_status(&model, &[0]).await.expect("status");
    assert_eq!(
        status,
        QueueStatus { waiting: [0; 2], delivered: 3, oldest: [Duration::ZERO; 2] },
        "workers have all of them"
    );
    for delivery in [first, second, third] {
        delivery.acker.ack().await.expect("ack");
    }
    within("an empty queue", async {
        while bus.queue_status(&model, &[0]).await.expect("status") != QueueStatus::default() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub async fn a_queue_says_which_requests_it_has(setup: &Setup) {
    let (bus, model) = declared(setup, "has", &patient_options()).await;
    let gateway = unique("gate.way");
    let of = |n| {
        let request_id = format!("{gateway}-{n}~1");
        WorkMessage { gateway: gateway.as_str().into(), request_id: request_id.into(), ..message(&model, n) }
    };
    let found = async || {
        let found = within("a look", bus.unsettled(&model, &[0], &gateway)).await.expect("a look");
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort();
        found
    };
    assert_eq!(found().await, Vec::<String>::new());
    publish(&*bus, &of(1)).await;
    publish(&*bus, &of(2)).await;
    publish(&*bus, &message(&model, 3)).await;
    assert_eq!(found().await, [of(1).request_id, of(2).request_id]);
    let mut consumer = open(&*bus, &model).await;
    let delivery = take(&mut consumer, "the first").await;
    assert_eq!(found().await.len(), 2, "also what a worker has");
    delivery.acker.ack().await.expect("acknowledged");
    within("a queue without it", async {
        while found().await != [of(2).request_id] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub async fn an_empty_queue_can_be_removed(setup: &Setup) {
    let (bus, model) = declared(setup, "removed", &patient_options()).await;
    publish(&*bus, &message(&model, 1)).await;
    assert!(bus.queues().await.expect("a look").get(&model).is_some_and(|levels| levels.contains(&0)));
    assert!(!within("a look", bus.remove_queue(&model)).await.expect("a look"), "it is not empty");
    let mut consumer = open(&*bus, &model).await;
    take(&mut consumer, "the message").await.acker.ack().await.expect("acknowledged");
    within("its end", async {
        while !bus.remove_queue(&model).await.expect("a look") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(!bus.queues().await.expect("a look").contains_key(&model));
    assert!(matches!(bus.publish(&message(&model, 2)).await, Err(BusError::NoQueue { .. })));
}
