//! NATS headers: the fields that routing needs and that people want to see.

use async_nats::{HeaderMap, HeaderValue, Message};
use trireme_inference::{Name, Owner, TraceParent, UnixMicros};

use super::claims::Claim;
use super::subjects;
use crate::envelope::{CONTRACT_VERSION, EnvelopeError, MAX_NAME, ReplyHeaders, WorkHeaders};
use crate::{AnswerForm, Part, Reply, WorkMessage};

const CONTRACT: &str = "Trireme-Contract";
const REQUEST: &str = "Trireme-Request";
const GATEWAY: &str = "Trireme-Gateway";
const DEADLINE: &str = "Trireme-Deadline";
const PRIORITY: &str = "Trireme-Priority";
const IN_PARTS: &str = "Trireme-In-Parts";
const SEQUENCE: &str = "Trireme-Sequence";
const FINAL: &str = "Trireme-Final";
const JOB: &str = "Trireme-Job";
const OWNER: &str = "Trireme-Owner";
const WEIGHT: &str = "Trireme-Weight";
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// A claim's name.
const CLAIM: &str = "Trireme-Claim";
const CLAIM_BYTES: &str = "Trireme-Claim-Bytes";
const CLAIM_PARTS: &str = "Trireme-Claim-Parts";

/// Headers of a work message. Because of `Nats-Msg-Id`, a step that is published twice arrives once.
pub fn write_work(message: &WorkMessage) -> Result<HeaderMap, EnvelopeError> {
    let mut headers = HeaderMap::new();
    headers.insert(async_nats::header::NATS_MESSAGE_ID, one_line(REQUEST, &message.message_id())?);
    headers.insert(CONTRACT, CONTRACT_VERSION.to_string());
    headers.insert(REQUEST, written_name(REQUEST, &message.request_id)?);
    headers.insert(GATEWAY, written_name(GATEWAY, &message.gateway)?);
    headers.insert(DEADLINE, message.deadline.to_string());
    headers.insert(PRIORITY, message.priority.to_string());
    for (name, value) in message.traceparent.iter().flat_map(TraceParent::headers) {
        headers.insert(name, one_line(name, value)?);
    }
    if let Some(job) = &message.job {
        headers.insert(JOB, one_line(JOB, job)?);
    }
    if !message.owner.name.is_empty() {
        headers.insert(OWNER, one_line(OWNER, &message.owner.name)?);
    }
    if message.owner.weight > 1 {
        headers.insert(WEIGHT, message.owner.weight.to_string());
    }
    match message.answer {
        AnswerForm::Whole => {}
        AnswerForm::InParts => headers.insert(IN_PARTS, "true"),
        AnswerForm::Part(part) => write_part(&mut headers, part),
    }
    Ok(headers)
}

/// Reads the headers that [`write_work`] wrote.
pub fn read_work(message: &Message) -> Result<WorkHeaders, EnvelopeError> {
    check_contract(message)?;
    Ok(WorkHeaders {
        request_id: name(message, REQUEST)?.into(),
        gateway: name(message, GATEWAY)?.into(),
        deadline: UnixMicros(number(message, DEADLINE)?),
        priority: number(message, PRIORITY)?,
        traceparent: get(message, TRACEPARENT).map(Name::new),
        tracestate: get(message, TRACESTATE).map(Name::new),
        answer: read_answer(message)?,
        job: get(message, JOB).map(Name::new),
        owner: read_owner(message)?,
    })
}

/// The name of the request that a work message is part of, whatever its contract, where it has one that is usable.
pub fn request_name(message: &Message) -> Option<String> {
    name(message, REQUEST).ok()
}

/// Headers of a reply.
pub fn write_reply(reply: &Reply) -> Result<HeaderMap, EnvelopeError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTRACT, CONTRACT_VERSION.to_string());
    headers.insert(REQUEST, written_name(REQUEST, &reply.request_id)?);
    headers.insert(GATEWAY, written_name(GATEWAY, &reply.gateway)?);
    write_part(&mut headers, Part { sequence: reply.sequence, last: reply.last });
    Ok(headers)
}

/// Reads the headers that [`write_reply`] wrote.
pub fn read_reply(message: &Message) -> Result<ReplyHeaders, EnvelopeError> {
    check_contract(message)?;
    let Part { sequence, last } = read_part(message)?;
    Ok(ReplyHeaders {
        request_id: name(message, REQUEST)?.into(),
        gateway: name(message, GATEWAY)?.into(),
        sequence,
        last,
    })
}

/// Writes the number of a part, or of its reply, and whether more follow.
fn write_part(headers: &mut HeaderMap, part: Part) {
    headers.insert(SEQUENCE, part.sequence.to_string());
    headers.insert(FINAL, if part.last { "true" } else { "false" });
}

fn read_part(message: &Message) -> Result<Part, EnvelopeError> {
    Ok(Part { sequence: number(message, SEQUENCE)?, last: flag(message, FINAL)? })
}

/// The owner of a work message. One without a weight has the usual one.
fn read_owner(message: &Message) -> Result<Owner, EnvelopeError> {
    let weight = get(message, WEIGHT).map_or(Ok(1), |weight| parse_number(WEIGHT, weight))?;
    Ok(Owner::new(get(message, OWNER).unwrap_or_default(), weight))
}

fn read_answer(message: &Message) -> Result<AnswerForm, EnvelopeError> {
    if is_part(message) {
        return Ok(AnswerForm::Part(read_part(message)?));
    }
    let in_parts = get(message, IN_PARTS).is_some() && flag(message, IN_PARTS)?;
    Ok(if in_parts { AnswerForm::InParts } else { AnswerForm::Whole })
}

/// Whether a work message is one part of an answer.
fn is_part(message: &Message) -> bool {
    get(message, SEQUENCE).is_some()
}

/// Headers of an answer to another process.
pub fn answer() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTRACT, CONTRACT_VERSION.to_string());
    headers
}

/// Whether a message in the inbox of a question is a process's answer. If a stream of somebody's takes the question's
/// subject, the broker sends its acknowledgement there, too.
pub fn is_answer(message: &Message) -> bool {
    get(message, CONTRACT).is_some()
}

/// Adds the claim of a body.
pub fn write_claim(headers: &mut HeaderMap, claim: &Claim) {
    headers.insert(CLAIM, claim.name.as_str());
    headers.insert(CLAIM_BYTES, claim.bytes.to_string());
    headers.insert(CLAIM_PARTS, claim.parts.to_string());
}

/// Reads the claim that [`write_claim`] wrote; `None` if the body is in the message.
pub fn read_claim(message: &Message) -> Result<Option<Claim>, EnvelopeError> {
    read_claim_of(message.headers.as_ref())
}

/// Like [`read_claim`], from a message's headers.
pub fn read_claim_of(headers: Option<&HeaderMap>) -> Result<Option<Claim>, EnvelopeError> {
    let get = |name: &'static str| headers.and_then(|headers| headers.get(name)).map(|value| value.as_str());
    let Some(name) = get(CLAIM) else { return Ok(None) };
    if !subjects::is_token(name) || name.len() > MAX_NAME {
        return Err(EnvelopeError::Header { name: CLAIM, found: quote(name), expected: "a claim's name" });
    }
    let number = |name: &'static str| parse_number(name, get(name).unwrap_or_default());
    let (bytes, parts) = (number(CLAIM_BYTES)?, number(CLAIM_PARTS)?);
    Ok(Some(Claim { name: name.to_owned(), bytes, parts }))
}

/// The name of the claim in a message's headers, if there is one.
pub fn claim_name(headers: &HeaderMap) -> Option<String> {
    headers.get(CLAIM).map(|name| name.as_str().to_owned()).filter(|name| subjects::is_token(name))
}

/// `value` as a header's value. Some values come from clients, and a line break would start another header.
fn one_line(name: &'static str, value: &str) -> Result<HeaderValue, EnvelopeError> {
    let unfit = || EnvelopeError::Header { name, found: quote(value), expected: "one line that is not empty" };
    value.parse().ok().filter(|_| !value.is_empty()).ok_or_else(unfit)
}

/// Checks a name as [`name`] does, before it is written.
fn written_name(name: &'static str, value: &str) -> Result<HeaderValue, EnvelopeError> {
    match value.len() <= MAX_NAME {
        true => one_line(name, value),
        false => Err(EnvelopeError::Header { name, found: quote(value), expected: "256 bytes at most" }),
    }
}

fn check_contract(message: &Message) -> Result<(), EnvelopeError> {
    match number::<u32>(message, CONTRACT)? {
        CONTRACT_VERSION => Ok(()),
        other => Err(EnvelopeError::Version(other.to_string())),
    }
}

fn get<'a>(message: &'a Message, name: &'static str) -> Option<&'a str> {
    message.headers.as_ref()?.get(name).map(|value| value.as_str())
}

fn text<'a>(message: &'a Message, name: &'static str) -> Result<&'a str, EnvelopeError> {
    get(message, name).filter(|value| !value.is_empty()).ok_or(EnvelopeError::Header {
        name,
        found: "missing".to_owned(),
        expected: "a value",
    })
}

/// Reads a name that becomes part of a subject.
fn name(message: &Message, name: &'static str) -> Result<String, EnvelopeError> {
    let value = text(message, name)?;
    match value.len() <= MAX_NAME {
        true => Ok(value.to_owned()),
        false => Err(EnvelopeError::Header { name, found: quote(value), expected: "256 bytes at most" }),
    }
}

fn number<T: std::str::FromStr>(message: &Message, name: &'static str) -> Result<T, EnvelopeError> {
    parse_number(name, text(message, name)?)
}

fn parse_number<T: std::str::FromStr>(name: &'static str, value: &str) -> Result<T, EnvelopeError> {
    value.parse().map_err(|_| EnvelopeError::Header { name, found: quote(value), expected: "a whole number" })
}

fn flag(message: &Message, name: &'static str) -> Result<bool, EnvelopeError> {
    match text(message, name)? {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(EnvelopeError::Header { name, found: quote(other), expected: "'true' or 'false'" }),
    }
}

fn quote(value: &str) -> String {
    format!("'{}'", value.chars().take(64).collect::<String>().escape_debug())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures;

    fn received(headers: HeaderMap) -> Message {
        let headers = Some(headers);
        let (subject, payload) = ("subject".into(), bytes::Bytes::new());
        Message { subject, reply: None, payload, headers, status: None, description: None, length: 0 }
    }

    fn work() -> WorkMessage {
        fixtures::full_message(&trireme_inference::ModelKey { name: "m".into(), version: 1 })
    }

    fn optional_text() -> impl Strategy<Value = Option<String>> {
        proptest::option::of("(?s).{0,4}")
    }

    proptest! {
        #[test]
        fn headers_round_trip_or_are_refused(
            request_id in "\\PC{1,8}|.{0,3}",
            gateway in "\\PC{1,8}|(?s).{0,3}",
            (traceparent, state, job) in (optional_text(), optional_text(), optional_text()),
            (deadline, priority, sequence, last) in any::<(u64, u64, u32, bool)>(),
            kind in 0usize..3,
            (owner, weight) in ("(?s).{0,4}", 0u32..9),
        ) {
            let answer = [AnswerForm::Whole, AnswerForm::InParts, AnswerForm::Part(Part { sequence, last })][kind];
            let message = WorkMessage {
                request_id: request_id.into(), gateway: gateway.into(), traceparent: traceparent.map(|parent| TraceParent::new(parent, state)), job: job.map(Name::from), deadline: UnixMicros(deadline), priority, answer, owner: Owner::new(owner, weight), ..work()
            };
            let unfit = |text: &str| text.is_empty() || text.contains(['\r', '\n']);
            let (request_id, gateway) = (&message.request_id, &message.gateway);
            let trace: Vec<&str> = message.traceparent.iter().flat_map(TraceParent::headers).map(|(_, value)| value.as_str()).collect();
            let optional_unfit = trace.into_iter().chain(message.job.as_deref()).any(unfit) || message.owner.name.contains(['\r', '\n']);

            match write_work(&message) {
                Ok(headers) => prop_assert_eq!(read_work(&received(headers)).unwrap(), WorkHeaders::of(&message)),
                Err(_) => prop_assert!(unfit(request_id) || unfit(gateway) || optional_unfit),
            }
            let reply = Reply { sequence, last, ..message.reply(Ok(crate::Output::default())) };
            match write_reply(&reply) {
                Ok(headers) => prop_assert_eq!(read_reply(&received(headers)).unwrap(), ReplyHeaders {
                    request_id: request_id.clone(), gateway: gateway.clone(), sequence, last,
                }),
                Err(_) => prop_assert!(unfit(request_id) || unfit(gateway)),
            }
        }
    }

    #[test]
    fn a_header_that_is_missing_or_unfit_is_named() {
        let text = |name: &str, value: &str| {
            let mut headers = write_work(&work()).unwrap();
            headers.insert(name, value);
            read_work(&received(headers)).unwrap_err().to_string()
        };
        assert_eq!(text(CONTRACT, "1"), "message of contract version 1, expected 4");
        assert_eq!(text(GATEWAY, ""), "message header 'Trireme-Gateway' is missing, expected a value");
        assert_eq!(
            text(REQUEST, &"r".repeat(MAX_NAME + 1)),
            format!("message header 'Trireme-Request' is '{}', expected 256 bytes at most", "r".repeat(64))
        );
        assert_eq!(text(DEADLINE, "soon"), "message header 'Trireme-Deadline' is 'soon', expected a whole number");
    }
}
