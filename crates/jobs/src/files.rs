//! Files: written as they arrive, read as they are sent, listed and deleted.
//!
//! A file's bytes lie in the store without a time to live, and its record names when it expires: a gateway's driver deletes what has
//! expired. So the terms of a file may come behind its bytes, and the parts of an upload become a file as they are.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use ring::digest::{Context, SHA256};
use trireme_bus::BusError;

use crate::error::JobError;
use crate::jobs::Jobs;
use crate::objects::{self, Lease, Reader, Writer};
use crate::quotas::More;
use crate::record::{File, Object, Purpose, Record};
use crate::requests::sha256;
use crate::store::{StoredRecord, new_id, now};

/// The kind of record in errors.
const KIND: &str = "file";

/// The prefix of ids.
const PREFIX: &str = "file-";

/// The record of a file that arrives is written again after so many parts.
const NOTED_PARTS: u64 = 64;

/// Names of batches over a file are looked through when there are so many: most of those have ended.
const USERS: usize = 16;

/// How much longer a file that is in use is kept at a time, once it has expired.
const HELD: Duration = Duration::from_secs(60);

/// A file that arrives. Its record names the time until which new bytes have to come: a gateway deletes the parts of a file whose client or
/// gateway is gone.
pub struct Arrival<'a> {
    jobs: &'a Jobs,
    id: String,
    writer: Writer<'a>,
    /// The revision of its record, 0 before the first bytes; how many parts that has, and when it was written.
    revision: u64,
    noted: u64,
    noted_at: Instant,
    noted_bytes: u64,
    /// Whether it becomes a file by itself, not a part of one.
    is_file: bool,
    digest: Context,
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
            noted_at: Instant::now(),
            noted_bytes: 0,
            is_file,
            digest: Context::new(&SHA256),
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
                if file.purpose().is_file() && self.sees(&file.client) =>
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
            if self.replace(id, &Record::File(file.clone()), revision, lapse_of(&file)).await?.is_some() {
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
        let deleted = File { expires: Some(now()), ..File::new("", "", Purpose::Deleted, now()) };
        let changed = self.change(id, |record| {
            *record = Record::File(deleted.clone());
            Some(None)
        });
        match changed.await {
            Ok(_) | Err(JobError::Bus(BusError::StoreFull { .. })) => self.forget(id).await,
            Err(error) => Err(error),
        }
    }

    /// Makes a record of this revision one of no file, and deletes its bytes. Those that cannot be deleted now are deleted by a gateway's driver.
    /// Returns whether it was this revision.
    pub(crate) async fn drop_file(&self, id: &str, file: File, revision: u64) -> Result<bool, JobError> {
        let objects = file.objects.clone();
        let deleted = Record::File(File { purpose: Purpose::Deleted.name().to_owned(), expires: Some(now()), ..file });
        match self.write(id, &deleted, revision, None).await {
            Ok(_) => {}
            Err(BusError::Conflict { .. }) => return Ok(false),
            // There is no room to write that.
            Err(BusError::StoreFull { .. }) => {
                if !self.erase(id, Some(revision)).await? {
                    return Ok(false);
                }
                for object in objects {
                    objects::delete_all(self.0.bus.as_ref(), &object).await?;
                }
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = self.sweep(id).await {
            tracing::warn!(file = id, %error, "the bytes of a deleted file could not be deleted yet");
        }
        Ok(true)
    }

    /// Deletes a file that has stopped to arrive, a part whose upload was not completed, or a file that has expired. Returns when it is to be
    /// looked at again, if it is held.
    pub(crate) async fn sweep(&self, id: &str) -> Result<Option<u64>, JobError> {
        let Some(StoredRecord { record: Record::File(file), revision }) = self.read(id).await? else { return Ok(None) };
        if file.expires.is_none_or(|at| at > now()) {
            return Ok(file.expires);
        }
        if !self.users_of(&file).await?.is_empty() {
            return Ok(Some(now() + HELD.as_secs()));
        }
        let is_whole = file.purpose().is_file();
        if file.purpose() == Purpose::Arriving {
            tracing::info!(file = id, "a file has stopped to arrive: its parts are deleted");
        }
        // The record of a whole file goes first: a batch may begin to read it. If that of another one cannot be deleted, another gateway was
        // faster, or the client goes on: its file will miss parts, and it hears of that at the end.
        if is_whole && !self.erase(id, Some(revision)).await? {
            return Ok(None);
        }
        // The gateway that ended an upload may have stopped after it wrote the file, which has the bytes then.
        let has_file = match &file.file {
            Some(file) => self.read(file).await?.is_some(),
            None => false,
        };
        for object in file.objects.iter().filter(|_| !has_file) {
            objects::delete_all(self.0.bus.as_ref(), object).await?;
        }
        if !is_whole {
            self.erase(id, Some(revision)).await?;
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
            expires: Some(now() + lapse.as_secs()),
            objects: vec![object.clone()],
            ..File::new(client, &name, Purpose::BatchOutput, now())
        };
        let revision = self.read(id).await?.map_or(0, |kept: StoredRecord| kept.revision);
        lease.check().await?;
        self.write(id, &Record::File(file), revision, Some(lapse)).await?;
        Ok(())
    }
}

/// The time to live of a file's record: what a batch has written lapses by itself.
fn lapse_of(file: &File) -> Option<Duration> {
    let lapses = file.purpose() == Purpose::BatchOutput;
    file.expires.filter(|_| lapses).map(|at| Duration::from_secs(at.saturating_sub(now()).max(1)))
}

// === impl Arrival ===

impl Arrival<'_> {
    /// Adds bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        if self.revision == 0 && self.is_file {
            self.jobs.check_quota(More::File).await?;
        }
        // Its bytes up to the last note are counted.
        let uncounted = (self.writer.len() - self.noted_bytes).saturating_add(bytes.len() as u64);
        self.jobs.check_quota(More::Bytes(uncounted)).await?;
        let patience = self.jobs.0.options.upload_patience;
        let is_old = self.noted_at.elapsed() > patience / 4;
        if self.revision == 0 || is_old || self.writer.object().parts >= self.noted + NOTED_PARTS {
            self.noted = self.writer.object().parts;
            self.noted_bytes = self.writer.object().bytes;
            let file = self.record("", Purpose::Arriving, Some(now() + patience.as_secs()));
            self.revision = self.note(file).await?;
            self.noted_at = Instant::now();
        }
        self.digest.update(bytes);
        Ok(self.writer.write(bytes).await?)
    }

    /// Ends the file, which is deleted after `lapse`. It is in the store when this returns.
    pub async fn finish(self, name: &str, lapse: Option<Duration>) -> Result<(String, File), JobError> {
        self.finish_as(name, Purpose::Batch, lapse, None).await
    }

    /// Like [`Arrival::finish`]. With `key` a second file with the same key, name, terms and bytes is the first one.
    pub async fn finish_once(
        mut self,
        name: &str,
        lapse: Option<Duration>,
        key: Option<&str>,
    ) -> Result<(String, File), JobError> {
        let Some(key) = key else { return self.finish(name, lapse).await };
        self.writer.flush().await?;
        let bytes = self.digest.clone().finish();
        let terms = lapse.map_or(0, |lapse| lapse.as_secs()).to_le_bytes();
        let digest = Bytes::from(sha256(&[name.as_bytes(), &terms, bytes.as_ref()]));
        let id = format!("{PREFIX}{}", self.jobs.id_of_key(key));
        if let Err(error) = self.jobs.check_key(key, PREFIX).await {
            self.abandon().await?;
            return Err(error);
        }
        let expires = lapse.map(|lapse| now().saturating_add(lapse.as_secs()));
        let file = File { digest, ..self.record(name, Purpose::Batch, expires) };
        // The bytes are this record's no more, so that they do not go with it.
        let left = Some(now() + self.jobs.0.options.upload_patience.as_secs());
        let arrived = File { objects: Vec::new(), ..self.record("", Purpose::Arriving, left) };
        self.note(arrived).await?;
        let there = match self.jobs.write(&id, &Record::File(file.clone()), 0, None).await {
            Ok(_) => Ok(file),
            Err(BusError::Conflict { .. }) => match self.jobs.file(&id).await {
                Ok(there) if there.digest == file.digest => Ok(there),
                Ok(_) => Err(JobError::OtherRequest),
                Err(error) => Err(error),
            },
            Err(error) => Err(error.into()),
        };
        if !there.as_ref().is_ok_and(|there| there.objects == self.record("", Purpose::Batch, None).objects) {
            objects::delete_all(self.jobs.0.bus.as_ref(), self.writer.object()).await?;
        }
        self.jobs.forget(&self.id).await?;
        Ok((id, there?))
    }

    /// Ends the file with another purpose; `upload` is the one that it is a part of.
    pub(crate) async fn finish_as(
        mut self,
        name: &str,
        purpose: Purpose,
        lapse: Option<Duration>,
        upload: Option<String>,
    ) -> Result<(String, File), JobError> {
        self.writer.flush().await?;
        let expires = lapse.map(|lapse| now().saturating_add(lapse.as_secs()));
        let file = File { upload, ..self.record(name, purpose, expires) };
        self.note(file.clone()).await?;
        Ok((self.id, file))
    }

    /// Gives the file up: its parts are deleted.
    pub async fn abandon(self) -> Result<(), JobError> {
        objects::delete_all(self.jobs.0.bus.as_ref(), self.writer.object()).await?;
        self.jobs.forget(&self.id).await
    }

    fn record(&self, name: &str, purpose: Purpose, expires: Option<u64>) -> File {
        let object = self.writer.object().clone();
        let file = File::new(self.jobs.client(), name, purpose, now());
        File { bytes: object.bytes, expires, objects: vec![object], ..file }
    }

    /// Writes its record. An error if its parts were deleted meanwhile.
    async fn note(&self, file: File) -> Result<u64, JobError> {
        Ok(self.jobs.write(&self.id, &Record::File(file), self.revision, None).await?)
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
