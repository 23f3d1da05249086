//! Deliveries whose bodies travel by claim: fetched beside the puller, which meanwhile goes on to pull.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, AckKind};
use bytes::Bytes;
use trireme_inference::{InferError, ModelKey, UnixMicros};

use super::Nats;
use super::ack::NatsAck;
use super::claims::{Claim, RedeemError, Store};
use super::connect::taken;
use crate::{AckHandle, Acker, Answer, Bus, Delivery, Reply, ReplyHeaders, WorkHeaders, WorkMessage, envelope};

/// Pause before a body that could not be fetched is fetched again.
pub const FETCH_PAUSE: Duration = Duration::from_secs(1);

/// A message younger than this may have been published again, with its body: it is looked for once more soon.
const YOUNG: Duration = Duration::from_secs(2);

/// A request whose body is lost for good is told so this long before its deadline.
const BEFORE_DEADLINE: Duration = Duration::from_secs(1);

/// How often the broker is told that a fetch goes on, which includes waiting for its turn: well within any `ack_wait`.
const PROGRESS: Duration = Duration::from_millis(250);

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
        if self.headers.deadline.remaining(UnixMicros::now()).is_none() {
            // Nobody waits, so its body is not worth reading.
            tracing::debug!(model = %self.model, request_id = self.headers.request_id, "dropped a message that is late");
            let ack = NatsAck { nats: self.nats, message: self.message, claim: Some(self.claim.name) };
            let _ = ack.ack().await;
            return None;
        }
        let reason = match self.kept_alive(self.body()).await {
            Ok(body) => match decode(&self.model, self.headers.clone(), &body) {
                Ok(work) => {
                    let ack = NatsAck { nats: self.nats, message: self.message, claim: Some(self.claim.name) };
                    return Some(Delivery { message: work, attempt: self.attempt, acker: Acker::new(Arc::new(ack)) });
                }
                Err(reason) => reason,
            },
            // What the broker lost may be on its way again, under this name or another, so its end is not told before the
            // request's own.
            Err(error @ RedeemError::Gone { .. }) => match self.try_again_in() {
                Some(pause) => {
                    tracing::debug!(model = %self.model, %error, "a message's body is not there");
                    let _ = self.message.ack_with(AckKind::Nak(Some(pause))).await;
                    return None;
                }
                None => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!(model = %self.model, request_id = self.headers.request_id, reason, "refused a message");
        let error = InferError::unavailable(format!("message was lost: {reason}")).at(&self.model, "");
        let WorkHeaders { request_id, gateway, answer, .. } = self.headers.clone();
        let sequence = match answer {
            Answer::Part(part) => part.sequence,
            Answer::Whole | Answer::InParts => 0,
        };
        let headers = ReplyHeaders { request_id, gateway, sequence, last: true };
        let _ = self.kept_alive(self.nats.reply(Reply::failed(headers, error))).await;
        let _ = self.message.ack_with(AckKind::Term).await;
        None
    }

    /// The body, asked for as long as time lasts.
    async fn body(&self) -> Result<Bytes, RedeemError> {
        loop {
            match self.nats.redeem(Store::Claims, &self.claim).await {
                Err(error @ RedeemError::Unreachable { .. }) if self.time_left() > FETCH_PAUSE => {
                    tracing::debug!(model = %self.model, %error, "a message's body cannot be fetched yet");
                    tokio::time::sleep(FETCH_PAUSE).await;
                }
                fetched => return fetched,
            }
        }
    }

    /// Does something for the delivery, so that nobody else gets it meanwhile.
    async fn kept_alive<T>(&self, doing: impl Future<Output = T>) -> T {
        tokio::pin!(doing);
        loop {
            tokio::select! {
                done = &mut doing => return done,
                () = tokio::time::sleep(PROGRESS) => drop(taken(self.message.ack_with(AckKind::Progress)).await),
            }
        }
    }

    /// How long to wait before a body that is not there is looked for again: a moment, then until shortly before the
    /// deadline. `None` when that is near, or there is none.
    fn try_again_in(&self) -> Option<Duration> {
        let left = self.time_left();
        if left.is_zero() {
            return None;
        }
        let published = self.message.info().ok()?.published.unix_timestamp_nanos() / 1000;
        let age = UnixMicros::now().since(UnixMicros(u64::try_from(published).unwrap_or_default()));
        match age < YOUNG {
            true => Some(FETCH_PAUSE.min(left)),
            false => Some(left).filter(|_| self.headers.deadline != UnixMicros::NEVER),
        }
    }

    /// Until the request has to be told.
    fn time_left(&self) -> Duration {
        self.headers.deadline.since(UnixMicros::now()).saturating_sub(BEFORE_DEADLINE)
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
