//! Properties of deliveries: settled, refused or dropped.

use std::sync::Arc;
use std::time::Duration;

use trireme_inference::ModelKey;

use super::queues::declare;
use super::setup::Setup;
use trireme_bus::fixtures::{assert_idle, message, model, number, options, take, within};
use trireme_bus::{AttemptNote, Bus, Consumer, QueueOptions};

pub async fn a_refused_message_comes_again_after_the_delay(setup: &Setup) {
    let (bus, mut consumer, model) = queue_with_one(setup, "refused", &options()).await;
    let delivery = take(&mut consumer, "the message").await;
    let first = delivery.message.clone();
    delivery.acker.nak(Duration::from_secs(4)).await.expect("refused");
    // The delay does not hold up other messages.
    bus.publish(&message(&model, 2)).await.expect("the queue takes the message");
    let other = take(&mut consumer, "another message").await;
    assert_eq!((number(&other), other.deliveries), (2, 1));
    other.acker.ack().await.expect("acknowledged");
    assert_idle(&mut consumer, Duration::from_millis(400), "before the delay has passed").await;

    let again = take(&mut consumer, "the refused message").await;
    assert_eq!((&again.message, again.deliveries), (&first, 2));
    again.acker.nak(Duration::ZERO).await.expect("refused");
    let at_once = take(&mut consumer, "the message refused without delay").await;
    assert_eq!((&at_once.message, at_once.deliveries), (&first, 3));
    at_once.acker.ack().await.expect("acknowledged");
}

pub async fn who_gets_a_message_next_knows_how_often_it_was_begun(setup: &Setup) {
    let (_, mut consumer, model) = queue_with_one(setup, "begun", &options()).await;
    let first = take(&mut consumer, "the message").await;
    let (one, two) = (setup.connect().await, setup.connect().await);
    let name = first.message.name();
    let attempts = async |bus: &dyn Bus| within("a look", bus.attempts(&name)).await.expect("an answer");
    assert_eq!(attempts(&*one).await, None, "nobody noted anything");
    for (begun, ended) in [(0, true), (1, false), (1, true), (7, false)] {
        let noted = AttemptNote { attempts: begun, ended };
        within("a note", one.note_attempts(&name, noted)).await.expect("noted");
        assert_eq!(attempts(&*two).await, Some(noted));
    }
    let another = message(&model, 2).name();
    assert_eq!(within("a look", two.attempts(&another)).await.expect("an answer"), None, "that is another message");
    first.acker.ack().await.expect("acknowledged");
}

/// A queue with message number 1, and a worker's consumer on it.
async fn queue_with_one(
    setup: &Setup,
    name: &str,
    options: &QueueOptions,
) -> (Arc<dyn Bus>, Box<dyn Consumer>, ModelKey) {
    let (bus, model) = (setup.connect().await, model(name));
    declare(setup, &*bus, &model, options).await;
    within("a publish", bus.publish(&message(&model, 1))).await.expect("the queue takes the message");
    let consumer = within("a hold on the queue", bus.pull(&model)).await.expect("the queue can be worked on");
    (bus, consumer, model)
}
