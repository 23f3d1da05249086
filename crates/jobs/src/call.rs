//! The requests that jobs send, and the system that answers them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The job that a [`JobCall`] belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOf {
    /// Its id, and the line in a batch. For people only.
    pub job: String,
    /// The client whose job it is.
    pub owner: Arc<str>,
}

/// A request to one of the gateway's routes, without the client's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCall {
    /// The path.
    pub path: String,
    /// The headers that the route needs, with names in lower case.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

/// The answer to a [`JobCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers that describe the body, with names in lower case.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

/// The outcome of a [`JobCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The answer, which may be an error.
    Answered(JobAnswer),
    /// The same call may get another answer later: a queue was full, no worker was there, or a time ran out that the client did not set.
    Refused,
}

/// One call of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// The URL.
    pub url: String,
    /// The id of the event: the same in each call about the end of one job.
    pub id: String,
    /// The event as JSON.
    pub body: Bytes,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookAnswer {
    /// The receiver has taken the event.
    Delivered,
    /// The receiver has not taken it.
    Failed {
        /// The reason.
        why: String,
        /// Whether another call would be in vain.
        is_final: bool,
        /// The shortest pause that the receiver asks for.
        after: Option<Duration>,
    },
}

/// The system that runs calls.
#[async_trait]
pub trait Execute: Send + Sync + 'static {
    /// Runs a call. The caller may drop the future, which cancels the call.
    async fn execute(&self, call: JobCall, of: CallOf) -> Executed;

    /// The queue that a call goes to, as far as the call tells: calls to one destination are refused together.
    fn destination(&self, call: &JobCall) -> String {
        call.path.clone()
    }

    /// The weight of an owner among the owners whose calls wait.
    fn weight(&self, _owner: &str) -> u32 {
        1
    }

    /// Calls the URL of a webhook once.
    async fn call(&self, _call: WebhookCall) -> WebhookAnswer {
        WebhookAnswer::failed("this gateway calls no webhooks")
    }

    /// The bytes of batches in memory change from `before` to `now`.
    fn count_bytes(&self, _before: u64, _now: u64) {}

    /// Whether the gateway of this name is alive, as far as its heartbeats tell.
    fn lives(&self, gateway: &str) -> bool;
}

// === impl JobAnswer ===

impl JobAnswer {
    /// An answer with an error, as JSON.
    pub fn error(status: u16, why: &str) -> JobAnswer {
        let json = ("content-type".to_owned(), Bytes::from_static(b"application/json"));
        let body = serde_json::json!({ "error": why }).to_string();
        JobAnswer { status, headers: vec![json], body: body.into() }
    }
}

// === impl WebhookAnswer ===

impl WebhookAnswer {
    /// A call that failed and may be repeated.
    pub fn failed(why: impl Into<String>) -> WebhookAnswer {
        WebhookAnswer::Failed { why: why.into(), is_final: false, after: None }
    }
}
