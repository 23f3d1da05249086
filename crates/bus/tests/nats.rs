//! The bus over a real nats-server: the properties of every bus, and faults that only a broker has.

#[path = "nats/accounts.rs"]
mod accounts;
#[path = "nats/busy.rs"]
mod busy;
#[path = "nats/claims.rs"]
mod claims;
#[path = "nats/foreign.rs"]
mod foreign;
#[path = "nats/replies.rs"]
mod replies;
#[path = "nats/settings.rs"]
mod settings;
#[path = "nats/stores.rs"]
mod stores;
#[path = "golden/vectors.rs"]
mod vectors;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use trireme_bus::fixtures::{full_message, message, message_at, model, number, options, take, within};
use trireme_bus::{
    AttemptNote, Bus, BusError, Connection, DeadLetter, Deployment, EnvelopeError, LevelPolicy, ModelState, Nats,
    NatsOptions, Output, QueueOptions, RegistryEvent, RegistryEvents, WorkMessage, WorkerEntry, encode_reply,
    encode_work, queue_pause,
};
use trireme_inference::{InferError, Lane, ModelKey, UnixMicros};
use trireme_testkit::NatsServer;

use crate::conformance::{self, Setup, states};

/// Longer than the retries of an unconfirmed publish.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(15);

fn at(url: &str) -> NatsOptions {
    let connect_timeout = Duration::from_secs(10);
    NatsOptions {
        url: url.into(),
        name: "test".to_owned(),
        service: "test".to_owned(),
        deployment: Some(Deployment { queue: options(), ..Deployment::default() }),
        connect_timeout,
        ..NatsOptions::default()
    }
}

/// A request without a deadline.
fn awaited(request_id: &str) -> WorkMessage {
    WorkMessage { request_id: request_id.into(), deadline: UnixMicros::NEVER, ..message(&model("awaited"), 1) }
}

/// A gateway's connection.
async fn connect(server: &NatsServer) -> Arc<dyn Bus> {
    connect_as(&at(&server.url())).await
}

async fn connect_as(options: &NatsOptions) -> Arc<dyn Bus> {
    Arc::new(Nats::connect(options).await.expect("the server was started"))
}

/// A connection that does not create streams itself.
async fn connect_stage(server: &NatsServer) -> Arc<dyn Bus> {
    connect_as(&stage_at(&server.url())).await
}

fn stage_at(url: &str) -> NatsOptions {
    NatsOptions { deployment: None, ..at(url) }
}

/// The next entry from a watch of the registry.
async fn put(events: &mut RegistryEvents) -> WorkerEntry {
    loop {
        if let RegistryEvent::Put(entry, _) = events.recv().await.expect("the watch stays open") {
            return entry;
        }
    }
}

/// Declares a queue, again and again until a gateway is there to create it.
async fn declare(bus: &dyn Bus, model: &ModelKey, options: &QueueOptions) {
    within("a queue", async {
        while bus.declare_queue(model, options).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Connections as in a deployment: gateways create the streams for stages. It has a name, and inboxes and a JetStream domain
/// of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let config = "max_payload: 8MB\njetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB, domain: hub }\n";
    let server = NatsServer::start_with_files(&[("nats.conf", config)]);
    let elsewhere = |options: NatsOptions| NatsOptions {
        deployment_name: "conformance".parse().expect("a name"),
        domain: Some("hub".to_owned()),
        inbox_prefix: Some("OUR.INBOX".to_owned()),
        ..options
    };
    let (at, stage_at) = (|url: &str| elsewhere(at(url)), |url: &str| elsewhere(stage_at(url)));
    let _gateways = [connect_as(&at(&server.url())).await, connect_as(&at(&server.url())).await];
    let connect_as = |options: NatsOptions| {
        move || {
            let options = options.clone();
            async move { connect_as(&options).await }
        }
    };
    let setup = Setup::new(connect_as(stage_at(&server.url()))).with_gateways(connect_as(at(&server.url())));
    conformance::run(&setup).await;
}

#[tokio::test]
async fn the_end_of_the_broker_leaves_what_the_table_says() {
    let mut server = NatsServer::start();
    let before = connect(&server).await;
    states::the_rows_about_the_end_hold(before, async || {
        server.kill();
        server.restart();
        connect(&server).await
    })
    .await;
}

#[tokio::test]
async fn who_may_make_no_streams_has_a_gateway_make_them() {
    let server = NatsServer::start();
    let (stage, model, wanted) = (connect_stage(&server).await, model("asked"), options());
    let alone = within("an answer", stage.declare_queue(&model, &wanted)).await;
    assert!(
        matches!(&alone, Err(BusError::Unreachable(reason)) if reason.contains("no gateway has done it")),
        "{alone:?}"
    );
    let announced = within("an answer", stage.announce(&entry("asked"))).await;
    assert!(matches!(announced, Err(BusError::Unreachable(_))), "{announced:?}");

    let gateway = connect(&server).await;
    let waiting = stage.declare_queue(&model, &wanted);
    let (there, made) =
        within("a queue", async { tokio::join!(waiting, gateway.declare_queue(&model, &wanted)) }).await;
    made.unwrap();
    there.unwrap();
    within("the registry", stage.announce(&entry("asked"))).await.unwrap();
    stage.publish(&message(&model, 1)).await.unwrap();
    let mut consumer = stage.pull(&model).await.unwrap();
    let delivery = take(&mut consumer, "a message").await;
    let (name, noted) = (delivery.message.name(), AttemptNote { attempts: 1, ended: true });
    stage.note_attempts(&name, noted).await.unwrap();
    assert_eq!(stage.attempts(&name).await.unwrap(), Some(noted));
    let letter = DeadLetter { message: delivery.message.clone(), reason: InferError::internal("why"), attempts: 1 };
    stage.dead_letter(letter).await.unwrap();
    assert!(stage.dead_letter_after(0).await.unwrap().is_some());

    // A stage that waits for a queue learns why the gateway cannot make it.
    let waited_for = ModelKey { name: "é".repeat(128).into(), version: 1 };
    let waiting = stage.declare_queue(&waited_for, &wanted);
    let making = async {
        loop {
            gateway.declare_queue(&waited_for, &wanted).await.unwrap_err();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = within("the reason", async {
        tokio::select! {
            refused = waiting => refused,
            () = making => unreachable!("it goes on"),
        }
    });
    let refused = refused.await;
    assert!(matches!(refused, Err(BusError::Refused { action: "making a work queue", .. })), "{refused:?}");
}

/// Nobody asks for them: the worker's next write succeeds.
#[tokio::test]
async fn stores_that_were_removed_are_made_again() {
    let server = NatsServer::start();
    let (_gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    stage.announce(&entry("kept")).await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    for stream in ["KV_trireme_registry", "trireme_attempts", "trireme_claims"] {
        raw.delete_stream(stream).await.unwrap();
    }
    within("the stores", async {
        let there = |names: Vec<String>| names.iter().any(|name| name == "trireme_attempts");
        while !there(raw.stream_names().try_collect().await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    within("the registry", stage.announce(&entry("kept"))).await.unwrap();
}

/// A process that may write one entry of the registry cannot remove the others.
#[tokio::test]
async fn registry_entries_cannot_be_rolled_up() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    bus.announce(&entry("kept")).await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Rollup", "all");
    let sent = jetstream.publish_with_headers("$KV.trireme_registry.mine.1.me", headers, "".into()).await.unwrap();
    let refused = sent.await.unwrap_err().to_string();
    assert!(refused.contains("rollup not permitted"), "{refused}");
}

#[tokio::test]
async fn a_broker_that_lost_everything_is_served_again() {
    let mut server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect_stage(&server).await);
    let model = model("lost");
    gateway.declare_queue(&model, &options()).await.unwrap();
    worker.declare_queue(&model, &options()).await.unwrap();
    let mut consumer = worker.pull(&model).await.unwrap();
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    gateway.publish(&message(&model, 1)).await.unwrap();
    take(&mut consumer, "a message before").await.acker.ack().await.unwrap();
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
        assert!(!bus.connection().has_changed().unwrap(), "who comes later has seen no change");
    }
    let published = within("an answer", gateway.publish(&message(&model, 3))).await;
    assert!(matches!(published, Err(BusError::NoQueue { .. })), "{published:?}");
    let pulled = within("word that the queue is gone", consumer.next(1)).await;
    assert!(matches!(pulled, Err(BusError::NoQueue { .. })), "{pulled:?}");

    declare(&*gateway, &model, &options()).await;
    gateway.publish(&message(&model, 4)).await.unwrap();
    let delivery = take(&mut consumer, "a message for the consumer from before").await;
    assert_eq!((number(&delivery), delivery.deliveries), (4, 1));
    delivery.acker.ack().await.unwrap();
    gateway.publish(&message(&model, 5)).await.unwrap();
    let mut consumer = worker.pull(&model).await.unwrap();
    let delivery = take(&mut consumer, "a message for a new consumer").await;

    let mut waiting = inbox.expect(&delivery.message);
    let reply = WorkMessage { gateway: "gateway".into(), ..delivery.message.clone() }.reply(Ok(Output::default()));
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
    assert_eq!(within("the entry", put(&mut events)).await, entry);
    assert_eq!(within("the end of what is there", events.recv()).await, Some(RegistryEvent::Complete));

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
    // The watch may have started again before, or in between.
    within("the renewed entry", async { while put(&mut events).await != renewed {} }).await;
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
    let mut consumer = bus.pull(&model).await.unwrap();
    let delivery = take(&mut consumer, "a message from before").await;
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
async fn questions_and_answers_of_any_size_arrive() {
    let server = NatsServer::start_with_max_payload(4096);
    let (asker, listener) = (connect(&server).await, connect(&server).await);
    let mut questions = listener.subscribe("sizes").await.unwrap();
    for size in [0, 4000, 4096, 100_000] {
        let body = Bytes::from(vec![7; size]);
        let mut answers = asker.request("sizes", body.clone()).await.unwrap();
        let question = within("the question", questions.recv()).await.expect("the bus is there");
        assert_eq!(question.body, body);
        question.answer(body.clone()).await.unwrap();
        assert_eq!(within("the answer", answers.recv()).await.expect("the listener is there"), body);
    }
    let asked = asker.request("sizes", Bytes::from(vec![0; (128 << 20) + 1])).await;
    assert!(matches!(asked, Err(BusError::TooLarge { limit, .. }) if limit == 128 << 20));
}

#[tokio::test]
async fn malformed_work_is_refused_and_holds_up_nothing() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "malformed".into(), version: 1 };
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
    let elsewhere = encode_work(&full_message(&ModelKey { name: "other".into(), version: 1 })).unwrap();
    let malformed = [
        (HeaderMap::new(), body.clone()),
        (with("Trireme-Contract", ""), body.clone()),
        (with("Trireme-Deadline", "soon"), body.clone()),
        (with("Trireme-Deadline", "-1"), body.clone()),
        (with("Trireme-Priority", "18446744073709551616"), body.clone()),
        (with("Trireme-Request", ""), body.clone()),
        (good.clone(), body.slice(..body.len() - 1)),
        (good.clone(), b"{\"json\":1}".to_vec().into()),
        (good.clone(), Vec::new().into()),
        (good.clone(), elsewhere),
    ];
    let count = malformed.len() as u64;
    for (headers, body) in malformed {
        let subject = "trireme.work.malformed.1.0.gateway.r";
        jetstream.publish_with_headers(subject, headers, body).await.unwrap().await.unwrap();
    }
    // The message that this test considers valid is accepted.
    jetstream.publish_with_headers("trireme.work.malformed.1.0.gateway.r", good, body).await.unwrap().await.unwrap();

    let mut stream = jetstream.get_stream("trireme_work_malformed_1").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, count + 1);
    let mut consumer = bus.pull(&model).await.unwrap();
    let delivery = take(&mut consumer, "the good message").await;
    assert_eq!((&delivery.message, delivery.deliveries), (&sent, 1));
    delivery.acker.ack().await.unwrap();
    within("the end of the malformed ones", async {
        while stream.info().await.unwrap().state.messages > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_of_another_contract_version_is_set_aside_at_once() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = ModelKey { name: "version".into(), version: 1 };
    bus.declare_queue(&model, &options()).await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let sent = message(&model, 1);
    let (mut headers, body) = (work_headers(&sent), encode_work(&sent).unwrap());
    headers.insert("Trireme-Contract", "5");
    let subject = "trireme.work.version.1.0.gateway.r";
    jetstream.publish_with_headers(subject, headers, body.clone()).await.unwrap().await.unwrap();
    bus.publish(&message(&model, 2)).await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    let delivery = take(&mut consumer, "the message of our version").await;
    assert_eq!(number(&delivery), 2);
    delivery.acker.ack().await.unwrap();

    let stored = within("its dead letter", async {
        loop {
            match bus.dead_letter_after(0).await.unwrap() {
                Some(stored) => return stored,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    let trireme_bus::DeadLetter { message, reason, attempts } = stored.letter;
    assert_eq!((message.queue(), &message.request_id, attempts), (Some(&model), &sent.request_id, 1));
    assert_eq!(reason.message, "message of contract version 5, expected 4");
    assert_eq!(message.tensors[0].data(), &body, "its bytes are kept");
    let mut stream = jetstream.get_stream("trireme_work_version_1").await.unwrap();
    within("the end of it in the queue", async {
        while stream.info().await.unwrap().state.messages > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    consumer.stop().await;
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_is_the_failure_of_its_worker() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let raw = async_nats::connect(server.url()).await.unwrap();
    let headers = |sequence: &str, last: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("Trireme-Contract", "4");
        headers.insert("Trireme-Request", "r");
        headers.insert("Trireme-Gateway", "gateway");
        headers.insert("Trireme-Sequence", sequence);
        headers.insert("Trireme-Final", last);
        headers
    };
    let request = WorkMessage {
        request_id: "r".into(),
        gateway: "gateway".into(),
        answer: trireme_bus::AnswerForm::Whole,
        ..full_message(&ModelKey { name: "m".into(), version: 1 })
    };
    let reply = request.reply(Ok(Output { tensors: request.tensors.clone(), ..Output::default() }));
    let body = encode_reply(&reply).unwrap();
    let mut unusable = headers("0", "true");
    unusable.insert("Trireme-Claim", "a.b");
    let malformed = [
        (HeaderMap::new(), body.clone(), "message header 'Trireme-Contract' is missing"),
        (headers("zero", "true"), body.clone(), "message header 'Trireme-Sequence' is 'zero'"),
        (headers("0", "yes"), body.clone(), "message header 'Trireme-Final' is 'yes'"),
        (headers("0", "true"), body.slice(1..), "message body is not readable"),
        (headers("0", "true"), body.slice(..body.len() / 2), "message body is not readable"),
        (unusable, Bytes::new(), "message header 'Trireme-Claim' is 'a.b'"),
    ];
    for (headers, body, why) in malformed {
        let mut waiting = inbox.expect(&request);
        raw.publish_with_headers("trireme.reply.gateway.r", headers, body).await.unwrap();
        let error = within(why, waiting.next()).await.outcome.unwrap_err();
        assert_eq!(error.code, trireme_inference::ErrorCode::Internal);
        assert!(error.message.starts_with(&format!("the reply of a worker cannot be read: {why}")), "{error}");
    }
    let mut waiting = inbox.expect(&request);
    raw.publish_with_headers("trireme.reply.gateway.r", headers("0", "true"), body).await.unwrap();
    assert_eq!(within("the good reply", waiting.next()).await, reply);
}

#[tokio::test]
async fn questions_that_are_too_large_for_a_message_are_ignored() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let mut questions = bus.subscribe("flood").await.unwrap();
    let raw = async_nats::connect(server.url()).await.unwrap();
    for _ in 0..3 {
        let large = vec![b'x'; (1 << 20) + 1].into();
        raw.publish_with_reply("trireme.control.flood", raw.new_inbox(), large).await.unwrap();
    }
    raw.publish_with_reply("trireme.control.flood", raw.new_inbox(), "small".into()).await.unwrap();
    raw.flush().await.unwrap();
    assert!(within("the small one", questions.recv()).await.expect("the bus is there").body == "small");
    // The bus's own large questions travel by claim.
    let large = Bytes::from(vec![b'x'; 3 << 20]);
    let _answers = bus.request("flood", large.clone()).await.unwrap();
    assert!(within("the large one", questions.recv()).await.expect("the bus is there").body == large);
}

#[tokio::test]
async fn malformed_registry_entries_are_ignored() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let (first, second) = (entry("first"), entry("second"));
    bus.announce(&first).await.unwrap();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    for (key, value) in [("m.1.w", "no JSON"), ("m.1.x", "{}"), ("m.1.y", "")] {
        let subject = format!("$KV.trireme_registry.{key}");
        raw.publish(subject, value.into()).await.unwrap().await.unwrap();
    }
    let mut events = bus.watch_registry().await.unwrap();
    assert_eq!(within("the good entry", put(&mut events)).await, first);
    assert_eq!(within("the end of what is there", events.recv()).await, Some(RegistryEvent::Complete));
    raw.publish("$KV.trireme_registry.m.1.z", b"\xff\xfe"[..].into()).await.unwrap().await.unwrap();
    bus.announce(&second).await.unwrap();
    assert_eq!(within("the next good entry", put(&mut events)).await, second);
}

#[tokio::test]
async fn a_message_that_killed_all_its_workers_makes_room_after_its_deadline() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("poison");
    bus.declare_queue(&model, &QueueOptions { max_messages: 1, max_attempts: 1, ..options() }).await.unwrap();
    bus.publish(&WorkMessage { deadline: UnixMicros::now(), ..message(&model, 1) }).await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    for attempt in 1..=2 {
        assert_eq!(take(&mut consumer, "the message, to die of it").await.deliveries, attempt);
    }
    let next = message(&model, 2);
    assert!(matches!(bus.publish(&next).await, Err(BusError::Full { .. })), "the broker keeps it so far");
    within("room", async {
        while bus.publish(&next).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(number(&take(&mut consumer, "the next message").await), 2);
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
    let sent = WorkMessage { traceparent: Some("00-\r\nTrireme-Final: true".into()), ..message(&model, 1) };
    let published = bus.publish(&sent).await;
    let Err(BusError::Envelope(EnvelopeError::Header { name: "traceparent", found, .. })) = published else {
        panic!("{published:?}")
    };
    assert_eq!(found, r"'00-\r\nTrireme-Final: true'");
}

#[tokio::test]
async fn messages_are_on_the_wire_as_the_golden_vectors_say() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    for vector in vectors::all().into_iter().filter(|vector| !vector.claimed) {
        let mut messages = client.subscribe(vector.message.subject()).await.unwrap();
        // The broker answers a question only after it has read the subscription before it.
        jetstream::new(client.clone()).query_account().await.unwrap();
        match &vector.message {
            vectors::Message::Work(work) => {
                let levels = [(work.level(), LevelPolicy::default())].into();
                bus.declare_queue(work.queue().unwrap(), &QueueOptions { levels, ..options() }).await.unwrap();
                bus.publish(work).await.unwrap();
            }
            vectors::Message::Reply(reply) => bus.reply(reply.clone()).await.unwrap(),
        }
        let message = within("the message", messages.next()).await.unwrap();
        assert_eq!(message.payload, vector.message.encode().unwrap(), "{}", vector.name);
        let headers = message.headers.unwrap();
        // The broker's time to live depends on the time of day.
        let found: BTreeMap<_, _> = headers
            .iter()
            .filter(|(name, _)| name.to_string() != "Nats-TTL")
            .map(|(name, values)| (name.to_string(), values[0].to_string()))
            .collect();
        let expected = vector.message.headers().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(found, expected, "{}", vector.name);
    }
}

/// A work message's headers, written from the contract.
fn work_headers(message: &WorkMessage) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Trireme-Contract", "4");
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
        bulk: true,
        content: None,
        since: UnixMicros(1),
    }
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

/// Each attempt to make a lane is work for the brokers that elect leaders, so a thousand requests must not make a thousand.
#[tokio::test]
async fn many_bulk_requests_at_a_time_make_their_lane_once() {
    const REQUESTS: i64 = 1000;
    let server = NatsServer::start();
    let (gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    let model = ModelKey { name: "flooded".into(), version: 1 };
    gateway.declare_queue(&model, &options()).await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut asked = client.subscribe("$JS.API.STREAM.*.trireme_work_flooded_1-10000").await.unwrap();
    client.flush().await.unwrap();
    let mut worker = stage.pull_bulk(&model).await.unwrap();
    for round in 0..2 {
        let flood = (1..=REQUESTS).map(|n| {
            let bulk = message_at(&model, Lane::Bulk.level(0), round * REQUESTS + n);
            let gateway = gateway.clone();
            async move {
                loop {
                    match gateway.publish(&bulk).await {
                        Err(BusError::NoQueue { .. }) => tokio::time::sleep(queue_pause(0)).await,
                        published => return published.map(drop),
                    }
                }
            }
        });
        within("all are published", futures_util::future::try_join_all(flood)).await.unwrap();
        take(&mut worker, "a message").await.acker.ack().await.unwrap();
        // The broker loses the lane.
        jetstream::new(client.clone()).delete_stream("trireme_work_flooded_1-10000").await.unwrap();
    }
    let mut times = BTreeMap::<String, u32>::new();
    while let Ok(Some(request)) = tokio::time::timeout(Duration::from_secs(1), asked.next()).await {
        *times.entry(request.subject.to_string()).or_default() += 1;
    }
    let creations = times["$JS.API.STREAM.CREATE.trireme_work_flooded_1-10000"];
    assert_eq!(creations, 2, "{times:?}");
    assert!(times.values().sum::<u32>() < 20, "{times:?}");
}

/// Names that are too long for the broker are refused; the connection stays open.
#[tokio::test]
async fn names_that_are_too_long_are_refused_and_disturb_nothing() {
    let server = NatsServer::start();
    let (gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    let before = *gateway.connection().borrow();
    let long = ModelKey { name: "é".repeat(128).into(), version: 1 };
    let declared = within("an answer", gateway.declare_queue(&long, &options())).await;
    assert!(matches!(declared, Err(BusError::Refused { action: "making a work queue", .. })), "{declared:?}");
    for bus in [&gateway, &stage] {
        let published = within("an answer", bus.publish(&message(&long, 1))).await;
        assert!(matches!(published, Err(BusError::NoQueue { .. })), "{published:?}");
    }
    let model = model("names");
    gateway.declare_queue(&model, &options()).await.unwrap();
    let (longest, too_long) = ("*".repeat(256), "*".repeat(257));
    for (request_id, gateway_name) in [(&too_long, &longest), (&longest, &too_long)] {
        let names = (request_id.clone(), gateway_name.clone());
        let work = WorkMessage { request_id: names.0.into(), gateway: names.1.into(), ..message(&model, 1) };
        let published = gateway.publish(&work).await;
        assert!(matches!(published, Err(BusError::Envelope(EnvelopeError::Header { .. }))), "{published:?}");
        let replied = stage.reply(work.reply(Ok(Output::default()))).await;
        assert!(matches!(replied, Err(BusError::Envelope(EnvelopeError::Header { .. }))), "{replied:?}");
    }
    // The longest allowed names work, in requests and in replies.
    let inbox = gateway.open_inbox(&longest).await.unwrap();
    let work = WorkMessage { request_id: longest.as_str().into(), gateway: longest.into(), ..message(&model, 1) };
    let mut waiting = inbox.expect(&work);
    gateway.publish(&work).await.unwrap();
    let mut consumer = stage.pull(&model).await.unwrap();
    take(&mut consumer, "the message").await.acker.ack().await.unwrap();
    stage.reply(work.reply(Ok(Output::default()))).await.unwrap();
    assert_eq!(within("the reply", waiting.next()).await.request_id, work.request_id);
    assert_eq!(*gateway.connection().borrow(), before, "the connection was not lost");
}

/// The pull requests that wait at the only queue of the broker.
async fn waiting_pulls(raw: &jetstream::Context) -> usize {
    let names: Vec<String> = raw.stream_names().try_collect().await.expect("a list");
    let queue = names.into_iter().find(|name| name.starts_with("trireme_work_")).expect("the queue was declared");
    let consumers = raw.get_stream(queue).await.expect("it is there").consumers().try_collect::<Vec<_>>().await;
    let consumers = consumers.expect("a list");
    consumers.iter().map(|consumer| consumer.num_waiting).sum()
}

/// Each idle worker has a pull request at the broker, which sends each message to a single worker at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_workers_can_wait_at_one_queue() {
    const WORKERS: usize = 1000;
    let server = NatsServer::start();
    let (gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    let model = model("thousand");
    gateway.declare_queue(&model, &options()).await.unwrap();
    let mut consumers = Vec::new();
    for _ in 0..WORKERS {
        consumers.push(stage.pull(&model).await.unwrap());
    }
    let working = consumers.iter_mut().map(|consumer| async move {
        let delivery = take(consumer, "a message for each").await;
        let number = number(&delivery);
        // Kept until every worker has a message.
        (number, delivery)
    });
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let publishing = async {
        while waiting_pulls(&raw).await < WORKERS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for n in 0..WORKERS {
            gateway.publish(&message(&model, n as i64)).await.unwrap();
        }
    };
    let working = futures_util::future::join_all(working);
    let (mut taken, ()) = within("a message for each", async { tokio::join!(working, publishing) }).await;
    taken.sort_by_key(|(number, _)| *number);
    let numbers: Vec<_> = taken.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..WORKERS as i64).collect::<Vec<_>>());
    for (_, delivery) in taken {
        assert_eq!(delivery.deliveries, 1);
        delivery.acker.ack().await.unwrap();
    }
}

/// Watches end with the process's connection, and are not retried forever.
#[tokio::test]
async fn watches_end_when_the_bus_is_closed() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let mut events = bus.watch_registry().await.unwrap();
    assert_eq!(within("the end of what is there", events.recv()).await, Some(RegistryEvent::Complete));
    let mut beats = bus.heartbeats().await.unwrap();
    bus.close().await;
    assert_eq!(within("the end of the watch", events.recv()).await, None);
    assert_eq!(within("the end of the heartbeats", beats.recv()).await, None);
}
