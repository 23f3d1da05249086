//! Questions over core NATS: one subject per topic, answers to an inbox of the question's own.
//!
//! What is above `max_payload`, as a command with a model's files is, travels by claim. Nobody knows who reads a question
//! last, so these claims are not discarded: they lapse.

use std::time::Duration;

use async_nats::{HeaderMap, Message, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::claims::Store;
use super::connect::taken;
use super::{Nats, headers, subjects};
use crate::BusError;
use crate::control::{AnswerHandle, Question};

/// How long a claim is there to be read: longer than whoever listens can be busy with the questions before.
const LAPSE: Duration = Duration::from_secs(60);

/// Bytes of a question or an answer that are in the message itself; more come by claim, so that what waits to be read is
/// bounded in bytes as it is in messages.
const INLINE_BYTES: usize = 1 << 20;

/// Questions and answers that their reader may be behind before the bus waits for it.
const BACKLOG: usize = 256;

/// The way back to an asker: its inbox.
struct Answers {
    nats: Nats,
    inbox: Subject,
}

/// Publishes the question. The answers end when the receiver is dropped, or at once when nobody listens.
pub async fn ask(nats: &Nats, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
    let inbox = nats.client.new_inbox();
    let mut answers = nats.subscribe(inbox.clone()).await?;
    let (headers, body) = pack(nats, body).await?;
    taken(nats.client.publish_with_reply_and_headers(subjects::control(topic), inbox, headers, body)).await?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let nats = nats.clone();
    crate::spawn("nats answers", async move {
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = sender.closed() => return,
            };
            let Some(answer) = answer else { return };
            let nobody_listens = answer.status == Some(async_nats::StatusCode::NO_RESPONDERS);
            if nobody_listens {
                return;
            }
            let Some(answer) = unpack(&nats, answer).await else { continue };
            if sender.send(answer).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Hears the questions of a topic until the receiver is dropped.
pub async fn questions(nats: &Nats, topic: &str) -> Result<mpsc::Receiver<Question>, BusError> {
    let mut messages = nats.subscribe_at_once(subjects::control(topic)).await?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let nats = nats.clone();
    crate::spawn("nats questions", async move {
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = sender.closed() => return,
            };
            let Some(message) = message else { return };
            // Without a way back it is no question; and the broker lets an answer go wherever the asker says.
            let Some(inbox) = message.reply.clone().filter(|inbox| inbox.starts_with("_INBOX.")) else { continue };
            let Some(body) = unpack(&nats, message).await else { continue };
            let question = Question::new(body, Answers { nats: nats.clone(), inbox });
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
        let (headers, body) = pack(&self.nats, body).await?;
        taken(self.nats.client.publish_with_headers(self.inbox.clone(), headers, body)).await
    }
}

/// What a message carries: the body, or a claim for it where it is too large.
async fn pack(nats: &Nats, body: Bytes) -> Result<(HeaderMap, Bytes), BusError> {
    let mut headers = HeaderMap::new();
    if super::claims::wire_size(&headers) + body.len() <= nats.max_payload().min(INLINE_BYTES) {
        return Ok((headers, body));
    }
    let name = subjects::escape_token(&nats.client.new_inbox());
    let claim = nats.lay_down(Store::Claims, name, &body, Some(LAPSE)).await?;
    headers::write_claim(&mut headers, claim.claim());
    claim.keep();
    Ok((headers, Bytes::new()))
}

/// What a message carried, if it can be read. What cannot is as good as lost, which messages of this kind may be.
async fn unpack(nats: &Nats, message: Message) -> Option<Bytes> {
    let claim = match headers::read_claim(&message) {
        Ok(Some(claim)) => claim,
        Ok(None) if message.payload.len() <= INLINE_BYTES => return Some(message.payload),
        Ok(None) => {
            let (bytes, subject) = (message.payload.len(), &message.subject);
            tracing::warn!(bytes, %subject, "ignored a question or answer of more than {INLINE_BYTES} bytes");
            return None;
        }
        Err(error) => {
            tracing::warn!(%error, "ignored a malformed question or answer");
            return None;
        }
    };
    match nats.redeem(Store::Claims, &claim).await {
        Ok(body) => Some(body),
        Err(error) => {
            tracing::warn!(%error, "a question or answer could not be read");
            None
        }
    }
}
