//! The JSON bodies of the model repository extension.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use trireme_inference::InferError;

use crate::json::{self, Value, Writer};

/// An entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// A version and its state; `None` for a model that was never loaded.
    pub version: Option<IndexVersion>,
}

/// A model version in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexVersion {
    /// The version.
    pub version: i64,
    /// Its state.
    pub state: IndexState,
    /// Why it is not ready; may be empty.
    pub reason: String,
}

/// The state of a model version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// It takes requests.
    Ready,
    /// It does not take requests.
    Unavailable,
    /// It takes no new requests and finishes those it has.
    Unloading,
    /// A worker loads it.
    Loading,
}

/// The parts of a load request that replace the contents of the model's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadRequest {
    /// The whole configuration, as JSON.
    pub config: Option<String>,
    /// All files of the model, by their paths within its directory.
    pub files: BTreeMap<String, Bytes>,
}

/// The path of a file that a load parameter of this name has: `file:1/model.py`, or `file:/1/model.py`, which is the same for Triton.
pub(crate) fn file_path(name: &str) -> Option<&str> {
    Some(name.strip_prefix("file:")?.trim_start_matches('/'))
}

// === impl IndexState ===

impl IndexState {
    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            IndexState::Ready => "READY",
            IndexState::Unavailable => "UNAVAILABLE",
            IndexState::Unloading => "UNLOADING",
            IndexState::Loading => "LOADING",
        }
    }
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

/// Decodes the body of a load request.
pub fn decode_load_request(body: &[u8]) -> Result<LoadRequest, InferError> {
    let mut load = LoadRequest::default();
    if body.is_empty() {
        return Ok(load);
    }
    let [parameters] = json::parse(body)?.pick(["parameters"]);
    let Some(parameters) = parameters else { return Ok(load) };
    for (name, value) in parameters.members()? {
        let value = value.as_bytes()?;
        let name = String::from_utf8_lossy(&name);
        if name == "config" {
            load.config = Some(String::from_utf8_lossy(value).into_owned());
        } else if let Some(path) = file_path(&name) {
            let content = BASE64_STANDARD
                .decode(value)
                .map_err(|error| InferError::invalid_arg(format!("load parameter '{name}' is not base64: {error}")))?;
            load.files.insert(path.to_owned(), content.into());
        }
    }
    Ok(load)
}

/// Whether the body of an unload request asks to unload an ensemble's models too. A body that cannot be read counts as
/// no, as in Triton.
pub fn decode_unload_request(body: &[u8]) -> bool {
    let Ok(request) = json::parse(body) else { return false };
    let [parameters] = request.pick(["parameters"]);
    let [dependents] = parameters.map(|parameters| parameters.pick(["unload_dependents"])).unwrap_or([None]);
    matches!(dependents, Some(Value::Bool(true)))
}

/// The body of the answer to an index request.
pub fn encode_index(entries: &[IndexEntry]) -> Bytes {
    let mut w = Writer::default();
    w.array(|w| {
        for entry in entries {
            w.object(|w| {
                w.name("name").string(&entry.name);
                if let Some(IndexVersion { version, state, reason }) = &entry.version {
                    w.name("version").string(version.to_string());
                    w.name("state").string(state.name());
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
        let version = |version, state, reason: &str| Some(IndexVersion { version, state, reason: reason.to_owned() });
        let entries = [
            IndexEntry { name: "a".to_owned(), version: version(1, IndexState::Ready, "") },
            IndexEntry { name: "a".to_owned(), version: version(2, IndexState::Unavailable, "gone") },
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

    #[test]
    fn a_model_may_come_with_its_configuration_and_files() {
        let body = br#"{"parameters":{"config":"{}","file:1/model.onnx":"AAEC","other":"x"}}"#;
        let load = decode_load_request(body).unwrap();
        assert_eq!(load.config.as_deref(), Some("{}"));
        assert_eq!(load.files, BTreeMap::from([("1/model.onnx".to_owned(), Bytes::from_static(&[0, 1, 2]))]));
        let rooted = br#"{"parameters":{"config":"{}","file:/1/model.onnx":"AAEC"}}"#;
        assert_eq!(decode_load_request(rooted), Ok(load), "as in Triton");
        for body in ["", "{}", "[]", r#"{"parameters":{}}"#] {
            assert_eq!(decode_load_request(body.as_bytes()), Ok(LoadRequest::default()), "{body}");
        }
        for (body, message) in [
            ("{{", "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
            (r#"{"parameters":1}"#, "attempt to get members for non-object"),
            (r#"{"parameters":{"config":1}}"#, "attempt to access JSON non-string as string"),
        ] {
            assert_eq!(decode_load_request(body.as_bytes()), Err(InferError::internal(message)), "{body}");
        }
        let error = decode_load_request(br#"{"parameters":{"file:1/a":"!!"}}"#).unwrap_err();
        assert!(error.message.starts_with("load parameter 'file:1/a' is not base64: "), "{error}");
    }

    #[test]
    fn only_true_unloads_dependents() {
        assert!(decode_unload_request(br#"{"parameters":{"unload_dependents":true}}"#));
        for body in ["", "{{", "{}", r#"{"parameters":{"unload_dependents":"x"}}"#, r#"{"parameters":1}"#] {
            assert!(!decode_unload_request(body.as_bytes()), "{body}");
        }
    }
}
