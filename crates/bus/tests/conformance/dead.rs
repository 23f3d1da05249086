//! Properties of dead letters.

use trireme_inference::{ErrorCode, InferError};

use super::setup::Setup;
use trireme_bus::fixtures::{LARGE, heavy_message, message, model, within};
use trireme_bus::{DeadLetter, StoredLetter};

pub async fn letters_can_be_read_in_order_and_removed(setup: &Setup) {
    let (worker, person) = (setup.connect().await, setup.connect().await);
    // Letters of all models are in one store, so earlier ones are skipped.
    let mut last = 0;
    while let Some(StoredLetter { number, .. }) =
        within("a look", person.dead_letter_after(last)).await.expect("a look")
    {
        last = number;
    }
    let model = model("dead");
    let reason = InferError::unavailable("é: the worker died").at(&model, "worker-1");
    let sent = [message(&model, 1), heavy_message(&model, LARGE), message(&model, 2)];
    for message in &sent {
        let letter = DeadLetter { message: message.clone(), reason: reason.clone(), attempts: 4 };
        within("a dead letter", worker.dead_letter(letter)).await.expect("set aside");
    }
    let mut numbers = Vec::new();
    for message in &sent {
        let stored = within("a letter", person.dead_letter_after(last)).await.expect("a look").expect("a letter");
        assert!(stored.number > last && stored.at.0 > 0, "{} after {last}", stored.number);
        assert_eq!((&stored.letter.message, stored.letter.attempts), (message, 4));
        let found = &stored.letter.reason;
        assert_eq!((found.code, found.message.as_str()), (ErrorCode::Unavailable, reason.message.as_str()));
        assert_eq!(found.worker.as_deref(), Some("worker-1"));
        last = stored.number;
        numbers.push(last);
    }
    assert!(person.dead_letter_after(last).await.expect("a look").is_none(), "there are no more");
    assert!(within("a removal", person.remove_dead_letter(numbers[1])).await.expect("removed"));
    assert!(!within("a removal", person.remove_dead_letter(numbers[1])).await.expect("a look"), "it is gone");
    let next = within("a letter", person.dead_letter_after(numbers[0])).await.expect("a look").expect("a letter");
    assert_eq!(next.number, numbers[2]);
}
