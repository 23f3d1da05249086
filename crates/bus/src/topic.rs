//! Topics: messages to every process that listens, with or without answers.
//!
//! A question goes to every process that listens on its topic. Each of them may answer, once or several times. The
//! asker does not know how many answers there will be, so it sets a limit: a time, or the number of workers in the
//! registry. Nothing is stored: a message on a topic without listeners is lost.

use async_trait::async_trait;
use bytes::Bytes;

use crate::BusError;

/// A message on a topic.
pub struct Question {
    /// The body as its sender wrote it.
    pub body: Bytes,
    /// `None` if the sender expects no answer.
    answers: Option<Box<dyn AnswerHandle>>,
}

/// The way back to the asker.
#[async_trait]
pub trait AnswerHandle: Send + Sync {
    /// Sends one answer.
    async fn answer(&self, body: Bytes) -> Result<(), BusError>;
}

// === impl Question ===

impl Question {
    pub(crate) fn new(body: Bytes, answers: impl AnswerHandle + 'static) -> Question {
        Question { body, answers: Some(Box::new(answers)) }
    }

    /// A message whose sender expects no answer.
    pub(crate) fn said(body: Bytes) -> Question {
        Question { body, answers: None }
    }

    /// Sends one answer. It is no error if the asker is gone or expects no answer.
    pub async fn answer(&self, body: Bytes) -> Result<(), BusError> {
        match &self.answers {
            Some(answers) => answers.answer(body).await,
            None => Ok(()),
        }
    }
}
