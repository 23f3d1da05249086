//! Topics: messages to every process that subscribes, with or without answers.
//!
//! A request goes to every subscriber of its topic. Each of them may answer, once or several times. The sender does not know how many
//! answers there will be, so it sets a limit: a time, or the number of workers in the registry. Nothing is stored: a message on a
//! topic without subscribers is lost.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::BusError;

/// A message on a topic.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// use trireme_bus::{Bus, InProcess};
///
/// let bus = InProcess::default();
/// let mut subscriber = bus.subscribe("greetings").await?;
/// let mut answers = bus.request("greetings", "hello".into()).await?;
///
/// let message = subscriber.recv().await.expect("a subscriber gets each message");
/// assert_eq!(message.body, "hello");
/// message.answer("good morning".into()).await?;
/// assert!(answers.recv().await.is_some_and(|answer| answer == "good morning"));
/// # Ok(())
/// # }
/// ```
pub struct TopicMessage {
    /// The body as its sender wrote it.
    pub body: Bytes,
    /// `None` if the sender expects no answer.
    answers: Option<Box<dyn RespondHandle>>,
}

/// The values in the messages on a topic. Malformed messages are logged and ignored.
pub struct TopicValues<T> {
    messages: mpsc::Receiver<TopicMessage>,
    /// The kind of a message, for the log.
    what: &'static str,
    read: fn(&[u8]) -> Option<T>,
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

// === impl TopicValues ===

impl<T> TopicValues<T> {
    pub(crate) fn new(
        messages: mpsc::Receiver<TopicMessage>,
        what: &'static str,
        read: fn(&[u8]) -> Option<T>,
    ) -> TopicValues<T> {
        TopicValues { messages, what, read }
    }

    /// The next value; `None` when the bus is closed. Cancel safe.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            let message = self.messages.recv().await?;
            match (self.read)(&message.body) {
                Some(value) => return Some(value),
                None => tracing::warn!(bytes = message.body.len(), "ignored a malformed {}", self.what),
            }
        }
    }
}
