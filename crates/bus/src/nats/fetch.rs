//! Deliveries whose bodies travel by claim. Their bodies are fetched in tasks, while the consumer goes on to pull.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trireme_inference::{InferError, ModelKey, UnixMicros};

use super::ack::NatsAck;
use super::claims::{BodyStore, Claim, GetObjectError};
use super::connection::Nats;
use crate::{AckHandle, Acker, AnswerForm, Bus, Delivery, Reply, ReplyHeaders, WorkHeaders, WorkMessage, envelope};

/// Pause before a failed fetch is repeated.
pub const FETCH_PAUSE: Duration = Duration::from_secs(1);

/// A message younger than this may have been published again together with its body, so a missing body is looked for
/// again.
const YOUNG: Duration = Duration::from_secs(2);

/// If the body cannot be fetched, the request fails this long before its deadline.
const BEFORE_DEADLINE: Duration = Duration::from_secs(1);

/// A delivery whose body travels by claim.
pub struct Fetch {
    pub nats: Nats,
    pub model: ModelKey,
    pub ack: NatsAck,
    pub headers: WorkHeaders,
    pub claim: Claim,
    pub deliveries: u32,
    pub more: bool,
}

// === impl Fetch ===

impl Fetch {
    /// Fetches the body. `None` if that fails; the delivery is settled then.
    pub async fn run(self) -> Option<Delivery> {
        if self.headers.deadline.remaining(UnixMicros::now()).is_none() {
            // The deadline has passed, so the body is not needed.
            tracing::debug!(model = %self.model, request_id = %self.headers.request_id, "dropped a message that is late");
            let _ = self.ack.ack().await;
            return None;
        }
        let reason = match self.body().await {
            Ok(body) => match decode(&self.model, self.headers.clone(), &body) {
                Ok(work) => {
                    let acker = Acker::new(Arc::new(self.ack));
                    return Some(Delivery { message: work, deliveries: self.deliveries, more: self.more, acker });
                }
                Err(reason) => reason,
            },
            Err(error @ GetObjectError::Gone { .. }) => {
                // The gateway may be storing the body again at this moment. Otherwise the broker has lost it: the
                // gateway will find the request in no queue and publish it again with its body.
                let settled = match self.is_young() {
                    true => self.ack.nak(FETCH_PAUSE).await,
                    false => {
                        let (model, request_id) = (&self.model, &self.headers.request_id);
                        tracing::warn!(%model, %request_id, %error, "dropped a message whose body is lost");
                        self.ack.ack().await
                    }
                };
                if let Err(error) = settled {
                    tracing::debug!(model = %self.model, %error, "not settled; the broker delivers it again");
                }
                return None;
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(model = %self.model, request_id = %self.headers.request_id, reason, "refused a message");
        let error = InferError::unavailable(format!("message was lost: {reason}")).at(&self.model, "");
        let WorkHeaders { request_id, gateway, answer, .. } = self.headers.clone();
        let sequence = match answer {
            AnswerForm::Part(part) => part.sequence,
            AnswerForm::Whole | AnswerForm::InParts => 0,
        };
        let headers = ReplyHeaders { request_id, gateway, sequence, last: true };
        if self.nats.reply(Reply::failed(headers, error)).await.is_ok() {
            let _ = self.ack.ack().await;
        }
        None
    }

    /// Fetches the body, with retries until shortly before the deadline.
    async fn body(&self) -> Result<Bytes, GetObjectError> {
        loop {
            match self.nats.get_object(BodyStore::Claims, &self.claim).await {
                Err(error @ GetObjectError::Unreachable { .. }) if self.time_left() > FETCH_PAUSE => {
                    tracing::debug!(model = %self.model, %error, "a message's body cannot be fetched yet");
                    tokio::time::sleep(FETCH_PAUSE).await;
                }
                fetched => return fetched,
            }
        }
    }

    /// Whether the message was published less than [`YOUNG`] ago.
    fn is_young(&self) -> bool {
        let Ok(info) = self.ack.message().info() else { return false };
        let published = u64::try_from(info.published.unix_timestamp_nanos() / 1000).unwrap_or_default();
        UnixMicros::now().since(UnixMicros(published)) < YOUNG
    }

    /// The time until the request has to fail.
    fn time_left(&self) -> Duration {
        self.headers.deadline.since(UnixMicros::now()).saturating_sub(BEFORE_DEADLINE)
    }
}

/// Decodes a message's body; errors if its route does not lead to `model`.
pub fn decode(model: &ModelKey, headers: WorkHeaders, body: &Bytes) -> Result<WorkMessage, String> {
    let work = envelope::decode_work(headers, body).map_err(|error| error.to_string())?;
    match work.queue() {
        Some(queue) if queue == model => Ok(work),
        Some(other) => Err(format!("its route leads to '{other}'")),
        None => Err("its route has no step left".to_owned()),
    }
}
