//! Deliveries in this process: a message is read, its body fetched if that travels by claim, and the delivery kept alive until it is
//! settled. Settling it also discards the claim.
//!
//! Not here: pulling messages (`consumer`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, AckKind};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinSet;
use trireme_inference::{Callers, DataType, InferError, Ledger, ModelKey, Owner, Route, Step, Tensor, UnixMicros};

use super::claims::{BodyStore, Claim, GetObjectError};
use super::connection::Nats;
use super::limits::taken;
use super::{clock, headers};
use crate::{
    AckHandle, Acker, AnswerForm, Bus, BusError, DeadLetter, Delivery, EnvelopeError, Reply, ReplyHeaders, WorkHeaders,
    WorkMessage, envelope,
};

/// How long the broker waits before it delivers a message again that could not be set aside.
const ASIDE_PAUSE: Duration = Duration::from_secs(1);

/// Name of the tensor that holds an unreadable message's body in its dead letter.
const BODY: &str = "body";

/// Pause before a failed fetch is repeated.
pub const FETCH_PAUSE: Duration = Duration::from_secs(1);

/// A message younger than this may have been published again together with its body, so a missing body is looked for
/// again.
const YOUNG: Duration = Duration::from_secs(2);

/// If the body cannot be fetched, the request fails this long before its deadline.
const BEFORE_DEADLINE: Duration = Duration::from_secs(1);

/// A delivery whose body travels by claim.
struct Claimed {
    model: ModelKey,
    ack: NatsAck,
    headers: WorkHeaders,
    claim: Claim,
    deliveries: u32,
    more: bool,
}

/// Keeps a delivery alive, until it is settled or dropped.
struct NatsAck {
    nats: Nats,
    message: jetstream::Message,
    /// The claim to discard when the delivery ends.
    claim: Option<String>,
}

// === Reading ===

/// Reads a message from a queue of `model`, without waiting. `None` if its body has to be fetched, which a task of `fetching` does, and
/// for an unusable message, which has been settled.
pub fn open(
    nats: &Nats,
    model: &ModelKey,
    message: jetstream::Message,
    fetching: &mut JoinSet<Option<Delivery>>,
) -> Option<Delivery> {
    let (headers, deliveries, more, claim) = match read(&message) {
        Ok(read) => read,
        // All processes of a deployment have one version, so no other process can read the message either.
        Err(error @ EnvelopeError::Version(_)) => {
            crate::spawn("nats dead letter", set_aside(nats.clone(), model.clone(), message, error.to_string()));
            return None;
        }
        Err(error) => {
            refuse(model, message, &error.to_string());
            return None;
        }
    };
    if let Some(claim) = claim {
        let ack = NatsAck::new(nats, message, Some(claim.name.clone()));
        fetching.spawn(Claimed { model: model.clone(), ack, headers, claim, deliveries, more }.fetch());
        return None;
    }
    match decode(model, headers, &message.payload) {
        Ok(work) => {
            let acker = Acker::new(Arc::new(NatsAck::new(nats, message, None)));
            Some(Delivery { message: work, deliveries, more, acker })
        }
        Err(reason) => {
            refuse(model, message, &reason);
            None
        }
    }
}

/// Reads a message's headers and reply subject: how often it was delivered, and whether more messages wait.
fn read(message: &jetstream::Message) -> Result<(WorkHeaders, u32, bool, Option<Claim>), EnvelopeError> {
    let headers = headers::read_work(message)?;
    let claim = headers::read_claim(message)?;
    let info = message.info().map_err(|error| EnvelopeError::Header {
        name: "reply subject",
        found: error.to_string(),
        expected: "that of a delivery",
    })?;
    Ok((headers, u32::try_from(info.delivered).unwrap_or(u32::MAX), info.pending > 0, claim))
}

/// Decodes a message's body; errors if its route does not lead to `model`.
fn decode(model: &ModelKey, headers: WorkHeaders, body: &Bytes) -> Result<WorkMessage, String> {
    let work = envelope::decode_work(headers, body).map_err(|error| error.to_string())?;
    match work.queue() {
        Some(queue) if queue == model => Ok(work),
        Some(other) => Err(format!("its route leads to '{other}'")),
        None => Err("its route has no step left".to_owned()),
    }
}

/// Terminates a message that cannot be read. If it stayed unsettled, it would come again and be refused again.
fn refuse(model: &ModelKey, message: jetstream::Message, reason: &str) {
    tracing::warn!(%model, subject = %message.subject, reason, "refused a malformed message");
    crate::spawn("nats refusal", async move { drop(message.ack_with(AckKind::Term).await) });
}

/// Sets a message of an unknown contract version aside, with its body unread. The queue keeps the message as long as that fails.
async fn set_aside(nats: Nats, model: ModelKey, message: jetstream::Message, reason: String) {
    tracing::warn!(%model, subject = %message.subject, reason, "set a message aside");
    let kind = match (&nats as &dyn Bus).dead_letter(letter(&model, &message, reason)).await {
        Ok(()) => AckKind::Term,
        Err(error) => {
            tracing::warn!(%model, %error, "could not set a message aside; trying on");
            AckKind::Nak(Some(ASIDE_PAUSE))
        }
    };
    let _ = message.ack_with(kind).await;
}

/// The dead letter of a message that cannot be read: the queue's model, and the body as a tensor.
fn letter(model: &ModelKey, message: &jetstream::Message, reason: String) -> DeadLetter {
    let info = message.info().ok();
    let number = info.as_ref().map_or(0, |info| info.stream_sequence);
    let step = Step {
        model: model.clone(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        dead: Vec::new(),
        level: 0,
        content: None,
    };
    let body = Tensor::new(BODY, DataType::Uint8, [message.payload.len() as i64], message.payload.clone());
    let unread = WorkMessage {
        request_id: headers::request_name(message).unwrap_or_else(|| format!("message-{number}")).into(),
        gateway: String::new().into(),
        deadline: UnixMicros::default(),
        priority: 0,
        traceparent: None,
        client_id: String::new().into(),
        sent_at: UnixMicros::default(),
        route: Route::resume(model.clone(), false, 0, vec![step]),
        tensors: body.into_iter().collect(),
        parameters: Arc::default(),
        ledger: Ledger::default(),
        answer: AnswerForm::Whole,
        callers: Callers::default(),
        job: None,
        owner: Owner::default(),
    };
    let attempts = info.map_or(0, |info| u32::try_from(info.delivered).unwrap_or(u32::MAX));
    DeadLetter { message: unread, reason: InferError::unsupported(reason).at(model, ""), attempts }
}

// === impl Claimed ===

impl Claimed {
    /// Fetches the body. `None` if that fails; the delivery is settled then.
    async fn fetch(self) -> Option<Delivery> {
        let (model, request_id) = (&self.model, &self.headers.request_id);
        if self.headers.deadline.remaining(UnixMicros::now()).is_none() {
            // The deadline has passed, so the body is not needed.
            tracing::debug!(%model, %request_id, "dropped a message that is late");
            let _ = self.ack.ack().await;
            return None;
        }
        let reason = match self.body().await {
            Ok(body) => match decode(model, self.headers.clone(), &body) {
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
                        tracing::warn!(%model, %request_id, %error, "dropped a message whose body is lost");
                        self.ack.ack().await
                    }
                };
                if let Err(error) = settled {
                    tracing::debug!(%model, %error, "not settled; the broker delivers it again");
                }
                return None;
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(%model, %request_id, reason, "refused a message");
        let error = InferError::unavailable(format!("message was lost: {reason}")).at(model, "");
        let WorkHeaders { request_id, gateway, answer, .. } = self.headers.clone();
        let sequence = match answer {
            AnswerForm::Part(part) => part.sequence,
            AnswerForm::Whole | AnswerForm::InParts => 0,
        };
        let headers = ReplyHeaders { request_id, gateway, sequence, last: true };
        if self.ack.nats.reply(Reply::failed(headers, error)).await.is_ok() {
            let _ = self.ack.ack().await;
        }
        None
    }

    /// Fetches the body, with retries until shortly before the deadline.
    async fn body(&self) -> Result<Bytes, GetObjectError> {
        loop {
            match self.ack.nats.get_object(BodyStore::Claims, &self.claim).await {
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
        let Ok(info) = self.ack.message.info() else { return false };
        UnixMicros::now().since(clock::micros(info.published)) < YOUNG
    }

    /// The time until the request has to fail.
    fn time_left(&self) -> Duration {
        self.headers.deadline.since(UnixMicros::now()).saturating_sub(BEFORE_DEADLINE)
    }
}

// === impl Nats ===

impl Nats {
    /// Reports progress on each delivery every third of `ack_wait`, for as long as the connection is open. The broker gives a
    /// delivery without reports to another worker.
    pub(super) fn keep_alive(&self) {
        let nats = self.clone();
        crate::spawn("nats progress", async move {
            while !nats.is_closed() {
                let period = Duration::from_millis(nats.ack_wait.load(Ordering::Relaxed)) / 3;
                tokio::time::sleep(period).await;
                if nats.client.connection_state() != async_nats::connection::State::Connected {
                    // Reports made without a connection would only delay other messages when it is back.
                    continue;
                }
                let subjects: Vec<_> = {
                    let held = nats.held.lock();
                    let old = held.iter().filter(|(_, since)| since.elapsed() >= period / 2);
                    old.map(|(subject, _)| subject.clone()).collect()
                };
                for subject in subjects {
                    let _ = taken(nats.client.publish(subject, Bytes::from_static(b"+WPI"))).await;
                }
            }
        });
    }

    /// Sets how long this process's queues wait for a report of progress.
    pub(super) fn set_ack_wait(&self, ack_wait: Duration) {
        self.ack_wait.store(ack_wait.as_millis() as u64, Ordering::Relaxed);
    }
}

// === impl NatsAck ===

impl NatsAck {
    /// Keeps a delivery alive from now on.
    fn new(nats: &Nats, message: jetstream::Message, claim: Option<String>) -> NatsAck {
        nats.held.lock().extend(message.reply.clone().map(|subject| (subject, Instant::now())));
        NatsAck { nats: nats.clone(), message, claim }
    }

    /// Stops keeping it alive.
    fn end(&self) {
        if let Some(subject) = &self.message.reply {
            self.nats.held.lock().remove(subject);
        }
    }
}

#[async_trait]
impl AckHandle for NatsAck {
    async fn ack(&self) -> Result<(), BusError> {
        let sent = match &self.claim {
            // The claim is kept until the broker has confirmed: until then the message may be delivered again and needs
            // it.
            Some(claim) => {
                let heard = taken(self.message.double_ack()).await;
                if heard.is_ok() {
                    self.nats.discard(BodyStore::Claims, claim.clone());
                }
                heard
            }
            None => taken(self.message.ack()).await,
        };
        self.end();
        sent
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        let sent = taken(self.message.ack_with(AckKind::Nak((!delay.is_zero()).then_some(delay)))).await;
        self.end();
        sent
    }

    fn abandon(&self) {
        self.end();
        tracing::warn!("delivery was let go without being settled; the broker delivers it again after ack_wait");
    }
}

impl Drop for NatsAck {
    fn drop(&mut self) {
        self.end();
    }
}
