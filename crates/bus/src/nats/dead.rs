//! Dead letters: messages that were given up, kept in a stream on disk with why and where that was.

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use trireme_inference::{InferError, UnixMicros};

use super::claims::{self, Store};
use super::streams::Needed;
use super::work::{ToClaim, chain, failure};
use super::{Nats, headers, subjects};
use crate::{BusError, DeadLetter, StoredLetter, envelope};

impl Nats {
    /// Puts a message into the dead-letter stream, which is made when first needed.
    pub(super) async fn publish_dead(&self, letter: DeadLetter) -> Result<(), BusError> {
        let Some(model) = letter.message.queue() else {
            return Err(BusError::Refused {
                action: "setting a message aside",
                reason: format!("route of request '{}' has no step left", letter.message.request_id),
            });
        };
        if self.jetstream.get_stream(subjects::DEAD_STREAM).await.is_err() {
            self.need(Needed::Dead).await?;
        }
        let mut headers = headers::write_work(&letter.message)?;
        headers::write_dead(&mut headers, &letter);
        let body = envelope::encode_work(&letter.message)?;
        let claim = ToClaim { store: Store::Dead, name: claims::name(&letter.message), lapse: None, result: false };
        self.publish_body(model, subjects::dead(model), headers, body, claim).await.map(drop)
    }

    /// The first letter after `number` that can be read.
    pub(super) async fn dead_after(&self, mut number: u64) -> Result<Option<StoredLetter>, BusError> {
        let stream = self.jetstream.get_stream_no_info(subjects::DEAD_STREAM).await;
        let stream = stream.map_err(|error| failure("reading dead letters", &error))?;
        loop {
            let found = stream.get_first_raw_message_by_subject(subjects::DEAD_LETTERS, number + 1).await;
            let message = match found {
                Ok(message) => message,
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => return Ok(None),
                // Nothing was ever given up: there is no stream.
                Err(error) if chain(&error).contains("stream not found") => return Ok(None),
                Err(error) => return Err(failure("reading dead letters", &error)),
            };
            number = message.sequence;
            match self.read_dead(message).await {
                Ok(letter) => return Ok(Some(letter)),
                Err(reason) => tracing::warn!(number, reason, "passed over a dead letter that cannot be read"),
            }
        }
    }

    async fn read_dead(&self, stored: StreamMessage) -> Result<StoredLetter, String> {
        let at = u64::try_from(stored.time.unix_timestamp_nanos() / 1000).unwrap_or_default();
        let message = async_nats::Message {
            subject: stored.subject,
            reply: None,
            payload: stored.payload,
            headers: Some(stored.headers),
            status: None,
            description: None,
            length: 0,
        };
        let text = |error: &dyn std::error::Error| error.to_string();
        let headers = headers::read_work(&message).map_err(|error| text(&error))?;
        let (reason, attempts): (InferError, u32) = headers::read_dead(&message).map_err(|error| text(&error))?;
        let body: Bytes = match headers::read_claim(&message).map_err(|error| text(&error))? {
            Some(claim) => self.redeem(Store::Dead, &claim).await.map_err(|error| text(&error))?,
            None => message.payload.clone(),
        };
        let work = envelope::decode_work(headers, &body).map_err(|error| text(&error))?;
        let letter = DeadLetter { message: work, reason, attempts };
        Ok(StoredLetter { number: stored.sequence, at: UnixMicros(at), letter })
    }

    /// Deletes a letter and what it holds a claim on.
    pub(super) async fn remove_dead(&self, number: u64) -> Result<bool, BusError> {
        let stream = self.jetstream.get_stream_no_info(subjects::DEAD_STREAM).await;
        let stream = stream.map_err(|error| failure("removing a dead letter", &error))?;
        let message = match stream.get_raw_message(number).await {
            Ok(message) => message,
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => return Ok(false),
            Err(error) => return Err(failure("removing a dead letter", &error)),
        };
        let claim = message.headers.get(headers::CLAIM).map(|name| name.as_str().to_owned());
        let removed = stream.delete_message(number).await;
        removed.map_err(|error| failure("removing a dead letter", &error))?;
        if let Some(claim) = claim.filter(|name| subjects::is_token(name)) {
            self.discard(Store::Dead, claim);
        }
        Ok(true)
    }
}
