//! Creates, changes, replaces and removes the streams of a deployment.
//!
//! Not here: requests from stages (`makers`), and the configurations of the streams of stores and claims (`buckets`).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::{consumer, stream};
use futures_util::{StreamExt, TryStreamExt};
use trireme_inference::{Lane, ModelKey, UnixMicros};

use super::account::{self, refit};
use super::buckets;
use super::connection::Nats;
use super::errors::{failure, is_not_found};
use super::limits::REQUEST_TIMEOUT;
use super::subjects::{Names, WORKERS};
use crate::{Bucket, BusError, LevelPolicy, QueueOptions, WorkMessage};

/// How long the broker remembers message ids. It is longer than a few redeliveries; the memory it takes is rate times
/// window.
const DEDUP_WINDOW: Duration = Duration::from_secs(15);

/// A stream in memory and a work queue that have been out of reach for this long are created again: their brokers will not
/// come back with them, or cannot agree on them.
const GONE_AFTER: Duration = Duration::from_secs(15);

/// Average time between two looks at all work queues while one is out of reach, and the number of looks. Every gateway looks.
const WATCH_PERIOD: Duration = Duration::from_secs(4);
const WATCH_JITTER: f64 = 0.5;
const WATCH_LOOKS: usize = 15;

/// Work queues that a gateway looks at at the same time.
const WATCHED_AT_ONCE: usize = 16;

/// The name of the store of bodies above `max_payload`.
const CLAIMS: &str = "claims";

/// The names of the stores whose size an operator may set, without the deployment's prefix.
pub const STORES: [&str; 9] =
    ["settings", "registry", "models", "attempts", "dead", "sequences", "jobs", "objects", CLAIMS];

/// Idle workers that may wait for work of one queue, each with a pull request or two.
const MAX_WAITING: i64 = 65_536;

/// How much more time a queue gets for each of its levels, because a stream on the disks of several brokers takes time
/// to create.
const LEVEL_PATIENCE: Duration = Duration::from_millis(100);

/// A stream that a process needs.
#[derive(Clone, Copy, Debug)]
pub enum Needed<'a> {
    /// A store.
    Bucket(Bucket),
    /// Bodies above `max_payload`.
    Claims,
    /// Work for a model version: a stream for each level, and the consumer that its workers share.
    Queue(&'a ModelKey, &'a QueueOptions),
}

// === impl Needed ===

impl Needed<'_> {
    /// The name of a store.
    fn store(self) -> Option<&'static str> {
        match self {
            Needed::Bucket(bucket) => Some(bucket.name()),
            Needed::Claims => Some(CLAIMS),
            Needed::Queue(..) => None,
        }
    }

    pub(super) fn action(self) -> &'static str {
        match self {
            Needed::Bucket(Bucket::Settings) => "making the store of settings",
            Needed::Bucket(Bucket::Registry) => "making the registry",
            Needed::Bucket(Bucket::Models) => "making the store of loaded models",
            Needed::Bucket(Bucket::Attempts) => "making the store of attempts",
            Needed::Bucket(Bucket::Dead) => "making the store of dead letters",
            Needed::Bucket(Bucket::Sequences) => "making the store of sequences",
            Needed::Bucket(Bucket::Jobs) => "making the store of jobs",
            Needed::Bucket(Bucket::Objects) => "making the store of objects",
            Needed::Claims => "making the stream of claims",
            Needed::Queue(..) => "making a work queue",
        }
    }

    /// Which part of the account's bytes it may have at most: one of so many. The shares of all stores leave a quarter or more to queues.
    pub(super) fn share(self) -> i64 {
        match self {
            Needed::Bucket(Bucket::Objects) => 4,
            Needed::Bucket(Bucket::Jobs | Bucket::Sequences) | Needed::Claims => 8,
            Needed::Bucket(Bucket::Dead) => 16,
            Needed::Bucket(Bucket::Settings | Bucket::Registry | Bucket::Models | Bucket::Attempts)
            | Needed::Queue(..) => account::SMALL,
        }
    }

    /// How long a gateway may take to create it.
    pub(super) fn patience(self) -> Duration {
        match self {
            Needed::Queue(_, options) => REQUEST_TIMEOUT + LEVEL_PATIENCE * options.levels.len() as u32,
            _ => REQUEST_TIMEOUT,
        }
    }

    /// The subject on which a stage asks a gateway for it.
    pub(super) fn subject(self, names: &Names) -> String {
        match self {
            Needed::Bucket(bucket) => names.stream_request(bucket.name()),
            Needed::Claims => names.stream_request("claims"),
            Needed::Queue(model, _) => names.queue_request(model),
        }
    }
}

// === impl Nats ===

impl Nats {
    /// Waits until the broker reports that this process has no permission for an action. `is_meant` recognises the
    /// action by the subject in the report. The broker reports this in no other way.
    pub(super) async fn refused(&self, is_meant: impl Fn(&str) -> bool) -> String {
        let mut refusals = self.refusals.clone();
        refusals.mark_unchanged();
        loop {
            if refusals.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let refusal = refusals.borrow_and_update();
            if is_meant(&refusal) {
                return refusal.clone();
            }
        }
    }

    /// Creates a stream or updates its configuration. For a queue that is made `for_stage`, the limit of a level with a
    /// `max_waiting` is left as it is: only gateways know all workers, and set it. Errors at once if this process has no
    /// permission. Otherwise the request would only time out.
    pub(super) async fn make(&self, needed: Needed<'_>, for_stage: bool) -> Result<(), BusError> {
        let stream = match needed {
            Needed::Bucket(bucket) => buckets::stream(&self.names, bucket),
            Needed::Claims => self.names.claim_stream(),
            Needed::Queue(model, _) => self.names.work_stream(model, 0),
        };
        // In the report, the name is followed by `-` for a level and by `.` for a consumer.
        let ends = ['"', '-', '.'].map(|end| format!(".{stream}{end}"));
        let make = async {
            let config = match needed {
                Needed::Bucket(bucket) => buckets::config(&self.names, bucket),
                Needed::Claims => buckets::claims(&self.names),
                Needed::Queue(model, options) => return self.make_queue(model, options, for_stage).await,
            };
            let config = stream::Config { num_replicas: self.replicas(), ..config };
            let mut config = account::fit(needed.share(), config, &self.account().await?);
            let wanted = needed.store().and_then(|store| self.store_bytes.get(store));
            let wanted = wanted.map(|bytes| i64::try_from(*bytes).unwrap_or(i64::MAX));
            config.max_bytes = wanted.unwrap_or(config.max_bytes);
            // An operator who created or changed the stream has decided about its storage, and, without a flag, about its size.
            let as_made = |there: &stream::Config| {
                let config = buckets::as_made(config.clone(), there);
                Some(stream::Config { max_bytes: wanted.unwrap_or(config.max_bytes), ..config })
            };
            self.create_or_update(needed.action(), &config, as_made).await.map(drop)
        };
        tokio::select! {
            made = make => made,
            reason = self.refused(|refusal| ends.iter().any(|end| refusal.contains(end))) => {
                Err(BusError::Refused { action: needed.action(), reason })
            }
        }
    }

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
    async fn make_queue(&self, model: &ModelKey, options: &QueueOptions, for_stage: bool) -> Result<(), BusError> {
        const ACTION: &str = "making a work queue";
        let account = self.account().await?;
        let ack_pending = i64::try_from(options.max_messages).unwrap_or(i64::MAX);
        for (level, policy) in options.policies() {
            let config = self.queue_config(model, options, level, &policy);
            let config = account::fit(account::SMALL, config, &account);
            let name = &config.name;
            // A change of a cluster's stream is a vote of its brokers, and most workers change nothing.
            let changed = |there: &stream::Config| {
                let keeps_limit = for_stage && policy.max_waiting.is_some();
                let max_messages = if keeps_limit { there.max_messages } else { config.max_messages };
                // A broker without memory for streams has it on disk.
                let storage = if there.storage == stream::StorageType::File { there.storage } else { config.storage };
                let config = stream::Config { max_messages, storage, ..config.clone() };
                differs(there, &config).then_some(config)
            };
            let there = self.create_or_update(ACTION, &config, changed).await?;
            let workers = consumer::pull::Config {
                durable_name: Some(WORKERS.to_owned()),
                description: Some(format!("workers of {model}")),
                ack_policy: consumer::AckPolicy::Explicit,
                ack_wait: options.ack_wait,
                max_deliver: i64::from(options.broker_max_deliver()),
                // Pullers only ask for messages that they have room for, so the limit of the stream is enough.
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
                stream::ConsumerErrorKind::JetStream(answer) => match failure(ACTION, &answer) {
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

    /// Creates a stream, or updates the existing one to what `changed` makes of its configuration. Returns the existing stream.
    pub(super) async fn create_or_update(
        &self,
        action: &'static str,
        config: &stream::Config,
        changed: impl Fn(&stream::Config) -> Option<stream::Config>,
    ) -> Result<Option<stream::Stream>, BusError> {
        let made = self.put(action, config, changed).await;
        match &made {
            Err(BusError::Unreachable(_)) => self.replace_if_gone(config).await,
            _ => self.out_of_reach.end(&config.name),
        }
        made
    }

    /// See [`Nats::create_or_update`].
    ///
    /// A new stream starts with a sequence number that no stream of its name has reached before. An acknowledgement
    /// names its message only by number, so one for a message that a broker has lost must not match another message. An
    /// update keeps the number: brokers of a cluster that create their replica after an update without it begin with 1, and
    /// the stream's consumer, which waits for higher numbers, then gets nothing.
    async fn put(
        &self,
        action: &'static str,
        config: &stream::Config,
        changed: impl Fn(&stream::Config) -> Option<stream::Config>,
    ) -> Result<Option<stream::Stream>, BusError> {
        let mut there = self.jetstream.get_stream(&config.name).await;
        if there.as_ref().is_err_and(is_not_found) {
            match self.create(config).await {
                // Another gateway was faster, and its stream starts with another number.
                Err(error) if is_name_in_use(&error) => {
                    there = self.jetstream.get_stream(&config.name).await;
                    if there.as_ref().is_err_and(is_not_found) {
                        return Err(leaderless(&config.name));
                    }
                }
                Err(error) if overlaps(&error) => return Err(self.overlap(action, config).await),
                Err(error) => return Err(self.stream_failure(action, config, &error).await),
                Ok(_) => return Ok(None),
            }
        }
        let there = there.map_err(|error| failure(action, &error))?;
        self.check_led(there.cached_info())?;
        let made = &there.cached_info().config;
        if let Some(changed) = changed(made) {
            let config = stream::Config { first_sequence: made.first_sequence, ..changed };
            if let Err(error) = self.jetstream.update_stream(&config).await {
                return Err(self.stream_failure(action, &config, &error).await);
            }
        }
        Ok(Some(there))
    }

    /// Creates a stream, with less than it should have where the broker's own limits ask for that.
    async fn create(&self, meant: &stream::Config) -> Result<stream::Stream, CreateStreamError> {
        let mut config = meant.clone();
        loop {
            config.first_sequence = Some(UnixMicros::now().0);
            let error = match self.jetstream.create_stream(config.clone()).await {
                Err(error) => error,
                created => return created,
            };
            let fitted = match error.kind() {
                CreateStreamErrorKind::JetStream(answer) => refit(meant, &config, &answer),
                _ => None,
            };
            config = fitted.ok_or(error)?;
        }
    }

    /// Like [`failure`], for a stream. The client keeps the broker's error response in the error's kind.
    async fn stream_failure(
        &self,
        action: &'static str,
        config: &stream::Config,
        error: &CreateStreamError,
    ) -> BusError {
        let CreateStreamErrorKind::JetStream(answer) = error.kind() else { return failure(action, error) };
        if let Some(over) = self.over_limit(config, &answer).await {
            return over;
        }
        let name = &config.name;
        match failure(action, &answer) {
            BusError::Refused { .. } => BusError::Refused {
                action,
                reason: format!(
                    "stream {name}: {answer}; `nats stream rm {name}` makes room for one with new settings"
                ),
            },
            error => error,
        }
    }

    /// The refusal of a stream with subjects of another stream, which it names.
    async fn overlap(&self, action: &'static str, config: &stream::Config) -> BusError {
        let subjects = config.subjects.join(", ");
        let mut others = Vec::new();
        for subject in &config.subjects {
            others.extend(self.jetstream.stream_by_subject(subject).await.ok());
        }
        let reason = match others.first() {
            Some(other) => format!(
                "stream {}: subjects overlap with stream {other}; take '{subjects}' out of the subjects of {other}",
                config.name
            ),
            None => format!(
                "stream {}: subjects overlap with another stream, expected '{subjects}' in no other",
                config.name
            ),
        };
        BusError::Refused { action, reason }
    }

    /// Errors if no broker leads a stream, so that it takes no messages. A broker with a replica describes it nevertheless.
    fn check_led(&self, info: &stream::Info) -> Result<(), BusError> {
        if info.cluster.as_ref().is_none_or(|cluster| cluster.leader.is_some()) {
            self.out_of_reach.end(&info.config.name);
            return Ok(());
        }
        let created = u64::try_from(info.created.unix_timestamp_nanos() / 1000).unwrap_or_default();
        if UnixMicros::now().since(UnixMicros(created)) < GONE_AFTER {
            // It was another stream of this name that was out of reach.
            self.out_of_reach.end(&info.config.name);
        }
        Err(leaderless(&info.config.name))
    }

    /// Looks whether the queue that did not take a message has a leader, once a second for all messages. Does not wait for the
    /// broker's answer.
    pub(super) fn look_at_queue(&self, message: &WorkMessage) {
        let Some(stream) = message.queue().map(|model| self.names.work_stream(model, message.level())) else { return };
        if !self.out_of_reach.is_due(&stream, Instant::now()) {
            return;
        }
        let nats = self.clone();
        crate::spawn("nats look", async move {
            if let Ok(stream) = nats.jetstream.get_stream(&stream).await {
                let _ = nats.check_queue_led(stream.cached_info()).await;
            }
        });
    }

    /// Errors if no broker leads a queue's stream, and replaces one that has had no leader for long. Its workers do not
    /// notice: the stream's consumer may have a leader, which lets them wait.
    pub(super) async fn check_queue_led(&self, info: &stream::Info) -> Result<(), BusError> {
        let led = self.check_led(info);
        if led.is_err() && self.makes_streams {
            self.replace_if_gone(&info.config).await;
        }
        led
    }

    /// Deletes a stream in memory or a work queue that has been out of reach for long; it is created again when it is needed
    /// next. Its messages were lost with its brokers, or their gateways publish them again.
    ///
    /// A queue in files can be out of reach while all its brokers run: after a power cut of all of them, replicas that came back
    /// empty wait for a leader's messages, and none of them becomes the leader (nats-server 2.15).
    async fn replace_if_gone(&self, config: &stream::Config) {
        let in_memory = config.storage == stream::StorageType::Memory;
        let is_queue = config.retention == stream::RetentionPolicy::WorkQueue;
        if in_memory || is_queue {
            self.delete_if_gone(&config.name).await;
        }
    }

    /// Counts a look at a stream that was out of reach, and deletes the stream when it has been so for long.
    async fn delete_if_gone(&self, name: &str) {
        if !self.is_clustered() || self.is_down() {
            return;
        }
        self.watch_queues();
        if self.out_of_reach.note(name, Instant::now()) >= GONE_AFTER {
            tracing::warn!(stream = name, "a stream is out of reach; creating it again");
            // The cluster deletes it, even though the broker that would confirm that is gone.
            let _ = self.jetstream.delete_stream(name).await;
            self.out_of_reach.end(name);
        }
    }

    /// Looks at all work queues again and again until each has a leader, for a limited time. Without it, a queue would count as
    /// out of reach only from the next message for it, and a request of several steps would wait for one queue after the other.
    fn watch_queues(&self) {
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
        let Ok(names) = self.jetstream.stream_names().try_collect::<Vec<_>>().await else { return false };
        let looks = names.into_iter().filter(|name| self.names.model_of(name).is_some()).map(|name| async move {
            match self.jetstream.get_stream(&name).await {
                Ok(stream) => self.check_queue_led(stream.cached_info()).await.is_ok(),
                Err(error) if is_not_found(&error) => true,
                Err(_) => {
                    self.delete_if_gone(&name).await;
                    false
                }
            }
        });
        let looks = futures_util::stream::iter(looks).buffer_unordered(WATCHED_AT_ONCE);
        looks.fold(true, |all, is_led| async move { all && is_led }).await
    }

    /// The model versions that have a queue.
    pub(super) async fn queue_names(&self) -> Result<Vec<ModelKey>, BusError> {
        let mut names = self.jetstream.stream_names();
        let mut models = Vec::new();
        while let Some(name) = names.next().await {
            let name = name.map_err(|error| failure("listing work queues", &error))?;
            models.extend(self.names.model_of(&name));
        }
        models.sort();
        models.dedup();
        Ok(models)
    }

    /// The model versions whose queue has a bulk lane.
    pub(super) async fn bulk_queue_names(&self) -> Result<HashSet<ModelKey>, BusError> {
        let mut names = self.jetstream.stream_names();
        let mut models = HashSet::new();
        while let Some(name) = names.next().await {
            let name = name.map_err(|error| failure("listing work queues", &error))?;
            let model = self.names.model_of(&name);
            models.extend(model.filter(|model| self.names.work_stream(model, Lane::Bulk.level(0)) == name));
        }
        Ok(models)
    }

    /// Removes the queue of a model version if it is empty.
    pub(super) async fn remove_empty_queue(&self, model: &ModelKey) -> Result<bool, BusError> {
        const ACTION: &str = "removing a work queue";
        let stream = self.names.work_stream(model, 0);
        let mut names = self.jetstream.stream_names();
        let mut levels = Vec::new();
        while let Some(name) = names.next().await {
            let name = name.map_err(|error| failure(ACTION, &error))?;
            if self.names.model_of(&name).as_ref() == Some(model) && name.starts_with(&stream) {
                let level = self.jetstream.get_stream(&name).await.map_err(|error| failure(ACTION, &error))?;
                if level.cached_info().state.messages > 0 {
                    return Ok(false);
                }
                levels.push(name);
            }
        }
        for name in &levels {
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

fn leaderless(name: &str) -> BusError {
    BusError::Unreachable(format!("stream {name} has no leader"))
}

fn is_name_in_use(error: &CreateStreamError) -> bool {
    match error.kind() {
        CreateStreamErrorKind::JetStream(answer) => answer.error_code() == ErrorCode::STREAM_NAME_EXIST,
        _ => false,
    }
}

fn overlaps(error: &CreateStreamError) -> bool {
    match error.kind() {
        CreateStreamErrorKind::JetStream(answer) => answer.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP,
        _ => false,
    }
}

fn has_code(error: &stream::ConsumerError, code: ErrorCode) -> bool {
    matches!(error.kind(), stream::ConsumerErrorKind::JetStream(answer) if answer.error_code() == code)
}
