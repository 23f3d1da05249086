//! Replies over core NATS, and the acknowledgement of the deliveries that they end.
//!
//! A worker sends a reply as a request: its reply subject names the delivery that it ends. The gateway acknowledges
//! that delivery when it has the reply. If the reply is lost on its way, nothing is acknowledged, and the broker
//! delivers the request again after `ack_wait`. If the gateway is gone, the broker reports at the reply subject that no
//! client listens, and the worker acknowledges. A gateway that lost its connection for a moment finds out that the
//! request is in no queue, and publishes it again.
//!
//! A body that travels by claim is fetched in a task of its own, while the inbox goes on to receive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::task::JoinSet;
use trireme_inference::InferError;

use super::ack::acknowledge;
use super::claims::{self, BodyStore, Claim, GetObjectError};
use super::connection::Nats;
use super::fetch::FETCH_PAUSE;
use super::headers;
use super::limits::taken;
use super::subjects::{self, Ended};
use crate::{Acker, Bus, BusError, Inbox, Reply, ReplyHeaders, envelope, escape_token};

/// How long the body of a reply is kept for its gateway, which fetches it at once.
const LAPSE: Duration = Duration::from_secs(60);

/// Bodies that are being fetched or wait to be fetched. A waiting one takes no more memory than its headers. A reply
/// beyond the limit is dropped, and made again when its request is delivered again.
const FETCHING: usize = 1024;

// === impl Nats ===

impl Nats {
    /// Receives the replies to `gateway` until the inbox is dropped.
    pub(super) async fn receive_replies(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        let bus = self.clone();
        inbox.keep_deadlines(move |request_id| {
            let bus = bus.clone();
            async move { (&bus as &dyn Bus).cancel(&request_id).await }
        });
        let mut replies = self.subscribe_at_once(self.names.replies_to(gateway)).await?;
        let receiver = Arc::downgrade(&inbox);
        let nats = self.clone();
        crate::spawn("nats inbox", async move {
            let mut fetching = JoinSet::new();
            loop {
                let message = tokio::select! {
                    message = replies.next() => message,
                    Some(_) = fetching.join_next() => continue,
                };
                let (Some(message), Some(inbox)) = (message, receiver.upgrade()) else { return };
                match headers::read_claim(&message) {
                    Ok(None) => nats.receive_reply(&inbox, &message, &message.payload).await,
                    Ok(Some(claim)) if fetching.len() < FETCHING => {
                        let nats = nats.clone();
                        fetching.spawn(async move { nats.fetch_reply(&inbox, &message, claim).await });
                    }
                    Ok(Some(_)) => {
                        tracing::warn!(subject = %message.subject, "too many large replies at a time; one is let go");
                    }
                    Err(error) => nats.refuse(&inbox, &message, &error).await,
                }
            }
        });
        Ok(inbox)
    }

    /// Receives the broker's reports of replies that no gateway listened to, and acknowledges the deliveries they end.
    pub(super) async fn settle_unheard(&self) -> Result<(), BusError> {
        let mut unheard = self.subscribe(format!("{}.>", self.unheard)).await?;
        let nats = self.clone();
        crate::spawn("nats unheard", async move {
            while let Some(message) = unheard.next().await {
                if message.status == Some(StatusCode::NO_RESPONDERS) {
                    tracing::debug!(subject = %message.subject, "a reply's gateway is gone");
                    if let Some(ended) = nats.names.ended(&message.subject) {
                        acknowledge(&nats, ended).await;
                    }
                }
            }
        });
        Ok(())
    }

    /// Sends a reply. From then on its gateway has to acknowledge the delivery that it ends.
    pub(super) async fn send_reply(&self, reply: &Reply, delivery: Option<&mut Acker>) -> Result<(), BusError> {
        let mut body = envelope::encode_reply(reply)?;
        let mut headers = headers::write_reply(reply)?;
        if claims::wire_size(&headers) + body.len() > self.max_payload() {
            // A reply made in another run of the step has another name, so parts of the two do not mix.
            let name = format!("{}/reply/{}/{}", reply.request_id, reply.sequence, reply.sent_at);
            // Boxed, because its state is much larger than that of a reply without a claim.
            let claim = Box::pin(self.put_object(BodyStore::Claims, escape_token(&name), &body, Some(LAPSE))).await?;
            headers::write_claim(&mut headers, claim.claim());
            claim.keep();
            body = Bytes::new();
        }
        let subject = self.names.reply(&reply.gateway, &reply.request_id);
        match delivery.as_ref().and_then(|delivery| delivery.settled_by()) {
            Some(unheard) => taken(self.client.publish_with_reply_and_headers(subject, unheard, headers, body)).await?,
            None => taken(self.client.publish_with_headers(subject, headers, body)).await?,
        }
        if let Some(delivery) = delivery {
            delivery.ack_by_reply();
        }
        Ok(())
    }

    /// Fetches the body of a reply that travels by claim, while a reader waits for the reply and the broker may still
    /// have it. If that fails, the delivery is not acknowledged, so the reply is made again.
    async fn fetch_reply(&self, inbox: &Inbox, message: &Message, claim: Claim) {
        let headers = match headers::read_reply(message) {
            Ok(headers) => headers,
            Err(error) => return self.refuse(inbox, message, &error).await,
        };
        let _alive = self.ended(message).map(|ended| self.deliveries.keep(ended.acknowledgement.into()));
        let give_up = Instant::now() + LAPSE;
        while inbox.awaits(&headers) {
            match self.get_object(BodyStore::Claims, &claim).await {
                Ok(body) => {
                    self.receive_reply(inbox, message, &body).await;
                    self.discard(BodyStore::Claims, claim.name);
                    return;
                }
                Err(error @ GetObjectError::Unreachable { .. }) if Instant::now() < give_up => {
                    tracing::debug!(subject = %message.subject, %error, "the body of a reply cannot be fetched yet");
                    tokio::time::sleep(FETCH_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(subject = %message.subject, %error, "a reply was lost; it is made again");
                    return;
                }
            }
        }
        self.acknowledge(message).await;
        self.discard(BodyStore::Claims, claim.name);
    }

    async fn receive_reply(&self, inbox: &Inbox, message: &Message, body: &Bytes) {
        match headers::read_reply(message).and_then(|headers| envelope::decode_reply(headers, body)) {
            Ok(reply) => {
                let dispatched = inbox.dispatch(reply);
                // A missing part is only sent again together with all other parts of its delivery. So that delivery is
                // acknowledged when all parts are there.
                if dispatched.complete || self.ended(message).is_some_and(|ended| ended.is_part) {
                    self.acknowledge(message).await;
                }
                if let Some(given_up) = dispatched.given_up {
                    // Best effort, like every cancellation.
                    let _ = (self as &dyn Bus).cancel(&given_up).await;
                }
            }
            Err(error) => self.refuse(inbox, message, &error).await,
        }
    }

    /// Ends the request of a reply that cannot be read, and acknowledges its delivery: another run of the step would make the same
    /// reply.
    async fn refuse(&self, inbox: &Inbox, message: &Message, error: &envelope::EnvelopeError) {
        tracing::warn!(subject = %message.subject, %error, "a worker's reply cannot be read");
        self.acknowledge(message).await;
        let Some(request_id) = subjects::request_of(&message.subject) else { return };
        let headers =
            ReplyHeaders { request_id: request_id.into(), gateway: inbox.gateway().into(), sequence: 0, last: true };
        let error = InferError::internal(format!("the reply of a worker cannot be read: {error}"));
        let _ = inbox.dispatch(Reply::failed(headers, error));
    }

    async fn acknowledge(&self, message: &Message) {
        match (self.ended(message), &message.reply) {
            (Some(ended), _) => acknowledge(self, ended).await,
            (None, Some(reply)) => {
                tracing::warn!(%reply, "ignored a reply's malformed word of the delivery that it ends")
            }
            (None, None) => {}
        }
    }

    /// The delivery that a reply ends.
    fn ended(&self, message: &Message) -> Option<Ended> {
        self.names.ended(message.reply.as_ref()?)
    }
}
