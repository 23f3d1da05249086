//! Topics over core NATS: one subject for each topic, and an inbox for the answers to each question.
//!
//! A body above `max_payload`, such as a command with a model's files, travels by claim. A claim with a single reader (the
//! asker, or the listener that has its turn) is discarded by that reader. Other questions have several readers, and no process
//! knows which one reads last, so their claims lapse.

use std::time::Duration;

use async_nats::{HeaderMap, Message, StatusCode, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::claims::BodyStore;
use super::connection::Nats;
use super::headers;
use super::limits::taken;
use crate::{BusError, RespondHandle, TopicMessage, escape_token};

/// How long a claim can be read. It is longer than a listener can take for the questions before it.
const LAPSE: Duration = Duration::from_secs(60);

/// Bytes of a question or an answer that travel in the message itself; a larger body travels by claim. This bounds the
/// bytes of waiting messages as well as their number.
const INLINE_BYTES: usize = 1 << 20;

/// Questions and answers that may wait for their reader. Beyond that the bus waits for the reader.
const BACKLOG: usize = 256;

/// The queue group of those that listen in turn.
const IN_TURN: &str = "in_turn";

/// How many processes read a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    One,
    Unknown,
}

/// Sends answers to the asker's inbox.
struct Answers {
    nats: Nats,
    inbox: Subject,
}

// === impl Nats ===

impl Nats {
    /// Publishes a question; the answers come to the subscription.
    pub(super) async fn question(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<async_nats::Subscriber, BusError> {
        let inbox = self.client.new_inbox();
        let answers = self.subscribe(inbox.clone()).await?;
        taken(self.client.publish_with_reply_and_headers(subject, inbox, headers, body)).await?;
        Ok(answers)
    }

    /// The next answer to a question; `None` if no process listens.
    pub(super) async fn next_answer(answers: &mut async_nats::Subscriber) -> Option<Message> {
        while let Some(message) = answers.next().await {
            if headers::is_answer(&message) {
                return Some(message);
            }
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                return None;
            }
        }
        None
    }
}

/// Publishes a message that needs no answer. Without a connection the message is dropped: it would arrive late, and a
/// long outage would pile up many.
pub async fn publish_to(nats: &Nats, topic: &str, body: Bytes) -> Result<(), BusError> {
    let lost = || BusError::Unreachable("messages to other processes cannot be sent right now".to_owned());
    let _place = nats.saying.try_acquire().map_err(|_| lost())?;
    if nats.is_down() {
        return Err(lost());
    }
    let (headers, body) = pack(nats, HeaderMap::new(), body).await?;
    let subject = nats.names.topic(topic);
    match headers.is_empty() {
        true => taken(nats.client.publish(subject, body)).await,
        false => taken(nats.client.publish_with_headers(subject, headers, body)).await,
    }
}

/// Publishes the question. The answers end when the receiver is dropped, or at once if no process listens.
pub async fn request(nats: &Nats, topic: &str, body: Bytes) -> Result<mpsc::Receiver<Bytes>, BusError> {
    let (headers, body) = pack(nats, HeaderMap::new(), body).await?;
    let mut answers = nats.question(nats.names.topic(topic), headers, body).await?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let nats = nats.clone();
    crate::spawn("nats answers", async move {
        loop {
            let answer = tokio::select! {
                answer = Nats::next_answer(&mut answers) => answer,
                () = sender.closed() => return,
            };
            let Some(answer) = answer else { return };
            let Some(answer) = unpack(&nats, answer, Readers::One).await else { continue };
            if sender.send(answer).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Receives the messages on a topic until the receiver is dropped. With `in_turn`, all such listeners form a queue
/// group: the broker sends each message to one listener of the group.
pub async fn subscribe(nats: &Nats, topic: &str, in_turn: bool) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
    let subject = nats.names.topic(topic);
    let mut messages = match in_turn {
        true => {
            let subscribed = nats.client.queue_subscribe(subject, IN_TURN.to_owned());
            nats.until_subscribed(taken(subscribed).await?).await?
        }
        false => nats.subscribe_at_once(subject).await?,
    };
    let readers = if in_turn { Readers::One } else { Readers::Unknown };
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let nats = nats.clone();
    crate::spawn("nats topic", async move {
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = sender.closed() => return,
            };
            let Some(message) = message else { return };
            let inbox = message.reply.clone().filter(|inbox| inbox.starts_with(&*nats.inboxes));
            let Some(body) = unpack(&nats, message, readers).await else { continue };
            let question = match inbox {
                Some(inbox) => TopicMessage::new(body, Answers { nats: nats.clone(), inbox }),
                None => TopicMessage::without_reply(body),
            };
            if sender.send(question).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[async_trait]
impl RespondHandle for Answers {
    async fn answer(&self, body: Bytes) -> Result<(), BusError> {
        let (headers, body) = pack(&self.nats, headers::answer(), body).await?;
        taken(self.nats.client.publish_with_headers(self.inbox.clone(), headers, body)).await
    }
}

/// The headers and body to send: the body itself, or a claim for it, in the headers, if it is too large.
async fn pack(nats: &Nats, mut headers: HeaderMap, body: Bytes) -> Result<(HeaderMap, Bytes), BusError> {
    if super::claims::wire_size(&headers) + body.len() <= nats.max_payload().min(INLINE_BYTES) {
        return Ok((headers, body));
    }
    let name = escape_token(&nats.client.new_inbox());
    let claim = nats.put_object(BodyStore::Claims, name, &body, Some(LAPSE)).await?;
    headers::write_claim(&mut headers, claim.claim());
    claim.keep();
    Ok((headers, Bytes::new()))
}

/// The body of a received message. `None` if it cannot be read; messages on topics are best effort.
async fn unpack(nats: &Nats, message: Message, readers: Readers) -> Option<Bytes> {
    let claim = match headers::read_claim(&message) {
        Ok(Some(claim)) => claim,
        Ok(None) if message.payload.len() <= INLINE_BYTES => return Some(message.payload),
        Ok(None) => {
            let (bytes, subject) = (message.payload.len(), &message.subject);
            tracing::warn!(bytes, %subject, "ignored a request or answer of more than {INLINE_BYTES} bytes");
            return None;
        }
        Err(error) => {
            tracing::warn!(%error, "ignored a malformed request or answer");
            return None;
        }
    };
    match nats.get_object(BodyStore::Claims, &claim).await {
        Ok(body) => {
            if readers == Readers::One {
                nats.discard(BodyStore::Claims, claim.name);
            }
            Some(body)
        }
        Err(error) => {
            tracing::warn!(%error, "a request or answer could not be read");
            None
        }
    }
}
