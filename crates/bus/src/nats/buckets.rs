//! The streams behind the stores, and the stream for large bodies: their subjects, size limits and ages.
//!
//! The number of copies is a setting of the deployment. Not here: creating the streams (`streams`).

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};

use super::subjects::Names;
use crate::Bucket;

/// How long claims and notes of requests without a deadline are kept.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// Bytes of claims that the broker keeps, unless an operator created the stream with another limit.
const CLAIM_BYTES: i64 = 256 << 20;

/// Bytes of notes that the broker keeps, which are tens of thousands of notes. It drops the oldest first.
const ATTEMPT_BYTES: i64 = 4 << 20;

/// Limits of the dead letters: their age, number and bytes. The broker drops the oldest first.
const DEAD_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const DEAD_LETTERS: i64 = 10_000;
const DEAD_BYTES: i64 = 1 << 30;

/// Bytes of states of sequences that the broker keeps, unless an operator created the stream with another limit. When they
/// are used up, no sequence can begin or go on.
const SEQUENCE_BYTES: i64 = 256 << 20;

/// The stream behind a bucket.
pub fn stream(names: &Names, bucket: Bucket) -> String {
    match is_key_value(bucket) {
        true => format!("KV_{names}_{}", bucket.name()),
        false => format!("{names}_{}", bucket.name()),
    }
}

/// The prefix of a bucket's subjects.
pub fn prefix(names: &Names, bucket: Bucket) -> String {
    match is_key_value(bucket) {
        true => format!("$KV.{names}_{}.", bucket.name()),
        false => format!("{names}.{}.", bucket.name()),
    }
}

/// Whether a bucket's stream is named so that tools show it as a key-value bucket.
fn is_key_value(bucket: Bucket) -> bool {
    matches!(bucket, Bucket::Settings | Bucket::Registry | Bucket::Models)
}

/// The subject of a key.
pub fn subject(names: &Names, bucket: Bucket, key: &str) -> String {
    format!("{}{key}", prefix(names, bucket))
}

/// The subjects of all keys. The parts of large values do not match, because their subjects have one more token.
pub fn keys(names: &Names, bucket: Bucket) -> String {
    format!("{}{}", prefix(names, bucket), vec!["*"; bucket.tokens()].join("."))
}

/// The key in a subject.
pub fn key<'a>(names: &Names, bucket: Bucket, subject: &'a str) -> Option<&'a str> {
    subject.strip_prefix(&prefix(names, bucket))
}

/// The subject of a part of a large value, or of all its parts (`*`). It has more tokens than a key.
pub fn part(names: &Names, bucket: Bucket, claim: &str, part: &str) -> String {
    format!("{}=claim.=.{claim}.{part}", prefix(names, bucket))
}

/// The configuration of a bucket's stream, without the deployment's settings.
pub fn config(names: &Names, bucket: Bucket) -> Config {
    let last_value = Config {
        name: stream(names, bucket),
        subjects: vec![format!("{}>", prefix(names, bucket))],
        max_messages_per_subject: 1,
        allow_direct: true,
        allow_message_ttl: true,
        ..Default::default()
    };
    let description = |text: &str| Some(text.to_owned());
    match bucket {
        Bucket::Settings => Config { description: description("settings of the deployment"), ..last_value },
        // Roll-ups are off: a process that may write one key could remove the others with one.
        Bucket::Registry => Config {
            description: description("workers and the model versions they host"),
            deny_delete: true,
            allow_rollup: false,
            storage: StorageType::Memory,
            ..last_value
        },
        Bucket::Models => Config { description: description("models loaded and unloaded by request"), ..last_value },
        Bucket::Attempts => Config {
            description: description("how often messages that came again were begun"),
            max_bytes: ATTEMPT_BYTES,
            max_age: AGE,
            storage: StorageType::Memory,
            ..last_value
        },
        Bucket::Dead => Config {
            description: description("messages that were given up"),
            max_age: DEAD_AGE,
            max_messages: DEAD_LETTERS,
            max_bytes: DEAD_BYTES,
            ..last_value
        },
        Bucket::Sequences => Config {
            description: description("states of sequences between their requests"),
            max_bytes: SEQUENCE_BYTES,
            // A sequence that goes on must not lose its states to others.
            discard: DiscardPolicy::New,
            storage: StorageType::Memory,
            ..last_value
        },
        // An accepted job is kept until its time to live is over: a full disk refuses new jobs instead.
        Bucket::Jobs => Config {
            description: description("durable requests, batches and files"),
            discard: DiscardPolicy::New,
            allow_atomic_publish: true,
            ..last_value
        },
        Bucket::Objects => Config {
            description: description("the bytes of durable requests, batches and files"),
            discard: DiscardPolicy::New,
            ..last_value
        },
        // Each record has a time to live of its own.
        Bucket::Usage => Config { description: description("what owners of keys have used"), ..last_value },
    }
}

/// Adapts a configuration to the existing stream: the storage cannot be changed, and the process or operator that
/// created the stream decides how many bytes it holds.
pub fn as_made(config: Config, there: &Config) -> Config {
    Config { storage: there.storage, max_bytes: there.max_bytes, ..config }
}

/// The stream of bodies above `max_payload`, in parts.
pub fn claims(names: &Names) -> Config {
    Config {
        name: names.claim_stream(),
        description: Some("bodies of messages above max_payload".to_owned()),
        subjects: vec![format!("{names}.claim.>")],
        discard: DiscardPolicy::New,
        // A part that is stored again replaces the previous one.
        max_messages_per_subject: 1,
        max_bytes: CLAIM_BYTES,
        max_age: AGE,
        allow_message_ttl: true,
        allow_direct: true,
        storage: StorageType::Memory,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::subjects::DeploymentName;
    use super::*;

    #[test]
    fn keys_are_told_from_parts_of_large_values() {
        let names = &Names::of(&DeploymentName::default());
        for bucket in Bucket::ALL {
            let key = vec!["a=2Eb"; bucket.tokens()].join(".");
            let subject = subject(names, bucket, &key);
            assert_eq!(super::key(names, bucket, &subject), Some(key.as_str()));
            let tokens = |subject: &str| subject.split('.').count();
            assert_eq!(tokens(&keys(names, bucket)), tokens(&subject));
            assert!(tokens(&part(names, bucket, "c", "0")) > tokens(&subject), "{bucket:?}");
            assert_eq!(config(names, bucket).subjects, [format!("{}>", prefix(names, bucket))]);
        }
    }

    #[test]
    fn what_an_operator_made_is_kept() {
        let names = Names::of(&DeploymentName::default());
        let made = Config { storage: StorageType::File, max_bytes: 7, max_messages: 3, ..Default::default() };
        let config = as_made(Config { num_replicas: 3, ..claims(&names) }, &made);
        assert_eq!((config.storage, config.max_bytes, config.num_replicas), (StorageType::File, 7, 3));
        assert_eq!(config.max_messages, claims(&names).max_messages);
    }
}
