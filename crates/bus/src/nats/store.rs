//! Last-value stores: a stream for each bucket, a subject for each key, the last message of a subject its value.
//!
//! A value above `max_payload` is stored in parts in the bucket's own stream, and its message has a claim. A deletion
//! is a message without a body that the broker drops after [`MARKER`]. Where nobody follows a bucket, or the broker has no room for that
//! message, the value itself is removed: that takes no room, and a broker that crashes does not bring the value back.
//!
//! Not here: the configuration of the streams (`buckets`).

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, push};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DirectGetErrorKind, RawMessageError, RawMessageErrorKind};
use async_nats::jetstream::{self, stream};
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::claims::{BodyStore, wire_size};
use super::connection::Nats;
use super::errors::{self, failure};
use super::groups::Message;
use super::limits::REQUEST_TIMEOUT;
use super::streams::Needed;
use super::work::LONGEST_LAPSE;
use super::{buckets, clock, headers};
use crate::{Bucket, BusError, Change, Connection, Entry, Reopening};

/// How long a deletion is kept for watchers.
const MARKER: Duration = Duration::from_secs(60);

/// The header of a deletion, the same as in key-value buckets.
const OPERATION: &str = "KV-Operation";

/// The header of a deletion that no other deletion has the value of: of several processes that delete a value, each knows whether the
/// deletion is its own.
const DELETION: &str = "Trireme-Deletion";

/// Changes that may wait for a watcher to read them. Beyond that the bus waits for the watcher.
const WATCH_BACKLOG: usize = 4096;

/// How long a write of durable work waits for a stream that has no leader, and the pause between two tries.
const LEADER: Duration = Duration::from_secs(10);
const LOOK_FOR_LEADER: Duration = Duration::from_millis(250);

/// How many times a recently deleted key is read again, and the pause in between.
const DELETION_LOOKS: u32 = 10;
const DELETION_PAUSE: Duration = Duration::from_millis(50);

/// How many times a value in parts is read again if it was replaced during the read.
const REPLACED_LOOKS: u32 = 10;

/// How often the broker sends a sign of life for a watch without changes.
const WATCH_HEARTBEAT: Duration = Duration::from_secs(2);

/// How long a watch may wait for all values that were there when it began. A value that lapses at that time does not
/// come.
const COMPLETE_LIMIT: Duration = Duration::from_secs(5);

// === impl Nats ===

impl Nats {
    pub(super) async fn put_value(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        expect: Option<u64>,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        let mut headers = HeaderMap::new();
        if let Some(lapse) = lapse.filter(|lapse| *lapse < LONGEST_LAPSE) {
            headers.insert(header::NATS_MESSAGE_TTL, lapse.as_secs().max(1).to_string());
        }
        let (mut body, mut own) = (value.clone(), None);
        // The claim of the value that is replaced. Not for notes of attempts, which are never large and are written
        // while a request waits.
        let replaced = match (bucket, expect) {
            (Bucket::Attempts, _) | (_, Some(0)) => None,
            _ => self.get_raw(bucket, key).await?.and_then(|message| headers::claim_name(&message.headers)),
        };
        if wire_size(&headers) + value.len() > self.max_payload() {
            let name = format!("{key}-{:032x}", fastrand::u128(..)).replace('.', "-");
            let object = self.put_object(BodyStore::Bucket(bucket), name, &value, lapse).await?;
            headers::write_claim(&mut headers, object.claim());
            own = Some(object.claim().name.clone());
            // From here on the value may be stored, even if this call fails.
            object.keep();
            body = Bytes::new();
        }
        let mut looks = 0;
        loop {
            let put = self.write(bucket, key, headers.clone(), body.clone(), expect).await;
            let useless = match &put {
                Ok(_) => replaced.clone(),
                Err(BusError::Unreachable(_)) => None,
                Err(BusError::Conflict { .. }) => {
                    match self.latest(bucket, key).await?.filter(|last| !is_deletion(last)) {
                        // A first attempt arrived, and only its confirmation got lost.
                        Some(last) if self.has_value(bucket, &last, &value).await? => return Ok(last.sequence),
                        // The broker that was asked may not know yet that the value was deleted, or which deletion is the
                        // last.
                        None if expect == Some(0) && looks < DELETION_LOOKS => {
                            looks += 1;
                            tokio::time::sleep(DELETION_PAUSE).await;
                            continue;
                        }
                        _ => own.clone(),
                    }
                }
                Err(_) => own.clone(),
            };
            if let Some(useless) = useless {
                self.discard(BodyStore::Bucket(bucket), useless);
            }
            return put;
        }
    }

    pub(super) async fn delete_value(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        let Some(message) = self.get_raw(bucket, key).await? else { return Ok(false) };
        let marked = match bucket {
            Bucket::Objects => None,
            _ => match self.mark_deleted(bucket, key, expect).await {
                Err(BusError::StoreFull { .. }) => None,
                marked => Some(marked?),
            },
        };
        let was_there = match marked {
            Some(was_there) => was_there,
            None if expect.is_some_and(|revision| revision != message.sequence) => {
                return Err(BusError::Conflict { key: key.to_owned() });
            }
            None => self.remove(bucket, key, message.sequence).await?,
        };
        if was_there && let Some(claim) = headers::claim_name(&message.headers) {
            self.discard(BodyStore::Bucket(bucket), claim);
        }
        Ok(was_there)
    }

    /// Removes the key's values up to this revision. Returns whether it had any.
    async fn remove(&self, bucket: Bucket, key: &str, revision: u64) -> Result<bool, BusError> {
        let stream = self.stream(bucket).await?;
        let purge = stream.purge().filter(buckets::subject(&self.names, bucket, key)).sequence(revision + 1);
        let purged = purge.await.map_err(|error| failure("deleting from a store", &error))?;
        Ok(purged.purged > 0)
    }

    /// Writes a deletion over a value. Returns whether this call has deleted it.
    async fn mark_deleted(&self, bucket: Bucket, key: &str, expect: Option<u64>) -> Result<bool, BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION, "DEL");
        headers.insert(header::NATS_MESSAGE_TTL, MARKER.as_secs().to_string());
        let deletion = format!("{:032x}", fastrand::u128(..));
        headers.insert(DELETION, deletion.as_str());
        if let Err(error) = self.write(bucket, key, headers, Bytes::new(), expect).await {
            let BusError::Conflict { .. } = error else { return Err(error) };
            match self.latest(bucket, key).await? {
                // A first attempt arrived, and only its confirmation got lost.
                Some(last) if last.headers.get(DELETION).is_some_and(|id| id.as_str() == deletion) => {}
                Some(last) if !is_deletion(&last) => return Err(error),
                // Somebody else has deleted the value meanwhile.
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    async fn write(
        &self,
        bucket: Bucket,
        key: &str,
        mut headers: HeaderMap,
        body: Bytes,
        expect: Option<u64>,
    ) -> Result<u64, BusError> {
        if let Some(revision) = expect {
            headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, revision.to_string());
        }
        // An expected stream, because another stream could accept the same subjects.
        headers.insert(header::NATS_EXPECTED_STREAM, buckets::stream(&self.names, bucket));
        let (subject, size) = (buckets::subject(&self.names, bucket, key), body.len());
        let send = async |headers: &HeaderMap| {
            let (subject, headers, body) = (subject.clone(), headers.clone(), body.clone());
            match bucket {
                // Clients write durable requests by the thousand, and their records have to be on the disk.
                Bucket::Jobs => self.send_grouped(Message { subject, headers, body }).await,
                _ => self.send_confirmed(subject, headers, body).await.map(|confirmed| confirmed.sequence),
            }
        };
        let mut sent = self.with_leader(bucket, || send(&headers), errors::is_no_stream).await?;
        // After a deletion the broker has a revision for a key without a value, until it drops the deletion. That is rare, so it is
        // looked up only when a value for a new key is refused.
        if expect == Some(0) && sent.as_ref().is_err_and(errors::is_conflict) {
            let deletion = self.last_revision(bucket, key).await?;
            if deletion > 0 {
                headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, deletion.to_string());
                sent = send(&headers).await;
            }
        }
        match sent {
            Ok(sequence) => Ok(sequence),
            Err(error) if errors::is_conflict(&error) => Err(BusError::Conflict { key: key.to_owned() }),
            Err(error) if errors::is_full(&error) => Err(BusError::StoreFull { store: bucket.name(), size }),
            Err(error) => Err(failure("writing to a store", &error)),
        }
    }

    /// Makes an attempt, and repeats it after the store was made, if the error says that the store is missing. A stream without a leader looks
    /// the same. Clients wait for the stores of durable work, as they wait for a queue: a cluster elects another leader within seconds.
    async fn with_leader<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        bucket: Bucket,
        attempt: impl Fn() -> F,
        is_missing: impl Fn(&E) -> bool,
    ) -> Result<Result<T, E>, BusError> {
        let patience = match bucket {
            Bucket::Jobs | Bucket::Objects => LEADER,
            // Whoever announces tries again by itself.
            Bucket::Registry => Duration::ZERO,
            _ if self.makes_streams => Duration::ZERO,
            // A gateway makes it soon.
            _ => REQUEST_TIMEOUT,
        };
        let give_up = Instant::now() + patience;
        let mut made = attempt().await;
        while made.as_ref().is_err_and(&is_missing) {
            let is_last = Instant::now() >= give_up;
            match self.need(Needed::Bucket(bucket)).await {
                Err(BusError::Unreachable(_)) if !is_last => {}
                needed => needed?,
            }
            made = attempt().await;
            if is_last || made.is_ok() {
                break;
            }
            tokio::time::sleep(LOOK_FOR_LEADER).await;
        }
        Ok(made)
    }

    /// The revision of a deletion that the broker still keeps; 0 if there is a value or nothing.
    async fn last_revision(&self, bucket: Bucket, key: &str) -> Result<u64, BusError> {
        let message = self.read_last(bucket, key).await?;
        Ok(message.filter(is_deletion).map_or(0, |message| message.sequence))
    }

    pub(super) async fn get_value(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, BusError> {
        let mut looks = 0;
        loop {
            let Some(message) = self.get_raw(bucket, key).await? else { return Ok(None) };
            let revision = message.sequence;
            match self.entry(bucket, message).await {
                Ok(entry) => return Ok(Some(entry)),
                Err(error @ BusError::Unreachable(_)) => return Err(error),
                // Its parts are discarded when it is replaced. Then the key has another value.
                Err(error) => {
                    let now = self.get_raw(bucket, key).await?.map(|message| message.sequence);
                    looks += 1;
                    if now == Some(revision) || looks == REPLACED_LOOKS {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn get_raw(&self, bucket: Bucket, key: &str) -> Result<Option<StreamMessage>, BusError> {
        Ok(self.read_last(bucket, key).await?.filter(|message| !is_deletion(message)))
    }

    async fn read_last(&self, bucket: Bucket, key: &str) -> Result<Option<StreamMessage>, BusError> {
        let subject = buckets::subject(&self.names, bucket, key);
        // With older states than the latest, a sequence's next request would run for nothing.
        if bucket == Bucket::Sequences && self.is_clustered() {
            return self.read_last_from_leader(bucket, &subject).await;
        }
        let stream = self.stream(bucket).await?;
        let read = || self.read_any(&stream, &subject);
        let found = self.with_leader(bucket, read, |error| errors::says_no_responders(error)).await?;
        match found {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => match bucket {
                Bucket::Jobs | Bucket::Objects => self.read_last_from_leader(bucket, &subject).await,
                _ => Ok(None),
            },
            Err(error) => Err(failure("reading from a store", &error)),
        }
    }

    /// The last message of a key after a write was refused because there is another one. A broker of a cluster that is behind the others
    /// would show the one before, and a writer would take its own value for somebody else's.
    async fn latest(&self, bucket: Bucket, key: &str) -> Result<Option<StreamMessage>, BusError> {
        match bucket {
            Bucket::Jobs | Bucket::Objects if self.is_clustered() => {
                self.read_last_from_leader(bucket, &buckets::subject(&self.names, bucket, key)).await
            }
            _ => self.read_last(bucket, key).await,
        }
    }

    /// Whether a message, or the parts of its claim, have this value.
    async fn has_value(&self, bucket: Bucket, message: &StreamMessage, value: &Bytes) -> Result<bool, BusError> {
        match self.entry(bucket, message.clone()).await {
            Ok(entry) => Ok(entry.value == value),
            Err(error @ BusError::Unreachable(_)) => Err(error),
            // It was replaced meanwhile, and its parts with it.
            Err(_) => Ok(false),
        }
    }

    /// Reads from the leader of a stream: a broker of a cluster that is behind the others answers a direct get too, and has not what was
    /// accepted just before.
    async fn read_last_from_leader(&self, bucket: Bucket, subject: &str) -> Result<Option<StreamMessage>, BusError> {
        let stream = self.stream(bucket).await?;
        let read = || stream.get_last_raw_message_by_subject(subject);
        // Only the leader answers, so that nobody does while there is none.
        let is_silent = |error: &RawMessageError| self.is_clustered() && errors::says_timed_out(error);
        let is_missing = |error: &RawMessageError| errors::says_no_stream(error) || is_silent(error);
        let found = self.with_leader(bucket, read, is_missing).await?;
        match found {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(failure("reading from a store", &error)),
        }
    }

    pub(super) async fn next_value(&self, bucket: Bucket, mut revision: u64) -> Result<Option<Entry>, BusError> {
        let stream = self.stream(bucket).await?;
        loop {
            let found = stream
                .get_first_raw_message_by_subject(buckets::keys(&self.names, bucket), revision.saturating_add(1))
                .await;
            let message = match found {
                Ok(message) => message,
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => return Ok(None),
                // Nothing was ever written.
                Err(error) if errors::says_no_stream(&error) => return Ok(None),
                Err(error) => return Err(failure("reading from a store", &error)),
            };
            revision = message.sequence;
            if is_deletion(&message) {
                continue;
            }
            match self.entry(bucket, message).await {
                Ok(entry) => return Ok(Some(entry)),
                Err(error @ BusError::Unreachable(_)) => return Err(error),
                Err(error) => tracing::warn!(revision, %error, "passed over a value that cannot be read"),
            }
        }
    }

    async fn stream(&self, bucket: Bucket) -> Result<stream::Stream<()>, BusError> {
        let stream = self.jetstream.get_stream_no_info(buckets::stream(&self.names, bucket)).await;
        stream.map_err(|error| failure("opening a store", &error))
    }

    /// The value in a message, or the value of its claim.
    async fn entry(&self, bucket: Bucket, message: StreamMessage) -> Result<Entry, BusError> {
        let key = buckets::key(&self.names, bucket, &message.subject).unwrap_or_default().to_owned();
        let value = match headers::read_claim_of(Some(&message.headers))? {
            Some(claim) => {
                self.get_object(BodyStore::Bucket(bucket), &claim).await.map_err(|error| error.or_unreachable())?
            }
            None => message.payload,
        };
        Ok(Entry { key, value, revision: message.sequence, at: clock::micros(message.time) })
    }

    /// Follows a bucket until the receiver is dropped.
    pub(super) fn watch_bucket(&self, bucket: Bucket) -> mpsc::Receiver<Change> {
        let (changes, receiver) = mpsc::channel(WATCH_BACKLOG);
        let nats = self.clone();
        crate::spawn("nats watch", async move {
            let mut reopening = Reopening::default();
            while !changes.is_closed() && !nats.is_closed() {
                let pause = match nats.follow(bucket, &changes, &mut reopening).await {
                    Ok(()) => reopening.pause(),
                    Err(error) => {
                        reopening.broke(&format_args!("a watch of the store '{}' broke: {error}", bucket.name()))
                    }
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = changes.closed() => {}
                }
            }
        });
        receiver
    }

    /// Runs one watch, until it breaks, misses a message, or the connection or the stream is replaced. The next watch
    /// sends all values again.
    async fn follow(
        &self,
        bucket: Bucket,
        changes: &mpsc::Sender<Change>,
        reopening: &mut Reopening,
    ) -> Result<(), BusError> {
        const ACTION: &str = "watching a store";
        let mut connection = self.connection.follow();
        let config = push::Config {
            deliver_subject: self.client.new_inbox(),
            filter_subject: buckets::keys(&self.names, bucket),
            deliver_policy: DeliverPolicy::LastPerSubject,
            ack_policy: AckPolicy::None,
            idle_heartbeat: WATCH_HEARTBEAT,
            flow_control: true,
            memory_storage: true,
            num_replicas: 1,
            ..Default::default()
        };
        let stream = match self.jetstream.get_stream(buckets::stream(&self.names, bucket)).await {
            Ok(stream) => stream,
            Err(error) if errors::says_no_stream(&error) => {
                self.need(Needed::Bucket(bucket)).await?;
                let stream = self.jetstream.get_stream(buckets::stream(&self.names, bucket)).await;
                stream.map_err(|error| failure(ACTION, &error))?
            }
            Err(error) => return Err(failure(ACTION, &error)),
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| failure(ACTION, &error))?;
        let mut is_complete = consumer.cached_info().num_pending == 0;
        let mut last = 0;
        let mut messages = consumer.messages().await.map_err(|error| failure(ACTION, &error))?;
        reopening.works();
        if is_complete && changes.send(Change::Complete).await.is_err() {
            return Ok(());
        }
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                changed = connection.changed() => match changed {
                    Ok(()) if matches!(*connection.borrow_and_update(), Connection::Up(_)) => return Ok(()),
                    Ok(()) => continue,
                    Err(_) => return Ok(()),
                },
                () = changes.closed() => return Ok(()),
                () = tokio::time::sleep(COMPLETE_LIMIT), if !is_complete => return Ok(()),
            };
            let Some(message) = message else { return Ok(()) };
            let message = message.map_err(|error| failure(ACTION, &error))?;
            let Ok(info) = message.info() else { continue };
            let (number, pending) = (info.consumer_sequence, info.pending);
            if number != last + 1 {
                tracing::debug!(bucket = bucket.name(), "a watch has missed something");
                return Ok(());
            }
            last = number;
            if let Some(change) = self.change(bucket, message).await
                && changes.send(change).await.is_err()
            {
                return Ok(());
            }
            if pending == 0 && !is_complete {
                is_complete = true;
                if changes.send(Change::Complete).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// The change in a message of a watch; `None` if it cannot be read.
    async fn change(&self, bucket: Bucket, message: jetstream::Message) -> Option<Change> {
        let key = buckets::key(&self.names, bucket, &message.subject)?.to_owned();
        let (revision, at) = {
            let info = message.info().ok()?;
            (info.stream_sequence, clock::micros(info.published))
        };
        let headers = message.headers.as_ref();
        if headers.is_some_and(|headers| headers.get(OPERATION).is_some()) {
            return Some(Change::Deleted { key, revision });
        }
        let value = match headers::read_claim_of(headers) {
            Ok(None) => Ok(message.payload.clone()),
            Ok(Some(claim)) => {
                self.get_object(BodyStore::Bucket(bucket), &claim).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match value {
            Ok(value) => Some(Change::Put(Entry { key, value, revision, at })),
            Err(error) => {
                tracing::warn!(bucket = bucket.name(), key, error, "passed over a value that cannot be read");
                None
            }
        }
    }
}

fn is_deletion(message: &StreamMessage) -> bool {
    message.headers.get(OPERATION).is_some()
}
