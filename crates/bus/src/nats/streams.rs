//! Creates, changes, replaces and removes the streams of a deployment.
//!
//! A stream of a cluster may be out of reach because its brokers are slow, or because none of them leads it. Only the
//! latter, which the brokers have to say, makes a gateway replace the stream.
//!
//! Gateways make the streams, and a stage waits for them: the broker's permissions cover the name of a stream but not its subjects,
//! so a stage that may create a stream could read the replies there.
//!
//! Not here: the configurations of the streams of stores and claims (`buckets`), and which queues a deployment needs (the gateway).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream;
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use futures_util::TryStreamExt;
use trireme_inference::{ModelKey, UnixMicros};

use super::account::{self, refit};
use super::connection::Nats;
use super::errors::{failure, is_not_found};
use super::subjects::Names;
use super::{buckets, clock};
use crate::{Bucket, BusError, QueueOptions, WorkMessage};

/// A stream in memory and a work queue that no broker has led for this long are created again: their brokers will not come
/// back with them, or cannot agree on them.
const GONE_AFTER: Duration = Duration::from_secs(15);

/// How long a stream's leader may take to answer [`Nats::who_leads`].
const LEADER_LIMIT: Duration = Duration::from_secs(2);

/// The name of the store of bodies above `max_payload`.
const CLAIMS: &str = "claims";

/// The names of the stores whose size an operator may set, without the deployment's prefix.
pub const STORES: [&str; 9] =
    ["settings", "registry", "models", "attempts", "dead", "sequences", "jobs", "objects", CLAIMS];

/// Time between two looks of a stage whether a store is there.
const LOOK_FOR_STORE: Duration = Duration::from_millis(250);

/// Average time between two looks of a gateway whether all stores are there, and how much it varies.
const STORES_PERIOD: Duration = Duration::from_secs(5);
const STORES_JITTER: f64 = 0.2;

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

/// The broker that leads a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    Nobody,
    Somebody,
}

// === impl Needed ===

impl Needed<'_> {
    /// Everything but queues.
    pub(super) fn stores() -> impl Iterator<Item = Needed<'static>> {
        Bucket::ALL.into_iter().map(Needed::Bucket).chain([Needed::Claims])
    }

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
            Needed::Bucket(Bucket::Usage) => "making the store of usage",
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
            // Where the account has a limit, the broker drops the oldest usage first.
            Needed::Bucket(Bucket::Usage) => 128,
            Needed::Bucket(Bucket::Settings | Bucket::Registry | Bucket::Models | Bucket::Attempts)
            | Needed::Queue(..) => account::SMALL,
        }
    }

    /// The name of its stream, or of that of its level 0.
    fn stream(self, names: &Names) -> String {
        match self {
            Needed::Bucket(bucket) => buckets::stream(names, bucket),
            Needed::Claims => names.claim_stream(),
            Needed::Queue(model, _) => names.work_stream(model, 0),
        }
    }
}

// === impl Nats ===

impl Nats {
    /// Waits until the broker reports that this process has no permission for an action. `is_meant` recognises the
    /// action by the subject in the report. The broker reports this in no other way.
    pub(super) async fn refused(&self, is_meant: impl Fn(&str) -> bool) -> String {
        let mut refusals = self.refusals.follow();
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

    /// Makes sure that the stream of a store exists, if this process makes streams. Another one gives a gateway time to make a store, and its next
    /// attempt shows whether that is done.
    pub(super) async fn need(&self, needed: Needed<'_>) -> Result<(), BusError> {
        if self.makes_streams {
            return self.make(needed).await;
        }
        tokio::time::sleep(LOOK_FOR_STORE).await;
        Ok(())
    }

    /// Makes the stores again that the broker has lost, for as long as the connection is open.
    pub(super) fn keep_stores(&self) {
        let (nats, mut connection) = (self.clone(), self.connection.follow());
        crate::spawn("nats stores", async move {
            while !nats.is_closed() {
                let period = STORES_PERIOD.mul_f64(1.0 - STORES_JITTER + 2.0 * STORES_JITTER * fastrand::f64());
                let _ = tokio::time::timeout(period, connection.changed()).await;
                if nats.is_down() {
                    continue;
                }
                let Ok(there) = nats.jetstream.stream_names().try_collect::<HashSet<String>>().await else { continue };
                let is_there = |needed: Needed<'_>| there.contains(&needed.stream(&nats.names));
                if !Needed::stores().all(is_there) {
                    nats.make_all_or_warn().await;
                }
            }
        });
    }

    /// Creates a stream or updates its configuration. Errors at once if this process has no permission. Otherwise the request would only
    /// time out.
    pub(super) async fn make(&self, needed: Needed<'_>) -> Result<(), BusError> {
        let stream = needed.stream(&self.names);
        // In the report, the name is followed by `-` for a level and by `.` for a consumer.
        let ends = ['"', '-', '.'].map(|end| format!(".{stream}{end}"));
        let make = async {
            let config = match needed {
                Needed::Bucket(bucket) => buckets::config(&self.names, bucket),
                Needed::Claims => buckets::claims(&self.names),
                Needed::Queue(model, options) => return self.make_queue(model, options).await,
            };
            let config = stream::Config { num_replicas: self.replicas(), ..config };
            let mut config = account::fit(needed.share(), config, &self.account());
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
        if UnixMicros::now().since(clock::micros(info.created)) < GONE_AFTER {
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
            self.delete_if_gone(&info.config.name).await;
        }
        led
    }

    /// Deletes a stream in memory or a work queue that was out of reach, if no broker has led it for long; it is created again
    /// when it is needed next. Its messages were lost with its brokers, or their gateways publish them again.
    ///
    /// A queue in files can be without a leader while all its brokers run: after a power cut of all of them, replicas that came
    /// back empty wait for a leader's messages, and none of them becomes the leader (nats-server 2.15).
    async fn replace_if_gone(&self, config: &stream::Config) {
        let in_memory = config.storage == stream::StorageType::Memory;
        let is_queue = config.retention == stream::RetentionPolicy::WorkQueue;
        let Some(subject) = config.subjects.first().filter(|_| in_memory || is_queue) else { return };
        if !self.is_clustered() || self.is_down() {
            return;
        }
        // The leader of the cluster answers this.
        let there = self.jetstream.stream_by_subject(subject).await;
        if there.is_ok_and(|there| there == config.name) && self.who_leads(subject).await == Some(Lead::Nobody) {
            self.delete_if_gone(&config.name).await;
        }
    }

    /// Counts a look at a stream that no broker leads, as the brokers said, and deletes it when it has been so for long.
    pub(super) async fn delete_if_gone(&self, name: &str) {
        if !self.is_clustered() || self.is_down() {
            return;
        }
        self.watch_queues();
        if self.out_of_reach.note(name, Instant::now()) >= GONE_AFTER {
            tracing::warn!(stream = name, "no broker leads a stream; creating it again");
            // The cluster deletes it, even though the broker that would confirm that is gone.
            let _ = self.jetstream.delete_stream(name).await;
            self.out_of_reach.end(name);
        }
    }

    /// Whether a broker leads the stream with these subjects. `None`: there was no answer, which says nothing: the brokers may be
    /// slow.
    ///
    /// A stream's leader takes the messages of its subjects. Without a leader, a broker says at once that nobody takes them. A
    /// leader refuses this message, which is for another stream.
    pub(super) async fn who_leads(&self, subjects: &str) -> Option<Lead> {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_EXPECTED_STREAM, "=");
        let asked = self.client.request_with_headers(subjects.replace(['>', '*'], "="), headers, Bytes::new());
        match tokio::time::timeout(LEADER_LIMIT, asked).await.ok()? {
            Ok(_) => Some(Lead::Somebody),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Some(Lead::Nobody),
            Err(_) => None,
        }
    }
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
