//! Queues of work: publishing messages, taking them back, and listing and counting them.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::stream;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use trireme_inference::{Lane, ModelKey, UnixMicros};

use super::claims::{self, BodyStore};
use super::connection::Nats;
use super::errors::{chain, failure, is_full, is_no_stream, is_not_found, is_overloaded, is_passing, is_unconfirmed};
use super::{headers, subjects};
use crate::{BusError, MessagePosition, QueueStatus, StreamSequence, WorkMessage, envelope};

/// How long the broker may take to confirm a message before it is published again.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// How many times a message is published if the broker does not confirm it. It has an id, so it is stored at most once.
const PUBLISH_ATTEMPTS: u32 = 3;

/// How much longer than its deadline a message stays in a queue, for clocks that do not agree.
const LAPSE_SLACK: Duration = Duration::from_secs(5);

/// Deadlines further away than this count as no deadline; the broker refuses absurd ones.
pub const LONGEST_LAPSE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The name of a stream that cannot exist, because stream names have no dots.
const NO_STREAM: &str = "no.stream";

/// How to store a body if it is too large for a message.
pub struct ToClaim {
    /// A subject token.
    pub name: String,
    /// After this the broker may drop it.
    pub lapse: Option<Duration>,
    /// The body is the result of a step, which differs each time the step runs.
    pub result: bool,
}

/// The broker's confirmation of a message.
pub struct Confirmed {
    /// The broker had a message with this name before the first attempt.
    known_before: bool,
    stream: String,
    pub sequence: u64,
}

// === impl Confirmed ===

impl Confirmed {
    fn queued(self, claim: Option<String>) -> MessagePosition {
        MessagePosition(Some(StreamSequence { stream: self.stream, sequence: self.sequence, claim }))
    }
}

// === impl Nats ===

impl Nats {
    /// Publishes into the queue of the route's current step and waits for the broker's confirmation.
    pub(super) async fn publish_work(&self, message: &WorkMessage) -> Result<MessagePosition, BusError> {
        let Some(model) = message.queue() else {
            return Err(BusError::Refused {
                action: "publishing",
                reason: format!("route of request '{}' has no step left", message.request_id),
            });
        };
        let body = envelope::encode_work(message)?;
        let subject = self.names.work(model, message.level(), &message.gateway, &message.request_id);
        // The broker keeps a message after its last delivery. No worker would remove a message that killed all its
        // workers, and a message past its deadline is of no use.
        let lapse = lapse(message.deadline);
        let headers = || {
            let mut headers = headers::write_work(message)?;
            if lapse < LONGEST_LAPSE {
                headers.insert(async_nats::header::NATS_MESSAGE_TTL, lapse.as_secs().to_string());
            }
            Ok::<_, envelope::EnvelopeError>(headers)
        };
        let written = headers()?;
        if claims::wire_size(&written) + body.len() <= self.max_payload() {
            let again = || headers().expect("they were written before");
            let sent = self.send_confirmed_again(subject, written, again, body).await;
            return sent.map(|confirmed| confirmed.queued(None)).map_err(|error| self.publish_error(model, &error));
        }
        let (name, lapse) = (claims::name(message), Some(lapse.min(LONGEST_LAPSE)));
        // A gateway always publishes the same message again; the result of a step differs each time the step runs.
        let result = !message.ledger.0.is_empty();
        // Boxed, because its state is much larger than that of a message without a claim.
        Box::pin(self.publish_claimed(model, subject, written, body, ToClaim { name, lapse, result })).await
    }

    /// Publishes a body that is too large for a message by claim. If the queue does not exist, no claim is stored; if the queue
    /// refuses the message, the claim is discarded.
    async fn publish_claimed(
        &self,
        model: &ModelKey,
        subject: String,
        mut headers: HeaderMap,
        body: Bytes,
        ToClaim { name, lapse, result }: ToClaim,
    ) -> Result<MessagePosition, BusError> {
        self.look_for_queue(model, &subject).await?;
        let object = self.put_object(BodyStore::Claims, name, &body, lapse).await?;
        headers::write_claim(&mut headers, object.claim());
        let name = object.claim().name.clone();
        // From here on the message may be in the queue, even if this call fails.
        object.keep();
        let sent = self.send_confirmed(subject, headers, Bytes::new()).await;
        let nobody_has_it = match &sent {
            // The result of another run of the step is in the queue, under a claim of its own.
            Ok(confirmed) => confirmed.known_before && result,
            Err(error) => !is_unconfirmed(error),
        };
        if nobody_has_it {
            self.discard(BodyStore::Claims, name.clone());
        }
        sent.map(|confirmed| confirmed.queued(Some(name))).map_err(|error| self.publish_error(model, &error))
    }

    /// Errors if there is no stream for `subject`. No stream accepts the message that this sends, because it expects
    /// another one.
    async fn look_for_queue(&self, model: &ModelKey, subject: &str) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(async_nats::header::NATS_EXPECTED_STREAM, NO_STREAM);
        match self.send_confirmed(subject.to_owned(), headers, Bytes::new()).await {
            Err(error) if is_no_stream(&error) || is_unconfirmed(&error) => Err(self.publish_error(model, &error)),
            _ => Ok(()),
        }
    }

    /// Publishes a message until the broker confirms it; returns its stream and sequence number.
    pub(super) async fn send_confirmed(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Confirmed, PublishError> {
        self.send_confirmed_again(subject, headers.clone(), || headers.clone(), body).await
    }

    /// Like [`send_confirmed`](Self::send_confirmed). Each attempt after the first one has headers that `again` writes, because
    /// writing them costs less than keeping a copy for an attempt that is rarely needed.
    async fn send_confirmed_again(
        &self,
        subject: String,
        headers: HeaderMap,
        again: impl Fn() -> HeaderMap,
        body: Bytes,
    ) -> Result<Confirmed, PublishError> {
        let subject = async_nats::Subject::from(subject);
        let (mut attempt, mut first) = (1, Some(headers));
        loop {
            let headers = first.take().unwrap_or_else(&again);
            let confirmed = tokio::time::timeout(CONFIRM_TIMEOUT, async {
                let sent = self.jetstream.publish_with_headers(subject.clone(), headers, body.clone());
                sent.await?.await
            });
            let confirmed = confirmed.await.unwrap_or_else(|_| Err(PublishErrorKind::TimedOut.into()));
            match confirmed {
                Ok(answer) => {
                    let known_before = answer.duplicate && attempt == 1;
                    return Ok(Confirmed { known_before, stream: answer.stream, sequence: answer.sequence });
                }
                Err(error) if !is_unconfirmed(&error) || attempt == PUBLISH_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    pub(super) fn publish_error(&self, model: &ModelKey, error: &PublishError) -> BusError {
        match error.kind() {
            PublishErrorKind::StreamNotFound => BusError::NoQueue { model: model.clone() },
            _ if is_unconfirmed(error) => BusError::Unreachable(chain(error)),
            _ if is_full(error) => BusError::Full { model: model.clone() },
            // The broker is overloaded, so it may accept the message later.
            _ if is_overloaded(error) => BusError::Unreachable(chain(error)),
            _ => BusError::Refused { action: "publishing", reason: chain(error) },
        }
    }
}

/// How long a message and its claim are of use.
pub fn lapse(deadline: UnixMicros) -> Duration {
    deadline.since(UnixMicros::now()) + LAPSE_SLACK
}

/// Removes a message from its stream. Workers that hold it already learn of it through the cancellation of its request.
pub async fn take_back(nats: &Nats, queued: &MessagePosition) -> Result<(), BusError> {
    const ACTION: &str = "taking back a message";
    let Some(StreamSequence { stream, sequence, claim }) = &queued.0 else { return Ok(()) };
    if let Some(claim) = claim {
        nats.discard(BodyStore::Claims, claim.clone());
    }
    let stream = nats.jetstream.get_stream_no_info(stream).await.map_err(|error| failure(ACTION, &error))?;
    let deleted = stream.delete_message(*sequence).await;
    deleted.map(drop).or_else(|error| match error.kind() {
        // It was acknowledged meanwhile.
        stream::DeleteMessageErrorKind::JetStream(answer) if !is_passing(&answer) => Ok(()),
        _ => Err(failure(ACTION, &error)),
    })
}

/// How full the streams of a model version's levels are together.
pub async fn queue_status(nats: &Nats, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
    let mut all = QueueStatus::default();
    for &level in levels {
        all = all.and(stream_status(nats, model, level).await?);
    }
    Ok(all)
}

/// The ids of the gateway's requests in the streams of a model version's levels.
pub async fn unsettled(
    nats: &Nats,
    model: &ModelKey,
    levels: &[u32],
    gateway: &str,
) -> Result<HashSet<String>, BusError> {
    const ACTION: &str = "looking for requests in a work queue";
    let mut found = HashSet::new();
    for &level in levels {
        let stream = nats.jetstream.get_stream_no_info(nats.names.work_stream(model, level)).await;
        let stream = stream.map_err(|error| failure(ACTION, &error))?;
        let subjects = match stream.info_with_subjects(nats.names.work_of(model, gateway)).await {
            Ok(subjects) => subjects,
            // A queue that does not exist has no messages.
            Err(error) if super::errors::says_no_stream(&error) => continue,
            Err(error) => return Err(failure(ACTION, &error)),
        };
        nats.check_queue_led(&subjects.info).await?;
        let listed: Vec<_> = subjects.try_collect().await.map_err(|error| failure(ACTION, &error))?;
        found.extend(listed.iter().filter_map(|(subject, _)| subjects::request_of(subject)));
    }
    Ok(found)
}

async fn stream_status(nats: &Nats, model: &ModelKey, level: u32) -> Result<QueueStatus, BusError> {
    const ACTION: &str = "looking at a work queue";
    let stream = nats.jetstream.get_stream(nats.names.work_stream(model, level)).await.map_err(|error| {
        match is_not_found(&error) {
            true => BusError::NoQueue { model: model.clone() },
            false => failure(ACTION, &error),
        }
    })?;
    let state = &stream.cached_info().state;
    let (mut delivered, mut last) = (0, 0);
    let mut consumers = stream.consumers();
    while let Some(consumer) = consumers.next().await {
        let consumer = consumer.map_err(|error| failure(ACTION, &error))?;
        delivered += consumer.num_ack_pending as u64;
        last = last.max(consumer.delivered.stream_sequence);
    }
    let waiting = state.messages.saturating_sub(delivered);
    let mut status = QueueStatus { delivered, ..QueueStatus::default() };
    if waiting > 0 {
        let lane = Lane::of_level(level) as usize;
        status.waiting[lane] = waiting;
        status.oldest[lane] = UnixMicros::now().since(published(state, last + 1));
    }
    Ok(status)
}

/// About when the message with this sequence number was published, as if those of a stream came at a steady rate. A gateway may not read
/// the message itself.
fn published(state: &stream::State, sequence: u64) -> UnixMicros {
    let [first, last] =
        [state.first_timestamp, state.last_timestamp].map(|time| time.unix_timestamp_nanos() as f64 / 1e3);
    let messages = state.last_sequence.saturating_sub(state.first_sequence).max(1) as f64;
    let before = sequence.saturating_sub(state.first_sequence) as f64;
    UnixMicros((first + (last - first) * (before / messages).min(1.0)) as u64)
}
