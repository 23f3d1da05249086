//! Where bytes are.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The bytes of a body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// In the record.
    Here(Bytes),
    /// In an object.
    Stored(Object),
}

impl Body {
    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        match self {
            Body::Here(bytes) => bytes.len() as u64,
            Body::Stored(object) => object.bytes,
        }
    }
}

/// Bytes in the store of objects: parts with numbers from 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Object {
    pub name: String,
    pub parts: u64,
    pub bytes: u64,
}
