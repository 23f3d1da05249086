//! Questions over core NATS: one subject per topic, answers to an inbox of the question's own.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::{Nats, WATCH_BACKLOG, subjects};
use crate::BusError;
use crate::control::{AnswerHandle, Question};

/// The way back to an asker: its inbox.
struct Answers {
    client: async_nats::Client,
    inbox: async_nats::Subject,
}

/// Publishes the question. The answers end when the receiver is dropped, or at once when nobody listens.
pub async fn ask(nats: &Nats, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
    let size = body.len();
    let inbox = nats.client.new_inbox();
    let mut answers = nats.subscribe(inbox.clone()).await?;
    let asked = nats.client.publish_with_reply(subjects::control(topic), inbox, body).await;
    asked.map_err(|error| refused(&error, size, nats.max_payload()))?;
    let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
    crate::spawn("nats answers", async move {
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = sender.closed() => return,
            };
            let Some(answer) = answer else { return };
            let nobody_listens = answer.status == Some(async_nats::StatusCode::NO_RESPONDERS);
            if nobody_listens || sender.send(answer.payload).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Hears the questions of a topic until the receiver is dropped.
pub async fn questions(nats: &Nats, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
    let mut messages = nats.subscribe_at_once(subjects::control(topic)).await?;
    let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
    let client = nats.client.clone();
    crate::spawn("nats questions", async move {
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = sender.closed() => return,
            };
            let Some(message) = message else { return };
            // Without a way back it is no question.
            let Some(inbox) = message.reply else { continue };
            let question = Question::new(message.payload, Answers { client: client.clone(), inbox });
            if sender.send(question).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[async_trait]
impl AnswerHandle for Answers {
    async fn answer(&self, body: Bytes) -> Result<(), BusError> {
        let size = body.len();
        let sent = self.client.publish(self.inbox.clone(), body).await;
        sent.map_err(|error| refused(&error, size, self.client.server_info().max_payload))
    }
}

fn refused(error: &async_nats::PublishError, size: usize, limit: usize) -> BusError {
    match error.kind() {
        async_nats::PublishErrorKind::MaxPayloadExceeded => BusError::TooLarge { size, limit },
        _ => BusError::Unreachable(error.to_string()),
    }
}
