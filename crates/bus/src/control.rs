//! Questions to everybody: how gateways and people ask workers for statistics, or to load a model.
//!
//! A question goes to whoever listens on its topic; each of them may answer, once or several times. Nobody knows how
//! many answers there will be: who asks sets the limit, by time or by the workers that the registry names. Nothing here
//! is kept: a question that nobody hears is lost, so what must not get lost goes by queue.

use async_trait::async_trait;
use bytes::Bytes;

use crate::BusError;

/// A question that somebody asked.
pub struct Question {
    /// What the asker wrote.
    pub body: Bytes,
    answers: Box<dyn AnswerHandle>,
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
        Question { body, answers: Box::new(answers) }
    }

    /// Sends one answer. An asker that is gone is no error.
    pub async fn answer(&self, body: Bytes) -> Result<(), BusError> {
        self.answers.answer(body).await
    }
}
