//! Batches: accepted, looked at, listed, cancelled.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use trireme_bus::BusError;
use trireme_inference::TraceParent;

use crate::columns;
use crate::error::JobError;
use crate::jobs::{JobOptions, Jobs};
use crate::quotas;
use crate::record::{Attempts, Batch, BatchState, Counts, RowRequest, Usage};
use crate::record::{Checkpoint, Object, Record, Webhook};
use crate::requests::sha256;
use crate::store::new_id;

/// The kind of job in errors.
const KIND: &str = "batch";

/// The prefix of ids.
const PREFIX: &str = "batch_";

/// Most bytes that the bodies of all rows have in common, and most fields that come from columns.
const LONGEST_BODY: usize = 64 << 10;
const MOST_COLUMNS: usize = 16;

/// A batch that a client asks for.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// The id of the file with the lines.
    pub input: String,
    /// The route of every line.
    pub endpoint: String,
    /// How long it may take.
    pub window: Duration,
    /// How long its files are kept; without one as long as every job.
    pub output_lapse: Option<Duration>,
    /// The client's W3C trace context, for all requests of the batch.
    pub traceparent: Option<TraceParent>,
    /// The header `If-Space` of all requests of the batch: the spaces of which each answer has to have one.
    pub if_space: Option<String>,
    /// Words of the client about the batch.
    pub metadata: BTreeMap<String, String>,
    /// How rows become requests, where the file has columns; for lines it is empty.
    pub rows: RowRequest,
}

// === impl Jobs ===

impl Jobs {
    /// Accepts a batch: it is in the store when this returns.
    pub async fn begin_batch(&self, new: NewBatch) -> Result<(String, Batch), JobError> {
        self.begin_batch_on(new, JobOptions::default(), None).await
    }

    /// Like [`Jobs::begin_batch`], for a batch that begins later or has a webhook. With `once`, a key and what the client sent with it, a
    /// second batch with the same key is the first one; [`JobError::OtherRequest`] if it was sent with something else.
    pub async fn begin_batch_on(
        &self,
        new: NewBatch,
        terms: JobOptions,
        once: Option<(&str, &[u8])>,
    ) -> Result<(String, Batch), JobError> {
        // A batch without spaces has the digest that it had before there were any.
        let spaces = new.if_space.as_deref().map(str::as_bytes);
        let digest = |sent| sha256(&[sent].into_iter().chain(spaces).collect::<Vec<_>>());
        let digest = Bytes::from(once.map_or_else(Vec::new, |(_, sent)| digest(sent)));
        let id = match once {
            Some((key, _)) => format!("{PREFIX}{}", self.id_of_key(key)),
            None => new_id(PREFIX),
        };
        if once.is_some()
            && let Some(there) = self.begun_before(&id, &digest).await?
        {
            return Ok((id, there));
        }
        if let Some((key, _)) = once {
            self.check_key(key, PREFIX).await?;
        }
        let _promised = self.promise(&id, quotas::Usage { batches: 1, ..quotas::Usage::default() }).await?;
        let file = self.file(&new.input).await?;
        if columns::format(&file).is_none() && new.rows != RowRequest::default() {
            return Err(JobError::Invalid(format!(
                "'body' and 'columns' say how rows become requests, but file '{}' is named '{}', expected .parquet, .arrow or .feather",
                new.input, file.name
            )));
        }
        let bytes = Value::from(new.rows.body.clone()).to_string().len();
        if bytes > LONGEST_BODY {
            return Err(JobError::Invalid(format!(
                "'body' has {bytes} bytes, expected {LONGEST_BODY} at most, because every row has them"
            )));
        }
        if new.rows.columns.as_ref().is_some_and(|columns| columns.len() > MOST_COLUMNS) {
            return Err(JobError::Invalid(format!("'columns' has more than {MOST_COLUMNS} fields")));
        }
        let created = self.now();
        let object = |what: &str| Object { name: format!("{id}-{what}"), ..Object::default() };
        let batch = Batch {
            owner: self.0.own.clone(),
            endpoint: new.endpoint,
            input: new.input,
            metadata: new.metadata,
            state: BatchState::Validating,
            counts: Counts::default(),
            usage: Usage::default(),
            traceparent: new.traceparent.map(Box::new),
            if_space: new.if_space,
            output_lapse: new.output_lapse.map(|lapse| lapse.as_secs()),
            ahead: Counts::default(),
            failure: None,
            output: None,
            errors: None,
            created,
            expires: created.max(terms.not_before.unwrap_or_default()) + new.window.as_secs(),
            begun: None,
            cancelling: None,
            ended: None,
            not_before: terms.not_before,
            webhook: terms.webhook.map(Webhook::new),
            attempts: Attempts::default(),
            client: self.client().to_owned(),
            digest: digest.clone(),
            checkpoint: Checkpoint { output: object("output"), errors: object("errors"), ..Checkpoint::default() },
            rows: new.rows,
        };
        // First, so that the file does not go in between. A batch that is not there holds nothing.
        self.hold_file(&batch.input, &id).await?;
        if self.replace(&id, &Record::Batch(batch.clone()), 0, None).await?.is_some() {
            return Ok((id, batch));
        }
        match self.begun_before(&id, &digest).await? {
            Some(there) => Ok((id, there)),
            None => Err(BusError::Conflict { key: id }.into()),
        }
    }

    async fn begun_before(&self, id: &str, digest: &Bytes) -> Result<Option<Batch>, JobError> {
        match self.read(id).await?.and_then(|kept| kept.record.into_batch()) {
            Some(batch) if batch.digest == digest => Ok(Some(batch)),
            Some(_) => Err(JobError::OtherRequest),
            None => Ok(None),
        }
    }

    /// The record of a batch.
    pub async fn batch(&self, id: &str) -> Result<Batch, JobError> {
        let batch = self.read(id).await?.and_then(|kept| kept.record.into_batch());
        batch.filter(|batch| self.sees(&batch.client)).ok_or_else(|| unknown(id))
    }

    /// Cancels a batch. Lines that have ended stay in its output.
    pub async fn cancel_batch(&self, id: &str) -> Result<Batch, JobError> {
        let record = self.change(id, |record| {
            let Record::Batch(batch) = record else { return None };
            if !self.sees(&batch.client) {
                return None;
            }
            matches!(batch.state, BatchState::Validating | BatchState::InProgress).then(|| {
                batch.state = BatchState::Cancelling;
                batch.cancelling = Some(self.now());
                None
            })
        });
        let batch = record.await?.and_then(Record::into_batch);
        batch.filter(|batch| self.sees(&batch.client)).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
