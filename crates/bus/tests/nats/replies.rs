//! Replies that are lost on their way, by a connection, a broker or the stream of claims: the broker delivers the
//! request again.

use std::time::Duration;

use async_nats::{HeaderMap, RequestErrorKind, jetstream};
use futures_util::StreamExt;
use trireme_bus::conformance::fixtures::{
    ACK_WAIT, LARGE, assert_idle, full_message, heavy_message, message, model, number, options, take, within,
};
use trireme_bus::{AnswerForm, Bus, Consumer, Delivery, Output, Part, Reply, WorkMessage, encode_reply, escape_token};
use trireme_inference::ModelKey;
use trireme_testkit::NatsServer;

use super::cable::Cable;
use super::claims::{Silence, put_object_by_hand};
use super::{awaited, connect, connect_as, connect_stage, stage_at};

fn request(id: &str) -> WorkMessage {
    let message = full_message(&model("replies"));
    WorkMessage { request_id: id.into(), gateway: "gateway".into(), answer: AnswerForm::Whole, ..message }
}

fn reply_of(request: &WorkMessage) -> Reply {
    request.reply(Ok(Output { tensors: request.tensors.clone(), ..Output::default() }))
}

/// A queue with one request of `gateway`, and a worker's consumer on it.
async fn queue_with(gateway: &dyn Bus, worker: &dyn Bus, request: &WorkMessage) -> Box<dyn Consumer> {
    let model = request.queue().expect("a request has a step").clone();
    gateway.declare_queue(&model, &options()).await.expect("a queue is made");
    // Workers declare the queue too, so that their connection knows its `ack_wait`.
    worker.declare_queue(&model, &options()).await.expect("a queue is made");
    gateway.publish(request).await.expect("the queue takes the message");
    worker.pull(&model).await.expect("the queue can be worked on")
}

/// Answers every delivery until `done`; returns how many there were.
async fn answer_until<T>(
    consumer: &mut Box<dyn Consumer>,
    answer: impl AsyncFn(Delivery),
    done: impl Future<Output = T>,
) -> (T, u32) {
    let mut done = std::pin::pin!(done);
    let mut answered = 0;
    let all = async {
        loop {
            tokio::select! {
                biased;
                done = &mut done => return (done, answered),
                deliveries = consumer.next(1) => {
                    // After the connection was cut, the consumer may return an error.
                    for delivery in deliveries.into_iter().flatten() {
                        answered += 1;
                        assert_eq!(delivery.deliveries, answered, "each delivery is answered");
                        answer(delivery).await;
                    }
                }
            }
        }
    };
    within("what is waited for", all).await
}

#[tokio::test]
async fn a_reply_that_is_lost_with_its_connection_is_made_again() {
    let server = NatsServer::start();
    let cable = Cable::cut_at(&server, &["trireme.reply.", "trireme.reply."]).await;
    let (gateway, worker) = (connect(&server).await, connect_as(&stage_at(&cable.url())).await);
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    let request = WorkMessage { gateway: "gateway".into(), ..message(&model("cut"), 1) };
    let mut consumer = queue_with(&*gateway, &*worker, &request).await;
    let mut waiting = inbox.expect(&request);
    let answer = async |mut delivery: Delivery| {
        let reply = reply_of(&delivery.message);
        worker.reply(reply, Some(&mut delivery.acker)).await.unwrap();
    };
    let (reply, answered) = answer_until(&mut consumer, answer, waiting.next()).await;
    assert_eq!(reply.outcome.unwrap().tensors, request.tensors);
    assert_eq!((cable.faults(), answered), (2, 3));
    assert_idle(&mut consumer, ACK_WAIT * 2, "a delivery that was answered").await;
}

#[tokio::test]
async fn no_part_of_an_answer_is_lost_with_its_workers_connection() {
    const PARTS: u32 = 100;
    let server = NatsServer::start();
    let cable =
        Cable::cut_at(&server, &["Trireme-Sequence: 0\r", "Trireme-Sequence: 42\r", "Trireme-Sequence: 99\r"]).await;
    let (gateway, worker) = (connect(&server).await, connect_as(&stage_at(&cable.url())).await);
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    let request = WorkMessage { gateway: "gateway".into(), answer: AnswerForm::InParts, ..message(&model("cut"), 1) };
    let mut consumer = queue_with(&*gateway, &*worker, &request).await;
    let mut waiting = inbox.expect(&request);
    let answer = async |mut delivery: Delivery| {
        for sequence in 0..PARTS {
            let last = sequence + 1 == PARTS;
            let reply = Reply { sequence, last, ..reply_of(&delivery.message) };
            let ends = last.then_some(&mut delivery.acker);
            // A reply that cannot be sent is made again.
            let _ = worker.reply(reply, ends).await;
        }
    };
    let reading = async {
        for sequence in 0..PARTS {
            let part = waiting.next().await;
            assert_eq!((part.sequence, part.last), (sequence, sequence + 1 == PARTS));
        }
    };
    let ((), answered) = answer_until(&mut consumer, answer, reading).await;
    assert_eq!(cable.faults(), 3);
    assert!(answered > 1, "it was made again");
    assert_idle(&mut consumer, ACK_WAIT * 2, "a delivery that was answered").await;
}

/// If parts of an answer go through further steps, each part is a delivery of its own that ends with its own reply.
#[tokio::test]
async fn a_part_ends_its_delivery_though_others_are_missing() {
    let server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect_stage(&server).await);
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    let request = WorkMessage { request_id: "r".into(), gateway: "gateway".into(), ..message(&model("parts"), 1) };
    let part = |sequence| {
        let answer = AnswerForm::Part(Part { sequence, last: sequence == 2 });
        WorkMessage { answer, ..request.clone() }
    };
    let parts = [part(0), part(1), part(2)];
    let mut waiting = inbox.expect(&parts[0]);
    let mut consumer = queue_with(&*gateway, &*worker, &parts[2]).await;
    gateway.publish(&parts[1]).await.unwrap();
    for sequence in [2, 1] {
        let mut delivery = take(&mut consumer, "a part").await;
        let reply = reply_of(&delivery.message);
        assert_eq!(reply.sequence, sequence);
        worker.reply(reply, Some(&mut delivery.acker)).await.unwrap();
    }
    assert_idle(&mut consumer, ACK_WAIT * 2, "parts that were answered").await;
    worker.reply(reply_of(&parts[0]), None).await.unwrap();
    for sequence in 0..3 {
        assert_eq!(within("a part", waiting.next()).await.sequence, sequence);
    }
}

/// Waits until the broker knows that no gateway listens for the replies to `gateway` any more. The gateway and the
/// worker use two connections, and the broker keeps no order between them.
async fn unheard(server: &NatsServer, gateway: &str) {
    let client = async_nats::connect(server.url()).await.expect("the server was started");
    let wait = async {
        loop {
            // A listener would get the question and not answer it.
            let asked = tokio::time::timeout(
                Duration::from_millis(200),
                client.request(format!("trireme.reply.{gateway}.nobody"), "".into()),
            );
            match asked.await {
                Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => return,
                _ => {}
            }
        }
    };
    within("the end of the gateway's inbox", wait).await;
}

#[tokio::test]
async fn a_gateway_that_is_gone_causes_no_rerun() {
    let server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect_stage(&server).await);
    let request = WorkMessage { gateway: "gone".into(), ..message(&model("gone"), 1) };
    let inbox = gateway.open_inbox("gone").await.unwrap();
    let mut consumer = queue_with(&*gateway, &*worker, &request).await;
    let mut deliveries = vec![take(&mut consumer, "the request").await];
    // A request that travels by claim, and whose reply does too.
    let large = WorkMessage { gateway: "gone".into(), ..heavy_message(request.queue().unwrap(), LARGE) };
    gateway.publish(&large).await.unwrap();
    deliveries.push(take(&mut consumer, "the large request").await);
    drop(inbox);
    gateway.close().await;
    unheard(&server, "gone").await;
    for mut delivery in deliveries {
        worker.reply(reply_of(&delivery.message), Some(&mut delivery.acker)).await.unwrap();
    }
    assert_idle(&mut consumer, ACK_WAIT * 2, "requests of a gateway that is gone").await;
    let status = worker.queue_status(request.queue().unwrap(), &[0]).await.unwrap();
    assert_eq!(status, trireme_bus::QueueStatus::default());
}

/// Publishes a reply to `id` with a claim of `bytes` bytes. The reply ends the delivery that `ends` settles.
async fn reply_by_claim(server: &NatsServer, id: &str, claim: &str, bytes: usize, ends: Option<&str>) {
    let client = async_nats::connect(server.url()).await.expect("the server was started");
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("Trireme-Contract", "2"),
        ("Trireme-Request", id),
        ("Trireme-Gateway", "gateway"),
        ("Trireme-Sequence", "0"),
        ("Trireme-Final", "true"),
        ("Trireme-Claim", claim),
        ("Trireme-Claim-Bytes", &bytes.to_string()),
        ("Trireme-Claim-Parts", "1"),
    ] {
        headers.insert(name, value);
    }
    let subject = format!("trireme.reply.gateway.{id}");
    let sent = match ends {
        None => client.publish_with_headers(subject, headers, "".into()).await,
        Some(ends) => {
            let unheard = format!("{}.{}.=.request", client.new_inbox(), escape_token(ends));
            client.publish_with_reply_and_headers(subject, unheard, headers, "".into()).await
        }
    };
    sent.expect("the server was started");
    client.flush().await.expect("the server was started");
}

#[tokio::test]
async fn a_reply_whose_body_is_gone_is_made_again() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let model = ModelKey { name: "bodies".into(), version: 1 };
    let request = WorkMessage { request_id: "r".into(), gateway: "gateway".into(), ..message(&model, 1) };
    let mut consumer = queue_with(&*bus, &*bus, &request).await;
    let mut waiting = inbox.expect(&request);

    // Acts as a worker whose claim the broker lost.
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let stream = raw.get_stream("trireme_work_bodies_1").await.unwrap();
    let workers: jetstream::consumer::PullConsumer = stream.get_consumer("workers").await.unwrap();
    let delivered = within("the request", async {
        workers.stream().max_messages_per_batch(1).messages().await.unwrap().next().await.unwrap().unwrap()
    });
    let delivered = delivered.await;
    reply_by_claim(&server, "r", "nobodys", 9_000_000, delivered.reply.as_deref()).await;

    let answer = async |mut delivery: Delivery| {
        bus.reply(reply_of(&delivery.message), Some(&mut delivery.acker)).await.unwrap();
    };
    let again = take(&mut consumer, "the request again").await;
    assert_eq!(again.deliveries, 2);
    answer(again).await;
    assert!(within("the reply", waiting.next()).await.outcome.is_ok());
    // A repeated reply is dropped, but its delivery is still acknowledged.
    let request = WorkMessage { request_id: "s".into(), ..request };
    bus.publish(&request).await.unwrap();
    let mut waiting = inbox.expect(&request);
    let delivered = within("the request", async {
        workers.stream().max_messages_per_batch(1).messages().await.unwrap().next().await.unwrap().unwrap()
    });
    let delivered = delivered.await;
    bus.reply(reply_of(&request), None).await.unwrap();
    within("the reply", waiting.next()).await;
    reply_by_claim(&server, "s", "nobodys", 9_000_000, delivered.reply.as_deref()).await;
    assert_idle(&mut consumer, ACK_WAIT * 2, "its reply has been had").await;
}

#[tokio::test]
async fn large_replies_that_cannot_be_read_hold_up_nobody_and_are_read_when_they_can_be() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let silence = Silence::of_claims(&server).await;
    let stuck: Vec<_> = (0..40).map(|number| inbox.expect(&awaited(&format!("stuck{number}")))).collect();
    for number in 0..40 {
        reply_by_claim(&server, &format!("stuck{number}"), "nobodys", 9_000_000, None).await;
    }
    let mut waiting = inbox.expect(&awaited("small"));
    let small = reply_of(&request("small"));
    bus.reply(small.clone(), None).await.unwrap();
    assert_eq!(within("the small reply", waiting.next()).await, small);
    drop(stuck);

    let late = reply_of(&request("late"));
    let body = encode_reply(&late).unwrap();
    let mut waiting = inbox.expect(&awaited("late"));
    reply_by_claim(&server, "late", "late", body.len(), None).await;
    silence.was_heard_by("late").await;
    put_object_by_hand(&server, "late", body).await;
    assert_eq!(within("the reply that can be read now", waiting.next()).await, late);
}

#[tokio::test]
async fn an_old_acknowledgement_settles_nothing_in_a_queue_made_anew() {
    let mut server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("anew");
    bus.declare_queue(&model, &options()).await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    bus.publish(&message(&model, 1)).await.unwrap();
    let old = take(&mut consumer, "a message of the first queue").await;
    server.kill();
    server.restart();
    within("a queue anew", async {
        while bus.declare_queue(&model, &options()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    within("a message in it", async {
        while bus.publish(&message(&model, 2)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let mut consumer = bus.pull(&model).await.unwrap();
    let new = take(&mut consumer, "the message of the second queue").await;
    old.acker.ack().await.unwrap();
    drop(new);
    let again = take(&mut consumer, "the same message, as its worker died").await;
    assert_eq!((number(&again), again.deliveries), (2, 2));
}
