//! Dead letters: messages that a worker has given up, kept with the reason, in the order in which they were stored.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_inference::{InferError, UnixMicros};

use crate::{Bucket, Bus, BusError, EnvelopeError, WorkHeaders, WorkMessage, decode_work, encode_work, escape_token};

/// A message that a worker has given up, with the reason.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// # use trireme_inference::InferError;
/// use trireme_bus::{Bus, DeadLetter, InProcess};
///
/// let bus: &dyn Bus = &InProcess::default();
/// let reason = InferError::internal("out of memory");
/// bus.dead_letter(DeadLetter { message: message(&model, 7), reason, attempts: 3 }).await?;
///
/// let stored = bus.dead_letter_after(0).await?.expect("one letter is stored");
/// assert_eq!((stored.letter.reason.message.as_str(), stored.letter.attempts), ("out of memory", 3));
/// assert!(bus.remove_dead_letter(stored.number).await?);
/// assert!(bus.dead_letter_after(0).await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The message as it was last delivered.
    pub message: WorkMessage,
    /// Why the worker gave it up.
    pub reason: InferError,
    /// How many times it was begun.
    pub attempts: u32,
}

/// A dead letter in its store.
#[derive(Clone, Debug)]
pub struct StoredLetter {
    /// Its number among all letters ever stored, in their order.
    pub number: u64,
    /// When it was stored.
    pub at: UnixMicros,
    /// The letter.
    pub letter: DeadLetter,
}

/// The stored value, as MessagePack.
#[derive(Serialize, Deserialize)]
struct WireLetter {
    reason: InferError,
    attempts: u32,
    headers: WorkHeaders,
    /// The message's body.
    body: Bytes,
}

// === impl DeadLetter ===

impl DeadLetter {
    fn key(&self) -> Result<String, BusError> {
        let model = self.message.queue().ok_or_else(|| BusError::Refused {
            action: "setting a message aside",
            reason: format!("route of request '{}' has no step left", self.message.request_id),
        })?;
        let message = escape_token(&self.message.message_id());
        Ok(format!("{}.{}.{message}", escape_token(&model.name), model.version))
    }

    fn encode(&self) -> Result<Bytes, EnvelopeError> {
        let letter = WireLetter {
            reason: self.reason.clone(),
            attempts: self.attempts,
            headers: WorkHeaders::of(&self.message),
            body: encode_work(&self.message)?,
        };
        Ok(rmp_serde::to_vec_named(&letter)?.into())
    }

    fn decode(value: &[u8]) -> Result<DeadLetter, EnvelopeError> {
        let WireLetter { reason, attempts, headers, body } = crate::envelope::decode_body(value)?;
        Ok(DeadLetter { message: decode_work(headers, &body)?, reason, attempts })
    }
}

impl dyn Bus + '_ {
    /// Stores a message that could not be processed.
    pub async fn dead_letter(&self, letter: DeadLetter) -> Result<(), BusError> {
        self.put(Bucket::Dead, &letter.key()?, letter.encode()?, None, None).await.map(drop)
    }

    /// The first letter whose number is greater than `number`. Letters that cannot be decoded are skipped.
    pub async fn dead_letter_after(&self, mut number: u64) -> Result<Option<StoredLetter>, BusError> {
        while let Some(entry) = self.next(Bucket::Dead, number).await? {
            number = entry.revision;
            match DeadLetter::decode(&entry.value) {
                Ok(letter) => return Ok(Some(StoredLetter { number, at: entry.at, letter })),
                Err(error) => tracing::warn!(number, %error, "passed over a dead letter that cannot be read"),
            }
        }
        Ok(None)
    }

    /// Deletes the letter with this number. Returns whether it was there.
    pub async fn remove_dead_letter(&self, number: u64) -> Result<bool, BusError> {
        match self.next(Bucket::Dead, number.saturating_sub(1)).await? {
            Some(entry) if entry.revision == number => self.delete(Bucket::Dead, &entry.key, Some(number)).await,
            _ => Ok(false),
        }
    }
}
