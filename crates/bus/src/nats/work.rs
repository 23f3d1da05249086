//! Queues of work: publishing into them, taking back, and how full they are.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::stream;
use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use trireme_inference::{ModelKey, UnixMicros};

use super::claims::{self, Store};
use super::{Nats, headers, subjects};
use crate::{BusError, Kept, QueueStatus, Queued, WorkMessage, envelope};

/// How long the broker may take to confirm a message before it is sent again.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a message is sent when the broker does not confirm it. It carries an id, so at most one arrives.
const PUBLISH_ATTEMPTS: u32 = 3;

/// How much longer than its deadline a message stays in a queue, for clocks that do not agree.
const LAPSE_SLACK: Duration = Duration::from_secs(5);

/// Deadlines further away than this are none; the broker refuses absurd ones.
pub const LONGEST_LAPSE: Duration = Duration::from_secs(365 * 24 * 3600);

/// A stream that there is none of, as stream names have no dots.
const NO_STREAM: &str = "no.stream";

/// What a body is laid down as, should it be too large.
pub struct ToClaim {
    pub store: Store,
    /// A subject token.
    pub name: String,
    /// After this the broker may drop it.
    pub lapse: Option<Duration>,
    /// The body is made anew when its step is run again.
    pub result: bool,
}

/// The broker has a message.
pub struct Confirmed {
    /// It had one of this name before this was sent.
    known_before: bool,
    stream: String,
    sequence: u64,
}

// === impl Confirmed ===

impl Confirmed {
    fn queued(self, claim: Option<String>) -> Queued {
        Queued(Some(Kept { stream: self.stream, sequence: self.sequence, claim }))
    }
}

// === impl Nats ===

impl Nats {
    /// Publishes into the queue of the route's current step and waits for the broker's confirmation.
    pub(super) async fn publish_work(&self, message: &WorkMessage) -> Result<Queued, BusError> {
        let Some(model) = message.queue() else {
            return Err(BusError::Refused {
                action: "publishing",
                reason: format!("route of request '{}' has no step left", message.request_id),
            });
        };
        let body = envelope::encode_work(message)?;
        let subject = subjects::work(model, message.level());
        let mut headers = headers::write_work(message)?;
        // The broker keeps a message that was delivered for the last time. Nobody would remove one whose workers all
        // died of it, and a message past its deadline is of no use to anybody.
        let lapse = lapse(message.deadline);
        if lapse < LONGEST_LAPSE {
            headers.insert(async_nats::header::NATS_MESSAGE_TTL, lapse.as_secs().to_string());
        }
        let (name, lapse) = (claims::name(message), Some(lapse.min(LONGEST_LAPSE)));
        // A gateway sends nothing but the same message again; a result is made anew each time its step is run.
        let result = !message.ledger.0.is_empty();
        self.publish_body(model, subject, headers, body, ToClaim { store: Store::Claims, name, lapse, result }).await
    }

    /// Publishes a body, by claim where it is too large to travel itself. Nothing is laid down for a queue that is not there,
    /// and nothing stays for one that refuses.
    pub(super) async fn publish_body(
        &self,
        model: &ModelKey,
        subject: String,
        mut headers: HeaderMap,
        body: Bytes,
        claim: ToClaim,
    ) -> Result<Queued, BusError> {
        if claims::wire_size(&headers) + body.len() <= self.max_payload() {
            let sent = self.send_confirmed(subject, headers, body).await;
            return sent.map(|confirmed| confirmed.queued(None)).map_err(|error| self.publish_error(model, &error));
        }
        let ToClaim { store, name, lapse, result } = claim;
        self.look_for_queue(model, &subject).await?;
        let laid_down = self.lay_down(store, name, &body, lapse).await?;
        headers::write_claim(&mut headers, laid_down.claim());
        let name = laid_down.claim().name.clone();
        // From here on the message may be there, whatever becomes of this call.
        laid_down.keep();
        let sent = self.send_confirmed(subject, headers, Bytes::new()).await;
        let nobody_has_it = match &sent {
            // The result of another run of the step is on its way, under a claim of its own.
            Ok(confirmed) => confirmed.known_before && result,
            Err(error) => !unconfirmed(error),
        };
        if nobody_has_it {
            self.discard(store, name.clone());
        }
        sent.map(|confirmed| confirmed.queued(Some(name))).map_err(|error| self.publish_error(model, &error))
    }

    /// Errors when there is no stream for `subject`. What it sends is taken by none: it expects another stream.
    async fn look_for_queue(&self, model: &ModelKey, subject: &str) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(async_nats::header::NATS_EXPECTED_STREAM, NO_STREAM);
        match self.send_confirmed(subject.to_owned(), headers, Bytes::new()).await {
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound || unconfirmed(&error) => {
                Err(self.publish_error(model, &error))
            }
            _ => Ok(()),
        }
    }

    /// Sends a message until the broker confirms it, and says where that keeps it.
    pub(super) async fn send_confirmed(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Confirmed, PublishError> {
        let mut attempt = 1;
        loop {
            let confirmed = tokio::time::timeout(CONFIRM_TIMEOUT, async {
                let sent = self.jetstream.publish_with_headers(subject.clone(), headers.clone(), body.clone());
                sent.await?.await
            });
            let confirmed = confirmed.await.unwrap_or_else(|_| Err(PublishErrorKind::TimedOut.into()));
            match confirmed {
                Ok(answer) => {
                    let known_before = answer.duplicate && attempt == 1;
                    return Ok(Confirmed { known_before, stream: answer.stream, sequence: answer.sequence });
                }
                Err(error) if !unconfirmed(&error) || attempt == PUBLISH_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    pub(super) fn publish_error(&self, model: &ModelKey, error: &PublishError) -> BusError {
        match error.kind() {
            PublishErrorKind::StreamNotFound => BusError::NoQueue { model: model.clone() },
            _ if unconfirmed(error) => BusError::Unreachable(chain(error)),
            _ if is_full(error) => BusError::Full { model: model.clone() },
            // The broker has too much to do: it says so, and may do it later.
            _ if is_overloaded(error) => BusError::Unreachable(chain(error)),
            _ => BusError::Refused { action: "publishing", reason: chain(error) },
        }
    }
}

/// How long a message, and what belongs to it, is of use to anybody.
pub fn lapse(deadline: UnixMicros) -> Duration {
    deadline.since(UnixMicros::now()) + LAPSE_SLACK
}

/// Takes a message out of its stream, wherever that has it. Workers that have it in hand hear of it as of any request that
/// was cancelled.
pub async fn take_back(nats: &Nats, queued: &Queued) -> Result<(), BusError> {
    const ACTION: &str = "taking back a message";
    let Some(Kept { stream, sequence, claim }) = &queued.0 else { return Ok(()) };
    if let Some(claim) = claim {
        nats.discard(Store::Claims, claim.clone());
    }
    let stream = nats.jetstream.get_stream_no_info(stream).await.map_err(|error| failure(ACTION, &error))?;
    let deleted = stream.delete_message(*sequence).await;
    deleted.map(drop).or_else(|error| match error.kind() {
        // The broker answered: the message was acknowledged meanwhile.
        stream::DeleteMessageErrorKind::JetStream(_) => Ok(()),
        _ => Err(failure(ACTION, &error)),
    })
}

/// How full the streams of a model version's levels are together. Whatever consumers they have, what those have not in
/// hand waits; with a `policy` all that is at a level does, and what is scheduled is in the hands of workers.
pub async fn queue_status(
    nats: &Nats,
    model: &ModelKey,
    levels: &[u32],
    policy: bool,
) -> Result<QueueStatus, BusError> {
    let mut all = QueueStatus::default();
    for &level in levels {
        let mut status = stream_status(nats, model, subjects::work_stream(model, level)).await?;
        if policy {
            status = QueueStatus { waiting: status.waiting + status.delivered, delivered: 0, ..status };
        }
        all = all.and(status);
    }
    if policy {
        let status = stream_status(nats, model, subjects::scheduled_stream(model)).await?;
        all = all.and(QueueStatus { waiting: 0, delivered: status.waiting + status.delivered, ..status });
    }
    Ok(all)
}

async fn stream_status(nats: &Nats, model: &ModelKey, name: String) -> Result<QueueStatus, BusError> {
    const ACTION: &str = "looking at a work queue";
    let stream = nats.jetstream.get_stream(&name).await.map_err(|error| match is_not_found(&error) {
        true => BusError::NoQueue { model: model.clone() },
        false => failure(ACTION, &error),
    })?;
    let state = &stream.cached_info().state;
    let mut delivered = 0;
    let mut consumers = stream.consumers();
    while let Some(consumer) = consumers.next().await {
        delivered += consumer.map_err(|error| failure(ACTION, &error))?.num_ack_pending as u64;
    }
    let first = u64::try_from(state.first_timestamp.unix_timestamp_nanos() / 1000).unwrap_or_default();
    let oldest = if state.messages == 0 { Duration::ZERO } else { UnixMicros::now().since(UnixMicros(first)) };
    Ok(QueueStatus { waiting: state.messages.saturating_sub(delivered), delivered, oldest })
}

/// Whether there is no such stream.
pub fn is_not_found(error: &GetStreamError) -> bool {
    match error.kind() {
        GetStreamErrorKind::JetStream(answer) => answer.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND,
        _ => false,
    }
}

/// What it means that `action` failed: the broker's own words are a refusal; without any it was not reached.
pub fn failure(action: &'static str, error: &(dyn Error + 'static)) -> BusError {
    match jetstream_error(error) {
        Some(_) => BusError::Refused { action, reason: chain(error) },
        None => BusError::Unreachable(format!("{action}: {}", chain(error))),
    }
}

/// Whether the broker may have the message all the same.
fn unconfirmed(error: &PublishError) -> bool {
    matches!(error.kind(), PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending)
}

/// Whether the broker refused because the stream holds as much as it may.
pub fn is_full(error: &PublishError) -> bool {
    jetstream_error(error).map(jetstream::Error::error_code) == Some(jetstream::ErrorCode::STREAM_STORE_FAILED)
}

/// Whether the broker refused because it cannot just now: HTTP's words for it are its own. A cluster that is about to take
/// the same message does not know yet whether it will.
fn is_overloaded(error: &PublishError) -> bool {
    jetstream_error(error).is_some_and(|answer| {
        matches!(answer.code(), 429 | 503)
            || answer.error_code() == jetstream::ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT
    })
}

/// The broker's answer among the causes of `error`.
fn jetstream_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a jetstream::Error> {
    std::iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
