//! A value in the store of jobs, and the work that is left for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trireme_inference::Name;

use super::batch::{Batch, BatchState};
use super::file::File;
use super::request::{Request, RequestState};
use super::terms::{Webhook, WebhookState};

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

/// A request that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The queue that its call goes to.
    pub destination: Name,
    /// The name of its owner.
    pub client: Name,
    /// The bytes of its body.
    pub bytes: u64,
}

/// The next act of a job's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Runs the request.
    Request(Asked),
    /// Runs the batch.
    Batch,
    /// Calls the webhook of a job that has ended.
    Webhook,
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
                let (destination, client) = (Name::from(&request.destination), Name::from(&request.client));
                let asked = Asked { destination, client, bytes: request.body.bytes() };
                Some((Step::Request(asked), request.not_before.unwrap_or_default()))
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

    /// Whether the job may have ended the last process that has begun it: then it is begun while no other one of the kind is. A request
    /// counts as begun by the process that accepts it, so only the next one that begins it makes it suspect.
    pub fn is_suspect(&self, process: &str) -> bool {
        match self {
            Record::Request(request) => request.attempts.is_suspect(process) && request.attempts.begun > 1,
            Record::Batch(batch) => batch.attempts.is_suspect(process),
            Record::File(_) => false,
        }
    }

    /// Whether no process has begun the job since it last got on.
    pub fn has_got_on(&self) -> bool {
        match self {
            Record::Request(request) => request.attempts.begun == 0,
            Record::Batch(batch) => batch.attempts.begun == 0,
            Record::File(_) => true,
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

    /// When the store drops the record by itself, in seconds since 1970. Gateways delete other files.
    pub fn lapses(&self, time_to_live: Duration) -> Option<u64> {
        match self {
            Record::File(file) => file.expires.filter(|_| file.lapses()),
            Record::Request(_) | Record::Batch(_) => Some(self.ended()? + time_to_live.as_secs()),
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
