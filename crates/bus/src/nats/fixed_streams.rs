//! The streams that there is one of, whatever models are served: what each holds, how much of it and for how long.
//!
//! Not here: who makes them, and the streams of queues (`streams`).

use std::time::Duration;

use async_nats::jetstream::stream;

use super::subjects;
use crate::registry::WorkerEntry;

/// How long claims and notes of requests without a deadline are kept.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// Bytes of claims that the broker keeps at a time, unless an operator made the stream with another limit.
const CLAIM_BYTES: i64 = 256 << 20;

/// Bytes of notes that the broker keeps: tens of thousands. The oldest go first.
const ATTEMPT_BYTES: i64 = 4 << 20;

/// How long dead letters are kept, how many, and how many bytes of them: the oldest go first.
const DEAD_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const DEAD_LETTERS: i64 = 10_000;
const DEAD_BYTES: i64 = 1 << 30;

/// How often messages were begun: the last note of each.
pub fn attempts() -> stream::Config {
    stream::Config {
        name: subjects::ATTEMPTS_STREAM.to_owned(),
        description: Some("how often messages that came again were begun".to_owned()),
        subjects: vec![subjects::ATTEMPTS_SUBJECTS.to_owned()],
        max_messages_per_subject: 1,
        max_bytes: ATTEMPT_BYTES,
        max_age: AGE,
        allow_message_ttl: true,
        allow_direct: true,
        storage: stream::StorageType::Memory,
        ..Default::default()
    }
}

/// Bodies above `max_payload`, in parts.
pub fn claims() -> stream::Config {
    stream::Config {
        name: subjects::CLAIM_STREAM.to_owned(),
        description: Some("bodies of messages above max_payload".to_owned()),
        subjects: vec![subjects::CLAIM_SUBJECTS.to_owned()],
        discard: stream::DiscardPolicy::New,
        // A part that is laid down again replaces the one before.
        max_messages_per_subject: 1,
        max_bytes: CLAIM_BYTES,
        max_age: AGE,
        allow_message_ttl: true,
        allow_direct: true,
        storage: stream::StorageType::Memory,
        ..Default::default()
    }
}

/// Messages that were given up.
pub fn dead() -> stream::Config {
    stream::Config {
        name: subjects::DEAD_STREAM.to_owned(),
        description: Some("messages that were given up".to_owned()),
        subjects: vec![subjects::DEAD_SUBJECTS.to_owned()],
        max_age: DEAD_AGE,
        max_messages: DEAD_LETTERS,
        max_bytes: DEAD_BYTES,
        allow_direct: true,
        ..Default::default()
    }
}

/// A key-value bucket but for one thing: a message in it cannot roll up those of other keys, which who may write one key
/// could use to remove the rest.
pub fn registry() -> stream::Config {
    stream::Config {
        name: subjects::REGISTRY_STREAM.to_owned(),
        description: Some("workers and the model versions they serve".to_owned()),
        subjects: vec![subjects::REGISTRY_SUBJECTS.to_owned()],
        discard: stream::DiscardPolicy::New,
        max_messages_per_subject: 1,
        max_age: WorkerEntry::TIME_TO_LIVE,
        deny_delete: true,
        allow_rollup: false,
        storage: stream::StorageType::Memory,
        ..Default::default()
    }
}
