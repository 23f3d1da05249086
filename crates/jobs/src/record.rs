//! The records of jobs and files, as the store has them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trireme_inference::Name;

use crate::call::{JobAnswer, JobCall};

/// The state of a job whose time has not come.
const SCHEDULED: &str = "scheduled";

/// The value of a key in the store of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A durable request.
    Request(Request),
    /// A batch over a file.
    Batch(Batch),
    /// A file.
    File(File),
}

/// A request that is answered later. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The gateway that runs it.
    pub owner: String,
    /// When it was accepted.
    pub created: u64,
    /// When it expires if it has not ended.
    pub expires: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// Where it is.
    pub state: RequestState,
    /// When it may begin, if that is later than when it was accepted.
    #[serde(default)]
    pub not_before: Option<u64>,
    /// The URL that is called when it has ended.
    #[serde(default)]
    pub webhook: Option<Webhook>,
    /// The client whose request it is.
    #[serde(default)]
    pub(crate) client: String,
    /// A digest of its path, headers and body.
    pub(crate) digest: Bytes,
    /// The queue that the call goes to.
    #[serde(default)]
    pub(crate) destination: String,
    /// Path and headers; the body is in `body`.
    pub(crate) call: JobCall,
    pub(crate) body: Body,
    /// Times that the body was not in the store.
    #[serde(default)]
    pub(crate) lost: u32,
    /// Status and headers of the answer; the body is in `answer_body`.
    pub(crate) answer: Option<JobAnswer>,
    pub(crate) answer_body: Body,
}

/// Where a durable request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// It waits, or runs.
    Queued,
    /// It has an answer, which may be an error.
    Completed,
    /// The client cancelled it.
    Cancelled,
    /// It had no answer in time.
    Expired,
}

/// The bytes of a body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// In the record.
    Here(Bytes),
    /// In an object.
    Stored(Object),
}

/// Bytes in the store of objects: parts with numbers from 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Object {
    pub name: String,
    pub parts: u64,
    pub bytes: u64,
}

/// A file that a client uploaded or a batch wrote. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its purpose: `batch` or `batch_output`; other words are those of uploads.
    pub(crate) purpose: String,
    /// The client whose file it is.
    #[serde(default)]
    pub(crate) client: String,
    /// The batches that read it. Some may have ended.
    #[serde(default)]
    pub(crate) used_by: Vec<String>,
    /// The upload that it is a part of.
    #[serde(default)]
    pub(crate) upload: Option<String>,
    /// A digest that differs for another file under the same key of its client.
    #[serde(default)]
    pub(crate) digest: Bytes,
    /// Of an upload: how long its file is kept, in seconds.
    #[serde(default)]
    pub(crate) lapse: Option<u64>,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written.
    pub created: u64,
    /// When it is deleted.
    pub expires: Option<u64>,
    /// Its bytes, in this order.
    pub(crate) objects: Vec<Object>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A file that batches read.
    Batch,
    /// A file that a batch has written.
    BatchOutput,
    /// An upload that is not complete.
    Upload,
    /// A part of one.
    Part,
    /// An upload whose parts have become a file.
    Joined,
    /// A file whose bytes still arrive.
    Arriving,
}

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
    #[serde(default)]
    pub not_before: Option<u64>,
    /// The URL that is called when it has ended.
    #[serde(default)]
    pub webhook: Option<Webhook>,
    /// The client whose batch it is.
    #[serde(default)]
    pub(crate) client: String,
    /// A digest that differs for another batch under the same key of its client.
    #[serde(default)]
    pub(crate) digest: Bytes,
    pub(crate) checkpoint: Checkpoint,
    #[serde(default)]
    pub(crate) attempts: Attempts,
    /// How rows become requests, where the file has columns.
    #[serde(default)]
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

/// How often a batch was begun in vain. The counts are in its record, because a batch that ends its gateway leaves nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attempts {
    /// Processes that have begun it since it last got on, and the last one of them.
    pub begun: u32,
    pub by: String,
    /// Processes that have begun to write its output as columns, and the last one of them.
    pub joins: u32,
    pub joins_by: String,
    /// Times that bytes of its input or output were not in the store.
    pub lost: u32,
}

/// A URL that is called when a job has ended, and how far that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// The URL.
    pub url: String,
    /// Whether it was called.
    pub state: WebhookState,
    /// How many calls have ended.
    pub attempts: u32,
    /// When it is called next, in seconds since 1970; 0 as soon as the job has ended.
    pub next: u64,
    /// Why the last call failed.
    pub failure: Option<String>,
}

/// Whether a webhook was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// The job has not ended, or the URL has to be called again.
    Waiting,
    /// A call succeeded.
    Delivered,
    /// The receiver wants no more calls, or the time to live of the job is over.
    Failed,
}

/// The next act of a job's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Runs the request, whose call goes to this destination.
    Request(Name),
    /// Runs the batch.
    Batch,
    /// Calls the webhook of a job that has ended.
    Webhook,
}

// === impl Purpose ===

impl Purpose {
    const ALL: [Purpose; 6] =
        [Purpose::Batch, Purpose::BatchOutput, Purpose::Upload, Purpose::Part, Purpose::Joined, Purpose::Arriving];

    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Batch => "batch",
            Purpose::BatchOutput => "batch_output",
            Purpose::Upload => "upload",
            Purpose::Part => "upload_part",
            Purpose::Joined => "upload_joined",
            Purpose::Arriving => "arriving",
        }
    }

    /// Whether gateways delete it when it has expired; others lapse by themselves.
    pub fn is_swept(self) -> bool {
        matches!(self, Purpose::Batch | Purpose::Part | Purpose::Arriving)
    }

    /// Whether clients see such records as files.
    pub fn is_file(self) -> bool {
        matches!(self, Purpose::Batch | Purpose::BatchOutput)
    }
}

// === impl File ===

impl File {
    /// A file without bytes.
    pub(crate) fn new(client: &str, name: &str, purpose: Purpose, created: u64) -> File {
        File {
            name: name.to_owned(),
            purpose: purpose.name().to_owned(),
            client: client.to_owned(),
            used_by: Vec::new(),
            upload: None,
            digest: Bytes::new(),
            lapse: None,
            bytes: 0,
            created,
            expires: None,
            objects: Vec::new(),
        }
    }

    /// Its kind. Other words are of an earlier release, for files.
    pub(crate) fn purpose(&self) -> Purpose {
        Purpose::ALL.into_iter().find(|purpose| purpose.name() == self.purpose).unwrap_or(Purpose::Batch)
    }

    /// Its purpose in the API.
    pub fn purpose_name(&self) -> &str {
        self.purpose().name()
    }
}

// === impl Attempts ===

impl Attempts {
    /// A process begins the batch. The same one may begin it again: it has survived.
    pub fn begin(&mut self, process: &str) -> u32 {
        if self.by != process {
            self.begun += 1;
            process.clone_into(&mut self.by);
        }
        self.begun
    }

    /// A process begins to write the output as columns.
    pub fn begin_join(&mut self, process: &str) -> u32 {
        if self.joins_by != process {
            self.joins += 1;
            process.clone_into(&mut self.joins_by);
        }
        self.joins
    }

    /// The batch has got on.
    pub fn get_on(&mut self) {
        (self.begun, self.lost) = (0, 0);
    }

    /// Whether the last process that has begun the batch ended before the batch got on.
    pub fn is_suspect(&self, process: &str) -> bool {
        self.begun > 0 && self.by != process
    }
}

// === impl Webhook ===

impl Webhook {
    /// A webhook that was not called yet.
    pub(crate) fn new(url: String) -> Webhook {
        Webhook { url, state: WebhookState::Waiting, attempts: 0, next: 0, failure: None }
    }
}

// === impl Request ===

impl Request {
    /// The name of its state in the API. `now` is in seconds since 1970.
    pub fn state_name(&self, now: u64) -> &'static str {
        match self.state {
            RequestState::Queued if self.not_before.is_some_and(|at| at > now) => SCHEDULED,
            RequestState::Queued => "queued",
            RequestState::Completed => "completed",
            RequestState::Cancelled => "cancelled",
            RequestState::Expired => "expired",
        }
    }
}

// === impl Batch ===

impl Batch {
    /// The name of its state in the API. `now` is in seconds since 1970.
    pub fn state_name(&self, now: u64) -> &'static str {
        let waits = self.state == BatchState::Validating && self.not_before.is_some_and(|at| at > now);
        if waits { SCHEDULED } else { self.state.name() }
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

// === impl Record ===

impl Record {
    /// The gateway that owns the job, if something is left to do.
    pub fn open_for(&self) -> Option<&str> {
        self.step()?;
        match self {
            Record::Request(request) => Some(&request.owner),
            Record::Batch(batch) => Some(&batch.owner),
            Record::File(_) => None,
        }
    }

    /// The next step of the owner, and the time before which it waits, in seconds since 1970; 0 is at once. `None` if nothing is
    /// left to do.
    pub fn step(&self) -> Option<(Step, u64)> {
        match self {
            Record::Request(request) if request.state == RequestState::Queued => {
                Some((Step::Request(Name::from(&request.destination)), request.not_before.unwrap_or_default()))
            }
            Record::Batch(batch) if !batch.state.is_end() => {
                let waits = batch.state == BatchState::Validating;
                Some((Step::Batch, batch.not_before.filter(|_| waits).unwrap_or_default()))
            }
            Record::Request(_) | Record::Batch(_) => {
                let webhook = self.webhook().filter(|webhook| webhook.state == WebhookState::Waiting)?;
                Some((Step::Webhook, webhook.next))
            }
            Record::File(_) => None,
        }
    }

    /// When the job ended, in seconds since 1970.
    pub fn ended(&self) -> Option<u64> {
        match self {
            Record::Request(request) => request.ended,
            Record::Batch(batch) => batch.ended,
            Record::File(_) => None,
        }
    }

    /// The URL that is called when the job has ended.
    pub fn webhook(&self) -> Option<&Webhook> {
        match self {
            Record::Request(request) => request.webhook.as_ref(),
            Record::Batch(batch) => batch.webhook.as_ref(),
            Record::File(_) => None,
        }
    }

    /// The URL that is called when the job has ended, to note a call.
    pub fn webhook_mut(&mut self) -> Option<&mut Webhook> {
        match self {
            Record::Request(request) => request.webhook.as_mut(),
            Record::Batch(batch) => batch.webhook.as_mut(),
            Record::File(_) => None,
        }
    }

    /// Gives the job to another gateway.
    pub fn set_owner(&mut self, owner: &str) {
        match self {
            Record::Request(request) => owner.clone_into(&mut request.owner),
            Record::Batch(batch) => owner.clone_into(&mut batch.owner),
            Record::File(_) => {}
        }
    }

    /// The batch, if it is one.
    pub fn into_batch(self) -> Option<Batch> {
        match self {
            Record::Batch(batch) => Some(batch),
            Record::Request(_) | Record::File(_) => None,
        }
    }

    /// The file, if it is one.
    pub fn into_file(self) -> Option<File> {
        match self {
            Record::File(file) => Some(file),
            Record::Request(_) | Record::Batch(_) => None,
        }
    }
}
