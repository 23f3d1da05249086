//! Request and response parameters: scalars under string keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Parameters of a request or response, in key order.
pub type Parameters = BTreeMap<String, ParameterValue>;

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
