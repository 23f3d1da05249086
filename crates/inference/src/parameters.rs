//! Request and response parameters: scalars under string keys.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Parameters of a request or response, in key order.
pub type Parameters = BTreeMap<String, ParameterValue>;

/// Triton's `timeout`, in microseconds: it lowers the timeout of a queue whose policy has `allow_timeout_override`.
const QUEUE_TIMEOUT: &str = "timeout";

/// The parameter with the time in milliseconds that a client waits for the answer, wherever the request is.
pub const REQUEST_TIMEOUT: &str = "trireme_timeout_ms";

/// The parameters about time alone: they change no answer.
pub const TIMEOUTS: [&str; 2] = [QUEUE_TIMEOUT, REQUEST_TIMEOUT];

/// How long a request with these parameters may wait in a queue whose policy lets requests lower its timeout.
pub fn queue_timeout(parameters: &Parameters) -> Option<Duration> {
    parameters.get(QUEUE_TIMEOUT)?.as_u64().filter(|&limit| limit > 0).map(Duration::from_micros)
}

/// How long the client of a request with these parameters waits for its answer, where it says so.
pub fn request_timeout(parameters: &Parameters) -> Option<Duration> {
    parameters.get(REQUEST_TIMEOUT)?.as_u64().map(Duration::from_millis)
}

/// A parameter's value. On the message wire it is the plain scalar (`untagged`), so any language reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "each variant says its type")]
pub enum ParameterValue {
    Bool(bool),
    Int64(i64),
    Uint64(u64),
    Double(f64),
    String(String),
}

// === impl ParameterValue ===

impl ParameterValue {
    /// The value as text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            ParameterValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value as a whole number, if it is one and not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            ParameterValue::Int64(value) => u64::try_from(value).ok(),
            ParameterValue::Uint64(value) => Some(value),
            _ => None,
        }
    }
}

/// As messages show it: texts in quotes.
impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterValue::Bool(value) => value.fmt(f),
            ParameterValue::Int64(value) => value.fmt(f),
            ParameterValue::Uint64(value) => value.fmt(f),
            ParameterValue::Double(value) => value.fmt(f),
            ParameterValue::String(value) => write!(f, "'{value}'"),
        }
    }
}

impl From<&str> for ParameterValue {
    fn from(text: &str) -> Self {
        ParameterValue::String(text.to_owned())
    }
}
