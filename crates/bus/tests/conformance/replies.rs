//! Properties of inboxes and cancellations.

use std::time::Duration;

use trireme_inference::{InferError, ModelKey, UnixMicros};

use super::setup::Setup;
use trireme_bus::fixtures::{LARGE, full_message, heavy_message, unique, within};
use trireme_bus::{AnswerForm, Output, Reply, WorkMessage};

pub async fn replies_reach_the_gateway_and_request_they_are_for(setup: &Setup) {
    let (one, two, worker) = (setup.connect().await, setup.connect().await, setup.connect().await);
    let one = one.open_inbox(&unique("one")).await.expect("an inbox");
    let two = two.open_inbox(&unique("two")).await.expect("an inbox");
    let (first, second, third) = (request(one.gateway()), request(one.gateway()), request(two.gateway()));
    // For the bus, ids are unique only within a gateway.
    let third = WorkMessage { request_id: first.request_id.clone(), ..third };
    let mut waiting = [one.expect(&first), one.expect(&second), two.expect(&third)];

    let failure = InferError::unavailable("é: no worker").at("m:1", "worker-7");
    let replies = [first.reply(Ok(output(&first))), second.reply(Err(failure)), third.reply(Ok(Output::default()))];
    for reply in replies.iter().rev() {
        worker.reply(reply.clone()).await.expect("sent");
    }
    for (waiter, sent) in waiting.iter_mut().zip(&replies) {
        assert_eq!(within("a reply", waiter.next()).await, *sent);
    }
    for waiter in &mut waiting {
        let more = tokio::time::timeout(Duration::from_millis(50), waiter.next()).await;
        assert!(more.is_err(), "one reply each, got also {more:?}");
    }
}

pub async fn replies_come_in_sequence_without_repetitions(setup: &Setup) {
    let (gateway, worker) = (setup.connect().await, setup.connect().await);
    let inbox = gateway.open_inbox(&unique("sequence")).await.expect("an inbox");
    let request = request(inbox.gateway());
    let mut waiting = inbox.expect(&request);
    // A worker was killed after three replies, and another worker got the request after it. Some replies overtake
    // others.
    for sequence in [1, 0, 2, 0, 1, 4, 2, 3, 2, 5, 3] {
        let reply = Reply { sequence, last: sequence == 5, ..request.reply(Ok(output(&request))) };
        worker.reply(reply).await.expect("sent");
    }
    for sequence in 0..6 {
        let reply = within("a reply", waiting.next()).await;
        assert_eq!((reply.sequence, reply.last), (sequence, sequence == 5));
    }
    let more = tokio::time::timeout(Duration::from_millis(50), waiting.next()).await;
    assert!(more.is_err(), "nothing follows the last reply, got {more:?}");
}

pub async fn a_reader_that_falls_behind_is_told_so(setup: &Setup) {
    let (gateway, worker) = (setup.connect().await, setup.connect().await);
    let inbox = gateway.open_inbox(&unique("behind")).await.expect("an inbox");
    let request = request(inbox.gateway());
    let mut waiting = inbox.expect(&request);
    let mut cancelled = worker.cancellations().await.expect("cancellations");
    let marker = self::request(inbox.gateway());
    let mut marked = inbox.expect(&marker);
    // More than an inbox keeps.
    for sequence in 0..5000 {
        let reply = Reply { sequence, last: false, ..request.reply(Ok(Output::default())) };
        worker.reply(reply).await.expect("sent");
    }
    worker.reply(marker.reply(Ok(Output::default()))).await.expect("sent");
    within("what was sent last", marked.next()).await;
    let reply = within("an error", waiting.next()).await;
    let error = reply.outcome.expect_err("its reader took nothing");
    assert!(reply.last && error.message.contains("behind"), "{error}");
    // Other tests may cancel requests meanwhile.
    while within("its cancellation", cancelled.recv()).await.expect("the bus is open") != request.request_id {}
}

pub async fn a_place_ends_with_its_deadline(setup: &Setup) {
    let (gateway, worker) = (setup.connect().await, setup.connect().await);
    let inbox = gateway.open_inbox(&unique("overdue")).await.expect("an inbox");
    let mut cancelled = worker.cancellations().await.expect("cancellations");
    let request =
        WorkMessage { deadline: UnixMicros::now().after(Duration::from_millis(100)), ..request(inbox.gateway()) };
    let mut waiting = inbox.expect(&request);
    // No reader reads the replies, and still the entry ends and the request is cancelled.
    while within("its cancellation", cancelled.recv()).await.expect("the bus is open") != request.request_id {}
    assert_eq!(inbox.waiting(), 0);
    let error = within("an error", waiting.next()).await.outcome.expect_err("its time is over");
    assert_eq!(error.message, "Request timeout expired");
}

pub async fn a_large_reply_passes(setup: &Setup) {
    let (gateway, worker) = (setup.connect().await, setup.connect().await);
    let inbox = gateway.open_inbox(&unique("large")).await.expect("an inbox");
    let request = request(inbox.gateway());
    let mut waiting = inbox.expect(&request);
    let tensors = heavy_message(&ModelKey { name: "any".into(), version: 1 }, LARGE).tensors;
    let reply = request.reply(Ok(Output { tensors, ..Output::default() }));
    worker.reply(reply.clone()).await.expect("sent");
    assert_eq!(within("the reply", waiting.next()).await, reply);
}

pub async fn a_waiter_that_leaves_leaves_nothing_behind(setup: &Setup) {
    let (gateway, worker) = (setup.connect().await, setup.connect().await);
    let inbox = gateway.open_inbox(&unique("leaving")).await.expect("an inbox");
    let (gone, staying) = (request(inbox.gateway()), request(inbox.gateway()));
    let mut leaver = inbox.expect(&gone);
    let mut stayer = inbox.expect(&staying);
    assert_eq!(inbox.waiting(), 2);
    let gave_up = tokio::time::timeout(Duration::from_millis(20), leaver.next()).await;
    assert!(gave_up.is_err(), "there is no reply yet, got {gave_up:?}");
    drop(leaver);
    assert_eq!(inbox.waiting(), 1);

    worker.reply(gone.reply(Ok(Output::default()))).await.expect("sent, though nobody waits");
    worker.reply(staying.reply(Ok(Output::default()))).await.expect("sent");
    assert_eq!(within("a reply", stayer.next()).await.request_id, staying.request_id);
    drop(stayer);
    assert_eq!(inbox.waiting(), 0);
}

pub async fn a_reply_that_nobody_waits_for_is_no_error(setup: &Setup) {
    let worker = setup.connect().await;
    let reply = request(&unique("nowhere")).reply(Ok(Output::default()));
    within("a reply to nobody", worker.reply(reply)).await.expect("a gateway that is gone is no error");
    within("a cancellation for nobody", worker.cancel("unknown")).await.expect("no error either");
}

pub async fn a_cancellation_reaches_every_worker(setup: &Setup) {
    let (gateway, one, two) = (setup.connect().await, setup.connect().await, setup.connect().await);
    let mut workers = [
        one.cancellations().await.expect("cancellations"),
        two.cancellations().await.expect("cancellations"),
        gateway.cancellations().await.expect("cancellations"),
    ];
    let ids = [unique("a"), unique("b")];
    for id in &ids {
        gateway.cancel(id).await.expect("sent");
    }
    for worker in &mut workers {
        let mut seen = Vec::new();
        while seen.len() < ids.len() {
            let id = within("a cancellation", worker.recv()).await.expect("the bus is open");
            // Other tests may cancel requests meanwhile.
            if ids.contains(&id) {
                seen.push(id);
            }
        }
        assert_eq!(seen, ids);
    }
}

fn request(gateway: &str) -> WorkMessage {
    let model = ModelKey { name: "m".into(), version: 1 };
    WorkMessage { gateway: gateway.into(), answer: AnswerForm::Whole, ..full_message(&model) }
}

fn output(request: &WorkMessage) -> Output {
    Output { tensors: request.tensors.clone(), parameters: (*request.parameters).clone() }
}
