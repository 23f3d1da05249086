//! Commands, answers and changes on the bus, as MessagePack. All processes of a deployment have one version.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_bus::{Entry, WorkerEntry, decode_body, escape_token};
use trireme_inference::UnixMicros;

/// The topic of commands. Only gateways may publish on it if the broker has user permissions.
pub const TOPIC: &str = "models";

/// Replaces the contents of a model's directory; see [`trireme_model_repository::Replacement`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The configuration, as JSON.
    pub config: Option<String>,
    /// All the model's files, by path within its directory; if empty, the directory's own files are used.
    pub files: BTreeMap<String, Bytes>,
    /// When the configuration came; 0 where none did.
    pub since: UnixMicros,
}

/// The wanted state of a model after a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelChange {
    /// The model.
    pub model: String,
    /// The contents with which the model is loaded; `None` if it is not to be served.
    pub wanted: Option<Override>,
    /// Whether it is loaded only because an ensemble is made of it.
    pub implied: bool,
    /// One more than the number of the model's change before. Of two changes the one with the higher number is later.
    pub number: u64,
}

/// How a command ended for one participant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The participant carried it out; these are its registry entries now.
    Done(Vec<WorkerEntry>),
    /// The command does not concern this process.
    NotMine,
    /// The model's directory, or its override, is not a valid model; the text says why.
    Unreadable(String),
    /// The model could not be loaded.
    Failed {
        /// Why, as Triton puts it after `load failed for model 'm': `.
        why: String,
        /// The registry's entries now.
        entries: Vec<WorkerEntry>,
    },
}

/// A gateway's command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Command {
    pub model: String,
    /// The contents with which to load the model; `None` to stop serving it.
    pub wanted: Option<Override>,
    /// The number of the model's last change that the gateway knows.
    pub after: u64,
}

/// A participant's answer to a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ControlReply {
    Working { participant: String },
    Ended { participant: String, outcome: Outcome },
}

// === impl Override ===

impl Override {
    /// Whether nothing is replaced: the model is loaded as its directory has it.
    pub fn is_plain(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }

    /// Whether the configuration alone is replaced. That holds for later plain loads, too.
    pub fn is_lasting(&self) -> bool {
        self.config.is_some() && self.files.is_empty()
    }

    /// The override in the form that the model repository takes.
    pub fn replacement(&self) -> trireme_model_repository::Replacement<'_> {
        trireme_model_repository::Replacement {
            config: self.config.as_deref(),
            files: Some(&self.files).filter(|files| !files.is_empty()),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// A failure that is not in the registry.
    pub fn failed(why: impl Into<String>) -> Outcome {
        Outcome::Failed { why: why.into(), entries: Vec::new() }
    }

    /// The registry entries after the command, so that the caller need not wait for them to arrive.
    pub fn entries(&self) -> &[WorkerEntry] {
        match self {
            Outcome::Done(entries) | Outcome::Failed { entries, .. } => entries,
            Outcome::NotMine | Outcome::Unreadable(_) => &[],
        }
    }
}

// === impl ModelChange ===

impl ModelChange {
    /// The change in an entry of the store. An entry that cannot be read is ignored.
    pub(super) fn read(entry: &Entry) -> Option<ModelChange> {
        match decode_body::<ModelChange>(&entry.value) {
            Ok(change) if escape_token(&change.model) == entry.key => Some(change),
            Ok(change) => {
                tracing::warn!(key = entry.key, model = change.model, "ignored a change under another model's key");
                None
            }
            Err(error) => {
                tracing::warn!(key = entry.key, %error, "ignored a malformed change");
                None
            }
        }
    }
}

pub(super) fn encode(value: &impl Serialize) -> Bytes {
    rmp_serde::to_vec_named(value).expect("texts, numbers and bytes can always be written").into()
}

#[cfg(test)]
mod tests {
    use rmp_serde::decode::Error;
    use trireme_inference::UnixMicros;

    use super::*;

    /// Deepest nesting of arrays and maps in a body.
    const MAX_DEPTH: usize = 32;

    #[test]
    fn rubbish_that_lies_too_deep_is_an_error() {
        // A map with one unknown member, which the decoder skips: nested arrays of one element, or nested maps.
        let rubbish = |nested: &[u8], depth| [&[0x81, 0xa1, b'x'], &*nested.repeat(depth), &[0xc0]].concat();
        for nested in [&[0x91][..], &[0x81, 0xc0]] {
            assert!(!matches!(
                decode_body::<ModelChange>(&rubbish(nested, MAX_DEPTH / 2)),
                Err(Error::DepthLimitExceeded)
            ));
            // Without a depth limit, the last one would overflow the stack.
            for depth in [MAX_DEPTH, MAX_DEPTH * 2, 4 << 20] {
                let error = decode_body::<ModelChange>(&rubbish(nested, depth)).unwrap_err();
                assert!(matches!(error, Error::DepthLimitExceeded), "{depth}: {error}");
            }
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        let files = BTreeMap::from([("1/model.onnx".to_owned(), Bytes::from_static(b"\0\xff"))]);
        let wanted = Some(Override { config: Some("{}".to_owned()), files, since: UnixMicros(7) });
        let change = ModelChange { model: "m".to_owned(), wanted, implied: true, number: 7 };
        assert_eq!(decode_body::<ModelChange>(&encode(&change)).unwrap(), change);
    }

    #[test]
    fn a_change_is_that_of_its_key() {
        let change = ModelChange { model: "a.b".to_owned(), wanted: None, implied: false, number: 1 };
        let entry = |key: String| Entry { key, value: encode(&change), revision: 1, at: UnixMicros(1) };
        assert_eq!(ModelChange::read(&entry(escape_token("a.b"))), Some(change.clone()));
        assert_eq!(ModelChange::read(&entry("a".to_owned())), None);
    }
}
