//! The meaning of the broker's errors: a refusal for good, a refusal because something is full, or a passing failure.

use std::error::Error;

use async_nats::jetstream::context::{
    AccountError, AccountErrorKind, ConsumerInfoError, ConsumerInfoErrorKind, CreateStreamError, CreateStreamErrorKind,
    GetStreamError, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::{self, stream};

use crate::BusError;

/// The bus error for a failed `action`. An error that the broker sent is a refusal, unless it is a passing one; any
/// other error means that the broker was not reached.
pub fn failure(action: &'static str, error: &(dyn Error + 'static)) -> BusError {
    match jetstream_error(error) {
        Some(answer) if !is_passing(&answer) => BusError::Refused { action, reason: chain(error) },
        _ => BusError::Unreachable(format!("{action}: {}", chain(error))),
    }
}

/// Whether the broker may have stored the message despite the error.
pub fn is_unconfirmed(error: &PublishError) -> bool {
    matches!(error.kind(), PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending)
}

/// Whether the broker refused because the stream, or its own storage, is full.
pub fn is_full(error: &PublishError) -> bool {
    jetstream_error(error).is_some_and(|answer| {
        matches!(
            answer.error_code(),
            jetstream::ErrorCode::STREAM_STORE_FAILED
                | jetstream::ErrorCode::INSUFFICIENT_RESOURCES
                | jetstream::ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
                | jetstream::ErrorCode::MEMORY_RESOURCES_EXCEEDED
                | jetstream::ErrorCode::STORAGE_RESOURCES_EXCEEDED
        )
    })
}

/// Whether the broker refused because of a passing condition.
pub fn is_overloaded(error: &PublishError) -> bool {
    jetstream_error(error).is_some_and(|answer| is_passing(&answer))
}

/// Whether no stream accepts messages of this subject: it does not exist, or it is electing its leader.
pub fn is_no_stream(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::StreamNotFound
}

/// Whether the key has another revision than expected.
pub fn is_conflict(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::WrongLastSequence
        || jetstream_error(error).is_some_and(|answer| {
            matches!(
                answer.error_code(),
                jetstream::ErrorCode::STREAM_WRONG_LAST_SEQUENCE
                    | jetstream::ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT
            )
        })
}

/// Whether the stream does not exist.
pub fn is_not_found(error: &GetStreamError) -> bool {
    match error.kind() {
        GetStreamErrorKind::JetStream(answer) => answer.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND,
        _ => false,
    }
}

/// Whether a text of the broker's is that a permission is missing.
pub fn is_permission(text: &str) -> bool {
    text.to_ascii_lowercase().contains("permissions violation")
}

/// Whether the broker reports that the stream does not exist.
pub fn says_no_stream(error: &(dyn Error + 'static)) -> bool {
    let answer = jetstream_error(error).map(|answer| answer.error_code());
    answer == Some(jetstream::ErrorCode::STREAM_NOT_FOUND) || chain(error).contains("stream not found")
}

/// Whether the error is that a subject has no responders.
pub fn says_no_responders(error: &dyn Error) -> bool {
    chain(error).contains("no responders")
}

/// Whether the error is that no answer came in time.
pub fn says_timed_out(error: &dyn Error) -> bool {
    chain(error).contains("timed out")
}

/// Whether the broker's error is a passing one: an HTTP status for it, or a cluster that elects a leader, misses
/// a broker for a copy, or is already storing the same message and does not know the outcome yet, or a broker that cannot make a
/// stream's files because its disk is full.
pub fn is_passing(answer: &jetstream::Error) -> bool {
    let code = answer.error_code();
    let is_full = matches!(
        code,
        jetstream::ErrorCode::INSUFFICIENT_RESOURCES
            | jetstream::ErrorCode::STREAM_STORE_FAILED
            | jetstream::ErrorCode::MEMORY_RESOURCES_EXCEEDED
            | jetstream::ErrorCode::STORAGE_RESOURCES_EXCEEDED
    );
    !is_full
        && (matches!(answer.code(), 408 | 429 | 503)
            || matches!(
                code,
                jetstream::ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT
                    | jetstream::ErrorCode::CLUSTER_NOT_LEADER
                    | jetstream::ErrorCode::CLUSTER_NOT_ASSIGNED
                    | jetstream::ErrorCode::CLUSTER_NO_PEERS
                    | jetstream::ErrorCode::STREAM_CREATE
            )
            || answer.to_string().contains("offline"))
}

/// The broker's error response in `error` or among its causes.
fn jetstream_error(error: &(dyn Error + 'static)) -> Option<jetstream::Error> {
    std::iter::successors(Some(error), |error| (*error).source()).find_map(own_answer)
}

/// The broker's error response, if `error` is one or has one in its kind. The client does not report a kind as a cause.
fn own_answer(error: &(dyn Error + 'static)) -> Option<jetstream::Error> {
    macro_rules! in_kind {
        ($($error:ty: $kind:path),* $(,)?) => {$(
            if let Some(error) = error.downcast_ref::<$error>() {
                return match error.kind() {
                    $kind(answer) => Some(answer),
                    _ => None,
                };
            }
        )*};
    }
    in_kind![
        AccountError: AccountErrorKind::JetStream,
        ConsumerInfoError: ConsumerInfoErrorKind::JetStream,
        CreateStreamError: CreateStreamErrorKind::JetStream,
        GetStreamError: GetStreamErrorKind::JetStream,
        stream::ConsumerError: stream::ConsumerErrorKind::JetStream,
        stream::DeleteMessageError: stream::DeleteMessageErrorKind::JetStream,
        stream::PurgeError: stream::PurgeErrorKind::JetStream,
        stream::RawMessageError: stream::RawMessageErrorKind::JetStream,
    ];
    error.downcast_ref::<jetstream::Error>().cloned()
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, error_code: u16, description: &str) -> jetstream::Error {
        let json = serde_json::json!({ "code": code, "err_code": error_code, "description": description });
        serde_json::from_value(json).unwrap()
    }

    fn is_refused(error: &(dyn Error + 'static)) -> bool {
        matches!(failure("testing", error), BusError::Refused { action: "testing", .. })
    }

    #[test]
    fn what_brokers_cannot_do_just_now_is_no_refusal() {
        for (code, error_code, description) in [
            (503, 10008, "JetStream system temporarily unavailable"),
            (500, 10009, "JetStream cluster can not handle request"),
            (500, 10007, "JetStream cluster not assigned to this server"),
            (400, 10005, "no suitable peers for placement"),
            (500, 10049, "error creating store for stream"),
            (500, 10118, "stream is offline"),
            (500, 10194, "stream is offline: unsupported"),
            (408, 0, "timeout"),
            (429, 10167, "too many requests"),
        ] {
            assert!(!is_refused(&answer(code, error_code, description)), "{description}");
        }
        for (code, error_code, description) in [
            (400, 10058, "stream name already in use with a different configuration"),
            (404, 10059, "stream not found"),
            (500, 10074, "replicas > 1 not supported in non-clustered mode"),
            (503, 10023, "insufficient resources"),
            (500, 10052, "stream configuration update can not change storage type"),
        ] {
            assert!(is_refused(&answer(code, error_code, description)), "{description}");
        }
    }

    #[test]
    fn the_brokers_answer_is_found_in_kinds_and_among_causes() {
        let refusal = answer(400, 10058, "in use");
        let in_kind = CreateStreamError::new(CreateStreamErrorKind::JetStream(refusal.clone()));
        assert!(is_refused(&in_kind));
        let cause = PublishError::with_source(PublishErrorKind::Other, refusal.clone());
        assert!(is_refused(&cause));
        let in_kind_of_cause = stream::ConsumerError::with_source(stream::ConsumerErrorKind::Other, in_kind);
        assert!(is_refused(&in_kind_of_cause));
        assert!(!is_refused(&PublishError::new(PublishErrorKind::TimedOut)), "nobody answered");
        let text = failure("testing", &cause).to_string();
        assert_eq!(text.matches("in use").count(), 1, "{text}");
    }

    #[test]
    fn what_is_full_is_told_from_what_cannot_be_just_now() {
        let published = |answer| PublishError::with_source(PublishErrorKind::Other, answer);
        let full = published(answer(503, 10077, "maximum messages exceeded"));
        assert!(is_full(&full) && !is_overloaded(&full));
        let busy = published(answer(429, 10167, "too many requests"));
        assert!(!is_full(&busy) && is_overloaded(&busy));
        let conflict = published(answer(400, 10071, "wrong last sequence: 7"));
        assert!(is_conflict(&conflict) && is_conflict(&PublishError::new(PublishErrorKind::WrongLastSequence)));
        assert!(says_no_stream(&answer(404, 10059, "stream not found")) && !says_no_stream(&full));
    }
}
