//! Claim checks: a body above the broker's `max_payload` is stored in parts in a stream of its own, and its message
//! carries a claim instead. The process that has read and acknowledged the message discards the claim. A claim that no
//! process discards lapses with the request's deadline.
//!
//! A claim is named after its message and the time the message was made. If a message is published again, the same
//! parts are stored again; a message that the broker kept while its parts were lost finds the new ones. A step that
//! runs again makes a result with other bytes, so that has a claim of its own. Nothing is allocated before the bytes
//! have arrived, and the bytes that a process reads at a time are bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::stream::DirectGetErrorKind;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::Semaphore;
use trireme_inference::Backoff;

use super::buckets;
use super::connection::Nats;
use super::errors::{chain, failure, is_full, is_no_stream, says_no_responders};
use super::limits::REQUEST_TIMEOUT;
use super::streams::Needed;
use super::subjects::Names;
use crate::{Bucket, BusError, WorkMessage, escape_token};

/// The largest body that travels by claim.
pub const MAX_CLAIM_BYTES: usize = trireme_inference::MAX_MESSAGE_BYTES;

/// Largest part: large enough that its confirmation costs little, small enough not to delay other messages.
const MAX_PART_BYTES: usize = 1 << 20;

/// Largest size of a part's headers.
const PART_HEADER_BYTES: usize = 256;

/// Parts that are sent or read at the same time.
const PARTS_AT_ONCE: usize = 4;

/// Bytes of claims that a process reads at a time, parts that are on their way included. Further claims wait.
const READING_BYTES: usize = 512 << 20;

/// Shares of [`READING_BYTES`], in KiB.
static READING: Semaphore = Semaphore::const_new(READING_BYTES >> 10);

/// How often the reader asks a cluster again for a part that was not found. Any broker answers, also one that has not yet received
/// a part that the others have confirmed.
const ASK_AGAIN: u32 = 4;

/// The pauses before a part is asked for again.
const BEHIND: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(160));

/// Pause before a half-stored claim is discarded after its sender stopped: a last part may still be on its way.
const LEFT_PAUSE: Duration = Duration::from_secs(2);

/// Stands for a body in the headers of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claim's name: one subject token.
    pub name: String,
    /// Bytes of the body.
    pub bytes: usize,
    /// Parts in which it is stored, all of one size but the last.
    pub parts: usize,
}

/// Where a body is stored.
#[derive(Clone, Copy, Debug)]
pub enum BodyStore {
    /// In the stream of claims, for bodies of messages.
    Claims,
    /// In a store's own stream, beside its values.
    Bucket(Bucket),
}

/// A claim whose parts are being stored or were stored. It is discarded if it is dropped before its message was sent.
pub struct StoredObject {
    nats: Nats,
    place: BodyStore,
    claim: Claim,
    kept: bool,
}

/// Why a claim could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GetObjectError {
    /// A part is missing: it was discarded, has lapsed, or the broker lost it.
    #[error("part {part} of claim '{name}' is not there")]
    Gone { name: String, part: usize },
    /// The parts do not match the claim.
    #[error("claim '{name}' of {expected} bytes has parts of {found} bytes or more")]
    Malformed { name: String, expected: usize, found: usize },
    /// The broker did not answer.
    #[error("claim '{name}' cannot be read: {reason}")]
    Unreachable { name: String, reason: String },
}

// === impl BodyStore ===

impl BodyStore {
    fn stream(self, names: &Names) -> String {
        match self {
            BodyStore::Claims => names.claim_stream(),
            BodyStore::Bucket(bucket) => buckets::stream(names, bucket),
        }
    }

    fn part(self, names: &Names, name: &str, part: &str) -> String {
        match self {
            BodyStore::Claims => names.claim(name, part),
            BodyStore::Bucket(bucket) => buckets::part(names, bucket, name, part),
        }
    }

    fn needed(self) -> Needed<'static> {
        match self {
            BodyStore::Claims => Needed::Claims,
            BodyStore::Bucket(bucket) => Needed::Bucket(bucket),
        }
    }
}

// === impl GetObjectError ===

impl GetObjectError {
    /// The error for the reader of a value that is stored in parts.
    pub fn or_unreachable(self) -> BusError {
        match self {
            GetObjectError::Unreachable { .. } => BusError::Unreachable(self.to_string()),
            _ => BusError::Refused { action: "reading from a store", reason: self.to_string() },
        }
    }
}

// === impl StoredObject ===

impl StoredObject {
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Keeps the claim, because its message was sent or may have been.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Discards the claim, because no message has it.
    pub fn discard(mut self) {
        self.kept = true;
        self.nats.discard(self.place, self.claim.name.clone());
    }
}

impl Drop for StoredObject {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (nats, place, name) = (self.nats.clone(), self.place, self.claim.name.clone());
        crate::spawn("nats claim left", async move {
            tokio::time::sleep(LEFT_PAUSE).await;
            nats.discard(place, name);
        });
    }
}

// === impl Nats ===

impl Nats {
    /// Stores `body` under `name`; the broker may drop it after `lapse`. Storing it again replaces it.
    pub(super) async fn put_object(
        &self,
        place: BodyStore,
        name: String,
        body: &Bytes,
        lapse: Option<Duration>,
    ) -> Result<StoredObject, BusError> {
        if body.len() > MAX_CLAIM_BYTES {
            return Err(BusError::TooLarge { size: body.len(), limit: MAX_CLAIM_BYTES, taker: "the message bus" });
        }
        let size = self.max_payload().saturating_sub(PART_HEADER_BYTES).clamp(1, MAX_PART_BYTES);
        let claim = Claim { name, bytes: body.len(), parts: body.len().div_ceil(size) };
        let object = StoredObject { nats: self.clone(), place, claim: claim.clone(), kept: false };
        let mut headers = HeaderMap::new();
        if let Some(lapse) = lapse {
            headers.insert(async_nats::header::NATS_MESSAGE_TTL, lapse.as_secs().max(1).to_string());
        }
        let first = || {
            self.send_confirmed(
                place.part(&self.names, &claim.name, "0"),
                headers.clone(),
                body.slice(..size.min(body.len())),
            )
        };
        let mut sent = first().await;
        let give_up = Instant::now() + REQUEST_TIMEOUT;
        while sent.as_ref().is_err_and(is_no_stream) && Instant::now() < give_up {
            self.need(place.needed()).await?;
            sent = first().await;
        }
        if let Err(error) = sent {
            object.discard();
            return Err(not_stored(&claim, &error));
        }
        // After an error no more parts are sent, but those on their way are awaited: a part that the broker takes after
        // the claim was discarded would stay.
        let failed = AtomicBool::new(false);
        let parts = futures_util::stream::iter(1..claim.parts)
            .take_while(|_| std::future::ready(!failed.load(Ordering::Relaxed)))
            .map(|part| {
                let bytes = body.slice(part * size..body.len().min((part + 1) * size));
                self.send_confirmed(place.part(&self.names, &claim.name, &part.to_string()), headers.clone(), bytes)
            });
        let mut parts = Box::pin(parts.buffer_unordered(PARTS_AT_ONCE));
        let mut first_error = None;
        while let Some(sent) = parts.next().await {
            if let Err(error) = sent {
                failed.store(true, Ordering::Relaxed);
                first_error.get_or_insert(error);
            }
        }
        drop(parts);
        match first_error {
            Some(error) => {
                object.discard();
                Err(not_stored(&claim, &error))
            }
            None => Ok(object),
        }
    }

    /// Reads a claim's bytes, once there is room for them.
    pub(super) async fn get_object(&self, place: BodyStore, claim: &Claim) -> Result<Bytes, GetObjectError> {
        let malformed = |found| GetObjectError::Malformed { name: claim.name.clone(), expected: claim.bytes, found };
        if claim.bytes > MAX_CLAIM_BYTES || claim.parts > claim.bytes {
            return Err(malformed(claim.parts));
        }
        // A part may be larger than it should be. That shows only when it has arrived.
        let most = (claim.bytes + claim.parts.min(PARTS_AT_ONCE) * self.max_payload()).min(READING_BYTES);
        let shares = u32::try_from(most >> 10).unwrap_or(u32::MAX);
        let _share = READING.acquire_many(shares).await.expect("never closed");
        let parts = (0..claim.parts).map(|part| read_part(self.clone(), place, claim.name.clone(), part));
        let mut parts = futures_util::stream::iter(parts).buffered(PARTS_AT_ONCE);
        let mut body = Vec::new();
        while let Some(part) = parts.next().await {
            let part = part?;
            if body.len() + part.len() > claim.bytes {
                return Err(malformed(body.len() + part.len()));
            }
            body.extend_from_slice(&part);
        }
        match body.len() == claim.bytes {
            true => Ok(body.into()),
            false => Err(malformed(body.len())),
        }
    }

    /// Discards a claim soon. If the broker cannot be reached now, the claim lapses.
    pub(super) fn discard(&self, place: BodyStore, name: String) {
        let nats = self.clone();
        crate::spawn("nats claim", async move {
            let Ok(stream) = nats.jetstream.get_stream_no_info(place.stream(&nats.names)).await else { return };
            if let Err(error) = stream.purge().filter(place.part(&nats.names, &name, "*")).await {
                tracing::debug!(name, %error, "a claim could not be discarded; it lapses");
            }
        });
    }
}

async fn read_part(nats: Nats, place: BodyStore, name: String, part: usize) -> Result<Bytes, GetObjectError> {
    let stream = match nats.jetstream.get_stream_no_info(place.stream(&nats.names)).await {
        Ok(stream) => stream,
        Err(error) => return Err(GetObjectError::Unreachable { name, reason: error.to_string() }),
    };
    let (subject, mut asked) = (place.part(&nats.names, &name, &part.to_string()), 0);
    loop {
        match nats.read_any(&stream, &subject).await {
            Ok(message) => return Ok(message.payload),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => {
                if asked == ASK_AGAIN || !nats.is_clustered() {
                    return Err(GetObjectError::Gone { name, part });
                }
                asked += 1;
                tokio::time::sleep(BEHIND.after(asked)).await;
            }
            // There are no responders for a stream that does not exist.
            Err(error) if says_no_responders(&error) => return Err(GetObjectError::Gone { name, part }),
            Err(error) => return Err(GetObjectError::Unreachable { name, reason: chain(&error) }),
        }
    }
}

fn not_stored(claim: &Claim, error: &PublishError) -> BusError {
    match is_full(error) {
        true => BusError::ClaimsFull { size: claim.bytes },
        false => failure("laying down a claim", error),
    }
}

/// The name of the claim of a work message. A message that is made again has another name.
pub fn name(message: &WorkMessage) -> String {
    escape_token(&format!("{}/{}", message.message_id(), message.sent_at))
}

/// Bytes that headers take on the wire.
pub fn wire_size(headers: &HeaderMap) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| {
        let name = AsRef::<str>::as_ref(name).len();
        values.iter().map(move |value| name + value.as_str().len() + ": \r\n".len())
    });
    "NATS/1.0\r\n\r\n".len() + lines.sum::<usize>()
}
