//! How often messages were begun: notes beside the queues, because the broker counts deliveries and cannot tell what
//! became of them. A note is a message of its own, the last one of its subject; it lapses with the request.
//!
//! Not here: who looks and who notes (`runtime::suspects`); first deliveries do neither.

use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::stream::DirectGetErrorKind;
use bytes::Bytes;

use super::streams::Needed;
use super::work::{LONGEST_LAPSE, chain, failure, lapse};
use super::{Nats, subjects};
use crate::{Attempts, BusError, MessageName};

/// Header of a note: whether the last attempt is known to have ended.
const ENDED: &str = "Trireme-Attempt-Ended";

impl Nats {
    /// What was noted last; `None` where nothing was.
    pub(super) async fn noted_attempts(&self, message: &MessageName) -> Result<Option<Attempts>, BusError> {
        const ACTION: &str = "looking up how often a message was begun";
        let stream = self.jetstream.get_stream_no_info(subjects::ATTEMPTS_STREAM).await;
        let stream = stream.map_err(|error| failure(ACTION, &error))?;
        let subject = subjects::attempts(&message.id);
        let note = match stream.direct_get_last_for_subject(subject).await {
            Ok(note) => note,
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => return Ok(None),
            // Nobody answers for a stream that is not there.
            Err(error) if chain(&error).contains("no responders") => return Ok(None),
            Err(error) => return Err(failure(ACTION, &error)),
        };
        let begun = std::str::from_utf8(&note.payload).ok().and_then(|text| text.parse().ok());
        if begun.is_none() {
            tracing::warn!(subject = %note.subject, "ignored a malformed note of attempts");
        }
        let ended = note.headers.get(ENDED).is_some_and(|ended| ended.as_str() == "true");
        Ok(begun.map(|begun| Attempts { begun, ended }))
    }

    /// Notes it until the broker confirms; the stream is made when it is first needed.
    pub(super) async fn publish_attempts(&self, message: &MessageName, attempts: Attempts) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        let lapse = lapse(message.deadline);
        if lapse < LONGEST_LAPSE {
            headers.insert(async_nats::header::NATS_MESSAGE_TTL, lapse.as_secs().max(1).to_string());
        }
        if attempts.ended {
            headers.insert(ENDED, "true");
        }
        let subject = subjects::attempts(&message.id);
        let note = || self.send_confirmed(subject.clone(), headers.clone(), Bytes::from(attempts.begun.to_string()));
        let mut noted = note().await;
        if noted.as_ref().is_err_and(|error| error.kind() == PublishErrorKind::StreamNotFound) {
            self.need(Needed::Attempts).await?;
            noted = note().await;
        }
        noted.map(drop).map_err(|error| failure("noting that a message is begun", &error))
    }
}
