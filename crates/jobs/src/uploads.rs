//! Uploads: a file whose bytes come in parts, each of which is stored when its request ends.
//!
//! An upload and its parts are records of their own kinds: neither is a file, and a part belongs to its upload. The record of an upload that
//! is complete names its file until the upload's time is over: a client that lost the answer asks again, and gets the same one.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use md5::{Digest, Md5};

use crate::error::JobError;
use crate::files::Arrival;
use crate::jobs::Jobs;
use crate::quotas::Usage;
use crate::record::{File, Purpose, Record};
use crate::requests::sha256;
use crate::store::{StoredRecord, new_id};

/// The kind of record in errors.
const KIND: &str = "upload";

/// The prefixes of ids.
const PREFIX: &str = "upload_";
const PART: &str = "part_";

/// The prefix of the id of the file that an upload becomes.
const FILE: &str = "file-";

/// Most parts of an upload, and most bytes.
const PARTS: usize = 10_000;
const BYTES: u64 = 1 << 40;

/// A file in parts that a client announces.
#[derive(Clone, Debug)]
pub struct NewUpload {
    /// Its name.
    pub name: String,
    /// Bytes of all parts.
    pub bytes: u64,
    /// How long the parts may take.
    pub time: Duration,
    /// The file is deleted after this time.
    pub lapse: Option<Duration>,
}

// === impl Jobs ===

impl Jobs {
    /// Begins an upload; returns its id and record.
    pub async fn begin_upload(&self, new: NewUpload) -> Result<(String, File), JobError> {
        if !(1..=BYTES).contains(&new.bytes) {
            return Err(JobError::Invalid(format!("'bytes' is {}, expected 1 to {BYTES}", new.bytes)));
        }
        let id = new_id(PREFIX);
        // The bytes are counted when they come.
        let _promised = self.promise(&id, Usage { files: 1, bytes: new.bytes, ..Usage::default() }).await?;
        let file = File {
            bytes: new.bytes,
            expires: Some(self.now() + new.time.as_secs()),
            lapse: new.lapse.map(|lapse| lapse.as_secs()),
            ..File::new(self.client(), &new.name, Purpose::Upload, self.now())
        };
        self.write(&id, &Record::File(file.clone()), 0, Some(new.time)).await.stored()?;
        Ok((id, file))
    }

    /// The record of an upload that is not complete, and its revision.
    async fn kept_upload(&self, id: &str) -> Result<(File, u64), JobError> {
        self.any_upload(id).await?.filter(|(file, _)| file.purpose == Purpose::Upload).ok_or_else(|| unknown(id))
    }

    /// The record of an upload, complete or not, and its revision.
    async fn any_upload(&self, id: &str) -> Result<Option<(File, u64)>, JobError> {
        Ok(match self.read(id).await? {
            Some(StoredRecord { record: Record::File(file), revision }) => {
                let is_upload = matches!(file.purpose, Purpose::Upload | Purpose::Joined);
                let is_over = file.expires.is_some_and(|at| at <= self.now());
                Some((file, revision)).filter(|(file, _)| is_upload && !is_over && self.sees(&file.client))
            }
            _ => None,
        })
    }

    /// Begins a part of upload `id`. Returns it and the upload's record.
    pub async fn begin_part(&self, id: &str) -> Result<(Arrival<'_>, File), JobError> {
        let (upload, _) = self.kept_upload(id).await?;
        Ok((self.arrival_as(new_id(PART), false), upload))
    }

    /// Ends a part of upload `id`.
    pub async fn finish_part(&self, part: Arrival<'_>, id: &str, upload: &File) -> Result<(String, File), JobError> {
        let left = Duration::from_secs(upload.expires.unwrap_or_default().saturating_sub(self.now()));
        let (part, file) = part.finish_as("", Purpose::Part, Some(left), Some(id.to_owned())).await?;
        if let Err(error) = self.kept_upload(id).await {
            // It was cancelled or completed while the part arrived.
            self.drop_part(&part).await;
            return Err(error);
        }
        Ok((part, file))
    }

    /// Ends an upload: its parts, in this order, become a file, whose MD5 digest in hexadecimal digits is `md5` if that is given. Returns the
    /// upload's record, and the id and record of the file. A request that comes again for the same parts goes on where an earlier one
    /// stopped, and returns the same file while that is there.
    pub async fn complete_upload(
        &self,
        id: &str,
        parts: &[String],
        md5: Option<&str>,
    ) -> Result<(File, (String, File)), JobError> {
        let (upload, revision) = self.any_upload(id).await?.ok_or_else(|| unknown(id))?;
        check_parts(parts)?;
        let digest = Bytes::from(sha256(&parts.iter().map(String::as_bytes).collect::<Vec<_>>()));
        let (joined, revision) = match upload.file {
            Some(_) if digest != upload.digest => {
                return Err(JobError::Invalid(format!("upload '{id}' is complete: it became a file of other parts")));
            }
            Some(_) => (upload, revision),
            None => self.join_parts(id, upload, revision, parts, md5, digest).await?,
        };
        let file_id = joined.file.clone().ok_or_else(|| unknown(id))?;
        let file = match joined.objects.is_empty() {
            true => self.file(&file_id).await.map_err(|error| match error {
                JobError::Unknown { .. } => unknown(id),
                other => other,
            })?,
            false => self.make_file(id, joined.clone(), revision, &file_id, parts).await?,
        };
        Ok((joined, (file_id, file)))
    }

    /// Notes in the record of an upload that it has the bytes of these parts, and the id of its file. Only one request can do that. Returns
    /// the record and its revision.
    async fn join_parts(
        &self,
        id: &str,
        upload: File,
        revision: u64,
        parts: &[String],
        md5: Option<&str>,
        digest: Bytes,
    ) -> Result<(File, u64), JobError> {
        let mut objects = Vec::new();
        for part in parts {
            match self.read(part).await?.map(|kept| kept.record) {
                Some(Record::File(file)) if file.purpose == Purpose::Part && file.upload.as_deref() == Some(id) => {
                    objects.extend(file.objects);
                }
                _ => return Err(JobError::Invalid(format!("'{part}' is no part of upload '{id}'"))),
            }
        }
        let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
        if bytes != upload.bytes {
            return Err(JobError::Invalid(format!(
                "the parts have {bytes} bytes, but the upload announced {}",
                upload.bytes
            )));
        }
        if let Some(expected) = md5 {
            let (mut digest, mut content) = (Md5::new(), self.bytes_of(objects.clone(), 0));
            while let Some(part) = content.next().await.transpose()? {
                digest.update(&part);
            }
            let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            if !found.eq_ignore_ascii_case(expected) {
                return Err(JobError::Invalid(format!("'md5' is '{expected}', but the parts have {found}")));
            }
        }
        // Reading the parts may have taken a while.
        let now = self.now();
        if upload.expires.is_some_and(|at| at <= now) {
            return Err(unknown(id));
        }
        // The file is written before the driver looks for bytes that nobody has made a file of.
        let expires = upload.expires.max(Some(now + self.0.options.upload_patience.as_secs()));
        let joined = File { purpose: Purpose::Joined, file: Some(new_id(FILE)), digest, objects, expires, ..upload };
        let written = self.replace(id, &Record::File(joined.clone()), revision, None).await?;
        Ok((joined, written.ok_or_else(|| unknown(id))?))
    }

    /// Gives the bytes of an upload to its file. At each moment one kind of record has them, so that they are deleted neither early nor never:
    /// the parts go before the file is written, and the upload lets go of the bytes after that.
    async fn make_file(
        &self,
        id: &str,
        joined: File,
        revision: u64,
        file_id: &str,
        parts: &[String],
    ) -> Result<File, JobError> {
        for part in parts {
            self.drop_record(part).await?;
        }
        let file = File {
            bytes: joined.bytes,
            expires: joined.lapse.map(|lapse| self.now().saturating_add(lapse)),
            objects: joined.objects.clone(),
            ..File::new(&joined.client, &joined.name, Purpose::Batch, self.now())
        };
        let file = match self.replace(file_id, &Record::File(file.clone()), 0, None).await? {
            Some(_) => file,
            // An earlier request wrote it.
            None => self.file(file_id).await?,
        };
        let left = Duration::from_secs(joined.expires.unwrap_or_default().saturating_sub(self.now()).max(1));
        // A conflict says that a request that came again was faster.
        self.replace(id, &Record::File(File { objects: Vec::new(), ..joined }), revision, Some(left)).await?;
        self.drop_parts(id).await;
        Ok(file)
    }

    /// Gives an upload up, and deletes its parts.
    pub async fn cancel_upload(&self, id: &str) -> Result<File, JobError> {
        let (upload, _) = self.kept_upload(id).await?;
        self.forget(id).await?;
        self.drop_parts(id).await;
        Ok(upload)
    }

    /// Deletes the parts of an upload that has ended. A part that cannot be deleted now is deleted when its time is over.
    async fn drop_parts(&self, upload: &str) {
        for part in self.0.index.parts(upload) {
            self.drop_part(&part).await;
        }
    }

    async fn drop_part(&self, part: &str) {
        let dropped = async {
            match self.read(part).await? {
                Some(StoredRecord { record: Record::File(file), revision }) if file.purpose == Purpose::Part => {
                    self.drop_file(part, file, revision).await
                }
                _ => Ok(false),
            }
        };
        if let Err(error) = dropped.await {
            tracing::warn!(part, %error, "a part of an upload could not be deleted yet");
        }
    }
}

/// Refuses parts that cannot be those of an upload, before anything is read.
fn check_parts(parts: &[String]) -> Result<(), JobError> {
    let mut seen = HashSet::new();
    if parts.is_empty() || parts.len() > PARTS {
        return Err(JobError::Invalid(format!("'part_ids' has {} ids, expected 1 to {PARTS}", parts.len())));
    }
    match parts.iter().find(|part| !seen.insert(part.as_str())) {
        Some(twice) => Err(JobError::Invalid(format!("'part_ids' has '{twice}' more than once"))),
        None => Ok(()),
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
