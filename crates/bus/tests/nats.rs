//! The bus over a real nats-server: the properties of every bus, and what can go wrong only with a broker.

#[path = "golden/vectors.rs"]
mod vectors;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use trireme_bus::conformance::fixtures::{
    LARGE, full_message, heavy_message, message, model, number, options, take, within,
};
use trireme_bus::conformance::{self, Setup};
use trireme_bus::{
    Bus, BusError, Connection, DeadLetter, EnvelopeError, ModelState, Nats, NatsLogin, NatsOptions, NatsTls, Output,
    QueueOptions, RegistryEvent, WorkMessage, WorkerEntry, encode_reply, encode_work,
};
use trireme_inference::{ErrorCode, InferError, ModelKey, UnixMicros};
use trireme_testkit::NatsServer;

/// Longer than a publish may take that nobody confirms.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(15);

fn at(url: &str) -> NatsOptions {
    let connect_timeout = Duration::from_secs(10);
    NatsOptions {
        url: url.to_owned(),
        name: "test".to_owned(),
        service: "test".to_owned(),
        connect_timeout,
        login: NatsLogin::Anonymous,
        tls: NatsTls::default(),
    }
}

async fn connect(server: &NatsServer) -> Nats {
    Nats::connect(&at(&server.url())).await.expect("the server was started")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let server = NatsServer::start();
    let options = at(&server.url());
    let setup = Setup::new(move || {
        let options = options.clone();
        async move {
            let bus: Arc<dyn Bus> = Arc::new(Nats::connect(&options).await.expect("the server was started"));
            bus
        }
    });
    conformance::run(&setup).await;
}

#[tokio::test]
async fn a_broker_that_lost_everything_is_served_again() {
    let mut server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect(&server).await);
    let model = model("lost");
    worker.declare_queue(&model, &options()).await.unwrap();
    let mut puller = worker.pull(&model).await.unwrap();
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    gateway.publish(&message(&model, 1)).await.unwrap();
    take(&mut puller, "a message before").await.acker.ack().await.unwrap();
    let first = *gateway.connection().borrow();
    assert!(matches!(first, Connection::Up(_)), "{first:?}");

    server.kill();
    let started = Instant::now();
    let published = within("an end of publishing to nobody", gateway.publish(&message(&model, 2))).await;
    assert!(matches!(published, Err(BusError::Unreachable(_))), "{published:?}");
    assert!(started.elapsed() < GIVES_UP_WITHIN, "took {:?}", started.elapsed());
    let declared = within("an end of declaring to nobody", worker.declare_queue(&model, &options())).await;
    assert!(matches!(declared, Err(BusError::Unreachable(_))), "{declared:?}");
    assert_eq!(*gateway.connection().borrow(), Connection::Down);

    server.restart();
    for bus in [&gateway, &worker] {
        let mut connection = bus.connection();
        let back = within("the connection", connection.wait_for(|state| matches!(state, Connection::Up(_)))).await;
        assert_ne!(*back.unwrap(), first, "the connection is told to be another");
    }
    let published = within("an answer", gateway.publish(&message(&model, 3))).await;
    assert!(matches!(published, Err(BusError::NoQueue { .. })), "{published:?}");
    let pulled = within("word that the queue is gone", puller.next(1)).await;
    assert!(matches!(pulled, Err(BusError::NoQueue { .. })), "{pulled:?}");

    within("a queue", worker.declare_queue(&model, &options())).await.unwrap();
    gateway.publish(&message(&model, 4)).await.unwrap();
    let delivery = take(&mut puller, "a message for the puller from before").await;
    assert_eq!((number(&delivery), delivery.attempt), (4, 1));
    delivery.acker.ack().await.unwrap();
    gateway.publish(&message(&model, 5)).await.unwrap();
    let mut puller = worker.pull(&model).await.unwrap();
    let delivery = take(&mut puller, "a message for a new puller").await;

    let mut waiting = inbox.expect(&delivery.message.request_id);
    let reply = WorkMessage { gateway: "gateway".to_owned(), ..delivery.message.clone() }.reply(Ok(Output::default()));
    worker.reply(reply.clone()).await.unwrap();
    assert_eq!(within("a reply to the inbox from before", waiting.next()).await, reply);
}

#[tokio::test]
async fn a_registry_watch_outlives_the_broker() {
    let mut server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect(&server).await);
    let entry = entry("watched");
    worker.announce(&entry).await.unwrap();
    let mut events = gateway.watch_registry().await.unwrap();
    assert_eq!(within("the entry", events.recv()).await, Some(RegistryEvent::Put(entry.clone())));

    server.kill();
    let announced = within("an end of announcing to nobody", worker.announce(&entry)).await;
    assert!(matches!(announced, Err(BusError::Unreachable(_))), "{announced:?}");
    server.restart();
    let renewed = WorkerEntry { capacity: 77, ..entry };
    within("a renewal", async {
        while worker.announce(&renewed).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(within("the renewed entry", events.recv()).await, Some(RegistryEvent::Put(renewed)));
}

#[tokio::test]
async fn a_registry_entry_that_is_not_renewed_lapses() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let (renewed, left) = (entry("renewed"), entry("left"));
    bus.announce(&left).await.unwrap();
    let renewals = WorkerEntry::TIME_TO_LIVE.as_secs() + 2;
    for _ in 0..renewals {
        bus.announce(&renewed).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut events = bus.watch_registry().await.unwrap();
    assert_eq!(within("the entry", events.recv()).await, Some(RegistryEvent::Put(renewed)));
    let more = tokio::time::timeout(Duration::from_millis(300), events.recv()).await;
    assert!(more.is_err(), "nothing else is there, got {more:?}");
}

#[tokio::test]
async fn file_storage_survives_the_broker() {
    let mut server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("kept");
    bus.declare_queue(&model, &QueueOptions { file_storage: true, ..options() }).await.unwrap();
    bus.publish(&message(&model, 1)).await.unwrap();
    server.stop();
    server.restart();
    let bus = connect(&server).await;
    let mut puller = bus.pull(&model).await.unwrap();
    let delivery = take(&mut puller, "a message from before").await;
    assert_eq!(number(&delivery), 1);
    delivery.acker.ack().await.unwrap();
}

#[tokio::test]
async fn connecting_to_nobody_gives_up_in_time_and_says_where() {
    let closed = "127.0.0.1:1";
    let options = NatsOptions { connect_timeout: Duration::from_millis(1500), ..at(&format!("nats://{closed}")) };
    let started = Instant::now();
    let error = within("giving up", Nats::connect(&options)).await.err().expect("nobody is there");
    assert!(started.elapsed() >= Duration::from_millis(1500), "gave up after {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(30), "took {:?}", started.elapsed());
    assert!(matches!(error, BusError::Unreachable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(closed) && text.contains("refused"), "{text}");
}

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
    assert!(claims(&server).await.is_none(), "and is no claim");
}

/// Messages in the stream of claims; `None` when there is no such stream.
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

#[tokio::test]
async fn claims_end_with_what_they_are_for() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("claims");
    bus.declare_queue(&model, &options()).await.unwrap();
    let large = heavy_message(&model, LARGE);
    bus.publish(&large).await.unwrap();
    let parts = claims(&server).await;
    assert_eq!(parts, Some(25), "24 MiB and a little in parts of 1 MiB");
    bus.publish(&large).await.unwrap();
    assert_eq!(claims(&server).await, parts, "published again it replaces itself");
    let mut puller = bus.pull(&model).await.unwrap();
    take(&mut puller, "the message").await.acker.nak(Duration::ZERO).await.unwrap();
    let delivery = take(&mut puller, "the message again").await;
    assert_eq!(claims(&server).await, parts, "kept while it is worked on");
    delivery.acker.ack().await.unwrap();
    no_claims_left(&server).await;

    let lapsing = WorkMessage { deadline: UnixMicros::now(), ..heavy_message(&model, 9 << 20) };
    bus.publish(&lapsing).await.unwrap();
    assert_eq!(claims(&server).await, Some(10));
    no_claims_left(&server).await;

    let inbox = bus.open_inbox("gateway").await.unwrap();
    let mut waiting = inbox.expect(&large.request_id);
    let reply = large.reply(Ok(Output { tensors: large.tensors.clone(), ..Output::default() }));
    bus.reply(reply.clone()).await.unwrap();
    assert_eq!(within("the reply", waiting.next()).await, reply);
    no_claims_left(&server).await;
}

#[tokio::test]
async fn questions_and_answers_of_any_size_arrive() {
    let server = NatsServer::start_with_max_payload(4096);
    let (asker, listener) = (connect(&server).await, connect(&server).await);
    let mut questions = listener.questions("sizes").await.unwrap();
    for size in [0, 4000, 4096, 100_000] {
        let body = Bytes::from(vec![7; size]);
        let mut answers = asker.ask("sizes", body.clone()).await.unwrap();
        let question = within("the question", questions.recv()).await.expect("the bus is there");
        assert_eq!(question.body, body);
        question.answer(body.clone()).await.unwrap();
        assert_eq!(within("the answer", answers.recv()).await.expect("the listener is there"), body);
    }
    let asked = asker.ask("sizes", Bytes::from(vec![0; (128 << 20) + 1])).await;
    assert!(matches!(asked, Err(BusError::TooLarge { limit, .. }) if limit == 128 << 20));
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
    let large = heavy_message(&model, LARGE);
    gateway.publish(&large).await.unwrap();
    server.stop();
    server.restart();
    let mut connection = gateway.connection();
    let back = within("the connection", connection.wait_for(|state| matches!(state, Connection::Up(_)))).await;
    back.map(drop).unwrap();
    let worker = connect(&server).await;
    let mut puller = worker.pull(&model).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(300), puller.next(1)).await;
    assert!(waiting.is_err(), "there is no body, got {waiting:?}");
    gateway.publish(&large).await.unwrap();
    let delivery = take(&mut puller, "the message with its body").await;
    assert_eq!(delivery.message, large);
    delivery.acker.ack().await.unwrap();
    no_claims_left(&server).await;
}

#[tokio::test]
async fn a_claim_that_is_lost_for_good_is_answered() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("lost claim");
    bus.declare_queue(&model, &options()).await.unwrap();
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let deadline = UnixMicros::now().after(Duration::from_secs(20));
    let large = WorkMessage { gateway: "gateway".to_owned(), deadline, ..heavy_message(&model, LARGE) };
    let mut waiting = inbox.expect(&large.request_id);
    bus.publish(&large).await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    raw.delete_stream("trireme_claims").await.unwrap();
    let mut puller = bus.pull(&model).await.unwrap();
    let reply = tokio::select! {
        reply = within("an answer", waiting.next()) => reply,
        deliveries = puller.next(1) => panic!("there is nothing to deliver, got {deliveries:?}"),
    };
    let error = reply.outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.starts_with("message was lost: part 0 of claim '"), "{error}");
    let left = deadline.since(UnixMicros::now());
    assert!(left > Duration::ZERO && left < Duration::from_secs(3), "told {left:?} before its deadline");
}

#[tokio::test]
async fn claims_that_are_not_what_they_say_are_refused() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "hostile".to_owned(), version: 1 };
    bus.declare_queue(&model, &options()).await.unwrap();
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    // Makes the stream.
    bus.publish(&heavy_message(&model, LARGE)).await.unwrap();
    let mut puller = bus.pull(&model).await.unwrap();
    take(&mut puller, "the good one").await.acker.ack().await.unwrap();
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
            WorkMessage { gateway: "gateway".to_owned(), request_id: format!("r{number}"), ..message(&model, 1) };
        let mut headers = work_headers(&sent);
        headers.insert("Trireme-Claim", name);
        headers.insert("Trireme-Claim-Bytes", bytes);
        headers.insert("Trireme-Claim-Parts", parts);
        let published = raw.publish_with_headers("trireme.work.hostile.1.0", headers, "".into()).await.unwrap();
        published.await.unwrap();
    }
    let mut waiting = inbox.expect("r2");
    let good = message(&model, 7);
    bus.publish(&good).await.unwrap();
    assert_eq!(number(&take(&mut puller, "the good one").await), 7);
    let reply = tokio::select! {
        reply = within("an answer", waiting.next()) => reply,
        deliveries = puller.next(1) => panic!("the others are malformed, got {deliveries:?}"),
    };
    assert!(reply.outcome.unwrap_err().message.contains("has parts of"));
}

#[tokio::test]
async fn claims_are_on_the_wire_as_the_golden_vectors_say() {
    let server = NatsServer::start_with_max_payload(vectors::CLAIM_ABOVE);
    let bus = connect(&server).await;
    for vector in vectors::all().into_iter().filter(|vector| vector.claimed) {
        let vectors::Message::Work(work) = &vector.message else { panic!("{} is work", vector.name) };
        // A claim whose time is over lapses while we look.
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

#[tokio::test]
async fn malformed_work_is_refused_and_holds_up_nothing() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "malformed".to_owned(), version: 1 };
    bus.declare_queue(&model, &options()).await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(server.url()).await.unwrap());

    let sent = message(&model, 1);
    let good = work_headers(&sent);
    let with = |name: &str, value: &str| {
        let mut headers = good.clone();
        headers.insert(name, value);
        headers
    };
    let body = encode_work(&sent).unwrap();
    let elsewhere = encode_work(&full_message(&ModelKey { name: "other".to_owned(), version: 1 })).unwrap();
    let malformed = [
        (HeaderMap::new(), body.clone()),
        (with("Trireme-Contract", "2"), body.clone()),
        (with("Trireme-Contract", ""), body.clone()),
        (with("Trireme-Deadline", "soon"), body.clone()),
        (with("Trireme-Deadline", "-1"), body.clone()),
        (with("Trireme-Priority", "4294967296"), body.clone()),
        (with("Trireme-Request", ""), body.clone()),
        (good.clone(), body.slice(..body.len() - 1)),
        (good.clone(), b"{\"json\":1}".to_vec().into()),
        (good.clone(), Vec::new().into()),
        (good.clone(), elsewhere),
    ];
    let count = malformed.len() as u64;
    for (headers, body) in malformed {
        let subject = "trireme.work.malformed.1.0";
        jetstream.publish_with_headers(subject, headers, body).await.unwrap().await.unwrap();
    }
    // What the test takes for good is good.
    jetstream.publish_with_headers("trireme.work.malformed.1.0", good, body).await.unwrap().await.unwrap();

    let mut stream = jetstream.get_stream("trireme_work_malformed_1").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, count + 1);
    let mut puller = bus.pull(&model).await.unwrap();
    let delivery = take(&mut puller, "the good message").await;
    assert_eq!((&delivery.message, delivery.attempt), (&sent, 1));
    delivery.acker.ack().await.unwrap();
    within("the end of the malformed ones", async {
        while stream.info().await.unwrap().state.messages > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn malformed_replies_are_ignored() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let mut waiting = inbox.expect("r");
    let raw = async_nats::connect(server.url()).await.unwrap();
    let headers = |sequence: &str, last: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("Trireme-Contract", "1");
        headers.insert("Trireme-Request", "r");
        headers.insert("Trireme-Gateway", "gateway");
        headers.insert("Trireme-Sequence", sequence);
        headers.insert("Trireme-Final", last);
        headers
    };
    let request = WorkMessage {
        request_id: "r".to_owned(),
        gateway: "gateway".to_owned(),
        answer: trireme_bus::Answer::Whole,
        ..full_message(&ModelKey { name: "m".to_owned(), version: 1 })
    };
    let reply = request.reply(Ok(Output { tensors: request.tensors.clone(), ..Output::default() }));
    let body = encode_reply(&reply).unwrap();
    let malformed = [
        (HeaderMap::new(), body.clone()),
        (headers("zero", "true"), body.clone()),
        (headers("0", "yes"), body.clone()),
        (headers("0", "true"), body.slice(1..)),
        (headers("0", "true"), body.slice(..body.len() / 2)),
    ];
    for (headers, body) in malformed {
        raw.publish_with_headers("trireme.reply.gateway.r", headers, body).await.unwrap();
    }
    raw.publish_with_headers("trireme.reply.gateway.r", headers("0", "true"), body).await.unwrap();
    assert_eq!(within("the good reply", waiting.next()).await, reply);
}

#[tokio::test]
async fn malformed_registry_entries_are_ignored() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let (first, second) = (entry("first"), entry("second"));
    bus.announce(&first).await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let bucket = raw.get_key_value("trireme_registry").await.unwrap();
    for (key, value) in [("m.1.w", "no JSON"), ("m.1.x", "{}"), ("m.1.y", "")] {
        bucket.put(key, value.into()).await.unwrap();
    }
    let mut events = bus.watch_registry().await.unwrap();
    assert_eq!(within("the good entry", events.recv()).await, Some(RegistryEvent::Put(first)));
    bucket.put("m.1.z", b"\xff\xfe"[..].into()).await.unwrap();
    bus.announce(&second).await.unwrap();
    assert_eq!(within("the next good entry", events.recv()).await, Some(RegistryEvent::Put(second)));
}

#[tokio::test]
async fn a_message_that_killed_all_its_workers_makes_room_after_its_deadline() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("poison");
    bus.declare_queue(&model, &QueueOptions { max_messages: 1, max_deliver: 1, ..options() }).await.unwrap();
    bus.publish(&WorkMessage { deadline: UnixMicros::now(), ..message(&model, 1) }).await.unwrap();
    let mut puller = bus.pull(&model).await.unwrap();
    for attempt in 1..=2 {
        assert_eq!(take(&mut puller, "the message, to die of it").await.attempt, attempt);
    }
    let next = message(&model, 2);
    assert!(matches!(bus.publish(&next).await, Err(BusError::Full { .. })), "the broker keeps it so far");
    within("room", async {
        while bus.publish(&next).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(number(&take(&mut puller, "the next message").await), 2);
}

#[tokio::test]
async fn a_message_without_deadline_is_kept() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("forever");
    bus.declare_queue(&model, &options()).await.unwrap();
    bus.publish(&WorkMessage { deadline: UnixMicros::NEVER, ..message(&model, 1) }).await.unwrap();
    assert_eq!(number(&take(&mut bus.pull(&model).await.unwrap(), "the message").await), 1);
}

#[tokio::test]
async fn a_line_break_in_what_a_client_sent_starts_no_header() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("line break");
    bus.declare_queue(&model, &options()).await.unwrap();
    let sent = WorkMessage { traceparent: Some("00-\r\nTrireme-Final: true".to_owned()), ..message(&model, 1) };
    let published = bus.publish(&sent).await;
    let Err(BusError::Envelope(EnvelopeError::Header { name: "traceparent", found, .. })) = published else {
        panic!("{published:?}")
    };
    assert_eq!(found, r"'00-\r\nTrireme-Final: true'");
}

#[tokio::test]
async fn dead_letters_are_kept_with_their_reason() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "poison".to_owned(), version: 7 };
    let message = message(&model, 1);
    let reason = InferError::internal("worker\ndied").at(&model, "worker-1");
    for _ in 0..2 {
        let letter = DeadLetter { message: message.clone(), reason: reason.clone(), attempts: 4 };
        bus.dead_letter(letter).await.unwrap();
    }
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let mut stream = raw.get_stream("trireme_dead").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 1, "one step is set aside once");
    let letter = stream.get_last_raw_message_by_subject("trireme.dead.poison.7").await.unwrap();
    let header = |name| letter.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Trireme-Dead-Reason").as_deref(), Some("worker died"));
    assert_eq!(header("Trireme-Dead-Attempts").as_deref(), Some("4"));
    assert_eq!(header("Trireme-Request"), Some(message.request_id.clone()));
    assert_eq!(letter.payload, encode_work(&message).unwrap());
}

#[tokio::test]
async fn messages_are_on_the_wire_as_the_golden_vectors_say() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    for vector in vectors::all().into_iter().filter(|vector| !vector.claimed) {
        let mut messages = client.subscribe(vector.message.subject()).await.unwrap();
        // The answer to a question says that the broker has read the subscription before it.
        jetstream::new(client.clone()).query_account().await.unwrap();
        match &vector.message {
            vectors::Message::Work(work) => {
                let levels = [(work.level(), None)].into();
                bus.declare_queue(work.queue().unwrap(), &QueueOptions { levels, ..options() }).await.unwrap();
                bus.publish(work).await.unwrap();
            }
            vectors::Message::Reply(reply) => bus.reply(reply.clone()).await.unwrap(),
        }
        let message = within("the message", messages.next()).await.unwrap();
        assert_eq!(message.payload, vector.message.encode().unwrap(), "{}", vector.name);
        let headers = message.headers.unwrap();
        // How long the broker keeps it depends on the time of day.
        let found: BTreeMap<_, _> = headers
            .iter()
            .filter(|(name, _)| name.to_string() != "Nats-TTL")
            .map(|(name, values)| (name.to_string(), values[0].to_string()))
            .collect();
        let expected = vector.message.headers().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(found, expected, "{}", vector.name);
    }
}

/// A work message's headers as the contract has them.
fn work_headers(message: &WorkMessage) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Trireme-Contract", "1");
    headers.insert("Trireme-Request", message.request_id.as_str());
    headers.insert("Trireme-Gateway", message.gateway.as_str());
    headers.insert("Trireme-Deadline", message.deadline.to_string());
    headers.insert("Trireme-Priority", message.priority.to_string());
    headers
}

fn entry(name: &str) -> WorkerEntry {
    WorkerEntry {
        worker: format!("worker of {name}"),
        service: "model".to_owned(),
        host: "host".to_owned(),
        model: model(name),
        state: ModelState::Ready,
        config: "{}".to_owned(),
        capacity: 1,
        since: UnixMicros(1),
    }
}

#[tokio::test]
async fn a_process_shows_in_the_nats_service_api() {
    let server = NatsServer::start();
    let worker = connect(&server).await;
    let metadata = [("models".to_owned(), "bert:1".to_owned())].into();
    worker.advertise("model", metadata).await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let info = within("an answer to $SRV.INFO", client.request("$SRV.INFO.trireme-model", "".into())).await.unwrap();
    let info = String::from_utf8_lossy(&info.payload).into_owned();
    assert!(info.contains(r#""name":"trireme-model""#) && info.contains(r#""models":"bert:1""#), "{info}");
}

#[tokio::test]
async fn a_queue_whose_storage_cannot_be_changed_is_refused_with_the_way_out() {
    let server = NatsServer::start();
    let worker = connect(&server).await;
    let model = model("storage");
    worker.declare_queue(&model, &options()).await.unwrap();
    let on_disk = QueueOptions { file_storage: true, ..options() };
    let error = worker.declare_queue(&model, &on_disk).await.unwrap_err().to_string();
    assert!(error.starts_with("message bus refused making a work queue: "), "{error}");
    assert!(error.contains("nats stream rm trireme_work_storage"), "{error}");
}
