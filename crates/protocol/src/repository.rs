//! The model repository extension: the index, as far as the wire is concerned.

use bytes::Bytes;
use trireme_inference::InferError;

use crate::json::{self, Value, Writer};

/// One line of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// A version and how it is; `None` for a model that was never loaded.
    pub version: Option<IndexVersion>,
}

/// A model version's line of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexVersion {
    /// The version.
    pub version: i64,
    /// Whether it is ready; it is unavailable otherwise.
    pub ready: bool,
    /// Why it is not ready; empty when nothing is to be said.
    pub reason: String,
}

/// Whether the body of an index request asks for ready models only.
pub fn decode_index_request(body: &[u8]) -> Result<bool, InferError> {
    if body.is_empty() {
        return Ok(false);
    }
    match json::parse(body)?.pick(["ready"]) {
        [None] => Ok(false),
        [Some(Value::Bool(ready))] => Ok(ready),
        [Some(_)] => Err(InferError::invalid_arg("Invalid value for 'ready': expected a boolean")),
    }
}

/// The body that answers an index request.
pub fn encode_index(entries: &[IndexEntry]) -> Bytes {
    let mut w = Writer::default();
    w.array(|w| {
        for entry in entries {
            w.object(|w| {
                w.name("name").string(&entry.name);
                if let Some(IndexVersion { version, ready, reason }) = &entry.version {
                    w.name("version").string(version.to_string());
                    w.name("state").string(if *ready { "READY" } else { "UNAVAILABLE" });
                    if !reason.is_empty() {
                        w.name("reason").string(reason);
                    }
                }
            });
        }
    });
    w.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_a_boolean() {
        for (body, ready) in [("", false), ("{}", false), (r#"{"ready":true}"#, true), (r#"{"ready":false}"#, false)] {
            assert_eq!(decode_index_request(body.as_bytes()), Ok(ready), "{body}");
        }
        let error = decode_index_request(br#"{"ready":1}"#).unwrap_err();
        assert_eq!(error.message, "Invalid value for 'ready': expected a boolean");
        assert!(decode_index_request(b"{").is_err());
    }

    #[test]
    fn a_model_that_was_never_loaded_has_only_its_name() {
        let version = |version, ready, reason: &str| Some(IndexVersion { version, ready, reason: reason.to_owned() });
        let entries = [
            IndexEntry { name: "a".to_owned(), version: version(1, true, "") },
            IndexEntry { name: "a".to_owned(), version: version(2, false, "gone") },
            IndexEntry { name: "b".to_owned(), version: None },
        ];
        assert_eq!(
            encode_index(&entries),
            concat!(
                r#"[{"name":"a","version":"1","state":"READY"},"#,
                r#"{"name":"a","version":"2","state":"UNAVAILABLE","reason":"gone"},{"name":"b"}]"#
            )
        );
    }
}
