//! Names on the wire: subjects, streams, buckets (described in `docs/message-contract.md`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use trireme_inference::ModelKey;

use crate::token::{Token, unescape_token};

/// The durable consumer that the workers of a queue share.
pub const WORKERS: &str = "workers";

/// The longest name of a deployment, in bytes.
const MAX_DEPLOYMENT: usize = 32;

/// The name of a deployment on a broker that it shares with others; none by default. All names on the wire begin with it.
///
/// ```
/// use trireme_bus::DeploymentName;
///
/// assert_eq!("team-a".parse::<DeploymentName>().as_ref().map(DeploymentName::as_str), Ok("team-a"));
/// assert!("team_a".parse::<DeploymentName>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentName(String);

/// The names of one deployment on the wire.
#[derive(Clone, Debug)]
pub struct Names {
    /// The beginning of all names: `trireme`, or `trireme-<deployment>`.
    root: Arc<str>,
}

// === impl DeploymentName ===

impl DeploymentName {
    /// The name; empty for a deployment without a name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Stream names join parts with `_`, so a name with it could look like that of another deployment's stream.
impl FromStr for DeploymentName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeploymentName, String> {
        let fits =
            text.len() <= MAX_DEPLOYMENT && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match fits {
            true => Ok(DeploymentName(text.to_owned())),
            false => Err(format!("expected letters, digits and '-', {MAX_DEPLOYMENT} bytes at most")),
        }
    }
}

// === impl Names ===

impl Names {
    pub fn of(deployment: &DeploymentName) -> Names {
        let root = match deployment.as_str() {
            "" => "trireme".into(),
            name => format!("trireme-{name}").into(),
        };
        Names { root }
    }

    /// The prefix of inboxes below `prefix` that belong to a service.
    pub fn inboxes(&self, prefix: &str, service: &str) -> String {
        let service = Token(service);
        match &*self.root {
            "trireme" => format!("{prefix}.{service}"),
            root => format!("{prefix}.{root}.{service}"),
        }
    }

    /// Stream of bodies above `max_payload`.
    pub fn claim_stream(&self) -> String {
        format!("{self}_claims")
    }

    /// The stream that shows whether the broker's disk takes writes.
    pub fn pulse_stream(&self) -> String {
        format!("{self}_pulse")
    }

    /// The subject of the messages in it.
    pub fn pulse(&self) -> String {
        format!("{self}.pulse")
    }

    /// The subject of a request's work for a model version at a priority level. It contains the request's id, so that the
    /// broker can list the requests in a queue.
    pub fn work(&self, model: &ModelKey, level: u32, gateway: &str, request_id: &str) -> String {
        let request_id = Token(request_id);
        format!("{self}.work.{}.{}.{level}.{}.{request_id}", Token(&model.name), model.version, Token(gateway))
    }

    /// Subjects of all work for a model version at a priority level.
    pub fn work_at(&self, model: &ModelKey, level: u32) -> String {
        format!("{self}.work.{}.{}.{level}.>", Token(&model.name), model.version)
    }

    /// Subjects of all work of a gateway for a model version.
    pub fn work_of(&self, model: &ModelKey, gateway: &str) -> String {
        format!("{self}.work.{}.{}.*.{}.*", Token(&model.name), model.version, Token(gateway))
    }

    /// Name of the stream of a model version's work at a priority level.
    pub fn work_stream(&self, model: &ModelKey, level: u32) -> String {
        let name = format!("{self}_work_{}_{}", Token(&model.name), model.version);
        match level {
            0 => name,
            // Without a level, the part after the last `_` is the version. A version has no `-` inside, so no other queue
            // has this name.
            level => format!("{name}-{level}"),
        }
    }

    /// The model version of a stream's work, from the stream's name.
    pub fn model_of(&self, stream: &str) -> Option<ModelKey> {
        let (model, version) = stream.strip_prefix(&format!("{self}_work_"))?.rsplit_once('_')?;
        let version = version.split_once('-').map_or(version, |(version, _)| version);
        Some(ModelKey { name: unescape_token(model)?.into(), version: version.parse().ok()? })
    }

    /// The priority level of a stream's work, from the stream's name.
    pub fn level_of(&self, stream: &str) -> Option<u32> {
        let (_, version) = stream.strip_prefix(&format!("{self}_work_"))?.rsplit_once('_')?;
        version.split_once('-').map_or(Some(0), |(_, level)| level.parse().ok())
    }

    /// Subject of the replies to one request.
    pub fn reply(&self, gateway: &str, request_id: &str) -> String {
        format!("{self}.reply.{}.{}", Token(gateway), Token(request_id))
    }

    /// Subjects of all replies to a gateway.
    pub fn replies_to(&self, gateway: &str) -> String {
        format!("{self}.reply.{}.*", Token(gateway))
    }

    /// The subject on which gateways say why they cannot make the queue of a model version.
    pub fn queue_refused(&self, model: &ModelKey) -> String {
        format!("{self}.control.queue_refused.{}.{}", Token(&model.name), model.version)
    }

    /// Subject of a topic.
    pub fn topic(&self, topic: &str) -> String {
        format!("{self}.control.{}", Token(topic))
    }

    /// The subject on which a gateway says that it has made the bulk lane of a model version's queue.
    pub fn bulk_made(&self, model: &ModelKey) -> String {
        format!("{self}.control.bulk.{}.{}", Token(&model.name), model.version)
    }

    /// Subject of one part of a claim, or of all its parts (`*`).
    pub fn claim(&self, name: &str, part: &str) -> String {
        format!("{self}.claim.{name}.{part}")
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)
    }
}

/// The request's id in a subject of work, or of a reply.
pub fn request_of(subject: &str) -> Option<String> {
    unescape_token(subject.rsplit('.').next()?)
}

/// Whether `token` has only characters of a [`Token`].
pub fn is_token(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escape_token;

    fn names(deployment: &str) -> Names {
        Names::of(&deployment.parse().unwrap())
    }

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
        let names = names("");
        for level in [0, 7] {
            assert_eq!(names.model_of(&names.work_stream(&model, level)), Some(model.clone()));
            assert_eq!(names.level_of(&names.work_stream(&model, level)), Some(level));
        }
        assert_eq!(names.model_of("KV_trireme_registry"), None);
        assert_eq!(request_of(&names.work(&model, 1, "gate.way", "gate.way-7~1")).as_deref(), Some("gate.way-7~1"));
    }

    #[test]
    fn deployments_have_no_name_in_common() {
        let model = ModelKey { name: "m".into(), version: 1 };
        let all = |names: &Names| {
            let subjects = [names.work_at(&model, 0), names.replies_to("g"), names.topic("t")];
            [&subjects[..], &[names.work_stream(&model, 0), names.claim_stream(), names.inboxes("_INBOX", "gateway")]]
                .concat()
        };
        let deployments = ["", "a", "a-b", "gateway", "work", "A"].map(names);
        for (at, one) in deployments.iter().enumerate() {
            for other in &deployments[at + 1..] {
                assert!(all(one).iter().all(|name| !all(other).contains(name)), "{one} and {other}");
                assert_eq!(one.model_of(&other.work_stream(&model, 3)), None, "{one} and {other}");
            }
        }
        for unfit in ["a.b", "a_b", "a b", "*", "ä", &"a".repeat(33)] {
            assert!(unfit.parse::<DeploymentName>().is_err(), "{unfit}");
        }
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
