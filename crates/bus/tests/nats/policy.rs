//! Queues with a policy: what becomes of messages between a level's stream and that of what is scheduled.

use std::time::{Duration, Instant};

use async_nats::jetstream::{self, AckKind, consumer::PullConsumer};
use futures_util::{StreamExt, TryStreamExt};
use trireme_bus::conformance::fixtures::{message, number, take, within};
use trireme_bus::{Bus, LevelPolicy, Nats, QueueOptions};
use trireme_inference::ModelKey;
use trireme_testkit::NatsServer;

use crate::{connect, options};

fn model(name: &str) -> ModelKey {
    ModelKey { name: name.to_owned(), version: 1 }
}

fn limited(max_waiting: u64) -> QueueOptions {
    let policy = LevelPolicy { max_waiting: Some(max_waiting), ..LevelPolicy::default() };
    QueueOptions { levels: [(0, policy)].into(), ..options() }
}

async fn declared(server: &NatsServer, model: &ModelKey, options: &QueueOptions) -> Nats {
    let bus = connect(server).await;
    bus.declare_queue(model, options).await.expect("a queue is made");
    bus
}

async fn raw(server: &NatsServer) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.expect("the server was started"))
}

/// Messages that the workers' consumer has delivered since the stream was made, and how many are in it.
async fn delivered(raw: &jetstream::Context, stream: &str) -> (u64, u64) {
    let mut stream = raw.get_stream(stream).await.expect("the queue was made");
    let mut workers: PullConsumer = stream.get_consumer("workers").await.expect("and its consumer");
    let delivered = workers.info().await.expect("it is there").delivered.consumer_sequence;
    (delivered, stream.info().await.expect("it is there").state.messages)
}

#[tokio::test]
async fn a_full_schedule_holds_workers_up_and_changes_no_order() {
    let server = NatsServer::start();
    let (model, raw) = (model("full-schedule"), raw(&server).await);
    let options = QueueOptions { max_messages: 2, ..limited(2) };
    let (busy, idle) = (declared(&server, &model, &options).await, declared(&server, &model, &options).await);
    for n in 0..2 {
        busy.publish(&message(&model, n)).await.unwrap();
    }
    let mut in_hand = within("two messages", busy.pull(&model).await.unwrap().next(2)).await.unwrap();
    while in_hand.len() < 2 {
        in_hand.extend(within("the other", busy.pull(&model).await.unwrap().next(1)).await.unwrap());
    }
    for n in 2..4 {
        busy.publish(&message(&model, n)).await.unwrap();
    }
    let mut puller = idle.pull(&model).await.unwrap();
    let before = delivered(&raw, "trireme_work_full-schedule_1").await.0;
    let waiting = tokio::time::timeout(Duration::from_secs(1), puller.next(2)).await;
    assert!(waiting.is_err(), "there is no room in the schedule, got {waiting:?}");
    let (after, waiting) = delivered(&raw, "trireme_work_full-schedule_1").await;
    assert_eq!(waiting, 2, "what cannot be scheduled waits");
    assert!(after - before <= 60, "two messages were tried {} times in a second", after - before);
    for delivery in in_hand {
        delivery.acker.ack().await.unwrap();
    }
    for expected in [2, 3] {
        let delivery = take(&mut puller, "those that had to wait").await;
        assert_eq!((number(&delivery), delivery.attempt), (expected, 1));
        delivery.acker.ack().await.unwrap();
    }
}

#[tokio::test]
async fn what_a_worker_left_scheduled_is_taken_by_another_and_once() {
    let server = NatsServer::start();
    let (model, raw) = (model("left"), raw(&server).await);
    let bus = declared(&server, &model, &limited(5)).await;
    for n in 0..2 {
        bus.publish(&message(&model, n)).await.unwrap();
    }
    // As one that dies between putting a message into the schedule and confirming it at its level.
    let stream = raw.get_stream("trireme_work_left_1").await.unwrap();
    let workers: PullConsumer = stream.get_consumer("workers").await.unwrap();
    let message = workers.fetch().max_messages(1).messages().await.unwrap().next().await.unwrap().unwrap();
    let headers = message.headers.clone().unwrap();
    let scheduled = raw.publish_with_headers("trireme.work.left.1.scheduled", headers, message.payload.clone()).await;
    scheduled.unwrap().await.unwrap();
    let started = Instant::now();
    let mut puller = bus.pull(&model).await.unwrap();
    for expected in [0, 1] {
        let delivery = take(&mut puller, "what was left, then the other").await;
        assert_eq!((number(&delivery), delivery.attempt), (expected, 1));
        delivery.acker.ack().await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(10), "as soon as it was looked for");
    // Its copy comes again at the level, and goes nowhere.
    let again = tokio::time::timeout(options().ack_wait * 2, puller.next(1)).await;
    assert!(again.is_err(), "it was executed, got {again:?}");
    assert_eq!(delivered(&raw, "trireme_work_left_1").await.1, 0);
}

#[tokio::test]
async fn what_was_given_back_often_is_fresh_where_the_policy_is_gone() {
    let server = NatsServer::start();
    let (model, raw) = (model("no-policy"), raw(&server).await);
    let bus = declared(&server, &model, &limited(5)).await;
    bus.publish(&message(&model, 7)).await.unwrap();
    let stream = raw.get_stream("trireme_work_no-policy_1").await.unwrap();
    let workers: PullConsumer = stream.get_consumer("workers").await.unwrap();
    for _ in 0..200 {
        let messages: Vec<_> = workers.fetch().max_messages(1).messages().await.unwrap().try_collect().await.unwrap();
        for message in messages {
            message.ack_with(AckKind::Nak(None)).await.unwrap();
        }
    }
    bus.declare_queue(&model, &options()).await.unwrap();
    let delivery = take(&mut bus.pull(&model).await.unwrap(), "the message, however often it was delivered").await;
    assert_eq!((number(&delivery), delivery.attempt), (7, 1));
    delivery.acker.ack().await.unwrap();
}
