//! Topics: messages to every process that subscribes, with or without answers.
//!
//! A request goes to every subscriber of its topic. Each of them may answer, once or several times. The sender does not know how many
//! answers there will be, so it sets a limit: a time, or the number of workers in the registry. Nothing is stored: a message on a
//! topic without subscribers is lost.

use async_trait::async_trait;
use bytes::Bytes;

use crate::BusError;

/// A message on a topic.
pub struct TopicMessage {
    /// The body as its sender wrote it.
    pub body: Bytes,
    /// `None` if the sender expects no answer.
    answers: Option<Box<dyn RespondHandle>>,
}

/// The way back to the sender of a request.
#[async_trait]
pub trait RespondHandle: Send + Sync {
    /// Sends one answer.
    async fn answer(&self, body: Bytes) -> Result<(), BusError>;
}

// === impl TopicMessage ===

impl TopicMessage {
    pub(crate) fn new(body: Bytes, answers: impl RespondHandle + 'static) -> TopicMessage {
        TopicMessage { body, answers: Some(Box::new(answers)) }
    }

    /// A message whose sender expects no answer.
    pub(crate) fn without_reply(body: Bytes) -> TopicMessage {
        TopicMessage { body, answers: None }
    }

    /// Sends one answer. It is no error if the sender is gone or expects no answer.
    pub async fn answer(&self, body: Bytes) -> Result<(), BusError> {
        match &self.answers {
            Some(answers) => answers.answer(body).await,
            None => Ok(()),
        }
    }
}
