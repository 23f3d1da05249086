//! The streams and consumers of work queues: made, watched, listed and removed.
//!
//! Not here: making any stream (`streams`), publishing to a queue (`work`) and pulling from it (`consumer`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use async_nats::jetstream::{ErrorCode, consumer, stream};
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use trireme_inference::{Lane, ModelKey};

use super::account;
use super::connection::Nats;
use super::errors::{failure, is_not_found};
use super::limits::{REQUEST_TIMEOUT, taken};
use super::streams::{Lead, Needed};
use super::subjects::WORKERS;
use crate::{BusError, LevelPolicy, QueueOptions, queue_pause};

/// How long the broker remembers message ids. It is longer than a few redeliveries; the memory it takes is rate times
/// window.
const DEDUP_WINDOW: Duration = Duration::from_secs(15);

/// Idle workers that may wait for work of one queue, each with a pull request or two.
const MAX_WAITING: i64 = 65_536;

/// Work queues that a gateway looks at at the same time.
const WATCHED_AT_ONCE: usize = 16;

/// How much more time a queue gets for each of its levels, because a stream on the disks of several brokers takes time
/// to create.
const LEVEL_PATIENCE: Duration = Duration::from_millis(100);

/// Actions, for errors.
const MAKING: &str = "making a work queue";
const LISTING: &str = "listing work queues";

/// Average time between two looks at all work queues while one is out of reach, and the number of looks. Every gateway looks.
const WATCH_PERIOD: Duration = Duration::from_secs(4);
const WATCH_JITTER: f64 = 0.5;
const WATCH_LOOKS: usize = 15;

/// A gateway's word to the workers of a queue that it cannot make.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum QueueRefusal {
    Refused(String),
    /// A limit of the account.
    OverLimit(String),
}

// === impl Nats ===

impl Nats {
    /// The stream of a level of a queue, on an account without limits.
    pub(super) fn queue_config(
        &self,
        model: &ModelKey,
        options: &QueueOptions,
        level: u32,
        policy: &LevelPolicy,
    ) -> stream::Config {
        stream::Config {
            name: self.names.work_stream(model, level),
            description: Some(format!("work for {model}")),
            subjects: vec![self.names.work_at(model, level)],
            retention: stream::RetentionPolicy::WorkQueue,
            discard: stream::DiscardPolicy::New,
            max_messages: i64::try_from(policy.max_messages(options)).unwrap_or(i64::MAX),
            max_bytes: match options.max_bytes {
                0 => -1,
                bytes => i64::try_from(bytes).unwrap_or(i64::MAX),
            },
            duplicate_window: DEDUP_WINDOW,
            allow_message_ttl: true,
            num_replicas: options.replicas,
            storage: match options.file_storage {
                true => stream::StorageType::File,
                false => stream::StorageType::Memory,
            },
            ..Default::default()
        }
    }

    /// Creates a stream for each level, and the consumer that workers share.
    pub(super) async fn make_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let account = self.account();
        let ack_pending = i64::try_from(options.max_messages).unwrap_or(i64::MAX);
        for (level, policy) in options.policies() {
            let config = self.queue_config(model, options, level, &policy);
            let config = account::fit(account::SMALL, config, &account);
            let name = &config.name;
            // A change of a cluster's stream is a vote of its brokers, and most workers change nothing.
            let changed = |there: &stream::Config| {
                // A broker without memory for streams has it on disk.
                let storage = if there.storage == stream::StorageType::File { there.storage } else { config.storage };
                let config = stream::Config { storage, ..config.clone() };
                differs(there, &config).then_some(config)
            };
            let there = self.create_or_update(MAKING, &config, changed).await?;
            let workers = consumer::pull::Config {
                durable_name: Some(WORKERS.to_owned()),
                description: Some(format!("workers of {model}")),
                ack_policy: consumer::AckPolicy::Explicit,
                ack_wait: options.ack_wait,
                max_deliver: i64::from(options.broker_max_deliver()),
                // Consumers only ask for messages that they have room for, so the limit of the stream is enough.
                max_ack_pending: match account.limits.max_ack_pending {
                    1.. => ack_pending.min(account.limits.max_ack_pending),
                    _ => ack_pending,
                },
                max_waiting: MAX_WAITING,
                ..Default::default()
            };
            if let Some(there) = there
                && let Ok(made) = there.consumer_info(WORKERS).await
                && made.config.ack_wait == workers.ack_wait
                && made.config.max_deliver == workers.max_deliver
                && made.config.max_ack_pending == workers.max_ack_pending
            {
                continue;
            }
            let mut created = self.jetstream.create_consumer_on_stream(workers.clone(), name).await;
            if created.as_ref().is_err_and(|error| has_code(error, ErrorCode::CONSUMER_MAX_PENDING_ACK_EXCESS)) {
                // The broker has a limit that no account names, and takes it.
                let workers = consumer::pull::Config { max_ack_pending: 0, ..workers };
                created = self.jetstream.create_consumer_on_stream(workers, name).await;
            }
            let Err(error) = created else { continue };
            if let stream::ConsumerErrorKind::JetStream(answer) = error.kind()
                && let Some(over) = self.over_limit(&config, &answer).await
            {
                return Err(over);
            }
            return Err(match error.kind() {
                // A broker that started again meanwhile has lost a stream in memory: the caller tries again.
                stream::ConsumerErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    BusError::Unreachable(format!("stream {name} is gone"))
                }
                stream::ConsumerErrorKind::JetStream(answer) => match failure(MAKING, &answer) {
                    BusError::Refused { reason, .. } => BusError::Refused {
                        action: "making a work queue's consumer",
                        reason: format!("stream {name}: {reason}"),
                    },
                    error => error,
                },
                _ => failure("making a work queue's consumer", &error),
            });
        }
        Ok(())
    }

    /// Looks at all work queues again and again until each has a leader, for a limited time. Without it, a queue would count as
    /// out of reach only from the next message for it, and a request of several steps would wait for one queue after the other.
    pub(super) fn watch_queues(&self) {
        let Some(watch) = self.out_of_reach.watch() else { return };
        let nats = self.clone();
        crate::spawn("nats watch", async move {
            for _ in 0..WATCH_LOOKS {
                if nats.is_closed() || nats.are_queues_led().await {
                    break;
                }
                tokio::time::sleep(WATCH_PERIOD.mul_f64(1.0 + WATCH_JITTER * (2.0 * fastrand::f64() - 1.0))).await;
            }
            drop(watch);
        });
    }

    /// Whether all work queues have a leader. Replaces those that have had none for long.
    async fn are_queues_led(&self) -> bool {
        let Ok(queues) = self.queue_streams("watching work queues").await else { return false };
        let looks = queues.into_iter().map(|(model, name)| async move {
            let Some(level) = self.names.level_of(&name) else { return true };
            match self.who_leads(&self.names.work_at(&model, level)).await {
                Some(Lead::Somebody) => {
                    self.out_of_reach.end(&name);
                    true
                }
                Some(Lead::Nobody) => {
                    self.delete_if_gone(&name).await;
                    false
                }
                None => match self.jetstream.get_stream(&name).await {
                    Ok(stream) => self.check_queue_led(stream.cached_info()).await.is_ok(),
                    Err(error) => is_not_found(&error),
                },
            }
        });
        let looks = futures_util::stream::iter(looks).buffer_unordered(WATCHED_AT_ONCE);
        looks.fold(true, |all, is_led| async move { all && is_led }).await
    }

    /// The streams of work queues, each with its model version.
    async fn queue_streams(&self, action: &'static str) -> Result<Vec<(ModelKey, String)>, BusError> {
        let names: Vec<_> =
            self.jetstream.stream_names().try_collect().await.map_err(|error| failure(action, &error))?;
        Ok(names.into_iter().filter_map(|name| Some((self.names.model_of(&name)?, name))).collect())
    }

    /// The model versions that have a queue, with its levels.
    pub(super) async fn queue_names(&self) -> Result<BTreeMap<ModelKey, BTreeSet<u32>>, BusError> {
        let mut queues = BTreeMap::<_, BTreeSet<_>>::new();
        for (model, name) in self.queue_streams(LISTING).await? {
            queues.entry(model).or_default().extend(self.names.level_of(&name));
        }
        Ok(queues)
    }

    /// Waits for a limited time until a gateway has made the queue of a model version, or says why it cannot.
    pub(super) async fn await_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let refusals = self.subscribe(self.names.queue_refused(model)).await?;
        let patience = REQUEST_TIMEOUT + LEVEL_PATIENCE * options.levels.len() as u32;
        let made = async {
            for (level, _) in options.policies() {
                let stream = self.jetstream.get_stream_no_info(self.names.work_stream(model, level)).await;
                let stream = stream.map_err(|error| failure(MAKING, &error))?;
                let mut looks = 0;
                while stream.consumer_info(WORKERS).await.is_err() {
                    tokio::time::sleep(queue_pause(looks)).await;
                    looks += 1;
                }
            }
            Ok(())
        };
        // Anything else on this subject says nothing.
        let refused =
            refusals.filter_map(async |refusal| serde_json::from_slice::<QueueRefusal>(&refusal.payload).ok());
        let mut refused = std::pin::pin!(refused);
        tokio::select! {
            made = tokio::time::timeout(patience, made) => {
                made.unwrap_or_else(|_| Err(BusError::Unreachable(format!("{MAKING}: no gateway has done it yet"))))
            }
            Some(refusal) = refused.next() => Err(match refusal {
                QueueRefusal::OverLimit(reason) => BusError::OverLimit { reason },
                QueueRefusal::Refused(reason) => BusError::Refused { action: MAKING, reason },
            }),
        }
    }

    /// Makes a queue, and tells its workers if the broker refuses it.
    pub(super) async fn make_or_tell(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let made = self.make(Needed::Queue(model, options)).await;
        let refusal = match &made {
            Err(BusError::Refused { reason, .. }) => QueueRefusal::Refused(reason.clone()),
            Err(BusError::OverLimit { reason }) => QueueRefusal::OverLimit(reason.clone()),
            _ => return made,
        };
        let told = serde_json::to_vec(&refusal).expect("texts are JSON");
        let _ = taken(self.client.publish(self.names.queue_refused(model), told.into())).await;
        made
    }

    /// The model versions whose queue has a bulk lane.
    pub(super) async fn bulk_queue_names(&self) -> Result<HashSet<ModelKey>, BusError> {
        let queues = self.queue_streams(LISTING).await?.into_iter();
        let is_bulk = |(model, name): &(ModelKey, String)| self.names.work_stream(model, Lane::Bulk.level(0)) == *name;
        Ok(queues.filter(is_bulk).map(|(model, _)| model).collect())
    }

    /// Removes the queue of a model version if it is empty.
    pub(super) async fn remove_empty_queue(&self, model: &ModelKey) -> Result<bool, BusError> {
        const ACTION: &str = "removing a work queue";
        let stream = self.names.work_stream(model, 0);
        let mut levels = self.queue_streams(ACTION).await?;
        levels.retain(|(own, name)| own == model && name.starts_with(&stream));
        for (_, name) in &levels {
            let level = self.jetstream.get_stream(name).await.map_err(|error| failure(ACTION, &error))?;
            if level.cached_info().state.messages > 0 {
                return Ok(false);
            }
        }
        for (_, name) in &levels {
            self.jetstream.delete_stream(name).await.map_err(|error| failure(ACTION, &error))?;
        }
        Ok(!levels.is_empty())
    }
}

/// Whether a queue's stream is another one than it should be. The broker adds defaults to the rest of a configuration.
fn differs(there: &stream::Config, wanted: &stream::Config) -> bool {
    (there.max_messages, there.max_bytes, there.num_replicas)
        != (wanted.max_messages, wanted.max_bytes, wanted.num_replicas)
        || (&there.subjects, there.storage) != (&wanted.subjects, wanted.storage)
        // A broker may allow a shorter window only.
        || there.duplicate_window > wanted.duplicate_window
        || there.allow_message_ttl != wanted.allow_message_ttl
        || (there.retention, there.discard) != (wanted.retention, wanted.discard)
}

fn has_code(error: &stream::ConsumerError, code: ErrorCode) -> bool {
    matches!(error.kind(), stream::ConsumerErrorKind::JetStream(answer) if answer.error_code() == code)
}
