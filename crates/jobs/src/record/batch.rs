//! The records of batches.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trireme_inference::TraceParent;

use super::attempts::Attempts;
use super::object::Object;
use super::terms::{SCHEDULED, Webhook};

/// A batch: every line of a file is a request. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The gateway that runs it.
    pub owner: String,
    /// The route of every line.
    pub endpoint: String,
    /// The id of the file with the lines.
    pub input: String,
    /// Words of the client about the batch.
    pub metadata: BTreeMap<String, String>,
    /// Where it is.
    pub state: BatchState,
    /// Lines.
    pub counts: Counts,
    /// Tokens of the lines in the output.
    pub usage: Usage,
    /// Lines that have ended and are not in the output yet. If their gateway ends, they run again.
    pub(crate) ahead: Counts,
    /// Why it failed.
    pub failure: Option<String>,
    /// The id of the file with the answers.
    pub output: Option<String>,
    /// The id of the file with the errors.
    pub errors: Option<String>,
    /// When it was accepted.
    pub created: u64,
    /// When it expires if it has not ended.
    pub expires: u64,
    /// When its first line was begun.
    pub begun: Option<u64>,
    /// When it was cancelled.
    pub cancelling: Option<u64>,
    /// When it ended.
    pub ended: Option<u64>,
    /// When it may begin, if that is later than when it was accepted.
    pub not_before: Option<u64>,
    /// The URL that is called when it has ended.
    pub webhook: Option<Webhook>,
    /// The client whose batch it is.
    pub(crate) client: String,
    /// A digest that differs for another batch under the same key of its client.
    pub(crate) digest: Bytes,
    /// The client's W3C trace context.
    pub(crate) traceparent: Option<Box<TraceParent>>,
    /// The spaces of which each line's answer has to have one, as the header `If-Space` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_space: Option<String>,
    /// How long its files are kept, in seconds, if the client has said that.
    pub output_lapse: Option<u64>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) attempts: Attempts,
    /// How rows become requests, where the file has columns.
    pub(crate) rows: RowRequest,
}

/// How the rows of a file of columns become requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowRequest {
    /// The fields that all bodies have, such as `model`: a JSON object.
    pub body: Map<String, Value>,
    /// The column of each further field; `None`: those that have a field's name, and for embeddings `input` from the column `text`.
    pub columns: Option<BTreeMap<String, String>>,
}

/// Where a batch is. The words are those of OpenAI's Batch API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// The lines are counted.
    Validating,
    /// The file has no line that can run.
    Failed,
    /// Lines run.
    InProgress,
    /// All lines have ended.
    Completed,
    /// Its time ended first; the output has the lines that ended.
    Expired,
    /// It was cancelled, and lines still run.
    Cancelling,
    /// It was cancelled; the output has the lines that ended.
    Cancelled,
}

/// How many lines a batch has, and how many have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Lines of the file that are not empty.
    pub total: u64,
    /// Lines in the output.
    pub completed: u64,
    /// Lines in the errors.
    pub failed: u64,
}

/// Tokens of the lines in the output, where their answers count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of requests.
    pub input: u64,
    /// The part of `input` for texts that the text cache had.
    #[serde(default)]
    pub cached: u64,
    /// Tokens of answers.
    pub output: u64,
}

/// How far a batch is: everything before this place is in the parts that it names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Bytes of the input before the next line.
    pub offset: u64,
    /// Lines before the next one, empty lines included.
    pub lines: u64,
    pub output: Object,
    pub errors: Object,
}

// === impl Usage ===

impl Usage {
    /// Adds the tokens of a line.
    pub(crate) fn add(&mut self, line: Usage) {
        self.input = self.input.saturating_add(line.input);
        self.cached = self.cached.saturating_add(line.cached);
        self.output = self.output.saturating_add(line.output);
    }
}

// === impl Batch ===

impl Batch {
    /// The name of its state in the API. `now` is in seconds since 1970.
    pub fn state_name(&self, now: u64) -> &'static str {
        let waits = self.state == BatchState::Validating && self.not_before.is_some_and(|at| at > now);
        if waits { SCHEDULED } else { self.state.name() }
    }

    /// How long its files are kept; `usual` if the client has not said that.
    pub(crate) fn keeps(&self, usual: Duration) -> Duration {
        self.output_lapse.map_or(usual, Duration::from_secs)
    }

    /// Its lines, and how many have ended.
    pub fn progress(&self) -> Counts {
        Counts {
            total: self.counts.total,
            completed: self.counts.completed + self.ahead.completed,
            failed: self.counts.failed + self.ahead.failed,
        }
    }

    /// When its time begins to run, in seconds since 1970.
    pub fn start(&self) -> u64 {
        self.created.max(self.not_before.unwrap_or_default())
    }
}

// === impl BatchState ===

impl BatchState {
    /// Its name in the API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            BatchState::Validating => "validating",
            BatchState::Failed => "failed",
            BatchState::InProgress => "in_progress",
            BatchState::Completed => "completed",
            BatchState::Expired => "expired",
            BatchState::Cancelling => "cancelling",
            BatchState::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more happens.
    pub fn is_end(self) -> bool {
        match self {
            BatchState::Failed | BatchState::Completed | BatchState::Expired | BatchState::Cancelled => true,
            BatchState::Validating | BatchState::InProgress | BatchState::Cancelling => false,
        }
    }
}
