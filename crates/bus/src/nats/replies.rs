//! Replies over core NATS: sent until the broker has read them, and received at a gateway's inbox.
//!
//! A body that came by claim is fetched beside the inbox, which goes on meanwhile. One that cannot be read any more is no
//! answer: whoever waits is told that it was lost, and may send the request again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Message;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::task::JoinSet;

use super::claims::{self, Claim, RedeemError, Store};
use super::fetch::FETCH_PAUSE;
use super::{Nats, headers, subjects};
use crate::{Bus, BusError, Inbox, Reply, envelope};

/// How long the body of a reply waits for its gateway, which fetches it at once.
const LAPSE: Duration = Duration::from_secs(60);

/// Bodies that are being fetched, or wait for it: each holds no more than headers until there is room for its bytes.
const FETCHING: usize = 1024;

// === impl Nats ===

impl Nats {
    /// Receives the replies to `gateway` for as long as somebody holds the inbox.
    pub(super) async fn receive_replies(&self, gateway: &str) -> Result<Arc<Inbox>, BusError> {
        let inbox = Inbox::new(gateway);
        inbox.keep_deadlines(self.clone());
        let mut replies = self.subscribe_at_once(subjects::replies_to(gateway)).await?;
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
                        tracing::warn!(subject = %message.subject, "a reply was lost: too many large ones at a time");
                        if let Ok(headers) = headers::read_reply(&message) {
                            inbox.lost(&headers);
                        }
                    }
                    Err(error) => tracing::warn!(subject = %message.subject, %error, "ignored a malformed reply"),
                }
            }
        });
        Ok(inbox)
    }

    /// Sends a reply until the broker has read it.
    pub(super) async fn send_reply(&self, reply: &Reply) -> Result<(), BusError> {
        let mut body = envelope::encode_reply(reply)?;
        let mut headers = headers::write_reply(reply)?;
        if claims::wire_size(&headers) + body.len() > self.max_payload() {
            // Another run's reply has another name, so that each is whole.
            let name = format!("{}/reply/{}/{}", reply.request_id, reply.sequence, reply.sent_at);
            let claim = self.lay_down(Store::Claims, subjects::escape_token(&name), &body, Some(LAPSE)).await?;
            headers::write_claim(&mut headers, claim.claim());
            // Sent and not known to be read, the reply may have arrived all the same.
            claim.keep();
            body = Bytes::new();
        }
        self.send_read(subjects::reply(&reply.gateway, &reply.request_id), headers, body).await
    }

    /// Reads the body of a reply that came by claim, while somebody waits for it and the broker may still have it.
    async fn fetch_reply(&self, inbox: &Inbox, message: &Message, claim: Claim) {
        let headers = match headers::read_reply(message) {
            Ok(headers) => headers,
            Err(error) => {
                tracing::warn!(subject = %message.subject, %error, "ignored a malformed reply");
                return;
            }
        };
        let give_up = Instant::now() + LAPSE;
        while inbox.awaits(&headers) {
            match self.redeem(Store::Claims, &claim).await {
                Ok(body) => {
                    self.receive_reply(inbox, message, &body).await;
                    break;
                }
                Err(error @ RedeemError::Unreachable { .. }) if Instant::now() < give_up => {
                    tracing::debug!(subject = %message.subject, %error, "the body of a reply cannot be fetched yet");
                    tokio::time::sleep(FETCH_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(subject = %message.subject, %error, "a reply was lost");
                    inbox.lost(&headers);
                    break;
                }
            }
        }
        self.discard(Store::Claims, claim.name);
    }

    async fn receive_reply(&self, inbox: &Inbox, message: &Message, body: &Bytes) {
        match headers::read_reply(message).and_then(|headers| envelope::decode_reply(headers, body)) {
            Ok(reply) => {
                if let Some(given_up) = inbox.dispatch(reply) {
                    // Best effort, like every cancellation.
                    let _ = self.cancel(&given_up).await;
                }
            }
            Err(error) => tracing::warn!(subject = %message.subject, %error, "ignored a malformed reply"),
        }
    }
}
