//! Reading a delivered message: what its headers and body say, and who fetches a body that travels by claim.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, AckKind};
use trireme_inference::ModelKey;

use super::ack::NatsAck;
use super::claims::Claim;
use super::fetch::{Fetch, decode};
use super::{Nats, headers};
use crate::{Acker, Delivery, EnvelopeError, WorkHeaders};

/// For so long a message of a contract version that is not ours is left to other workers.
const VERSION_PAUSE: Duration = Duration::from_secs(1);

/// What a delivered message is.
pub enum Opened {
    Work(Box<Delivery>),
    /// Work whose body has to be fetched.
    Claimed(Box<Fetch>),
    /// Something unusable, which has been dealt with.
    Nothing,
}

/// Reads a message from a queue of `model`. Does not wait.
pub fn open(nats: &Nats, model: &ModelKey, message: jetstream::Message) -> Opened {
    let (model, nats) = (model.clone(), nats.clone());
    match read(&message) {
        Ok((headers, attempt, Some(claim))) => {
            Opened::Claimed(Box::new(Fetch { nats, model, message, headers, claim, attempt }))
        }
        Ok((headers, attempt, None)) => match decode(&model, headers, &message.payload) {
            Ok(work) => {
                let acker = Acker::new(Arc::new(NatsAck { nats, message, claim: None }));
                Opened::Work(Box::new(Delivery { message: work, attempt, acker }))
            }
            Err(reason) => refuse(&model, message, &reason),
        },
        // Another worker may know that version.
        Err(error @ EnvelopeError::Version(_)) => {
            tracing::warn!(%model, subject = %message.subject, %error, "left a message to others");
            settle(message, AckKind::Nak(Some(VERSION_PAUSE)));
            Opened::Nothing
        }
        Err(error) => refuse(&model, message, &error.to_string()),
    }
}

/// What a message's headers and reply subject say.
fn read(message: &jetstream::Message) -> Result<(WorkHeaders, u32, Option<Claim>), EnvelopeError> {
    let headers = headers::read_work(message)?;
    let claim = headers::read_claim(message)?;
    let info = message.info().map_err(|error| EnvelopeError::Header {
        name: "reply subject",
        found: error.to_string(),
        expected: "that of a delivery",
    })?;
    Ok((headers, u32::try_from(info.delivered).unwrap_or(u32::MAX), claim))
}

/// Ends a message that nobody can make anything of. Unsettled it would come again, to be refused again.
fn refuse(model: &ModelKey, message: jetstream::Message, reason: &str) -> Opened {
    tracing::warn!(%model, subject = %message.subject, reason, "refused a malformed message");
    settle(message, AckKind::Term);
    Opened::Nothing
}

/// Settles a message in a task of its own.
fn settle(message: jetstream::Message, kind: AckKind) {
    crate::spawn("nats refusal", async move {
        let _ = message.ack_with(kind).await;
    });
}
