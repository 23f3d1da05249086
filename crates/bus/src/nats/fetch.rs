//! Deliveries whose bodies travel by claim: fetched beside the puller, which meanwhile goes on to pull.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, AckKind};
use bytes::Bytes;
use trireme_inference::{InferError, ModelKey, UnixMicros};

use super::Nats;
use super::ack::NatsAck;
use super::claims::{Claim, RedeemError, Store};
use crate::{Acker, Answer, Bus, Delivery, Reply, ReplyHeaders, WorkHeaders, WorkMessage, envelope};

/// Pause before a body that could not be fetched is fetched again.
const FETCH_PAUSE: Duration = Duration::from_secs(1);

/// A request whose body is lost for good is told so this long before its deadline.
const BEFORE_DEADLINE: Duration = Duration::from_secs(1);

/// A delivery whose body travels by claim.
pub struct Fetch {
    pub nats: Nats,
    pub model: ModelKey,
    pub message: jetstream::Message,
    pub headers: WorkHeaders,
    pub claim: Claim,
    pub attempt: u32,
}

// === impl Fetch ===

impl Fetch {
    /// Reads the body. `None` when that is not possible: then the delivery has been dealt with.
    pub async fn run(self) -> Option<Delivery> {
        let reason = match self.nats.redeem(Store::Claims, &self.claim, Some(&self.message)).await {
            Ok(body) => match decode(&self.model, self.headers.clone(), &body) {
                Ok(work) => {
                    let ack = NatsAck { nats: self.nats, message: self.message, claim: Some(self.claim.name) };
                    return Some(Delivery { message: work, attempt: self.attempt, acker: Acker::new(Arc::new(ack)) });
                }
                Err(reason) => reason,
            },
            // What the broker lost may be on its way again, under this name or another, so its end is not told before the
            // request's own.
            Err(error @ (RedeemError::Gone { .. } | RedeemError::Unreachable { .. })) => match self.try_again_in() {
                Some(pause) => {
                    tracing::debug!(model = %self.model, %error, "a message's body could not be fetched yet");
                    let _ = self.message.ack_with(AckKind::Nak(Some(pause))).await;
                    return None;
                }
                None => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!(model = %self.model, request_id = self.headers.request_id, reason, "refused a message");
        let error = InferError::unavailable(format!("message was lost: {reason}")).at(&self.model, "");
        let WorkHeaders { request_id, gateway, answer, .. } = self.headers;
        let sequence = match answer {
            Answer::Part(part) => part.sequence,
            Answer::Whole | Answer::InParts => 0,
        };
        let headers = ReplyHeaders { request_id, gateway, sequence, last: true };
        let _ = self.nats.reply(Reply::failed(headers, error)).await;
        let _ = self.message.ack_with(AckKind::Term).await;
        None
    }

    /// How long to wait before the body is fetched again: a moment, then until shortly before the deadline. `None` when that
    /// is near, or there is none.
    fn try_again_in(&self) -> Option<Duration> {
        let remaining = self.headers.deadline.remaining(UnixMicros::now())?.checked_sub(BEFORE_DEADLINE)?;
        match self.attempt {
            1 => Some(FETCH_PAUSE.min(remaining)),
            _ if self.attempt == 2 && self.headers.deadline != UnixMicros::NEVER => Some(remaining),
            _ => None,
        }
    }

    /// The delivery without its body, to be handed back.
    pub fn unread(self) -> Acker {
        Acker::new(Arc::new(NatsAck { nats: self.nats, message: self.message, claim: None }))
    }
}

/// A message's body, if it is work for `model`.
pub fn decode(model: &ModelKey, headers: WorkHeaders, body: &Bytes) -> Result<WorkMessage, String> {
    let work = envelope::decode_work(headers, body).map_err(|error| error.to_string())?;
    match work.queue() {
        Some(queue) if queue == model => Ok(work),
        Some(other) => Err(format!("its route leads to '{other}'")),
        None => Err("its route has no step left".to_owned()),
    }
}
