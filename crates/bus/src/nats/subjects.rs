//! Names on the wire: subjects, streams, buckets (described in `docs/message-contract.md`).

use trireme_inference::ModelKey;

use crate::token::{Token, unescape_token};

/// Subjects on which stages ask gateways for streams.
pub const STREAM_REQUESTS: &str = "trireme.streams.>";
/// Stream of bodies above `max_payload`.
pub const CLAIM_STREAM: &str = "trireme_claims";
/// The subjects of that stream.
pub const CLAIM_SUBJECTS: &str = "trireme.claim.>";
/// The durable consumer that the workers of a queue share.
pub const WORKERS: &str = "workers";

/// The subject of a request's work for a model version at a priority level. It contains the request's id, so that the
/// broker can list the requests in a queue.
pub fn work(model: &ModelKey, level: u32, gateway: &str, request_id: &str) -> String {
    let request_id = Token(request_id);
    format!("trireme.work.{}.{}.{level}.{}.{request_id}", Token(&model.name), model.version, Token(gateway))
}

/// Subjects of all work for a model version at a priority level.
pub fn work_at(model: &ModelKey, level: u32) -> String {
    format!("trireme.work.{}.{}.{level}.>", Token(&model.name), model.version)
}

/// Subjects of all work of a gateway for a model version.
pub fn work_of(model: &ModelKey, gateway: &str) -> String {
    format!("trireme.work.{}.{}.*.{}.*", Token(&model.name), model.version, Token(gateway))
}

/// The request's id in a subject of work.
pub fn request_of(subject: &str) -> Option<String> {
    unescape_token(subject.rsplit('.').next()?)
}

/// Name of the stream of a model version's work at a priority level.
pub fn work_stream(model: &ModelKey, level: u32) -> String {
    let name = format!("trireme_work_{}_{}", Token(&model.name), model.version);
    match level {
        0 => name,
        // Without a level, the part after the last `_` is the version. A version has no `-` inside, so no other queue
        // has this name.
        level => format!("{name}-{level}"),
    }
}

/// The model version of a stream's work, from the stream's name.
pub fn model_of(stream: &str) -> Option<ModelKey> {
    let (model, version) = stream.strip_prefix("trireme_work_")?.rsplit_once('_')?;
    let version = version.split_once('-').map_or(version, |(version, _)| version);
    Some(ModelKey { name: unescape_token(model)?.into(), version: version.parse().ok()? })
}

/// The delivery that a reply ends, as encoded in the reply's own reply subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The subject that settles the delivery.
    pub acknowledgement: String,
    /// The claim of the delivered message's body.
    pub claim: Option<String>,
    /// Whether the delivered message is one part of an answer. The reply to it then ends the delivery, even if other
    /// parts are missing.
    pub is_part: bool,
}

/// The last token of [`unheard`] for a part of an answer, and for a whole request.
const OF_PART: &str = "part";
const OF_REQUEST: &str = "request";

/// The subject at which the broker reports a reply that no gateway listened to: below `inbox`, with the delivery that
/// the reply ends.
pub fn unheard(inbox: &str, ended: &Ended) -> String {
    let claim = ended.claim.as_deref().unwrap_or("=");
    let of = if ended.is_part { OF_PART } else { OF_REQUEST };
    format!("{inbox}.{}.{claim}.{of}", Token(&ended.acknowledgement))
}

/// Parses a subject made by [`unheard`].
pub fn ended(subject: &str) -> Option<Ended> {
    let mut tokens = subject.rsplit('.');
    let (of, claim, acknowledgement) = (tokens.next()?, tokens.next()?, unescape_token(tokens.next()?)?);
    // The sender of the reply wrote this subject, so it must not lead anywhere but to one delivery of work.
    let of_work = acknowledgement.split('.').any(|token| token.starts_with("trireme_work_"));
    let is_one_delivery = acknowledgement.starts_with("$JS.ACK.")
        && of_work
        && !acknowledgement.contains(['*', '>', ' ', '\r', '\n', '\t']);
    let claim = Some(claim).filter(|claim| *claim != "=").map(str::to_owned);
    is_one_delivery.then_some(Ended { acknowledgement, claim, is_part: of == OF_PART })
}

/// Subject of the replies to one request.
pub fn reply(gateway: &str, request_id: &str) -> String {
    format!("trireme.reply.{}.{}", Token(gateway), Token(request_id))
}

/// Subjects of all replies to a gateway.
pub fn replies_to(gateway: &str) -> String {
    format!("trireme.reply.{}.*", Token(gateway))
}

/// The subject on which stages ask for the stream of a store, or of claims.
pub fn stream_request(name: &str) -> String {
    format!("trireme.streams.{name}")
}

/// The subject on which stages ask for the queue of a model version.
pub fn queue_request(model: &ModelKey) -> String {
    format!("trireme.streams.work.{}.{}", Token(&model.name), model.version)
}

/// Subject of a topic.
pub fn topic(topic: &str) -> String {
    format!("trireme.control.{}", Token(topic))
}

/// The subject on which a gateway says that it has made the bulk lane of a model version's queue.
pub fn bulk_made(model: &ModelKey) -> String {
    format!("trireme.control.bulk.{}.{}", Token(&model.name), model.version)
}

/// Subject of one part of a claim, or of all its parts (`*`).
pub fn claim(name: &str, part: &str) -> String {
    format!("trireme.claim.{name}.{part}")
}

/// Whether `token` has only characters of a [`Token`].
pub fn is_token(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escape_token;

    #[test]
    fn names_become_one_token() {
        assert_eq!(escape_token("all-MiniLM_L6"), "all-MiniLM_L6");
        assert_eq!(escape_token("a.b *>c"), "a=2Eb=20=2A=3Ec");
        assert_eq!(escape_token("é="), "=C3=A9=3D");
        assert_eq!(escape_token(""), "=");
    }

    #[test]
    fn a_stream_tells_whose_work_it_holds() {
        let model = ModelKey { name: "a.b_1-2".into(), version: 3 };
        for level in [0, 7] {
            assert_eq!(model_of(&work_stream(&model, level)), Some(model.clone()));
        }
        assert_eq!(model_of("KV_trireme_registry"), None);
        assert_eq!(request_of(&work(&model, 1, "gate.way", "gate.way-7~1")).as_deref(), Some("gate.way-7~1"));
    }

    #[test]
    fn only_deliveries_of_work_are_acknowledged_for_others() {
        let delivery = "$JS.ACK.trireme_work_m_1.workers.1.2.3.4.0";
        let of = |subject: &str, claim: Option<&str>, is_part| Ended {
            acknowledgement: subject.to_owned(),
            claim: claim.map(str::to_owned),
            is_part,
        };
        let found = |what: &Ended| ended(&unheard("_INBOX.model.x", what));
        for what in [of(delivery, None, false), of(delivery, Some("c"), true)] {
            assert_eq!(found(&what), Some(what));
        }
        for other in
            ["$JS.API.STREAM.DELETE.trireme_work_m_1", "$JS.ACK.other.workers.1.2.3.4.0", "$JS.ACK.trireme_work_m_1.>"]
        {
            assert_eq!(found(&of(other, None, false)), None, "{other}");
        }
        assert_eq!(ended("x"), None);
    }

    proptest::proptest! {
        #[test]
        fn a_token_is_read_back(name in ".*") {
            proptest::prop_assert_eq!(unescape_token(&escape_token(&name)), Some(name));
        }

        #[test]
        fn different_names_stay_different(a in ".*", b in ".*") {
            proptest::prop_assert_eq!(a == b, escape_token(&a) == escape_token(&b));
        }
    }
}
