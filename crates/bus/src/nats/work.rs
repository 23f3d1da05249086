//! Queues of work: streams, their shared consumer, and publishing into them.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::{consumer, stream};
use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use trireme_inference::{ModelKey, UnixMicros};

use super::claims::{self, Store};
use super::{Nats, headers, subjects};
use crate::{BusError, QueueOptions, QueueStatus, WorkMessage, envelope};

/// How long the broker remembers message ids. Longer than a few redeliveries; its memory is rate times window.
const DEDUP_WINDOW: Duration = Duration::from_secs(15);

/// How long the broker may take to confirm a message before it is sent again.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a message is sent when the broker does not confirm it. It carries an id, so at most one arrives.
const PUBLISH_ATTEMPTS: u32 = 3;

/// How much longer than its deadline a message stays in a queue, for clocks that do not agree.
const LAPSE_SLACK: Duration = Duration::from_secs(5);

/// Deadlines further away than this are none; the broker refuses absurd ones.
const LONGEST_LAPSE: Duration = Duration::from_secs(365 * 24 * 3600);

impl Nats {
    /// Makes or updates the streams of a model version, one for each priority level, and the consumers its workers share.
    pub(super) async fn declare(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let limits = options.level_limits();
        self.levels.lock().insert(model.clone(), limits.iter().map(|(level, _)| *level).collect());
        for (level, max_messages) in limits {
            self.declare_level(model, level, max_messages, options).await?;
        }
        Ok(())
    }

    async fn declare_level(
        &self,
        model: &ModelKey,
        level: u32,
        max_messages: u64,
        options: &QueueOptions,
    ) -> Result<(), BusError> {
        let storage = match options.file_storage {
            true => stream::StorageType::File,
            false => stream::StorageType::Memory,
        };
        let name = subjects::work_stream(model, level);
        let config = stream::Config {
            name: name.clone(),
            description: Some(format!("work for {model}")),
            subjects: vec![subjects::work(model, level)],
            retention: stream::RetentionPolicy::WorkQueue,
            discard: stream::DiscardPolicy::New,
            max_messages: i64::try_from(max_messages).unwrap_or(i64::MAX),
            max_bytes: i64::try_from(options.max_bytes).unwrap_or(i64::MAX),
            duplicate_window: DEDUP_WINDOW,
            allow_message_ttl: true,
            // For a look at what waits.
            allow_direct: true,
            num_replicas: options.replicas,
            storage,
            ..Default::default()
        };
        let made = self.jetstream.create_or_update_stream(config).await;
        made.map_err(|error| stream_failure("making a work queue", &name, &error))?;
        let config = consumer::pull::Config {
            durable_name: Some(subjects::WORKERS.to_owned()),
            description: Some(format!("workers of {model}")),
            ack_policy: consumer::AckPolicy::Explicit,
            ack_wait: options.ack_wait,
            // The delivery past the last one that does work lets a worker answer and set the message aside.
            max_deliver: i64::from(options.max_deliver) + 1,
            // Pullers ask only for what they have room for, so the queue's own limit is the only one needed.
            max_ack_pending: i64::try_from(options.max_messages).unwrap_or(i64::MAX),
            ..Default::default()
        };
        let created = self.jetstream.create_consumer_on_stream(config, &name).await;
        created.map(drop).map_err(|error| match error.kind() {
            stream::ConsumerErrorKind::JetStream(answer) => BusError::Refused {
                action: "making a work queue's consumer",
                reason: format!("stream {name}: {answer}"),
            },
            _ => failure("making a work queue's consumer", &error),
        })
    }

    /// Publishes into the queue of the route's current step and waits for the broker's confirmation.
    pub(super) async fn publish_work(&self, message: &WorkMessage) -> Result<(), BusError> {
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
        let lapse = message.deadline.since(UnixMicros::now()) + LAPSE_SLACK;
        if lapse < LONGEST_LAPSE {
            headers.insert(async_nats::header::NATS_MESSAGE_TTL, lapse.as_secs().to_string());
        }
        let claim = (Store::Claims, subjects::escape_token(&message.message_id()), Some(lapse.min(LONGEST_LAPSE)));
        self.publish_body(model, subject, headers, body, claim).await
    }

    /// Publishes a body, by claim where it is too large to travel itself.
    pub(super) async fn publish_body(
        &self,
        model: &ModelKey,
        subject: String,
        mut headers: HeaderMap,
        mut body: Bytes,
        claim: (Store, String, Option<Duration>),
    ) -> Result<(), BusError> {
        if claims::wire_size(&headers) + body.len() > self.max_payload() {
            let (store, name, lapse) = claim;
            let claim = self.lay_down(store, name, &body, lapse).await?;
            headers::write_claim(&mut headers, &claim);
            body = Bytes::new();
        }
        self.send_confirmed(subject, headers, body).await.map_err(|error| self.publish_error(model, &error))
    }

    /// Sends a message until the broker confirms it.
    pub(super) async fn send_confirmed(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(), PublishError> {
        let mut attempt = 1;
        loop {
            let confirmed = tokio::time::timeout(CONFIRM_TIMEOUT, async {
                let sent = self.jetstream.publish_with_headers(subject.clone(), headers.clone(), body.clone());
                sent.await?.await.map(drop)
            });
            let confirmed = confirmed.await.unwrap_or_else(|_| Err(PublishErrorKind::TimedOut.into()));
            let Err(error) = confirmed else { return Ok(()) };
            let unconfirmed = matches!(error.kind(), PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe);
            if !unconfirmed || attempt == PUBLISH_ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
        }
    }

    fn publish_error(&self, model: &ModelKey, error: &PublishError) -> BusError {
        match error.kind() {
            PublishErrorKind::StreamNotFound => BusError::NoQueue { model: model.clone() },
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
                BusError::Unreachable(chain(error))
            }
            _ if is_full(error) => BusError::Full { model: model.clone() },
            _ => BusError::Refused { action: "publishing", reason: chain(error) },
        }
    }
}

/// How full the streams of a model version's levels are together. Whatever consumers they have, what those have not in
/// hand waits.
pub async fn queue_status(nats: &Nats, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
    let mut all = QueueStatus::default();
    for &level in levels {
        let status = level_status(nats, model, level).await?;
        all.waiting += status.waiting;
        all.delivered += status.delivered;
        all.oldest = all.oldest.max(status.oldest);
    }
    Ok(all)
}

async fn level_status(nats: &Nats, model: &ModelKey, level: u32) -> Result<QueueStatus, BusError> {
    const ACTION: &str = "looking at a work queue";
    let name = subjects::work_stream(model, level);
    let stream = nats.jetstream.get_stream(&name).await.map_err(|error| match error.kind() {
        GetStreamErrorKind::JetStream(answer) if answer.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND => {
            BusError::NoQueue { model: model.clone() }
        }
        _ => failure(ACTION, &error),
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

/// What it means that `action` failed: the broker's own words are a refusal; without any it was not reached.
pub fn failure(action: &'static str, error: &(dyn Error + 'static)) -> BusError {
    match jetstream_error(error) {
        Some(_) => BusError::Refused { action, reason: chain(error) },
        None => BusError::Unreachable(format!("{action}: {}", chain(error))),
    }
}

/// Whether the broker refused because the stream holds as much as it may.
pub fn is_full(error: &PublishError) -> bool {
    jetstream_error(error).map(jetstream::Error::error_code) == Some(jetstream::ErrorCode::STREAM_STORE_FAILED)
}

/// As [`failure`], for a stream: the client keeps the broker's answer in the error's kind.
pub fn stream_failure(action: &'static str, name: &str, error: &CreateStreamError) -> BusError {
    match error.kind() {
        CreateStreamErrorKind::JetStream(answer) => BusError::Refused {
            action,
            reason: format!("stream {name}: {answer}; `nats stream rm {name}` makes room for one with new settings"),
        },
        _ => failure(action, error),
    }
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
