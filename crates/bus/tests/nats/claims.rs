//! Bodies that travel by claim: how they are stored, read and discarded, and the handling of lost claims.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use bytes::Bytes;
use futures_util::StreamExt;
use trireme_bus::fixtures::{LARGE, heavy_message, message, model, number, options, take, within};
use trireme_bus::{BusError, Connection, Output, QueueOptions, WorkMessage, encode_work};
use trireme_inference::{Hop, Ledger, ModelKey, UnixMicros};
use trireme_testkit::NatsServer;

use super::{awaited, connect, vectors, work_headers};

#[tokio::test]
async fn a_message_over_every_limit_is_refused_at_once() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("large");
    bus.declare_queue(&model, &options()).await.unwrap();
    let large = heavy_message(&model, 128 << 20);
    let started = Instant::now();
    let published = bus.publish(&large).await;
    assert!(matches!(published, Err(BusError::TooLarge { limit, .. }) if limit == 128 << 20), "{published:?}");
    let replied = bus.reply(large.reply(Ok(Output { tensors: large.tensors.clone(), ..Output::default() }))).await;
    assert!(matches!(replied, Err(BusError::TooLarge { limit, .. }) if limit == 128 << 20), "{replied:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "took {:?}", started.elapsed());

    bus.publish(&heavy_message(&model, 7 << 20)).await.expect("what is below the limit is taken");
    assert_eq!(claims(&server).await, Some(0), "and is no claim");
}

/// Messages in the stream of claims; `None` if the stream does not exist.
async fn claims(server: &NatsServer) -> Option<u64> {
    let client = async_nats::connect(server.url()).await.expect("the server was started");
    let mut stream = jetstream::new(client).get_stream("trireme_claims").await.ok()?;
    Some(stream.info().await.expect("the stream is there").state.messages)
}

async fn no_claims_left(server: &NatsServer) {
    within("the end of all claims", async {
        while claims(server).await != Some(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A message of which no step has run.
fn from_a_gateway(model: &ModelKey, size: usize) -> WorkMessage {
    WorkMessage { ledger: Ledger::default(), ..heavy_message(model, size) }
}

/// The result of the same step when it runs again.
fn run_again(message: &WorkMessage) -> WorkMessage {
    let mut again = WorkMessage { sent_at: message.sent_at.after(Duration::from_secs(3)), ..message.clone() };
    again.ledger.0.push(Hop { worker: "another worker, with a longer name".into(), ..Hop::default() });
    again
}

async fn claims_are(server: &NatsServer, count: Option<u64>, why: &str) {
    within(why, async {
        while claims(server).await != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A stream that has the subjects of claims.
const OTHER: &str = "OTHER";

/// A broker that does not answer for the stream of claims. The stream does not exist, and another one with its subjects keeps gateways from
/// making it. This subscription keeps the broker from reporting "no responders".
pub struct Silence {
    questions: async_nats::Subscriber,
}

impl Silence {
    pub async fn of_claims(server: &NatsServer) -> Silence {
        let client = async_nats::connect(server.url()).await.expect("the server was started");
        let raw = jetstream::new(client.clone());
        raw.delete_stream("trireme_claims").await.expect("a gateway made it");
        let subjects = vec!["trireme.claim.>".to_owned()];
        let other = jetstream::stream::Config { name: OTHER.to_owned(), subjects, ..Default::default() };
        raw.create_stream(other).await.expect("the server was started");
        let questions = client.subscribe("$JS.API.DIRECT.GET.trireme_claims.>").await.expect("the server was started");
        jetstream::new(client).query_account().await.expect("the server was started");
        Silence { questions }
    }

    /// Waits until a part of `claim` was asked for. From then on the broker answers again.
    pub async fn was_heard_by(mut self, claim: &str) {
        within("a question", async {
            while !self.questions.next().await.expect("the server is there").subject.contains(claim) {}
        })
        .await;
    }
}

/// Creates the stream of claims, unless a gateway is faster, with a claim of one part.
pub async fn put_object_by_hand(server: &NatsServer, claim: &str, body: Bytes) {
    let raw = jetstream::new(async_nats::connect(server.url()).await.expect("the server was started"));
    let config = jetstream::stream::Config {
        name: "trireme_claims".to_owned(),
        subjects: vec!["trireme.claim.>".to_owned()],
        allow_direct: true,
        storage: jetstream::stream::StorageType::Memory,
        ..Default::default()
    };
    let _ = raw.delete_stream(OTHER).await;
    raw.get_or_create_stream(config).await.expect("the server was started");
    raw.publish(format!("trireme.claim.{claim}.0"), body)
        .await
        .expect("the server was started")
        .await
        .expect("the server was started");
}

#[tokio::test]
async fn a_body_that_the_broker_does_not_give_is_asked_for_again_by_the_same_delivery() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "silent".into(), version: 1 };
    bus.declare_queue(&model, &options()).await.unwrap();
    let sent = message(&model, 1);
    let body = encode_work(&sent).unwrap();
    let mut headers = work_headers(&sent);
    headers.insert("Trireme-Claim", "hidden");
    headers.insert("Trireme-Claim-Bytes", body.len().to_string());
    headers.insert("Trireme-Claim-Parts", "1");
    let silence = Silence::of_claims(&server).await;
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    raw.publish_with_headers("trireme.work.silent.1.0.gateway.r", headers, "".into()).await.unwrap().await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    let found = async {
        silence.was_heard_by("hidden").await;
        put_object_by_hand(&server, "hidden", body).await;
    };
    let (delivery, ()) = tokio::join!(take(&mut consumer, "the message with its body"), found);
    assert_eq!((&delivery.message, delivery.deliveries), (&sent, 1), "it was kept alive for longer than ack_wait");
}

#[tokio::test]
async fn a_result_that_is_made_again_leaves_the_first_one_whole() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("made again");
    bus.declare_queue(&model, &options()).await.unwrap();
    let first = heavy_message(&model, LARGE);
    bus.publish(&first).await.unwrap();
    let parts = claims(&server).await;
    let again = run_again(&first);
    assert_eq!(again.message_id(), first.message_id());
    bus.publish(&again).await.unwrap();
    claims_are(&server, parts, "the end of what nobody will read").await;

    // A claim is not left behind either if the broker has no room for it, or if its sender stops half way.
    for _ in 0..2 {
        bus.publish(&from_a_gateway(&model, 100 << 20)).await.unwrap();
    }
    let parts = claims(&server).await;
    let larger = WorkMessage { tensors: heavy_message(&model, 100 << 20).tensors, ..run_again(&again) };
    let refused = bus.publish(&larger).await.unwrap_err();
    assert!(matches!(refused, BusError::ClaimsFull { .. }), "{refused:?}");
    claims_are(&server, parts, "the end of what was refused").await;
    let delivery = take(&mut bus.pull(&model).await.unwrap(), "the first result").await;
    assert_eq!(delivery.message, first);

    let mut inbox_of_replies = Vec::new();
    let inbox = bus.open_inbox("gateway").await.unwrap();
    for result in [&first, &again] {
        let result = WorkMessage { gateway: "gateway".into(), ..result.clone() };
        let mut waiting = inbox.expect(&awaited(&result.request_id));
        let output = Output { tensors: result.tensors.clone(), ..Output::default() };
        let reply = trireme_bus::Reply { sequence: 0, last: true, ..result.reply(Ok(output)) };
        bus.reply(reply.clone()).await.unwrap();
        inbox_of_replies.push(within("the reply", waiting.next()).await == reply);
    }
    assert_eq!(inbox_of_replies, [true, true]);
}

#[tokio::test]
async fn a_full_queue_keeps_nothing_of_what_it_refused() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("one only");
    bus.declare_queue(&model, &QueueOptions { max_messages: 1, ..options() }).await.unwrap();
    bus.publish(&heavy_message(&model, LARGE)).await.unwrap();
    let parts = claims(&server).await;
    for _ in 0..12 {
        let refused = bus.publish(&heavy_message(&model, LARGE)).await;
        assert!(matches!(refused, Err(BusError::Full { .. })), "{refused:?}");
    }
    claims_are(&server, parts, "the end of what was refused").await;
}

#[tokio::test]
async fn nothing_is_put_for_a_queue_that_is_not_there() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    for _ in 0..3 {
        let published = bus.publish(&heavy_message(&model("nowhere"), LARGE)).await;
        assert!(matches!(published, Err(BusError::NoQueue { .. })), "{published:?}");
    }
    assert_eq!(claims(&server).await, Some(0));
}

#[tokio::test]
async fn a_sender_that_leaves_while_it_lays_down_leaves_nothing() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("left");
    bus.declare_queue(&model, &options()).await.unwrap();
    bus.publish(&heavy_message(&model, LARGE)).await.unwrap();
    let parts = claims(&server).await;
    let large = heavy_message(&model, 100 << 20);
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut put = client.subscribe("trireme.claim.>").await.unwrap();
    jetstream::new(client).query_account().await.expect("the server has seen that we listen");
    let leaving = async {
        // The second part is sent when the first is stored.
        for _ in 0..2 {
            put.next().await.expect("the server is there");
        }
    };
    tokio::select! {
        published = bus.publish(&large) => panic!("more than a hundred parts were sent before a few were seen: {published:?}"),
        () = leaving => {}
    }
    claims_are(&server, parts, "the end of what was left").await;
}

#[tokio::test]
async fn a_message_that_is_late_is_dropped_with_its_claim_unread() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("late");
    bus.declare_queue(&model, &options()).await.unwrap();
    let late = WorkMessage { deadline: UnixMicros::now(), ..heavy_message(&model, LARGE) };
    bus.publish(&late).await.unwrap();
    let good = message(&model, 7);
    bus.publish(&good).await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    assert_eq!(number(&take(&mut consumer, "the good one").await), 7);
    tokio::select! {
        () = no_claims_left(&server) => {}
        deliveries = consumer.next(1) => panic!("the other is late, got {deliveries:?}"),
    }
}

#[tokio::test]
async fn claims_end_with_what_they_are_for() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("claims");
    bus.declare_queue(&model, &options()).await.unwrap();
    let large = from_a_gateway(&model, LARGE);
    bus.publish(&large).await.unwrap();
    let parts = claims(&server).await;
    assert_eq!(parts, Some(25), "24 MiB and a little in parts of 1 MiB");
    bus.publish(&large).await.unwrap();
    assert_eq!(claims(&server).await, parts, "published again it replaces itself");
    let mut consumer = bus.pull(&model).await.unwrap();
    take(&mut consumer, "the message").await.acker.nak(Duration::ZERO).await.unwrap();
    let delivery = take(&mut consumer, "the message again").await;
    assert_eq!(claims(&server).await, parts, "kept while it is worked on");
    delivery.acker.ack().await.unwrap();
    no_claims_left(&server).await;

    let lapsing = WorkMessage { deadline: UnixMicros::now(), ..heavy_message(&model, 9 << 20) };
    bus.publish(&lapsing).await.unwrap();
    assert_eq!(claims(&server).await, Some(10));
    no_claims_left(&server).await;

    let inbox = bus.open_inbox("gateway").await.unwrap();
    let mut waiting = inbox.expect(&awaited(&large.request_id));
    let reply = large.reply(Ok(Output { tensors: large.tensors.clone(), ..Output::default() }));
    bus.reply(reply.clone()).await.unwrap();
    assert_eq!(within("the reply", waiting.next()).await, reply);
    no_claims_left(&server).await;
}

#[tokio::test]
async fn a_full_store_of_claims_says_so_and_keeps_nothing_of_what_it_refused() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("full");
    bus.declare_queue(&model, &options()).await.unwrap();
    for _ in 0..2 {
        bus.publish(&heavy_message(&model, 120 << 20)).await.unwrap();
    }
    let kept = claims(&server).await;
    let refused = bus.publish(&heavy_message(&model, 120 << 20)).await.unwrap_err();
    assert!(matches!(refused, BusError::ClaimsFull { .. }), "{refused:?}");
    assert!(refused.to_string().contains("stream trireme_claims is full"), "{refused}");
    within("the end of what was refused", async {
        while claims(&server).await != kept {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_the_broker_lost_is_found_when_its_message_is_published_again() {
    let mut server = NatsServer::start();
    let gateway = connect(&server).await;
    let model = model("restart");
    // The message is kept on disk, its claim is not.
    gateway.declare_queue(&model, &QueueOptions { file_storage: true, ..options() }).await.unwrap();
    let large = from_a_gateway(&model, LARGE);
    gateway.publish(&large).await.unwrap();
    server.stop();
    server.restart();
    let mut connection = gateway.connection();
    let back = within("the connection", connection.wait_for(|state| matches!(state, Connection::Up(_)))).await;
    back.map(drop).unwrap();
    let worker = connect(&server).await;
    let mut consumer = worker.pull(&model).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(300), consumer.next(1)).await;
    assert!(waiting.is_err(), "there is no body, got {waiting:?}");
    gateway.publish(&large).await.unwrap();
    let delivery = take(&mut consumer, "the message with its body").await;
    assert_eq!(delivery.message, large);
    delivery.acker.ack().await.unwrap();
    no_claims_left(&server).await;
}

/// The gateway then finds the request in no queue, and publishes it again.
#[tokio::test]
async fn a_message_whose_claim_is_lost_for_good_leaves_its_queue() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("lost claim");
    bus.declare_queue(&model, &options()).await.unwrap();
    let large = WorkMessage { gateway: "gateway".into(), ..heavy_message(&model, LARGE) };
    bus.publish(&large).await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    raw.delete_stream("trireme_claims").await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    let gone = async {
        while !bus.unsettled(&model, &[0], "gateway").await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = within("an empty queue", gone) => {}
        deliveries = consumer.next(1) => panic!("there is nothing to deliver, got {deliveries:?}"),
    }
}

#[tokio::test]
async fn claims_that_are_not_what_they_say_are_refused() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "hostile".into(), version: 1 };
    bus.declare_queue(&model, &options()).await.unwrap();
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    // This creates the stream of claims.
    bus.publish(&heavy_message(&model, LARGE)).await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    take(&mut consumer, "the good one").await.acker.ack().await.unwrap();
    raw.publish("trireme.claim.c.0", vec![0; 1000].into()).await.unwrap().await.unwrap();
    let huge = usize::MAX.to_string();
    let claims = [
        ("c", "999", "1"),
        ("c", "1001", "1"),
        ("c", &huge, "1"),
        ("c", "10", &huge),
        ("c.d", "1", "1"),
        ("c", "-1", "1"),
    ];
    for (number, (name, bytes, parts)) in claims.into_iter().enumerate() {
        let sent =
            WorkMessage { gateway: "gateway".into(), request_id: format!("r{number}").into(), ..message(&model, 1) };
        let mut headers = work_headers(&sent);
        headers.insert("Trireme-Claim", name);
        headers.insert("Trireme-Claim-Bytes", bytes);
        headers.insert("Trireme-Claim-Parts", parts);
        let published = raw
            .publish_with_headers(format!("trireme.work.hostile.1.0.gateway.r{number}"), headers, "".into())
            .await
            .unwrap();
        published.await.unwrap();
    }
    let mut waiting = inbox.expect(&awaited("r2"));
    let good = message(&model, 7);
    bus.publish(&good).await.unwrap();
    assert_eq!(number(&take(&mut consumer, "the good one").await), 7);
    let reply = tokio::select! {
        reply = within("an answer", waiting.next()) => reply,
        deliveries = consumer.next(1) => panic!("the others are malformed, got {deliveries:?}"),
    };
    assert!(reply.outcome.unwrap_err().message.contains("has parts of"));
}

#[tokio::test]
async fn claims_are_on_the_wire_as_the_golden_vectors_say() {
    let server = NatsServer::start_with_max_payload(vectors::CLAIM_ABOVE);
    let bus = connect(&server).await;
    for vector in vectors::all().into_iter().filter(|vector| vector.claimed) {
        let vectors::Message::Work(work) = &vector.message else { panic!("{} is work", vector.name) };
        // A claim past its deadline would lapse during the test.
        let work = WorkMessage { deadline: UnixMicros::now().after(Duration::from_secs(60)), ..work.clone() };
        let model = work.queue().unwrap();
        bus.declare_queue(model, &options()).await.unwrap();
        bus.publish(&work).await.unwrap();
        let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
        let stream = raw.get_stream("trireme_claims").await.unwrap();
        for (subject, bytes) in vector.parts() {
            let part = stream.get_last_raw_message_by_subject(&subject).await.unwrap();
            assert_eq!(part.payload, bytes, "{}: {subject}", vector.name);
        }
        let stream = raw.get_stream("trireme_work_minilm_2").await.unwrap();
        let message = stream.get_last_raw_message_by_subject(&vector.message.subject()).await.unwrap();
        assert!(message.payload.is_empty());
        for (name, value) in vector.headers().into_iter().filter(|(name, _)| *name != "Trireme-Deadline") {
            assert_eq!(message.headers.get(name).map(|found| found.as_str()), Some(value.as_str()), "{name}");
        }
        let delivery = take(&mut bus.pull(model).await.unwrap(), "the message").await;
        assert_eq!(delivery.message, work);
    }
}
