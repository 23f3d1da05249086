//! Replies over core NATS, which confirms nothing. A gateway that does not get a reply finds its request in no queue, and publishes
//! it again.
//!
//! A body that travels by claim is fetched in a task of its own, while the inbox goes on to receive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Message;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::task::JoinSet;
use trireme_inference::InferError;

use super::claims::{self, BodyStore, Claim, GetObjectError};
use super::connect::SUBSCRIPTION_CAPACITY;
use super::connection::Nats;
use super::deliveries::FETCH_PAUSE;
use super::headers;
use super::limits::taken;
use super::subjects;
use crate::{Bus, BusError, Inbox, Reply, ReplyHeaders, envelope, escape_token};

/// How long the body of a reply is kept for its gateway, which fetches it at once.
const LAPSE: Duration = Duration::from_secs(60);

/// Bodies that are being fetched or wait to be fetched, at most: as many as the subscription holds messages. A waiting one takes
/// no more memory than its headers. Beyond that, replies wait in the subscription.
const FETCHING: usize = SUBSCRIPTION_CAPACITY;

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
                    Ok(Some(claim)) => {
                        let nats = nats.clone();
                        let fetch = async move { nats.fetch_reply(&inbox, &message, claim).await };
                        spawn_within(&mut fetching, FETCHING, fetch).await;
                    }
                    Err(error) => refuse(&inbox, &message, &error),
                }
            }
        });
        Ok(inbox)
    }

    /// Sends a reply.
    pub(super) async fn send_reply(&self, reply: &Reply) -> Result<(), BusError> {
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
        taken(self.client.publish_with_headers(subject, headers, body)).await
    }

    /// Fetches the body of a reply that travels by claim, while a reader waits for the reply and the broker may still
    /// have it. If that fails, the gateway finds its request in no queue, so the reply is made again.
    async fn fetch_reply(&self, inbox: &Inbox, message: &Message, claim: Claim) {
        let headers = match headers::read_reply(message) {
            Ok(headers) => headers,
            Err(error) => return refuse(inbox, message, &error),
        };
        let _arriving = inbox.arriving(&headers);
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
        self.discard(BodyStore::Claims, claim.name);
    }

    async fn receive_reply(&self, inbox: &Inbox, message: &Message, body: &Bytes) {
        match headers::read_reply(message).and_then(|headers| envelope::decode_reply(headers, body)) {
            Ok(reply) => {
                if let Some(given_up) = inbox.dispatch(reply) {
                    // Best effort, like every cancellation.
                    let _ = (self as &dyn Bus).cancel(&given_up).await;
                }
            }
            Err(error) => refuse(inbox, message, &error),
        }
    }
}

/// Starts a task once fewer than `most` run.
async fn spawn_within(tasks: &mut JoinSet<()>, most: usize, task: impl Future<Output = ()> + Send + 'static) {
    while tasks.len() >= most {
        tasks.join_next().await;
    }
    tasks.spawn(task);
}

/// Ends the request of a reply that cannot be read: another run of the step would make the same reply.
fn refuse(inbox: &Inbox, message: &Message, error: &envelope::EnvelopeError) {
    tracing::warn!(subject = %message.subject, %error, "a worker's reply cannot be read");
    let Some(request_id) = subjects::request_of(&message.subject) else { return };
    let headers =
        ReplyHeaders { request_id: request_id.into(), gateway: inbox.gateway().into(), sequence: 0, last: true };
    let error = InferError::internal(format!("the reply of a worker cannot be read: {error}"));
    let _ = inbox.dispatch(Reply::failed(headers, error));
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_reply_beyond_the_limit_waits_for_its_turn() {
        let (ended, mut tasks) = (Arc::new(Semaphore::new(0)), JoinSet::new());
        let fetch = || {
            let ended = ended.clone();
            async move { ended.acquire().await.expect("never closed").forget() }
        };
        for _ in 0..2 {
            assert!(spawn_within(&mut tasks, 2, fetch()).now_or_never().is_some());
        }
        assert!(spawn_within(&mut tasks, 2, fetch()).now_or_never().is_none(), "two are fetched");
        ended.add_permits(1);
        spawn_within(&mut tasks, 2, fetch()).await;
        ended.add_permits(2);
        tasks.join_all().await;
    }
}
