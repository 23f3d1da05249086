//! Claim checks: a body above the broker's `max_payload` is laid down in parts in a stream of its own, and the message
//! that it belongs to carries a claim instead. Whoever has read and acknowledged the message discards it; what nobody
//! discards lapses with the request's deadline.
//!
//! A claim has the name of its message and of the time it was made, so that a message that is published again lays down the
//! same parts again, and one that was kept while its parts were lost finds them; the result of a step that is run again has
//! other bytes, and a claim of its own. Nothing is allocated before the bytes are there, and what a process reads at a time
//! is bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::stream::DirectGetErrorKind;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::Semaphore;

use super::streams::Needed;
use super::work::{chain, failure, is_full};
use super::{Nats, subjects};
use crate::{BusError, WorkMessage};

/// The largest body that travels by claim.
pub const MAX_CLAIM_BYTES: usize = 128 << 20;

/// Largest part; large enough that its confirmation costs little, small enough that nothing else waits behind it.
const MAX_PART_BYTES: usize = 1 << 20;

/// What the headers of a part take at most.
const PART_HEADER_BYTES: usize = 256;

/// Parts on their way at the same time.
const PARTS_AT_ONCE: usize = 4;

/// Bytes of claims that a process reads at a time, parts on their way included; what comes beyond waits.
const READING_BYTES: usize = 512 << 20;

/// Shares of [`READING_BYTES`], in KiB.
static READING: Semaphore = Semaphore::const_new(READING_BYTES >> 10);

/// How long a claim is kept that was laid down by halves when its sender left: as long as a part may be on its way.
const LEFT_PAUSE: Duration = Duration::from_secs(2);

/// What a message carries in place of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claim's name: one subject token.
    pub name: String,
    /// Bytes of the body.
    pub bytes: usize,
    /// Parts that it is laid down in, all of one size but the last.
    pub parts: usize,
}

/// Which stream a claim is laid down in.
#[derive(Clone, Copy, Debug)]
pub enum Store {
    /// Of messages on their way.
    Claims,
    /// Of dead letters, among the letters.
    Dead,
}

/// A claim that is being laid down or was: discarded when it is dropped before its message was sent.
pub struct LaidDown {
    nats: Nats,
    store: Store,
    claim: Claim,
    kept: bool,
}

/// Why a claim could not be redeemed.
#[derive(Debug, thiserror::Error)]
pub enum RedeemError {
    /// A part is not there: it was discarded, has lapsed, or the broker lost it.
    #[error("part {part} of claim '{name}' is not there")]
    Gone { name: String, part: usize },
    /// The parts are not what the claim says.
    #[error("claim '{name}' of {expected} bytes has parts of {found} bytes or more")]
    Malformed { name: String, expected: usize, found: usize },
    /// The broker did not answer.
    #[error("claim '{name}' cannot be read: {reason}")]
    Unreachable { name: String, reason: String },
}

// === impl Store ===

impl Store {
    fn stream(self) -> &'static str {
        match self {
            Store::Claims => subjects::CLAIM_STREAM,
            Store::Dead => subjects::DEAD_STREAM,
        }
    }

    fn parts(self, name: &str) -> String {
        match self {
            Store::Claims => subjects::claim_all(name),
            Store::Dead => subjects::dead_claim_all(name),
        }
    }

    fn part(self, name: &str, part: usize) -> String {
        match self {
            Store::Claims => subjects::claim(name, part),
            Store::Dead => subjects::dead_claim(name, part),
        }
    }
}

// === impl LaidDown ===

impl LaidDown {
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The message was sent, or may have been.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// No message has this claim.
    pub fn discard(mut self) {
        self.kept = true;
        self.nats.discard(self.store, self.claim.name.clone());
    }
}

impl Drop for LaidDown {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (nats, store, name) = (self.nats.clone(), self.store, self.claim.name.clone());
        crate::spawn("nats claim left", async move {
            tokio::time::sleep(LEFT_PAUSE).await;
            nats.discard(store, name);
        });
    }
}

// === impl Nats ===

impl Nats {
    /// Lays `body` down under `name`; the broker may drop it after `lapse`. Laying it down again replaces it.
    pub(super) async fn lay_down(
        &self,
        store: Store,
        name: String,
        body: &Bytes,
        lapse: Option<Duration>,
    ) -> Result<LaidDown, BusError> {
        if body.len() > MAX_CLAIM_BYTES {
            return Err(BusError::TooLarge { size: body.len(), limit: MAX_CLAIM_BYTES });
        }
        let size = self.max_payload().saturating_sub(PART_HEADER_BYTES).clamp(1, MAX_PART_BYTES);
        let claim = Claim { name, bytes: body.len(), parts: body.len().div_ceil(size) };
        let laid_down = LaidDown { nats: self.clone(), store, claim: claim.clone(), kept: false };
        let mut headers = HeaderMap::new();
        if let Some(lapse) = lapse {
            headers.insert(async_nats::header::NATS_MESSAGE_TTL, lapse.as_secs().max(1).to_string());
        }
        let first =
            || self.send_confirmed(store.part(&claim.name, 0), headers.clone(), body.slice(..size.min(body.len())));
        let mut sent = first().await;
        if sent.as_ref().is_err_and(|error| error.kind() == PublishErrorKind::StreamNotFound) {
            self.need(Needed::Claims).await?;
            sent = first().await;
        }
        if let Err(error) = sent {
            laid_down.discard();
            return Err(not_laid_down(&claim, &error));
        }
        // After an error no more parts are sent, but those under way are waited for: one that the broker took after the
        // claim was discarded would stay.
        let failed = AtomicBool::new(false);
        let parts = futures_util::stream::iter(1..claim.parts)
            .take_while(|_| std::future::ready(!failed.load(Ordering::Relaxed)))
            .map(|part| {
                let bytes = body.slice(part * size..body.len().min((part + 1) * size));
                self.send_confirmed(store.part(&claim.name, part), headers.clone(), bytes)
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
                laid_down.discard();
                Err(not_laid_down(&claim, &error))
            }
            None => Ok(laid_down),
        }
    }

    /// Reads a claim's bytes, when it is their turn.
    pub(super) async fn redeem(&self, store: Store, claim: &Claim) -> Result<Bytes, RedeemError> {
        let malformed = |found| RedeemError::Malformed { name: claim.name.clone(), expected: claim.bytes, found };
        if claim.bytes > MAX_CLAIM_BYTES || claim.parts > claim.bytes {
            return Err(malformed(claim.parts));
        }
        // A part may be larger than it should be; that is seen when it has come.
        let most = (claim.bytes + claim.parts.min(PARTS_AT_ONCE) * self.max_payload()).min(READING_BYTES);
        let shares = u32::try_from(most >> 10).unwrap_or(u32::MAX);
        let _share = READING.acquire_many(shares).await.expect("never closed");
        let parts = (0..claim.parts).map(|part| read_part(self.clone(), store, claim.name.clone(), part));
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

    /// Forgets a claim, some time soon. What cannot be reached now lapses.
    pub(super) fn discard(&self, store: Store, name: String) {
        let nats = self.clone();
        crate::spawn("nats claim", async move {
            let Ok(stream) = nats.jetstream.get_stream_no_info(store.stream()).await else { return };
            if let Err(error) = stream.purge().filter(store.parts(&name)).await {
                tracing::debug!(name, %error, "a claim could not be discarded; it lapses");
            }
        });
    }
}

async fn read_part(nats: Nats, store: Store, name: String, part: usize) -> Result<Bytes, RedeemError> {
    let stream = match nats.jetstream.get_stream_no_info(store.stream()).await {
        Ok(stream) => stream,
        Err(error) => return Err(RedeemError::Unreachable { name, reason: error.to_string() }),
    };
    let read = stream.direct_get_last_for_subject(store.part(&name, part)).await;
    read.map(|message| message.payload).map_err(|error| match error.kind() {
        DirectGetErrorKind::NotFound => RedeemError::Gone { name, part },
        // Nobody answers for a stream that is not there.
        _ if chain(&error).contains("no responders") => RedeemError::Gone { name, part },
        _ => RedeemError::Unreachable { name, reason: chain(&error) },
    })
}

fn not_laid_down(claim: &Claim, error: &PublishError) -> BusError {
    match is_full(error) {
        true => BusError::ClaimsFull { size: claim.bytes },
        false => failure("laying down a claim", error),
    }
}

/// The name of the claim of a work message: another one when the message is made anew.
pub fn name(message: &WorkMessage) -> String {
    subjects::escape_token(&format!("{}/{}", message.message_id(), message.sent_at))
}

/// Bytes that headers take on the wire.
pub fn wire_size(headers: &HeaderMap) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| {
        let name = name.to_string().len();
        values.iter().map(move |value| name + value.as_str().len() + ": \r\n".len())
    });
    "NATS/1.0\r\n\r\n".len() + lines.sum::<usize>()
}
