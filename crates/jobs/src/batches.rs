//! Batches: accepted, looked at, listed, cancelled.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::columns;
use crate::error::JobError;
use crate::jobs::{Jobs, Terms};
use crate::record::{Batch, BatchState, Counts, RowRequest};
use crate::record::{Checkpoint, Object, Record, Webhook};
use crate::store::{new_id, now};

/// The kind of job in errors.
const KIND: &str = "batch";

/// The prefix of ids.
const PREFIX: &str = "batch_";

/// A batch that a client asks for.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// The id of the file with the lines.
    pub input: String,
    /// The route of every line.
    pub endpoint: String,
    /// How long it may take.
    pub window: Duration,
    /// Words of the client about the batch.
    pub metadata: BTreeMap<String, String>,
    /// How rows become requests, where the file has columns; for lines it is empty.
    pub rows: RowRequest,
}

// === impl Jobs ===

impl Jobs {
    /// Accepts a batch: it is in the store when this returns.
    pub async fn begin_batch(&self, new: NewBatch) -> Result<(String, Batch), JobError> {
        self.begin_batch_on(new, Terms::default()).await
    }

    /// Like [`Jobs::begin_batch`], for a batch that begins later or has a webhook.
    pub async fn begin_batch_on(&self, new: NewBatch, terms: Terms) -> Result<(String, Batch), JobError> {
        let file = self.file(&new.input).await?;
        if columns::format(&file).is_none() && new.rows != RowRequest::default() {
            return Err(JobError::Invalid(format!(
                "'body' and 'columns' say how rows become requests, but file '{}' is named '{}', expected .parquet, .arrow or .feather",
                new.input, file.name
            )));
        }
        let (id, created) = (new_id(PREFIX), now());
        let object = |what: &str| Object { name: format!("{id}-{what}"), ..Object::default() };
        let batch = Batch {
            owner: self.0.own.clone(),
            endpoint: new.endpoint,
            input: new.input,
            metadata: new.metadata,
            state: BatchState::Validating,
            counts: Counts::default(),
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
            checkpoint: Checkpoint { output: object("output"), errors: object("errors"), ..Checkpoint::default() },
            rows: new.rows,
        };
        self.write(&id, &Record::Batch(batch.clone()), 0, None).await?;
        Ok((id, batch))
    }

    /// The record of a batch.
    pub async fn batch(&self, id: &str) -> Result<Batch, JobError> {
        let batch = self.read(id).await?.and_then(|kept| kept.record.into_batch());
        batch.ok_or_else(|| unknown(id))
    }

    /// All batches, the one that was accepted last at the beginning.
    pub async fn batches(&self) -> Result<Vec<(String, Batch)>, JobError> {
        let records = self.records().await?;
        let mut batches: Vec<_> =
            records.into_iter().filter_map(|(id, record)| Some((id, record.into_batch()?))).collect();
        batches.sort_by(|(one, a), (other, b)| (b.created, other).cmp(&(a.created, one)));
        Ok(batches)
    }

    /// Cancels a batch. Lines that have ended stay in its output.
    pub async fn cancel_batch(&self, id: &str) -> Result<Batch, JobError> {
        let record = self.change(id, |record| {
            let Record::Batch(batch) = record else { return None };
            matches!(batch.state, BatchState::Validating | BatchState::InProgress).then(|| {
                batch.state = BatchState::Cancelling;
                batch.cancelling = Some(now());
                None
            })
        });
        record.await?.and_then(Record::into_batch).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}
