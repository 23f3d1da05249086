//! The records of durable requests.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::attempts::Attempts;
use super::object::Body;
use super::terms::{SCHEDULED, Webhook};
use crate::call::{JobAnswer, JobCall};

/// A request that is answered later. Times are seconds since 1970. A hundred thousand may wait in a broker's memory, so fields that say
/// nothing are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The gateway that runs it.
    pub owner: String,
    /// When it was accepted.
    pub created: u64,
    /// When it expires if it has not ended.
    pub expires: u64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// Where it is.
    pub state: RequestState,
    /// When it may begin, if that is later than when it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<u64>,
    /// The URL that is called when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// The client whose request it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) client: String,
    /// A digest of its path, headers and body.
    pub(crate) digest: Bytes,
    /// The queue that the call goes to.
    pub(crate) destination: String,
    /// Path and headers; the body is in `body`.
    pub(crate) call: JobCall,
    pub(crate) body: Body,
    pub(crate) attempts: Attempts,
    /// Status and headers of the answer; the body is in `answer_body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
