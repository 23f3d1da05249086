//! Values with a time to live exist until their time and not after it, by the clock of the bus.

use std::time::Duration;

use trireme_bus::fixtures::{message, model};
use trireme_bus::{AttemptNote, Bucket, Bus, InProcess, SequenceName, SequenceStates, WorkMessage};
use trireme_inference::{CorrelationId, UnixMicros};

const MINUTE: Duration = Duration::from_secs(60);

/// More than a test takes, even on a busy machine.
const MOMENT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_sequence_that_goes_on_is_kept_and_an_idle_one_begins_anew() {
    let clock = InProcess::default();
    let bus: &dyn Bus = &clock;
    let name = SequenceName { model: model("sequence"), id: CorrelationId::Number(5) };
    let states = |request: &str| SequenceStates { request: request.to_owned(), ..SequenceStates::default() };
    let mut revision = 0;
    for request in ["1", "2", "3"] {
        revision = bus.keep_sequence(&name, &states(request), Some(revision), MINUTE).await.expect("kept");
        clock.advance(MINUTE - MOMENT);
        let found = bus.sequence(&name).await.expect("read").expect("each request begins its time anew");
        assert_eq!((found.states.request.as_str(), found.revision), (request, revision));
    }
    clock.advance(MOMENT);
    assert_eq!(bus.sequence(&name).await.expect("read"), None);
    bus.keep_sequence(&name, &states("new"), Some(revision), MINUTE).await.expect_err("there is nothing to go on with");
    bus.keep_sequence(&name, &states("new"), Some(0), MINUTE).await.expect("it begins anew");
}

#[tokio::test]
async fn the_attempts_at_a_message_are_known_until_its_deadline() {
    let clock = InProcess::default();
    let bus: &dyn Bus = &clock;
    let model = model("attempts");
    let until = |deadline| WorkMessage { deadline, ..message(&model, 1) }.name();
    let (limited, endless) = (until(UnixMicros::now().after(MINUTE)), until(UnixMicros::NEVER));
    let note = AttemptNote { attempts: 2, ended: false };
    for name in [&limited, &endless] {
        bus.note_attempts(name, note).await.expect("noted");
    }
    clock.advance(MINUTE - MOMENT);
    assert_eq!(bus.attempts(&limited).await.expect("read"), Some(note));
    clock.advance(MOMENT);
    assert_eq!(bus.attempts(&limited).await.expect("read"), None);
    assert_eq!(bus.attempts(&endless).await.expect("read"), Some(note));
}

#[tokio::test]
async fn a_value_lapses_by_its_last_write() {
    let clock = InProcess::default();
    let bus: &dyn Bus = &clock;
    let put =
        async |key: &str, lapse| bus.put(Bucket::Jobs, key, key.to_owned().into(), None, lapse).await.expect("put");
    for key in ["shorter", "longer", "never"] {
        put(key, Some(10 * MINUTE)).await;
    }
    put("shorter", Some(MINUTE)).await;
    put("longer", Some(100 * MINUTE)).await;
    put("never", None).await;
    for (later, left) in
        [(MINUTE, &["longer", "never"][..]), (10 * MINUTE, &["longer", "never"]), (100 * MINUTE, &["never"])]
    {
        clock.advance(later);
        let mut found = Vec::new();
        let mut last = 0;
        while let Some(entry) = bus.next(Bucket::Jobs, last).await.expect("read") {
            last = entry.revision;
            found.push(entry.key);
        }
        assert_eq!(found, left, "after {later:?} more");
        for key in ["shorter", "longer", "never"] {
            assert_eq!(bus.get(Bucket::Jobs, key).await.expect("read").is_some(), left.contains(&key), "{key}");
        }
    }
}
