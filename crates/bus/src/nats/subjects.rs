//! Names on the wire: subjects, streams, buckets (design: `docs/message-contract.md`).

use trireme_inference::ModelKey;

/// Request ids that nobody waits for any more.
pub const CANCEL: &str = "trireme.cancel";
/// Registry bucket.
pub const REGISTRY_BUCKET: &str = "trireme_registry";
/// The stream behind it, and its subjects.
pub const REGISTRY_STREAM: &str = "KV_trireme_registry";
pub const REGISTRY_SUBJECTS: &str = "$KV.trireme_registry.>";
/// Requests for streams, which gateways make.
pub const STREAM_REQUESTS: &str = "trireme.streams.>";
/// Stream of messages that were given up.
pub const DEAD_STREAM: &str = "trireme_dead";
/// Its subjects.
pub const DEAD_SUBJECTS: &str = "trireme.dead.>";
/// Those of the letters themselves.
pub const DEAD_LETTERS: &str = "trireme.dead.*.*";
/// Stream of bodies above `max_payload`.
pub const CLAIM_STREAM: &str = "trireme_claims";
/// Its subjects.
pub const CLAIM_SUBJECTS: &str = "trireme.claim.>";
/// Stream of notes how often messages were begun.
pub const ATTEMPTS_STREAM: &str = "trireme_attempts";
/// Its subjects.
pub const ATTEMPTS_SUBJECTS: &str = "trireme.attempts.*";
/// The durable consumer that the workers of a queue share.
pub const WORKERS: &str = "workers";

/// Subject of work for a model version at a priority level.
pub fn work(model: &ModelKey, level: u32) -> String {
    format!("trireme.work.{}.{}.{level}", escape_token(&model.name), model.version)
}

/// Name of the stream of a model version's work at a priority level.
pub fn work_stream(model: &ModelKey, level: u32) -> String {
    let name = format!("trireme_work_{}_{}", escape_token(&model.name), model.version);
    match level {
        0 => name,
        // What follows the last `_` of the name is else a version, so that no other queue has this name.
        level => format!("{name}-{level}"),
    }
}

/// Subject of work for a model version that its workers are about to execute, where its queue has a policy.
pub fn scheduled(model: &ModelKey) -> String {
    format!("trireme.work.{}.{}.scheduled", escape_token(&model.name), model.version)
}

/// Name of the stream of that work.
pub fn scheduled_stream(model: &ModelKey) -> String {
    format!("{}-scheduled", work_stream(model, 0))
}

/// Subject of the replies to one request.
pub fn reply(gateway: &str, request_id: &str) -> String {
    format!("trireme.reply.{}.{}", escape_token(gateway), escape_token(request_id))
}

/// Subjects of all replies to a gateway.
pub fn replies_to(gateway: &str) -> String {
    format!("trireme.reply.{}.*", escape_token(gateway))
}

/// Subject of the requests for one of the streams that there is one of.
pub fn stream_request(name: &str) -> String {
    format!("trireme.streams.{name}")
}

/// Subject of the requests for the queue of a model version.
pub fn queue_request(model: &ModelKey) -> String {
    format!("trireme.streams.work.{}.{}", escape_token(&model.name), model.version)
}

/// Subject of the questions of a topic.
pub fn control(topic: &str) -> String {
    format!("trireme.control.{}", escape_token(topic))
}

/// Subject of given-up messages of a model version.
pub fn dead(model: &ModelKey) -> String {
    format!("trireme.dead.{}.{}", escape_token(&model.name), model.version)
}

/// Subject of one part of a claim.
pub fn claim(name: &str, part: usize) -> String {
    format!("trireme.claim.{name}.{part}")
}

/// Subjects of all parts of a claim.
pub fn claim_all(name: &str) -> String {
    format!("trireme.claim.{name}.*")
}

/// Subject of one part of a dead letter's claim. No model's name becomes the token `=claim`.
pub fn dead_claim(name: &str, part: usize) -> String {
    format!("trireme.dead.=claim.{name}.{part}")
}

/// Subjects of all parts of a dead letter's claim.
pub fn dead_claim_all(name: &str) -> String {
    format!("trireme.dead.=claim.{name}.*")
}

/// Subject of the note how often a message was begun.
pub fn attempts(message_id: &str) -> String {
    format!("trireme.attempts.{}", escape_token(message_id))
}

/// Whether `token` is what [`escape_token`] may give.
pub fn is_token(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte))
}

/// `name` as one subject token that is also fit for stream names and bucket keys: letters, digits, `-` and `_` stay, every
/// other byte becomes `=` and two hexadecimal digits. An empty name is `=`.
pub fn escape_token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for &byte in name.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => token.push(byte as char),
            _ => token.push_str(&format!("={byte:02X}")),
        }
    }
    if token.is_empty() {
        token.push('=');
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_one_token() {
        assert_eq!(escape_token("all-MiniLM_L6"), "all-MiniLM_L6");
        assert_eq!(escape_token("a.b *>c"), "a=2Eb=20=2A=3Ec");
        assert_eq!(escape_token("é="), "=C3=A9=3D");
        assert_eq!(escape_token(""), "=");
    }

    proptest::proptest! {
        #[test]
        fn different_names_stay_different(a in ".*", b in ".*") {
            proptest::prop_assert_eq!(a == b, escape_token(&a) == escape_token(&b));
        }
    }
}
