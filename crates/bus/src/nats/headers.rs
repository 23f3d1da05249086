//! NATS headers: what routing needs and a person wants to see.

use async_nats::{HeaderMap, HeaderValue, Message};
use trireme_inference::{ErrorCode, InferError, UnixMicros};

use super::claims::Claim;
use super::subjects;
use crate::envelope::{CONTRACT_VERSION, EnvelopeError, MAX_NAME, ReplyHeaders, WorkHeaders};
use crate::{Answer, DeadLetter, Part, Reply, WorkMessage};

const CONTRACT: &str = "Trireme-Contract";
const REQUEST: &str = "Trireme-Request";
const GATEWAY: &str = "Trireme-Gateway";
const DEADLINE: &str = "Trireme-Deadline";
const PRIORITY: &str = "Trireme-Priority";
const IN_PARTS: &str = "Trireme-In-Parts";
const SEQUENCE: &str = "Trireme-Sequence";
const FINAL: &str = "Trireme-Final";
const TRACEPARENT: &str = "traceparent";

/// A claim's name.
pub const CLAIM: &str = "Trireme-Claim";
const CLAIM_BYTES: &str = "Trireme-Claim-Bytes";
const CLAIM_PARTS: &str = "Trireme-Claim-Parts";

const DEAD_REASON: &str = "Trireme-Dead-Reason";
const DEAD_CODE: &str = "Trireme-Dead-Code";
const DEAD_WORKER: &str = "Trireme-Dead-Worker";
const DEAD_ATTEMPTS: &str = "Trireme-Dead-Attempts";

/// Headers of a work message. `Nats-Msg-Id` makes a step that is sent twice arrive once.
pub fn write_work(message: &WorkMessage) -> Result<HeaderMap, EnvelopeError> {
    let mut headers = HeaderMap::new();
    headers.insert(async_nats::header::NATS_MESSAGE_ID, one_line(REQUEST, &message.message_id())?);
    headers.insert(CONTRACT, CONTRACT_VERSION.to_string());
    headers.insert(REQUEST, one_line(REQUEST, &message.request_id)?);
    headers.insert(GATEWAY, one_line(GATEWAY, &message.gateway)?);
    headers.insert(DEADLINE, message.deadline.to_string());
    headers.insert(PRIORITY, message.priority.to_string());
    if let Some(traceparent) = &message.traceparent {
        headers.insert(TRACEPARENT, one_line(TRACEPARENT, traceparent)?);
    }
    match message.answer {
        Answer::Whole => {}
        Answer::InParts => headers.insert(IN_PARTS, "true"),
        Answer::Part(part) => write_part(&mut headers, part),
    }
    Ok(headers)
}

/// Reads what [`write_work`] wrote.
pub fn read_work(message: &Message) -> Result<WorkHeaders, EnvelopeError> {
    check_contract(message)?;
    Ok(WorkHeaders {
        request_id: name(message, REQUEST)?,
        gateway: name(message, GATEWAY)?,
        deadline: UnixMicros(number(message, DEADLINE)?),
        priority: number(message, PRIORITY)?,
        traceparent: get(message, TRACEPARENT).map(str::to_owned),
        answer: read_answer(message)?,
    })
}

/// Headers of a reply.
pub fn write_reply(reply: &Reply) -> Result<HeaderMap, EnvelopeError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTRACT, CONTRACT_VERSION.to_string());
    headers.insert(REQUEST, one_line(REQUEST, &reply.request_id)?);
    headers.insert(GATEWAY, one_line(GATEWAY, &reply.gateway)?);
    write_part(&mut headers, Part { sequence: reply.sequence, last: reply.last });
    Ok(headers)
}

/// Reads what [`write_reply`] wrote.
pub fn read_reply(message: &Message) -> Result<ReplyHeaders, EnvelopeError> {
    check_contract(message)?;
    let Part { sequence, last } = read_part(message)?;
    Ok(ReplyHeaders { request_id: name(message, REQUEST)?, gateway: name(message, GATEWAY)?, sequence, last })
}

/// The number of a part, or of the reply that it becomes, and whether more follow.
fn write_part(headers: &mut HeaderMap, part: Part) {
    headers.insert(SEQUENCE, part.sequence.to_string());
    headers.insert(FINAL, if part.last { "true" } else { "false" });
}

fn read_part(message: &Message) -> Result<Part, EnvelopeError> {
    Ok(Part { sequence: number(message, SEQUENCE)?, last: flag(message, FINAL)? })
}

fn read_answer(message: &Message) -> Result<Answer, EnvelopeError> {
    if get(message, SEQUENCE).is_some() {
        return Ok(Answer::Part(read_part(message)?));
    }
    let in_parts = get(message, IN_PARTS).is_some() && flag(message, IN_PARTS)?;
    Ok(if in_parts { Answer::InParts } else { Answer::Whole })
}

/// Adds why a message was given up.
pub fn write_dead(headers: &mut HeaderMap, letter: &DeadLetter) {
    // Header values are one line; control characters in a message would be refused.
    let one_line = |text: &str| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    headers.insert(DEAD_REASON, one_line(&letter.reason.message));
    headers.insert(DEAD_CODE, code_name(letter.reason.code));
    headers.insert(DEAD_ATTEMPTS, letter.attempts.to_string());
    if let Some(worker) = &letter.reason.worker {
        headers.insert(DEAD_WORKER, one_line(worker));
    }
}

/// Reads what [`write_dead`] wrote: why, and after how many attempts. The stage is that of the message's route.
pub fn read_dead(message: &Message) -> Result<(InferError, u32), EnvelopeError> {
    let code =
        get(message, DEAD_CODE).and_then(|code| ErrorCode::ALL.into_iter().find(|known| code_name(*known) == code));
    let mut reason = InferError::new(code.unwrap_or(ErrorCode::Unknown), get(message, DEAD_REASON).unwrap_or_default());
    reason.worker = get(message, DEAD_WORKER).map(str::to_owned);
    Ok((reason, number(message, DEAD_ATTEMPTS)?))
}

/// A code as bodies have it, too.
fn code_name(code: ErrorCode) -> String {
    serde_json::to_value(code).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Adds what stands for a body that travels by claim.
pub fn write_claim(headers: &mut HeaderMap, claim: &Claim) {
    headers.insert(CLAIM, claim.name.as_str());
    headers.insert(CLAIM_BYTES, claim.bytes.to_string());
    headers.insert(CLAIM_PARTS, claim.parts.to_string());
}

/// Reads what [`write_claim`] wrote; `None` when the body is in the message.
pub fn read_claim(message: &Message) -> Result<Option<Claim>, EnvelopeError> {
    let Some(name) = get(message, CLAIM) else { return Ok(None) };
    if !subjects::is_token(name) || name.len() > MAX_NAME {
        return Err(EnvelopeError::Header { name: CLAIM, found: quote(name), expected: "a claim's name" });
    }
    let (bytes, parts) = (number(message, CLAIM_BYTES)?, number(message, CLAIM_PARTS)?);
    Ok(Some(Claim { name: name.to_owned(), bytes, parts }))
}

/// `value` as a header's value: some of them come from clients, and a line break would be the start of another header.
fn one_line(name: &'static str, value: &str) -> Result<HeaderValue, EnvelopeError> {
    let unfit = || EnvelopeError::Header { name, found: quote(value), expected: "one line that is not empty" };
    value.parse().ok().filter(|_| !value.is_empty()).ok_or_else(unfit)
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

/// What becomes part of a subject.
fn name(message: &Message, name: &'static str) -> Result<String, EnvelopeError> {
    let value = text(message, name)?;
    match value.len() <= MAX_NAME {
        true => Ok(value.to_owned()),
        false => Err(EnvelopeError::Header { name, found: quote(value), expected: "256 bytes at most" }),
    }
}

fn number<T: std::str::FromStr>(message: &Message, name: &'static str) -> Result<T, EnvelopeError> {
    let value = text(message, name)?;
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
    use crate::conformance::fixtures;

    fn received(headers: HeaderMap) -> Message {
        let headers = Some(headers);
        let (subject, payload) = ("subject".into(), bytes::Bytes::new());
        Message { subject, reply: None, payload, headers, status: None, description: None, length: 0 }
    }

    fn work() -> WorkMessage {
        fixtures::full_message(&trireme_inference::ModelKey { name: "m".to_owned(), version: 1 })
    }

    proptest! {
        #[test]
        fn headers_round_trip_or_are_refused(
            request_id in "\\PC{1,8}|.{0,3}",
            gateway in "\\PC{1,8}|(?s).{0,3}",
            traceparent in proptest::option::of("(?s).{0,4}"),
            (deadline, priority, sequence, last) in any::<(u64, u32, u32, bool)>(),
            kind in 0usize..3,
        ) {
            let answer = [Answer::Whole, Answer::InParts, Answer::Part(Part { sequence, last })][kind];
            let message = WorkMessage {
                request_id, gateway, traceparent, deadline: UnixMicros(deadline), priority, answer, ..work()
            };
            let unfit = |text: &str| text.is_empty() || text.contains(['\r', '\n']);
            let (request_id, gateway) = (&message.request_id, &message.gateway);
            let traceparent_unfit = message.traceparent.as_deref().is_some_and(unfit);

            match write_work(&message) {
                Ok(headers) => prop_assert_eq!(read_work(&received(headers)).unwrap(), WorkHeaders {
                    request_id: request_id.clone(),
                    gateway: gateway.clone(),
                    deadline: UnixMicros(deadline),
                    priority,
                    traceparent: message.traceparent.clone(),
                    answer,
                }),
                Err(_) => prop_assert!(unfit(request_id) || unfit(gateway) || traceparent_unfit),
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
        assert_eq!(text(CONTRACT, "2"), "message of contract version 2, expected 1");
        assert_eq!(text(GATEWAY, ""), "message header 'Trireme-Gateway' is missing, expected a value");
        assert_eq!(
            text(REQUEST, &"r".repeat(MAX_NAME + 1)),
            format!("message header 'Trireme-Request' is '{}', expected 256 bytes at most", "r".repeat(64))
        );
        assert_eq!(text(DEADLINE, "soon"), "message header 'Trireme-Deadline' is 'soon', expected a whole number");
    }
}
