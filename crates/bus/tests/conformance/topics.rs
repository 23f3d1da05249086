//! Properties of questions and answers.

use std::time::Duration;

use bytes::Bytes;
use trireme_inference::{Action, Callers, ModelKey};

use super::setup::Setup;
use trireme_bus::fixtures::{heavy_message, unique, within};
use trireme_bus::{CallReplies, LATEST, Output, Reply};

pub async fn everybody_who_listens_can_answer_a_question(setup: &Setup) {
    let (asker, one, two) = (setup.connect().await, setup.connect().await, setup.connect().await);
    let topic = unique("topic");
    let mut heard = [one.subscribe(&topic).await.expect("questions"), two.subscribe(&topic).await.expect("questions")];
    let mut elsewhere = two.subscribe(&unique("other")).await.expect("questions");
    let mut answers = within("asking", asker.request(&topic, Bytes::from_static(b"who?"))).await.expect("asked");
    for (index, questions) in heard.iter_mut().enumerate() {
        let question = within("the question", questions.recv()).await.expect("a question");
        assert_eq!(question.body, "who?");
        for part in 0..2 {
            question.answer(format!("{index}.{part}").into()).await.expect("answered");
        }
    }
    let mut got = Vec::new();
    for _ in 0..4 {
        got.push(within("an answer", answers.recv()).await.expect("an answer"));
    }
    got.sort();
    assert_eq!(got, ["0.0", "0.1", "1.0", "1.1"]);
    let other = tokio::time::timeout(Duration::from_millis(50), elsewhere.recv()).await;
    assert!(other.is_err(), "a question reached another topic");
}

pub async fn a_question_that_nobody_hears_ends_without_answers(setup: &Setup) {
    let asker = setup.connect().await;
    let mut answers = within("asking", asker.request(&unique("nobody"), Bytes::new())).await.expect("no error");
    assert_eq!(within("the end of the answers", answers.recv()).await, None);
}

pub async fn an_answer_to_an_asker_that_left_is_no_error(setup: &Setup) {
    let (asker, worker) = (setup.connect().await, setup.connect().await);
    let topic = unique("left");
    let mut questions = worker.subscribe(&topic).await.expect("questions");
    let answers = within("asking", asker.request(&topic, Bytes::from_static(b"?"))).await.expect("asked");
    let question = within("the question", questions.recv()).await.expect("a question");
    drop(answers);
    within("answering nobody", question.answer(Bytes::from_static(b"!"))).await.expect("no error");
}

pub async fn a_call_goes_to_one_gateway_and_ends_when_nobody_waits(setup: &Setup) {
    let (one, two, caller) = (setup.connect_gateway().await, setup.connect_gateway().await, setup.connect().await);
    let mut gateways = [one.calls().await.expect("calls"), two.calls().await.expect("calls")];
    let [first, second] = &mut gateways;
    let mut message = heavy_message(&ModelKey { name: unique("called").into(), version: LATEST }, 3 << 20);
    message.callers = Callers::joined([&Callers::default()], &ModelKey { name: "caller".into(), version: 1 });
    let mut replies = CallReplies::open(caller.clone(), Action::Load, message.clone()).await.expect("sent");
    let taken = async {
        tokio::select! {
            call = first.recv() => call,
            call = second.recv() => call,
        }
    };
    let call = within("the call", taken).await.expect("a call");
    assert_eq!((call.action, &call.message), (Action::Load, &message));
    call.alive().await.expect("said");
    for sequence in 0..2 {
        let output = Output { tensors: message.tensors.clone(), parameters: Default::default() };
        let reply = Reply { sequence, last: sequence == 1, ..message.reply(Ok(output)) };
        call.reply(&reply).await.expect("sent");
        assert_eq!(within("a reply", replies.next()).await, Some(reply));
    }
    assert_eq!(replies.next().await, None);

    message.request_id = unique("another").into();
    let replies = CallReplies::open(caller, Action::Infer, message.clone()).await.expect("sent");
    let taken = async {
        tokio::select! {
            call = first.recv() => call,
            call = second.recv() => call,
        }
    };
    let call = within("the call, of which there is one", taken).await.expect("a call");
    assert_eq!(call.message.request_id, message.request_id);
    drop(replies);
    within("the end of the call", call.hung_up()).await;
}
