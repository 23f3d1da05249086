//! Replies that a connection, a broker or a store of claims loses on their way.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream};
use futures_util::StreamExt;
use trireme_bus::conformance::fixtures::{
    LARGE, full_message, heavy_message, message, model, number, options, take, within,
};
use trireme_bus::{Answer, Arrival, Bus, Inbox, Nats, Output, Part, Reply, WorkMessage, encode_reply};
use trireme_testkit::NatsServer;

use super::cable::Cable;
use super::claims::{Silence, lay_down_by_hand};
use super::{at, awaited, connect};

fn request(id: &str) -> WorkMessage {
    let message = full_message(&model("replies"));
    WorkMessage { request_id: id.to_owned(), gateway: "gateway".to_owned(), answer: Answer::Whole, ..message }
}

fn reply_of(request: &WorkMessage) -> Reply {
    request.reply(Ok(Output { tensors: request.tensors.clone(), ..Output::default() }))
}

#[tokio::test]
async fn a_reply_that_was_sent_is_not_lost_with_its_workers_connection() {
    let server = NatsServer::start();
    let cable = Cable::cut_at(&server, &["trireme.reply.", "trireme.reply."]).await;
    let (gateway, worker) = (connect(&server).await, Nats::connect(&at(&cable.url())).await.unwrap());
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    let mut waiting = inbox.expect(&awaited("r"));
    // More than the client buffers, so that it waits in the socket.
    let request = WorkMessage {
        request_id: "r".to_owned(),
        gateway: "gateway".to_owned(),
        ..heavy_message(&model("m"), 1 << 20)
    };
    let reply = Reply { sequence: 0, last: true, ..reply_of(&request) };
    within("word that the reply was read", worker.reply(reply.clone())).await.unwrap();
    assert!(within("the reply", waiting.next()).await == reply);
    assert_eq!(cable.faults(), 2);
}

#[tokio::test]
async fn no_part_of_an_answer_is_lost_with_its_workers_connection() {
    const PARTS: u32 = 100;
    let server = NatsServer::start();
    let cable =
        Cable::cut_at(&server, &["Trireme-Sequence: 0\r", "Trireme-Sequence: 42\r", "Trireme-Sequence: 99\r"]).await;
    let (gateway, worker) = (connect(&server).await, Nats::connect(&at(&cable.url())).await.unwrap());
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    let mut waiting = inbox.expect(&awaited("r"));
    let sending = async {
        for sequence in 0..PARTS {
            let part = Part { sequence, last: sequence + 1 == PARTS };
            let request = WorkMessage { answer: Answer::Part(part), ..request("r") };
            within("word that a part was read", worker.reply(reply_of(&request))).await.unwrap();
        }
    };
    let reading = async {
        for sequence in 0..PARTS {
            assert_eq!(within("a part", waiting.next()).await.sequence, sequence);
        }
    };
    tokio::join!(sending, reading);
    assert_eq!(cable.faults(), 3);
}

#[tokio::test]
async fn replies_that_are_sent_together_share_fences() {
    const REPLIES: usize = 500;
    let server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect(&server).await);
    let inbox = gateway.open_inbox("gateway").await.unwrap();
    let watcher = async_nats::connect(server.url()).await.unwrap();
    let mut echoes = watcher.subscribe("_INBOX.test.fence.>").await.unwrap();
    jetstream::new(watcher.clone()).query_account().await.unwrap();
    let requests: Vec<_> = (0..REPLIES).map(|number| request(&format!("r{number}"))).collect();
    let mut waiting: Vec<_> = requests.iter().map(|request| inbox.expect(&awaited(&request.request_id))).collect();
    let sent = futures_util::future::join_all(requests.iter().map(|request| worker.reply(reply_of(request))));
    assert!(within("word that all were read", sent).await.iter().all(Result::is_ok));
    for waiting in &mut waiting {
        within("a reply", waiting.next()).await;
    }
    watcher.publish("_INBOX.test.fence.end", "".into()).await.unwrap();
    let mut count = 0;
    while !within("an echo", echoes.next()).await.unwrap().subject.ends_with(".end") {
        count += 1;
    }
    assert!((1..REPLIES / 5).contains(&count), "{count} echoes for {REPLIES} replies");
}

/// Publishes a reply to `id` by a claim that nobody laid down.
async fn reply_without_body(server: &NatsServer, id: &str) {
    reply_by_claim(server, id, "nobodys", 9_000_000).await;
}

async fn reply_by_claim(server: &NatsServer, id: &str, claim: &str, bytes: usize) {
    let client = async_nats::connect(server.url()).await.expect("the server was started");
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("Trireme-Contract", "1"),
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
    client
        .publish_with_headers(format!("trireme.reply.gateway.{id}"), headers, "".into())
        .await
        .expect("the server was started");
    client.flush().await.expect("the server was started");
}

async fn lost(inbox: &std::sync::Arc<Inbox>, id: &str, server: &NatsServer) -> String {
    let mut waiting = inbox.expect(&awaited(id));
    reply_without_body(server, id).await;
    match within("word of the loss", waiting.arrival()).await {
        Arrival::Lost(id) => id,
        Arrival::Reply(reply) => panic!("there is no reply, got {reply:?}"),
    }
}

#[tokio::test]
async fn a_reply_whose_body_is_gone_is_told_as_lost_and_answers_nothing() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    assert_eq!(lost(&inbox, "no-store", &server).await, "no-store");
    // Makes the store.
    let large =
        WorkMessage { request_id: "r".to_owned(), gateway: "gateway".to_owned(), ..heavy_message(&model("m"), LARGE) };
    let reply = Reply { sequence: 0, last: true, ..reply_of(&large) };
    let mut waiting = inbox.expect(&awaited("r"));
    bus.reply(reply.clone()).await.unwrap();
    assert_eq!(within("the reply", waiting.next()).await, reply);
    assert_eq!(lost(&inbox, "store", &server).await, "store");

    // One that has been had is not missed.
    let mut waiting = inbox.expect(&awaited("had"));
    let had = reply_of(&request("had"));
    bus.reply(Reply { last: false, ..had.clone() }).await.unwrap();
    within("the reply", waiting.next()).await;
    reply_without_body(&server, "had").await;
    let more = tokio::time::timeout(Duration::from_millis(500), waiting.arrival()).await;
    assert!(more.is_err(), "it is no loss, got {more:?}");
}

#[tokio::test]
async fn large_replies_that_cannot_be_read_hold_up_nobody_and_are_read_when_they_can_be() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let silence = Silence::of_claims(&server).await;
    let stuck: Vec<_> = (0..40).map(|number| inbox.expect(&awaited(&format!("stuck{number}")))).collect();
    for number in 0..40 {
        reply_without_body(&server, &format!("stuck{number}")).await;
    }
    let mut waiting = inbox.expect(&awaited("small"));
    let small = reply_of(&request("small"));
    bus.reply(small.clone()).await.unwrap();
    assert_eq!(within("the small reply", waiting.next()).await, small);
    drop(stuck);

    let late = reply_of(&request("late"));
    let body = encode_reply(&late).unwrap();
    let mut waiting = inbox.expect(&awaited("late"));
    reply_by_claim(&server, "late", "late", body.len()).await;
    silence.was_heard_by("late").await;
    lay_down_by_hand(&server, "late", body).await;
    assert_eq!(within("the reply that can be read now", waiting.next()).await, late);
}

#[tokio::test]
async fn an_old_acknowledgement_settles_nothing_in_a_queue_made_anew() {
    let mut server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("anew");
    bus.declare_queue(&model, &options()).await.unwrap();
    let mut puller = bus.pull(&model).await.unwrap();
    bus.publish(&message(&model, 1)).await.unwrap();
    let old = take(&mut puller, "a message of the first queue").await;
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
    let mut puller = bus.pull(&model).await.unwrap();
    let new = take(&mut puller, "the message of the second queue").await;
    old.acker.ack().await.unwrap();
    drop(new);
    let again = take(&mut puller, "the same message, as its worker died").await;
    assert_eq!((number(&again), again.attempt), (2, 2));
}
