//! Records in the store of jobs: read, created, replaced by compare and swap, watched.

use std::time::Duration;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use trireme_bus::{Bucket, BusError, escape_token};

use crate::call::JobAnswer;
use crate::clock::seconds;
use crate::error::JobError;
use crate::jobs::Jobs;
use crate::objects::{self, Writer};
use crate::record::{BatchState, Body, Object, Record, RequestState, WebhookState};

/// Larger bodies are objects of their own. So a gateway that follows the store of jobs does not read them.
const BODY_IN_RECORD: usize = 2 << 10;

/// Longest id, in bytes. No id that the gateway makes is as long, and a broker closes the connection over a longer subject.
const LONGEST_ID: usize = 128;

/// How many times a change is tried again because another gateway changed the record meanwhile.
const CHANGES: u32 = 20;

/// A new id, which nobody guesses: `prefix` and 128 random bits.
pub fn new_id(prefix: &str) -> String {
    let mut bytes = [0; 16];
    // The system gives no random bits only where it gives none to TLS either.
    SystemRandom::new().fill(&mut bytes).expect("the system has random bits");
    format!("{prefix}{:032x}", u128::from_le_bytes(bytes))
}

/// The outcome of a write, as far as its caller knows. Bytes that a record names may be deleted once it is [`Written::Refused`], and must stay
/// while it is [`Written::Unknown`].
#[derive(Debug)]
pub(crate) enum Written {
    /// The store has the record, with this revision.
    Stored(u64),
    /// The store does not have the record, and will not get it.
    Refused(BusError),
    /// The store may have the record, or get it later: there was no confirmation.
    Unknown(BusError),
}

/// Whether the store may have a value although writing it has failed with this error.
pub(crate) fn may_be_stored(error: &BusError) -> bool {
    match error {
        BusError::Conflict { .. }
        | BusError::StoreFull { .. }
        | BusError::TooLarge { .. }
        | BusError::OverLimit { .. }
        | BusError::Full { .. }
        | BusError::NoQueue { .. }
        | BusError::ClaimsFull { .. }
        | BusError::Envelope(_) => false,
        BusError::Unreachable(_) | BusError::Refused { .. } => true,
    }
}

/// A record and its revision.
pub struct StoredRecord {
    pub record: Record,
    pub revision: u64,
}

// === impl Written ===

impl Written {
    /// The outcome of a call of the bus.
    pub fn of(outcome: Result<u64, BusError>) -> Written {
        match outcome {
            Ok(revision) => Written::Stored(revision),
            Err(error) if may_be_stored(&error) => Written::Unknown(error),
            Err(error) => Written::Refused(error),
        }
    }

    /// The revision, for a caller to whom it is one whether the record is not there or may be there.
    pub fn stored(self) -> Result<u64, BusError> {
        match self {
            Written::Stored(revision) => Ok(revision),
            Written::Refused(error) | Written::Unknown(error) => Err(error),
        }
    }
}

// === impl Jobs ===

impl Jobs {
    /// Seconds since 1970, by the clock of the bus.
    pub(crate) fn now(&self) -> u64 {
        seconds(self.0.bus.now())
    }

    /// The record of `id`, which may be missing.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<StoredRecord>, JobError> {
        if id.len() > LONGEST_ID {
            return Ok(None);
        }
        let entry = self.0.bus.get(Bucket::Jobs, &escape_token(id)).await?;
        let kept =
            |entry: trireme_bus::Entry| Ok(StoredRecord { record: decode(&entry.value)?, revision: entry.revision });
        entry.map(kept).transpose()
    }

    /// Writes a record, over the one of revision `expect` (0: there is none).
    pub(crate) async fn write(&self, id: &str, record: &Record, expect: u64, lapse: Option<Duration>) -> Written {
        Written::of(self.try_write(id, record, expect, lapse).await)
    }

    async fn try_write(
        &self,
        id: &str,
        record: &Record,
        expect: u64,
        lapse: Option<Duration>,
    ) -> Result<u64, BusError> {
        let value = rmp_serde::to_vec_named(record).map_err(|error| refused("writing a record", &error))?;
        let (key, value) = (escape_token(id), Bytes::from(value));
        let put = || self.0.bus.put(Bucket::Jobs, &key, value.clone(), Some(expect), lapse);
        let written = match put().await {
            // A job that is there can be changed.
            Err(BusError::StoreFull { .. }) if expect > 0 && self.use_reserve().await? => put().await,
            written => written,
        };
        let revision = written?;
        self.0.index.put(id, record, revision);
        Ok(revision)
    }

    /// Writes a record over the one of this revision. Returns its revision; `None` if there is another one.
    pub(crate) async fn replace(
        &self,
        id: &str,
        record: &Record,
        revision: u64,
        lapse: Option<Duration>,
    ) -> Result<Option<u64>, JobError> {
        match self.write(id, record, revision, lapse).await.stored() {
            Ok(written) => Ok(Some(written)),
            Err(BusError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a record. Returns whether it was there, with this revision if one is expected.
    pub(crate) async fn erase(&self, id: &str, expect: Option<u64>) -> Result<bool, BusError> {
        match self.0.bus.delete(Bucket::Jobs, &escape_token(id), expect).await {
            Ok(was_there) => {
                self.0.index.remove(id);
                Ok(was_there)
            }
            Err(BusError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes a record: `change` gets the present one and returns the lapse of the changed one, or `None` to leave it.
    /// Returns the record that is then in the store.
    pub(crate) async fn change(
        &self,
        id: &str,
        mut change: impl FnMut(&mut Record) -> Option<Option<Duration>>,
    ) -> Result<Option<Record>, JobError> {
        for _ in 0..CHANGES {
            let Some(StoredRecord { mut record, revision }) = self.read(id).await? else { return Ok(None) };
            let Some(lapse) = change(&mut record) else { return Ok(Some(record)) };
            if self.replace(id, &record, revision, lapse).await?.is_some() {
                return Ok(Some(record));
            }
        }
        Err(BusError::Conflict { key: id.to_owned() }.into())
    }

    /// Ends a job whose task has panicked, or its webhook if the job had ended.
    pub(crate) async fn fail(&self, id: &str) -> Result<(), JobError> {
        const WHY: &str = "the server failed while it worked on this job; the gateway's log has the reason";
        let live = self.0.options.time_to_live;
        let failed = self.change(id, |record| {
            if record.open_for() != Some(&self.0.own) {
                return None;
            }
            match record {
                Record::Request(request) if request.state == RequestState::Queued => {
                    let answer = JobAnswer::error(500, WHY);
                    request.answer_body = Body::Here(answer.body.clone());
                    request.answer = Some(JobAnswer { body: Bytes::new(), ..answer });
                    request.state = RequestState::Completed;
                    request.ended = Some(self.now());
                }
                Record::Batch(batch) if !batch.state.is_end() => {
                    batch.state = BatchState::Failed;
                    batch.failure = Some(WHY.to_owned());
                    batch.ended = Some(self.now());
                }
                other => {
                    let webhook = other.webhook_mut()?;
                    webhook.state = WebhookState::Failed;
                    webhook.failure = Some(WHY.to_owned());
                }
            }
            Some(Some(live))
        });
        failed.await.map(drop)
    }

    /// Keeps a body: in the record that names it, or as the object `name`.
    pub(crate) async fn keep(&self, name: String, body: &Bytes, lapse: Option<Duration>) -> Result<Body, JobError> {
        if body.len() <= BODY_IN_RECORD {
            return Ok(Body::Here(body.clone()));
        }
        let mut writer = Writer::append(self.0.bus.as_ref(), Object { name, ..Object::default() }, lapse);
        writer.write(body).await?;
        Ok(Body::Stored(writer.finish().await?))
    }

    /// The bytes of a body.
    pub(crate) async fn body(&self, body: &Body) -> Result<Bytes, JobError> {
        match body {
            Body::Here(bytes) => Ok(bytes.clone()),
            Body::Stored(object) => objects::read_whole(self.0.bus.as_ref(), object).await,
        }
    }

    /// Deletes a body. An error leaves bytes in the store that nothing names, so it is only logged.
    pub(crate) async fn discard(&self, body: &Body) {
        let Body::Stored(object) = body else { return };
        if let Err(error) = objects::delete(self.0.bus.as_ref(), object).await {
            tracing::warn!(object = object.name, %error, "an object that no job needs any more could not be deleted");
        }
    }
}

/// Reads a record.
pub fn decode(value: &[u8]) -> Result<Record, BusError> {
    rmp_serde::from_slice(value).map_err(|error| refused("reading a record", &error))
}

fn refused(action: &'static str, error: &dyn std::error::Error) -> BusError {
    BusError::Refused { action, reason: error.to_string() }
}
