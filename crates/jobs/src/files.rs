//! Files: written as they arrive, read as they are sent, listed and deleted.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use trireme_bus::{Bucket, BusError};

use crate::error::JobError;
use crate::jobs::Jobs;
use crate::objects::{self, Writer};
use crate::record::{File, Object, Record};
use crate::store::{Kept, decode, new_id, now};

/// The kind of record in errors.
const KIND: &str = "file";

/// The prefix of ids.
const PREFIX: &str = "file-";

/// The purpose of the record of an upload that is not complete.
const UPLOAD: &str = "upload";

/// The purpose of the record of a file whose bytes still arrive. No client sees it.
pub(crate) const ARRIVING: &str = "arriving";

/// The record of a file that arrives is written again after so many parts.
const NOTED_PARTS: u64 = 64;

/// A file that arrives. Its record names the time until which new bytes have to come: a gateway deletes the parts of a file whose client or
/// gateway is gone.
pub struct Upload<'a> {
    jobs: &'a Jobs,
    id: String,
    writer: Writer<'a>,
    lapse: Option<Duration>,
    /// The revision of its record, 0 before the first bytes; how many parts that has, and when it was written.
    revision: u64,
    noted: u64,
    noted_at: Instant,
}

/// The bytes of a file on their way out.
pub type Content = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, BusError>> + Send>>;

// === impl Jobs ===

impl Jobs {
    /// Begins a file, which is deleted after `lapse`.
    pub fn upload(&self, lapse: Option<Duration>) -> Upload<'_> {
        let id = new_id(PREFIX);
        let object = Object { name: id.clone(), ..Object::default() };
        let writer = Writer::append(self.0.bus.as_ref(), object, lapse);
        Upload { jobs: self, id, writer, lapse, revision: 0, noted: 0, noted_at: Instant::now() }
    }

    /// The record of a file.
    pub async fn file(&self, id: &str) -> Result<File, JobError> {
        match self.read(id).await?.map(|kept| kept.record) {
            Some(Record::File(file)) if file.purpose != ARRIVING => Ok(file),
            _ => Err(unknown(id)),
        }
    }

    /// The bytes of a file.
    pub fn content(&self, file: &File) -> Content {
        let (jobs, objects) = (self.clone(), file.objects.clone());
        let parts =
            objects.into_iter().flat_map(|object| (0..object.parts).map(move |part| (object.name.clone(), part)));
        Box::pin(futures_util::stream::unfold((jobs, parts), |(jobs, mut parts)| async move {
            let (object, part) = parts.next()?;
            Some((objects::read_part(jobs.0.bus.as_ref(), &object, part).await, (jobs, parts)))
        }))
    }

    /// Joins files to a new one, in this order, which expires with the first of them. The files are gone afterwards.
    async fn join_files(&self, name: &str, purpose: &str, ids: &[String]) -> Result<(String, File), JobError> {
        let (mut objects, mut expires) = (Vec::new(), None);
        for id in ids {
            let part = self.file(id).await?;
            expires = expires.into_iter().chain(part.expires).min();
            objects.extend(part.objects);
        }
        let bytes = objects.iter().map(|object| object.bytes).sum();
        let file = File { name: name.to_owned(), purpose: purpose.to_owned(), bytes, created: now(), expires, objects };
        let id = new_id(PREFIX);
        let lapse = expires.map(|at| Duration::from_secs(at.saturating_sub(now())));
        self.write(&id, &Record::File(file.clone()), 0, lapse).await?;
        for id in ids {
            self.forget(id).await?;
        }
        Ok((id, file))
    }

    /// Begins an upload of `bytes` bytes in parts; returns its id and record. The parts are files of their own until then.
    pub async fn begin_upload(&self, name: &str, bytes: u64, time: Duration) -> Result<(String, File), JobError> {
        let file = File {
            name: name.to_owned(),
            purpose: UPLOAD.to_owned(),
            bytes,
            created: now(),
            expires: Some(now() + time.as_secs()),
            objects: Vec::new(),
        };
        let id = new_id("upload_");
        self.write(&id, &Record::File(file.clone()), 0, Some(time)).await?;
        Ok((id, file))
    }

    /// Ends an upload: its parts, in this order, become a file.
    pub async fn complete_upload(&self, id: &str, parts: &[String]) -> Result<(String, File), JobError> {
        let upload = self.file(id).await?;
        if upload.purpose != UPLOAD {
            return Err(JobError::Invalid(format!("'{id}' is a file and no upload")));
        }
        let mut bytes = 0;
        for part in parts {
            bytes += self.file(part).await?.bytes;
        }
        if bytes != upload.bytes {
            let announced = upload.bytes;
            return Err(JobError::Invalid(format!(
                "the parts have {bytes} bytes, but the upload announced {announced}"
            )));
        }
        let joined = self.join_files(&upload.name, "batch", parts).await?;
        self.forget(id).await?;
        Ok(joined)
    }

    /// All files, the oldest first, without uploads that are not complete.
    pub async fn files(&self) -> Result<Vec<(String, File)>, JobError> {
        let records = self.records().await?;
        Ok(records
            .into_iter()
            .filter_map(|(id, record)| Some((id, record.into_file()?)))
            .filter(|(_, file)| ![UPLOAD, ARRIVING].contains(&file.purpose.as_str()))
            .collect())
    }

    /// Deletes a file and its bytes.
    pub async fn delete_file(&self, id: &str) -> Result<(), JobError> {
        let file = self.file(id).await?;
        self.forget(id).await?;
        for object in &file.objects {
            objects::delete(self.0.bus.as_ref(), object).await?;
        }
        Ok(())
    }

    /// Deletes a file whose bytes have stopped to arrive.
    pub(crate) async fn sweep(&self, id: &str) -> Result<(), JobError> {
        let Some(Kept { record: Record::File(file), revision }) = self.read(id).await? else { return Ok(()) };
        if file.purpose != ARRIVING || file.expires.is_none_or(|at| at > now()) {
            return Ok(());
        }
        tracing::info!(file = id, "a file has stopped to arrive: its parts are deleted");
        for object in &file.objects {
            objects::delete_all(self.0.bus.as_ref(), object).await?;
        }
        match self.0.bus.delete(Bucket::Jobs, &trireme_bus::escape_token(id), Some(revision)).await {
            // Another gateway was faster, or the client goes on: its file will miss parts, and it hears of that at the end.
            Ok(_) | Err(BusError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// All records, the one that was changed first at the beginning.
    pub(crate) async fn records(&self) -> Result<Vec<(String, Record)>, JobError> {
        let (mut records, mut revision) = (Vec::new(), 0);
        while let Some(entry) = self.0.bus.next(Bucket::Jobs, revision).await? {
            revision = entry.revision;
            match decode(&entry.value) {
                Ok(record) => records.push((entry.key, record)),
                Err(error) => tracing::warn!(job = entry.key, %error, "a job that cannot be read is left alone"),
            }
        }
        Ok(records)
    }

    /// Removes a record.
    pub(crate) async fn forget(&self, id: &str) -> Result<(), JobError> {
        self.0.bus.delete(Bucket::Jobs, &trireme_bus::escape_token(id), None).await?;
        Ok(())
    }

    /// Writes the record of a file whose bytes are `object`. A batch that crashed may have written the record before.
    pub(crate) async fn publish(
        &self,
        id: &str,
        name: String,
        object: &Object,
        lapse: Option<Duration>,
    ) -> Result<(), JobError> {
        let expires = lapse.map(|lapse| now() + lapse.as_secs());
        let file = as_file(&name, "batch_output", object.clone(), expires);
        let revision = self.read(id).await?.map_or(0, |kept: Kept| kept.revision);
        self.write(id, &Record::File(file), revision, lapse).await?;
        Ok(())
    }
}

// === impl Upload ===

impl Upload<'_> {
    /// Adds bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        let patience = self.jobs.0.options.upload_patience;
        let is_old = self.noted_at.elapsed() > patience / 4;
        if self.revision == 0 || is_old || self.writer.object().parts >= self.noted + NOTED_PARTS {
            let object = self.writer.object().clone();
            self.noted = object.parts;
            let expires = Some(now() + patience.as_secs());
            self.revision = self.note(as_file("", ARRIVING, object, expires), None).await?;
            self.noted_at = Instant::now();
        }
        Ok(self.writer.write(bytes).await?)
    }

    /// Ends the file. It is in the store when this returns.
    pub async fn finish(mut self, name: &str, purpose: &str) -> Result<(String, File), JobError> {
        self.writer.flush().await?;
        let expires = self.lapse.map(|lapse| now() + lapse.as_secs());
        let file = as_file(name, purpose, self.writer.object().clone(), expires);
        self.note(file.clone(), self.lapse).await?;
        Ok((self.id, file))
    }

    /// Gives the file up: its parts are deleted.
    pub async fn abandon(self) -> Result<(), JobError> {
        objects::delete_all(self.jobs.0.bus.as_ref(), self.writer.object()).await?;
        self.jobs.forget(&self.id).await
    }

    /// Writes its record. An error if its parts were deleted meanwhile.
    async fn note(&self, file: File, lapse: Option<Duration>) -> Result<u64, JobError> {
        Ok(self.jobs.write(&self.id, &Record::File(file), self.revision, lapse).await?)
    }
}

/// The record of a file with the bytes of `object`.
fn as_file(name: &str, purpose: &str, object: Object, expires: Option<u64>) -> File {
    let (name, purpose) = (name.to_owned(), purpose.to_owned());
    File { name, purpose, bytes: object.bytes, created: now(), expires, objects: vec![object] }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
