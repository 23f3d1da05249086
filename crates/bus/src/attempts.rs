//! Notes of how many times a worker began a message, kept beside the queues. The broker counts deliveries, but does not
//! know whether a worker began the message or what happened to it. A note lapses with its request.
//!
//! Not here: which workers read and write the notes (`runtime::intake::attempts`). For a first delivery, they do neither.

use serde::{Deserialize, Serialize};
use trireme_inference::{Name, UnixMicros};

use crate::{Bucket, Bus, BusError, WorkMessage, escape_token};

/// The name of a message in a queue, for notes about the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageName {
    /// [`WorkMessage::message_id`].
    pub id: Name,
    /// The request's deadline. The note lapses with it.
    pub deadline: UnixMicros,
}

/// A note of the attempts at a message, JSON in the store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// use trireme_bus::{AttemptNote, Bus, InProcess};
///
/// let bus: &dyn Bus = &InProcess::default();
/// let name = message(&model, 7).name();
/// assert_eq!(bus.attempts(&name).await?, None);
///
/// let note = AttemptNote { attempts: 1, ended: false };
/// bus.note_attempts(&name, note).await?;
/// assert_eq!(bus.attempts(&name).await?, Some(note));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptNote {
    /// How many attempts were begun.
    #[serde(rename = "begun")]
    pub attempts: u32,
    /// Whether the last attempt is known to have ended, which means that it did not kill its worker.
    pub ended: bool,
}

// === impl WorkMessage ===

impl WorkMessage {
    /// The message's name in its queue.
    pub fn name(&self) -> MessageName {
        MessageName { id: self.message_id(), deadline: self.deadline }
    }
}

impl dyn Bus + '_ {
    /// How many times a message was begun, as written by the last `note_attempts`. `None`: there
    /// is no note, or the note has lapsed.
    pub async fn attempts(&self, message: &MessageName) -> Result<Option<AttemptNote>, BusError> {
        let Some(note) = self.get(Bucket::Attempts, &escape_token(&message.id)).await? else { return Ok(None) };
        let read = serde_json::from_slice(&note.value);
        if let Err(error) = &read {
            tracing::warn!(message = %message.id, %error, "ignored a malformed note of attempts");
        }
        Ok(read.ok())
    }

    /// Notes how many times a message was begun, for the next worker that gets the message. Once this returns, the note
    /// survives the end of this process. The note lapses with the request's deadline.
    pub async fn note_attempts(&self, message: &MessageName, note: AttemptNote) -> Result<(), BusError> {
        let value = serde_json::to_vec(&note).expect("numbers and switches become JSON");
        let lapse = message.deadline.since(UnixMicros::now());
        self.put(Bucket::Attempts, &escape_token(&message.id), value.into(), None, Some(lapse)).await.map(drop)
    }
}
