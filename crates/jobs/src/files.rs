//! Files: written as they arrive, read as they are sent, listed and deleted.

use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use trireme_bus::{Bucket, BusError};

use crate::objects::{self, Writer};
use crate::record::{File, Object, Record};
use crate::store::{Kept, decode, new_id, now};
use crate::{JobError, Jobs};

/// The kind of record in errors.
const KIND: &str = "file";

/// The prefix of ids.
const PREFIX: &str = "file-";

/// A file that arrives.
pub struct Upload<'a> {
    jobs: &'a Jobs,
    id: String,
    writer: Writer<'a>,
    lapse: Option<Duration>,
}

/// The bytes of a file on their way out.
pub type Content = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, BusError>> + Send>>;

// === impl Jobs ===

impl Jobs {
    /// Begins a file, which is deleted after `lapse`.
    pub fn upload(&self, lapse: Option<Duration>) -> Upload<'_> {
        let id = new_id(PREFIX);
        let object = Object { name: id.clone(), ..Object::default() };
        Upload { jobs: self, id, writer: Writer::append(self.0.bus.as_ref(), object, lapse), lapse }
    }

    /// The record of a file.
    pub async fn file(&self, id: &str) -> Result<File, JobError> {
        match self.read(id).await?.map(|kept| kept.record) {
            Some(Record::File(file)) => Ok(file),
            _ => Err(unknown(id)),
        }
    }

    /// The bytes of a file.
    pub fn content(&self, file: &File) -> Content {
        let (jobs, objects) = (self.clone(), file.objects.clone());
        let parts = objects.into_iter().flat_map(|object| (0..object.parts).map(move |part| (object.name.clone(), part)));
        Box::pin(futures_util::stream::unfold((jobs, parts), |(jobs, mut parts)| async move {
            let (object, part) = parts.next()?;
            Some((objects::read_part(jobs.0.bus.as_ref(), &object, part).await, (jobs, parts)))
        }))
    }

    /// Joins files to a new one, in this order. The files are gone afterwards.
    pub async fn join_files(
        &self,
        name: &str,
        purpose: &str,
        ids: &[String],
        lapse: Option<Duration>,
    ) -> Result<(String, File), JobError> {
        let mut objects = Vec::new();
        for id in ids {
            objects.extend(self.file(id).await?.objects);
        }
        let bytes = objects.iter().map(|object| object.bytes).sum();
        let file = File {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            bytes,
            created: now(),
            expires: lapse.map(|lapse| now() + lapse.as_secs()),
            objects,
        };
        let id = new_id(PREFIX);
        self.write(&id, &Record::File(file.clone()), 0, lapse).await?;
        for id in ids {
            self.forget(id).await?;
        }
        Ok((id, file))
    }

    /// All files, the oldest first.
    pub async fn files(&self) -> Result<Vec<(String, File)>, JobError> {
        let records = self.records().await?;
        Ok(records.into_iter().filter_map(|(id, record)| Some((id, record.into_file()?))).collect())
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

    /// Makes a file of an object that a batch has written. It may exist already, from before a crash.
    pub(crate) async fn publish(
        &self,
        id: &str,
        name: String,
        object: &Object,
        lapse: Option<Duration>,
    ) -> Result<(), JobError> {
        let file = File {
            name,
            purpose: "batch_output".to_owned(),
            bytes: object.bytes,
            created: now(),
            expires: lapse.map(|lapse| now() + lapse.as_secs()),
            objects: vec![object.clone()],
        };
        let revision = self.read_now(id).await?.map_or(0, |kept: Kept| kept.revision);
        self.write(id, &Record::File(file), revision, lapse).await?;
        Ok(())
    }
}

// === impl Upload ===

impl Upload<'_> {
    /// Adds bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        Ok(self.writer.write(bytes).await?)
    }

    /// Ends the file. It is in the store when this returns.
    pub async fn finish(self, name: &str, purpose: &str) -> Result<(String, File), JobError> {
        let object = self.writer.finish().await?;
        let file = File {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            bytes: object.bytes,
            created: now(),
            expires: self.lapse.map(|lapse| now() + lapse.as_secs()),
            objects: vec![object],
        };
        self.jobs.write(&self.id, &Record::File(file.clone()), 0, self.lapse).await?;
        Ok((self.id, file))
    }

    /// Gives the file up: its parts are deleted.
    pub async fn abandon(self) -> Result<(), JobError> {
        let jobs = self.jobs;
        let object = self.writer.finish().await?;
        Ok(objects::delete(jobs.0.bus.as_ref(), &object).await?)
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
