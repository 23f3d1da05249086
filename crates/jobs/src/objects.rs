//! Bytes of any size in the store of objects, in parts.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use trireme_bus::{Bucket, Bus, BusError, escape_token};

use crate::error::JobError;
use crate::jobs::Jobs;
use crate::record::Object;

/// Bytes in a part: below the largest message of a broker with its default settings.
pub const PART: usize = 512 << 10;

/// How many times a part is read again that a broker of a cluster may not have yet, or written over another one; and the pause in between.
const LOOKS: u32 = 20;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Writes an object, part after part.
pub struct Writer<'a> {
    bus: &'a dyn Bus,
    object: Object,
    rest: BytesMut,
    lapse: Option<Duration>,
    /// Whose object it is, if other gateways may write it, too.
    lease: Option<Lease<'a>>,
}

/// The right to write what belongs to a job: its owner has it until the job ends. A gateway that was stopped, while another one took the
/// job over, finds here that it has lost it.
#[derive(Clone, Copy)]
pub(crate) struct Lease<'a> {
    pub jobs: &'a Jobs,
    /// The id of the job.
    pub id: &'a str,
}

fn key(object: &str, part: u64) -> String {
    format!("{}.{part}", escape_token(object))
}

// === impl Lease ===

impl Lease<'_> {
    /// An error if this gateway does not own the job any more. A value whose revision was read before may then be replaced by that
    /// revision: a new owner writes it only later, and changes the revision.
    pub async fn check(&self) -> Result<(), BusError> {
        let kept = self.jobs.read(self.id).await.map_err(|error| match error {
            JobError::Bus(error) => error,
            other => BusError::Refused { action: "reading a job", reason: other.to_string() },
        })?;
        match kept.as_ref().and_then(|kept| kept.record.open_for()) {
            Some(owner) if owner == self.jobs.0.own => Ok(()),
            _ => Err(BusError::Conflict { key: self.id.to_owned() }),
        }
    }
}

// === impl Writer ===

impl<'a> Writer<'a> {
    /// Goes on behind the parts of `object`. Parts that an earlier writer has written there are replaced.
    pub fn append(bus: &'a dyn Bus, object: Object, lapse: Option<Duration>) -> Writer<'a> {
        Writer { bus, object, rest: BytesMut::new(), lapse, lease: None }
    }

    /// Writes for a job: a part that is there is replaced by the job's owner only. [`BusError::Conflict`] if that is another gateway.
    pub fn leased(self, lease: Lease<'a>) -> Writer<'a> {
        Writer { lease: Some(lease), ..self }
    }

    /// Adds bytes.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), BusError> {
        while self.rest.len() + bytes.len() >= PART {
            let (now, later) = bytes.split_at(PART - self.rest.len());
            self.rest.extend_from_slice(now);
            bytes = later;
            self.flush().await?;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// The object with the parts that were written.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Bytes so far, those that are no whole part yet among them.
    pub fn len(&self) -> u64 {
        self.object.bytes + self.rest.len() as u64
    }

    /// Writes the last part. Returns the object with all its parts.
    pub async fn finish(mut self) -> Result<Object, BusError> {
        self.flush().await?;
        Ok(self.object)
    }

    /// Writes the bytes that are no whole part yet.
    pub async fn flush(&mut self) -> Result<(), BusError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let part = self.rest.split().freeze();
        let size = part.len() as u64;
        let key = key(&self.object.name, self.object.parts);
        let (mut expect, mut looks) = (self.lease.map(|_| 0), 0);
        loop {
            match self.bus.put(Bucket::Objects, &key, part.clone(), expect, self.lapse).await {
                Ok(_) => break,
                // Another writer's part: an earlier one's, or that of the job's new owner.
                Err(BusError::Conflict { .. }) => {
                    let there = self.bus.get(Bucket::Objects, &key).await?;
                    let Some(lease) = self.lease.filter(|_| looks < LOOKS) else {
                        return Err(BusError::Conflict { key });
                    };
                    lease.check().await?;
                    if looks > 0 {
                        // A broker of a cluster may not have the last revision yet.
                        tokio::time::sleep(LOOK_PAUSE).await;
                    }
                    looks += 1;
                    expect = Some(there.map_or(0, |entry| entry.revision));
                }
                Err(error) => return Err(error),
            }
        }
        self.object.parts += 1;
        self.object.bytes += size;
        Ok(())
    }
}

/// A part of an object.
pub async fn read_part(bus: &dyn Bus, object: &str, part: u64) -> Result<Bytes, JobError> {
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        if let Some(entry) = bus.get(Bucket::Objects, &key(object, part)).await? {
            return Ok(entry.value);
        }
    }
    Err(JobError::Lost(format!("part {part} of '{object}' is missing: it was deleted, or the broker lost it")))
}

/// The whole object.
pub async fn read_whole(bus: &dyn Bus, object: &Object) -> Result<Bytes, JobError> {
    let mut whole = BytesMut::new();
    for part in 0..object.parts {
        whole.extend_from_slice(&read_part(bus, &object.name, part).await?);
    }
    Ok(whole.freeze())
}

/// Deletes the parts of an object, and those that were written behind them.
pub async fn delete_all(bus: &dyn Bus, object: &Object) -> Result<(), BusError> {
    let mut part = 0;
    while bus.delete(Bucket::Objects, &key(&object.name, part), None).await? || part < object.parts {
        part += 1;
    }
    Ok(())
}

/// Deletes the parts of an object.
pub async fn delete(bus: &dyn Bus, object: &Object) -> Result<(), BusError> {
    for part in 0..object.parts {
        bus.delete(Bucket::Objects, &key(&object.name, part), None).await?;
    }
    Ok(())
}
