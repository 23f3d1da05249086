//! Bytes of any size in the store of objects, in parts.
//!
//! A part may have any size up to [`PART`]: a batch writes a short one at each checkpoint. So a part's value begins with the part's place,
//! the number of the object's bytes before it. A reader finds the part of a byte by that, and sees a value that is not the one it wants.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use trireme_bus::{Bucket, Bus, BusError, escape_token};

use crate::error::JobError;
use crate::jobs::Jobs;
use crate::record::Object;

/// Most bytes in a part: below the largest message of a broker with its default settings.
pub const PART: usize = 512 << 10;

/// Bytes of a part's place, in little endian order, before the part's own.
const PLACE: usize = size_of::<u64>();

/// How many times a part is read again that a broker of a cluster may not have yet, or written over another one; and the pause in between.
const LOOKS: u32 = 20;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Writes an object, part after part.
pub struct Writer<'a> {
    bus: &'a dyn Bus,
    object: Object,
    rest: BytesMut,
    lapse: Option<Duration>,
    /// The lease of its job, if other gateways may write the object, too.
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
        let size = self.rest.len() as u64;
        let part = Part::encode(self.object.bytes, &self.rest.split());
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
#[derive(Clone)]
pub struct Part {
    /// The object's bytes before it.
    pub place: u64,
    pub bytes: Bytes,
}

/// Reads an object part after part.
pub struct Reader {
    object: Object,
    /// The next part, and its place.
    part: u64,
    place: u64,
    /// The rest of a part that was found by an offset.
    found: Option<Bytes>,
}

// === impl Reader ===

impl Reader {
    /// Reads the whole object.
    pub fn new(object: Object) -> Reader {
        Reader { object, part: 0, place: 0, found: None }
    }

    /// Reads the object from byte `offset` on.
    pub async fn at(bus: &dyn Bus, object: Object, offset: u64) -> Result<Reader, JobError> {
        let mut reader = Reader::new(object);
        if offset > 0 {
            let (number, part) = find(bus, &reader.object, offset).await?;
            (reader.part, reader.place) = (number + 1, part.end());
            reader.found = Some(part.from(offset));
        }
        Ok(reader)
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self, bus: &dyn Bus) -> Result<Option<Bytes>, JobError> {
        if let Some(found) = self.found.take() {
            return Ok(Some(found));
        }
        if self.place >= self.object.bytes {
            return Ok(None);
        }
        let part = read_part(bus, &self.object, self.part, Some(self.place)).await?;
        (self.part, self.place) = (self.part + 1, part.end());
        Ok(Some(part.bytes))
    }
}

// === impl Part ===

impl Part {
    fn decode(mut value: Bytes) -> Option<Part> {
        let place = (value.len() >= PLACE).then(|| value.split_to(PLACE))?;
        Some(Part { place: u64::from_le_bytes(place.as_ref().try_into().ok()?), bytes: value })
    }

    fn encode(place: u64, bytes: &[u8]) -> Bytes {
        let mut value = BytesMut::with_capacity(PLACE + bytes.len());
        value.extend_from_slice(&place.to_le_bytes());
        value.extend_from_slice(bytes);
        value.freeze()
    }

    /// The place behind it.
    pub fn end(&self) -> u64 {
        self.place + self.bytes.len() as u64
    }

    pub fn contains(&self, offset: u64) -> bool {
        (self.place..self.end()).contains(&offset)
    }

    /// Its bytes from `offset` of the object on, which it contains.
    pub fn from(&self, offset: u64) -> Bytes {
        self.bytes.slice((offset - self.place) as usize..)
    }
}

/// A part of an object. With `place`, one that lies there.
async fn read_part(bus: &dyn Bus, object: &Object, part: u64, place: Option<u64>) -> Result<Part, JobError> {
    // Of the last part the end is known, too.
    let fits = |found: &Part| {
        let is_last = part + 1 == object.parts;
        place.is_none_or(|place| place == found.place) && (!is_last || found.end() == object.bytes)
    };
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        if let Some(entry) = bus.get(Bucket::Objects, &key(&object.name, part)).await?
            && let Some(found) = Part::decode(entry.value).filter(fits)
        {
            return Ok(found);
        }
    }
    Err(JobError::Lost(format!("part {part} of '{}' is missing: it was deleted, or the broker lost it", object.name)))
}

/// The part with byte `offset` of an object, and its number.
pub async fn find(bus: &dyn Bus, object: &Object, offset: u64) -> Result<(u64, Part), JobError> {
    let (mut first, mut behind) = (0, object.parts);
    // No part has more than `PART` bytes, so it is no earlier one; where all of them have as many, it is this one.
    let mut number = (offset / PART as u64).min(behind.saturating_sub(1));
    while first < behind {
        let part = read_part(bus, object, number, None).await?;
        if part.contains(offset) {
            return Ok((number, part));
        }
        match offset < part.place {
            true => behind = number,
            false => first = number + 1,
        }
        number = first + (behind - first) / 2;
    }
    Err(JobError::Lost(format!("byte {offset} of '{}' is in none of its {} parts", object.name, object.parts)))
}

/// The whole object.
pub async fn read_whole(bus: &dyn Bus, object: &Object) -> Result<Bytes, JobError> {
    let (mut whole, mut reader) = (BytesMut::new(), Reader::new(object.clone()));
    while let Some(bytes) = reader.next(bus).await? {
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}

/// Deletes the parts of an object.
pub async fn delete(bus: &dyn Bus, object: &Object) -> Result<(), BusError> {
    for part in 0..object.parts {
        bus.delete(Bucket::Objects, &key(&object.name, part), None).await?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests;
