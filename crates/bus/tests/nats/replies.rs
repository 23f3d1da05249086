//! Replies whose bodies travel by claim, and acknowledgements that come too late.

use std::time::Duration;

use async_nats::HeaderMap;
use trireme_bus::fixtures::{full_message, message, model, number, options, take, within};
use trireme_bus::{AnswerForm, Output, Reply, WorkMessage, encode_reply};
use trireme_testkit::NatsServer;

use super::claims::{Silence, put_object_by_hand};
use super::{awaited, connect};

fn request(id: &str) -> WorkMessage {
    let message = full_message(&model("replies"));
    WorkMessage { request_id: id.into(), gateway: "gateway".into(), answer: AnswerForm::Whole, ..message }
}

fn reply_of(request: &WorkMessage) -> Reply {
    request.reply(Ok(Output { tensors: request.tensors.clone(), ..Output::default() }))
}

/// Publishes a reply to `id` with a claim of `bytes` bytes.
async fn reply_by_claim(server: &NatsServer, id: &str, claim: &str, bytes: usize) {
    let client = async_nats::connect(server.url()).await.expect("the server was started");
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("Trireme-Contract", "4"),
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
    client.publish_with_headers(subject, headers, "".into()).await.expect("the server was started");
    client.flush().await.expect("the server was started");
}

#[tokio::test]
async fn a_reply_whose_body_is_gone_is_no_answer() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let request = awaited("r");
    let mut waiting = inbox.expect(&request);
    let silence = Silence::of_claims(&server).await;
    reply_by_claim(&server, "r", "nobodys", 9_000_000).await;
    silence.was_heard_by("nobodys").await;
    assert!(waiting.is_arriving(), "the broker has yet to say that it has no such body");
    put_object_by_hand(&server, "other", "".into()).await;
    let gone = async {
        while waiting.is_arriving() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the end of the search for the body", gone).await;
    // The gateway publishes the request again, and it is answered.
    let again = WorkMessage { request_id: request.id_when_sent_again(1), ..request };
    let reply = again.reply(Ok(Output::default()));
    bus.reply(reply.clone()).await.unwrap();
    assert_eq!(within("the reply", waiting.next()).await, reply);
}

#[tokio::test]
async fn large_replies_that_cannot_be_read_hold_up_nobody_and_are_read_when_they_can_be() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let inbox = bus.open_inbox("gateway").await.unwrap();
    let silence = Silence::of_claims(&server).await;
    let stuck: Vec<_> = (0..40).map(|number| inbox.expect(&awaited(&format!("stuck{number}")))).collect();
    for number in 0..40 {
        reply_by_claim(&server, &format!("stuck{number}"), "nobodys", 9_000_000).await;
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
