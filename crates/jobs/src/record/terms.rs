//! When a job begins, and the URL that is called when it has ended.

use serde::{Deserialize, Serialize};

/// The state of a job whose time has not come.
pub(super) const SCHEDULED: &str = "scheduled";

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

// === impl Webhook ===

impl Webhook {
    /// A webhook that was not called yet.
    pub(crate) fn new(url: String) -> Webhook {
        Webhook { url, state: WebhookState::Waiting, attempts: 0, next: 0, failure: None }
    }
}
