//! Files: written as they arrive, read as they are sent, listed and deleted.
//!
//! A file's bytes lie in the store without a time to live, and its record names when it expires: a gateway's driver deletes what has
//! expired. So the terms of a file may come behind its bytes, and the parts of an upload become a file as they are.

use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use ring::digest::{Context, SHA256};
use trireme_bus::BusError;

use crate::error::JobError;
use crate::index::Promised;
use crate::jobs::Jobs;
use crate::objects::{self, Lease, Reader, Writer};
use crate::quotas::Usage;
use crate::record::{File, Object, Purpose, Record};
use crate::requests::sha256;
use crate::store::{StoredRecord, Written, may_be_stored, new_id};

/// The kind of record in errors.
const KIND: &str = "file";

/// The prefix of ids.
const PREFIX: &str = "file-";

/// The record of a file that arrives is written again after so many parts.
const NOTED_PARTS: u64 = 64;

/// Names of batches over a file are looked through when there are so many: most of those have ended.
const USERS: usize = 16;

/// Pause before the bytes of a file are deleted again that could not be deleted.
pub(crate) const AGAIN: Duration = Duration::from_secs(10);

/// How much longer a file that is in use is kept at a time, once it has expired.
const HELD: Duration = Duration::from_secs(60);

/// A file that arrives. Its record names the time until which new bytes have to come: a gateway deletes the parts of a file whose client or
/// gateway is gone.
pub struct Arrival<'a> {
    jobs: &'a Jobs,
    id: String,
    writer: Writer<'a>,
    /// The revision of its record, 0 before the first bytes; how many parts that has, and when it was written, in seconds since 1970.
    revision: u64,
    noted: u64,
    noted_at: u64,
    /// Whether it becomes a file by itself, not a part of one.
    is_file: bool,
    digest: Context,
    /// The owner's room for its bytes, where that is bounded.
    promised: Option<Promised>,
    /// Whether a part may arrive that the store has not confirmed.
    is_open: bool,
}

/// The bytes of a file on their way out.
pub type Content = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, JobError>> + Send>>;

// === impl Jobs ===

impl Jobs {
    /// Begins a file.
    pub fn arrival(&self) -> Arrival<'_> {
        self.arrival_as(new_id(PREFIX), true)
    }

    /// Begins the file `id`, or a part of one.
    pub(crate) fn arrival_as(&self, id: String, is_file: bool) -> Arrival<'_> {
        let object = Object { name: id.clone(), ..Object::default() };
        let writer = Writer::append(self.0.bus.as_ref(), object, None);
        Arrival {
            jobs: self,
            id,
            writer,
            revision: 0,
            noted: 0,
            noted_at: self.now(),
            is_file,
            digest: Context::new(&SHA256),
            promised: None,
            is_open: false,
        }
    }

    /// The record of a file, if it is one of this client's.
    pub async fn file(&self, id: &str) -> Result<File, JobError> {
        Ok(self.kept_file(id).await?.0)
    }

    /// The record of a file and its revision.
    async fn kept_file(&self, id: &str) -> Result<(File, u64), JobError> {
        match self.read(id).await? {
            Some(StoredRecord { record: Record::File(file), revision })
                if file.purpose.is_file() && self.sees(&file.client) =>
            {
                // Its bytes are there until the record is gone.
                Ok((file, revision))
            }
            _ => Err(unknown(id)),
        }
    }

    /// The bytes of a file.
    pub fn content(&self, file: &File) -> Content {
        self.content_from(file, 0)
    }

    /// The bytes of a file without the first `offset`.
    pub fn content_from(&self, file: &File, offset: u64) -> Content {
        self.bytes_of(file.objects.clone(), offset)
    }

    /// The bytes of objects, one after the other, without the first `offset`.
    pub(crate) fn bytes_of(&self, objects: Vec<Object>, offset: u64) -> Content {
        // Whole objects before the offset are not read.
        let (mut skip, mut objects) = (offset, objects.into_iter().peekable());
        while let Some(first) = objects.next_if(|first| skip >= first.bytes) {
            skip -= first.bytes;
        }
        let state = (self.clone(), objects, skip, None::<Reader>);
        Box::pin(futures_util::stream::try_unfold(state, |(jobs, mut objects, mut skip, mut reader)| async move {
            let bus = jobs.0.bus.as_ref();
            loop {
                if let Some(own) = &mut reader
                    && let Some(bytes) = own.next(bus).await?
                {
                    return Ok(Some((bytes, (jobs, objects, skip, reader))));
                }
                let Some(object) = objects.next() else { return Ok(None) };
                reader = Some(Reader::at(bus, object, std::mem::take(&mut skip)).await?);
            }
        }))
    }

    /// Notes that batch `user` reads a file, so that the file stays. Returns its record.
    pub(crate) async fn hold_file(&self, id: &str, user: &str) -> Result<File, JobError> {
        loop {
            let (mut file, revision) = self.kept_file(id).await?;
            if file.used_by.len() >= USERS {
                file.used_by = self.users_of(&file).await?;
            }
            file.used_by.push(user.to_owned());
            if self.replace(id, &Record::File(file.clone()), revision, self.lapse_of(&file)).await?.is_some() {
                return Ok(file);
            }
        }
    }

    /// The batches over a file that have not ended.
    async fn users_of(&self, file: &File) -> Result<Vec<String>, JobError> {
        let mut users = Vec::new();
        for user in &file.used_by {
            let batch = self.read(user).await?.and_then(|kept| kept.record.into_batch());
            if batch.is_some_and(|batch| !batch.state.is_end()) {
                users.push(user.clone());
            }
        }
        Ok(users)
    }

    /// Deletes a file and its bytes. An error if a batch reads it.
    pub async fn delete_file(&self, id: &str) -> Result<(), JobError> {
        let (file, revision) = self.kept_file(id).await?;
        if let Some(batch) = self.users_of(&file).await?.pop() {
            return Err(JobError::InUse { id: id.to_owned(), batch });
        }
        // A batch may have begun to read it.
        match self.drop_file(id, file, revision).await? {
            true => Ok(()),
            false => Err(JobError::InUse { id: id.to_owned(), batch: "another request".to_owned() }),
        }
    }

    /// Deletes a record that has no bytes any more.
    pub(crate) async fn drop_record(&self, id: &str) -> Result<(), JobError> {
        let now = self.now();
        let deleted = File { expires: Some(now), ..File::new("", "", Purpose::Deleted, now) };
        let changed = self.change(id, |record| {
            *record = Record::File(deleted.clone());
            Some(None)
        });
        match changed.await {
            Ok(_) | Err(JobError::Bus(BusError::StoreFull { .. })) => self.forget(id).await,
            Err(error) => Err(error),
        }
    }

    /// Deletes a file of this revision, whatever is whole of it: first its record becomes one of no file, then its bytes go, then the record.
    /// Whatever stops in between is finished by a gateway's driver. Returns whether it was this revision.
    pub(crate) async fn drop_file(&self, id: &str, file: File, revision: u64) -> Result<bool, JobError> {
        let mut deleted = File { purpose: Purpose::Deleted, expires: Some(self.now()), ..file.clone() };
        if file.purpose == Purpose::Arriving {
            // Parts that came after its last note, and one that is on its way.
            deleted.objects.iter_mut().for_each(|object| object.parts += NOTED_PARTS + 1);
        }
        let marked = match self.write(id, &Record::File(deleted.clone()), revision, None).await {
            Written::Stored(marked) => marked,
            Written::Refused(BusError::Conflict { .. }) => return Ok(false),
            // There is no room for the mark until bytes are gone.
            Written::Refused(BusError::StoreFull { .. }) => {
                self.delete_bytes(&deleted).await?;
                return Ok(self.erase(id, Some(revision)).await?);
            }
            Written::Refused(error) | Written::Unknown(error) => return Err(error.into()),
        };
        if let Err(error) = self.drop_marked(id, &deleted, marked).await {
            tracing::warn!(file = id, %error, "the bytes of a deleted file could not be deleted yet");
        }
        Ok(true)
    }

    /// Deletes the bytes that the record of a deleted file names, and the record.
    async fn drop_marked(&self, id: &str, deleted: &File, revision: u64) -> Result<(), JobError> {
        self.delete_bytes(deleted).await?;
        self.erase(id, Some(revision)).await?;
        Ok(())
    }

    /// Deletes the bytes of a record, unless they are those of another record by now.
    async fn delete_bytes(&self, file: &File) -> Result<(), JobError> {
        for other in [&file.file, &file.upload].into_iter().flatten() {
            if let Some(StoredRecord { record: Record::File(other), .. }) = self.read(other).await?
                && other.objects.iter().any(|object| file.objects.iter().any(|own| own.name == object.name))
            {
                return Ok(());
            }
        }
        for object in &file.objects {
            objects::delete(self.0.bus.as_ref(), object).await?;
        }
        Ok(())
    }

    /// Deletes a file that has stopped to arrive, a part whose upload was not completed, or a file that has expired. Returns when it is to be
    /// looked at again, if it is held or its record has not gone yet.
    pub(crate) async fn sweep(&self, id: &str) -> Result<Option<u64>, JobError> {
        let Some(StoredRecord { record: Record::File(file), revision }) = self.read(id).await? else { return Ok(None) };
        if file.expires.is_none_or(|at| at > self.now()) {
            return Ok(file.expires);
        }
        if !self.users_of(&file).await?.is_empty() {
            return Ok(Some(self.now() + HELD.as_secs()));
        }
        match file.purpose {
            Purpose::Deleted => self.drop_marked(id, &file, revision).await?,
            purpose => {
                if purpose == Purpose::Arriving {
                    tracing::info!(file = id, "a file has stopped to arrive: its parts are deleted");
                }
                // A record that was changed meanwhile comes on the watch, as the end of this one does.
                self.drop_file(id, file, revision).await?;
                return Ok(Some(self.now() + AGAIN.as_secs()));
            }
        }
        Ok(None)
    }

    /// Removes a record.
    pub(crate) async fn forget(&self, id: &str) -> Result<(), JobError> {
        self.erase(id, None).await?;
        Ok(())
    }

    /// Writes the record of a file whose bytes are `object`, which lapse by themselves. A batch that crashed may have written the record
    /// before; another gateway that has taken the batch over since has the last word.
    pub(crate) async fn publish(
        &self,
        id: &str,
        lease: Lease<'_>,
        client: &str,
        name: String,
        object: &Object,
        lapse: Duration,
    ) -> Result<(), JobError> {
        let file = File {
            bytes: object.bytes,
            expires: Some(self.now() + lapse.as_secs()),
            objects: vec![object.clone()],
            ..File::new(client, &name, Purpose::BatchOutput, self.now())
        };
        let revision = self.read(id).await?.map_or(0, |kept: StoredRecord| kept.revision);
        lease.check().await?;
        self.write(id, &Record::File(file), revision, Some(lapse)).await.stored()?;
        Ok(())
    }

    /// The time to live of a file's record: only the output of a batch lapses by itself.
    fn lapse_of(&self, file: &File) -> Option<Duration> {
        let lapses = file.purpose == Purpose::BatchOutput;
        file.expires.filter(|_| lapses).map(|at| Duration::from_secs(at.saturating_sub(self.now()).max(1)))
    }
}

// === impl Arrival ===

impl Arrival<'_> {
    /// Adds bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        self.hold_room(bytes.len()).await?;
        self.note_progress().await?;
        self.digest.update(bytes);
        // A note comes after so many parts, however many bytes come at once.
        for piece in bytes.chunks(objects::PART) {
            self.note_progress().await?;
            let written = self.writer.write(piece).await;
            self.check(written)?;
        }
        Ok(())
    }

    /// Has room of the owner for the bytes so far and `more`.
    async fn hold_room(&mut self, more: usize) -> Result<(), JobError> {
        let bytes = self.writer.len().saturating_add(more as u64);
        let uses = Usage { files: u64::from(self.is_file), bytes, ..Usage::default() };
        match &self.promised {
            Some(promised) => promised.grow(uses, &self.jobs.0.options.quotas),
            None => {
                self.promised = self.jobs.promise(&self.id, uses).await?;
                Ok(())
            }
        }
    }

    /// Writes its record if that is missing or old.
    async fn note_progress(&mut self) -> Result<(), JobError> {
        let (now, patience) = (self.jobs.now(), self.jobs.0.options.upload_patience);
        let is_old = Duration::from_secs(now.saturating_sub(self.noted_at)) > patience / 4;
        if self.revision == 0 || is_old || self.writer.object().parts >= self.noted + NOTED_PARTS {
            self.noted = self.writer.object().parts;
            self.revision = self.note(self.record("", Purpose::Arriving, Some(now + patience.as_secs()))).await?;
            self.noted_at = now;
        }
        Ok(())
    }

    /// Notes whether a part that is not there may still arrive.
    fn check(&mut self, written: Result<(), BusError>) -> Result<(), BusError> {
        self.is_open |= written.as_ref().is_err_and(may_be_stored);
        written
    }

    /// Writes its last part. Returns whether that is done; the file is given up otherwise.
    async fn end(mut self) -> Result<Self, JobError> {
        let ended = match self.hold_room(0).await {
            Ok(()) => {
                let written = self.writer.flush().await;
                self.check(written).map_err(JobError::from)
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => Ok(self),
            Err(error) => {
                self.give_up().await;
                Err(error)
            }
        }
    }

    /// Ends the file, which is deleted after `lapse`. It is in the store when this returns.
    pub async fn finish(self, name: &str, lapse: Option<Duration>) -> Result<(String, File), JobError> {
        self.finish_as(name, Purpose::Batch, lapse, None).await
    }

    /// Like [`Arrival::finish`]. With `key` a second file with the same key, name, terms and bytes is the first one.
    pub async fn finish_once(
        self,
        name: &str,
        lapse: Option<Duration>,
        key: Option<&str>,
    ) -> Result<(String, File), JobError> {
        let Some(key) = key else { return self.finish(name, lapse).await };
        let mut arrival = self.end().await?;
        let jobs = arrival.jobs;
        let bytes = arrival.digest.clone().finish();
        let terms = lapse.map_or(0, |lapse| lapse.as_secs()).to_le_bytes();
        let digest = Bytes::from(sha256(&[name.as_bytes(), &terms, bytes.as_ref()]));
        let id = format!("{PREFIX}{}", jobs.id_of_key(key));
        if let Err(error) = jobs.check_key(key, PREFIX).await {
            arrival.give_up().await;
            return Err(error);
        }
        let expires = lapse.map(|lapse| jobs.now().saturating_add(lapse.as_secs()));
        let file = File { digest, ..arrival.record(name, Purpose::Batch, expires) };
        // From here on its bytes may be the file's: before the arrival's record is deleted, the file is looked for.
        let left = Some(jobs.now() + jobs.0.options.upload_patience.as_secs());
        let arrived = File { file: Some(id.clone()), ..arrival.record("", Purpose::Arriving, left) };
        arrival.note(arrived).await?;
        if let Some(promised) = &mut arrival.promised {
            promised.move_to(&id);
        }
        let written = jobs.write(&id, &Record::File(file.clone()), 0, None).await;
        let there = match &written {
            Written::Stored(_) => Some(file.clone()),
            // It may be this one: a confirmation that was lost, or a write that was sent again.
            Written::Refused(BusError::Conflict { .. }) | Written::Unknown(_) => match jobs.file(&id).await {
                Ok(there) => Some(there),
                Err(JobError::Unknown { .. }) => None,
                // The driver finds out later whose bytes these are.
                Err(error) => return Err(error),
            },
            Written::Refused(_) => None,
        };
        let is_own = there.as_ref().is_some_and(|there| there.objects == file.objects);
        match &written {
            _ if is_own => {
                if let Err(error) = jobs.forget(&arrival.id).await {
                    tracing::debug!(file = arrival.id, %error, "the record of a file that has arrived is left to the driver");
                }
            }
            Written::Unknown(_) => {}
            _ => arrival.give_up().await,
        }
        match there {
            Some(there) if there.digest == file.digest => Ok((id, there)),
            Some(_) => Err(JobError::OtherRequest),
            None => Err(written.stored().err().unwrap_or(BusError::Conflict { key: id }).into()),
        }
    }

    /// Ends the file with another purpose; `upload` is the upload that it is a part of.
    pub(crate) async fn finish_as(
        self,
        name: &str,
        purpose: Purpose,
        lapse: Option<Duration>,
        upload: Option<String>,
    ) -> Result<(String, File), JobError> {
        let arrival = self.end().await?;
        let expires = lapse.map(|lapse| arrival.jobs.now().saturating_add(lapse.as_secs()));
        let file = File { upload, ..arrival.record(name, purpose, expires) };
        arrival.note(file.clone()).await?;
        Ok((arrival.id, file))
    }

    /// Gives the file up: its parts are deleted. A part that may still arrive is left to the driver, with the record.
    pub async fn abandon(self) -> Result<(), JobError> {
        objects::delete(self.jobs.0.bus.as_ref(), self.writer.object()).await?;
        match self.is_open {
            true => Ok(()),
            false => self.jobs.forget(&self.id).await,
        }
    }

    /// Gives the file up. An error here is only logged: the driver deletes the parts that are left.
    async fn give_up(self) {
        let id = self.id.clone();
        if let Err(error) = self.abandon().await {
            tracing::debug!(file = id, %error, "the parts of a file that was given up are left to the driver");
        }
    }

    fn record(&self, name: &str, purpose: Purpose, expires: Option<u64>) -> File {
        let object = self.writer.object().clone();
        let file = File::new(self.jobs.client(), name, purpose, self.jobs.now());
        File { bytes: object.bytes, expires, objects: vec![object], ..file }
    }

    /// Writes its record. An error if its parts were deleted meanwhile.
    async fn note(&self, file: File) -> Result<u64, JobError> {
        Ok(self.jobs.write(&self.id, &Record::File(file), self.revision, None).await.stored()?)
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
