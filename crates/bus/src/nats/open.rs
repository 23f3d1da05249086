//! Reads a delivered message: decodes its headers and body, or prepares to fetch a body that travels by claim.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, AckKind};
use trireme_inference::{Callers, DataType, InferError, Ledger, ModelKey, Route, Step, Tensor, UnixMicros};

use super::ack::NatsAck;
use super::claims::Claim;
use super::connection::Nats;
use super::fetch::{Fetch, decode};
use super::headers;
use crate::{Acker, AnswerForm, Bus, DeadLetter, Delivery, EnvelopeError, WorkHeaders, WorkMessage};

/// How long the broker waits before it delivers a message again that could not be set aside.
const ASIDE_PAUSE: Duration = Duration::from_secs(1);

/// Name of the tensor that holds an unreadable message's body in its dead letter.
const BODY: &str = "body";

/// The result of reading a delivered message.
pub enum Received {
    Work(Box<Delivery>),
    /// Work whose body has to be fetched.
    Claimed(Box<Fetch>),
    /// The message was unusable and has been settled.
    Nothing,
}

/// Reads a message from a queue of `model`. Does not wait.
pub fn open(nats: &Nats, model: &ModelKey, message: jetstream::Message) -> Received {
    let (model, nats) = (model.clone(), nats.clone());
    match read(&message) {
        Ok((headers, deliveries, more, Some(claim))) => {
            let ack = NatsAck::new(&nats, message, Some(claim.name.clone()));
            Received::Claimed(Box::new(Fetch { nats, model, ack, headers, claim, deliveries, more }))
        }
        Ok((headers, deliveries, more, None)) => match decode(&model, headers, &message.payload) {
            Ok(work) => {
                let acker = Acker::new(Arc::new(NatsAck::new(&nats, message, None)));
                Received::Work(Box::new(Delivery { message: work, deliveries, more, acker }))
            }
            Err(reason) => refuse(&model, message, &reason),
        },
        // All processes of a deployment have one version, so no other process can read the message either.
        Err(error @ EnvelopeError::Version(_)) => {
            crate::spawn("nats dead letter", set_aside(nats, model, message, error.to_string()));
            Received::Nothing
        }
        Err(error) => refuse(&model, message, &error.to_string()),
    }
}

/// Reads a message's headers and reply subject: how often it was delivered, and whether more messages wait.
fn read(message: &jetstream::Message) -> Result<(WorkHeaders, u32, bool, Option<Claim>), EnvelopeError> {
    let headers = headers::read_work(message)?;
    let claim = headers::read_claim(message)?;
    let info = message.info().map_err(|error| EnvelopeError::Header {
        name: "reply subject",
        found: error.to_string(),
        expected: "that of a delivery",
    })?;
    Ok((headers, u32::try_from(info.delivered).unwrap_or(u32::MAX), info.pending > 0, claim))
}

/// Terminates a message that cannot be read. If it stayed unsettled, it would come again and be refused again.
fn refuse(model: &ModelKey, message: jetstream::Message, reason: &str) -> Received {
    tracing::warn!(%model, subject = %message.subject, reason, "refused a malformed message");
    settle(message, AckKind::Term);
    Received::Nothing
}

/// Sets a message of an unknown contract version aside, with its body unread. The queue keeps the message as long as that fails.
async fn set_aside(nats: Nats, model: ModelKey, message: jetstream::Message, reason: String) {
    tracing::warn!(%model, subject = %message.subject, reason, "set a message aside");
    let kind = match (&nats as &dyn Bus).dead_letter(letter(&model, &message, reason)).await {
        Ok(()) => AckKind::Term,
        Err(error) => {
            tracing::warn!(%model, %error, "could not set a message aside; trying on");
            AckKind::Nak(Some(ASIDE_PAUSE))
        }
    };
    settle(message, kind);
}

/// The dead letter of a message that cannot be read: the queue's model, and the body as a tensor.
fn letter(model: &ModelKey, message: &jetstream::Message, reason: String) -> DeadLetter {
    let info = message.info().ok();
    let number = info.as_ref().map_or(0, |info| info.stream_sequence);
    let step = Step { model: model.clone(), inputs: Vec::new(), outputs: Vec::new(), dead: Vec::new(), level: 0 };
    let body = Tensor::new(BODY, DataType::Uint8, [message.payload.len() as i64], message.payload.clone());
    let unread = WorkMessage {
        request_id: headers::request_name(message).unwrap_or_else(|| format!("message-{number}")).into(),
        gateway: String::new().into(),
        deadline: UnixMicros::default(),
        priority: 0,
        traceparent: None,
        client_id: String::new().into(),
        sent_at: UnixMicros::default(),
        route: Route::resume(model.clone(), false, 0, vec![step]),
        tensors: body.into_iter().collect(),
        parameters: Arc::default(),
        ledger: Ledger::default(),
        answer: AnswerForm::Whole,
        callers: Callers::default(),
        job: None,
    };
    let attempts = info.map_or(0, |info| u32::try_from(info.delivered).unwrap_or(u32::MAX));
    DeadLetter { message: unread, reason: InferError::unsupported(reason).at(model, ""), attempts }
}

/// Settles a message in a task of its own.
fn settle(message: jetstream::Message, kind: AckKind) {
    crate::spawn("nats refusal", async move {
        let _ = message.ack_with(kind).await;
    });
}
