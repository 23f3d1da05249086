//! What travels: commands and answers, as MessagePack. Every process of a deployment is of one version.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trireme_bus::WorkerEntry;
use trireme_inference::UnixMicros;

/// How deep arrays and maps may lie in one another, as in every body: rubbish of more would take more stack than there is.
const MAX_DEPTH: usize = 32;

/// What replaces the contents of a model's directory; see [`trireme_model_repository::Replacement`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The configuration, as JSON.
    pub config: Option<String>,
    /// All the model's files, by path within its directory; empty: the directory's own.
    pub files: BTreeMap<String, Bytes>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Load the model.
    Load(Override),
    /// Serve it no longer.
    Unload,
}

/// What is wanted of a model since a command was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When; the newer of two holds.
    pub at: UnixMicros,
    /// As what it is loaded; `None`: not at all.
    pub wanted: Option<Override>,
    /// Whether it is loaded only because an ensemble is made of it.
    pub implied: bool,
}

/// How a command ended for one participant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is carried out, and these are the registry's entries now.
    Done(Vec<WorkerEntry>),
    /// The model is none of this process's concern.
    NotMine,
    /// The model's directory, or what replaces it, makes no model; why.
    Unreadable(String),
    /// The model could not be loaded.
    Failed {
        /// Why, as Triton puts it after `load failed for model 'm': `.
        why: String,
        /// The registry's entries now.
        entries: Vec<WorkerEntry>,
    },
}

/// What a gateway asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    Load { model: String, with: Override },
    Unload { model: String },
    Settled { model: String, change: Change },
}

/// Who asks what is remembered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Recall {
    pub asked_by: String,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Working { participant: String },
    Ended { participant: String, outcome: Outcome },
    Remembered { model: String, change: Change },
    NothingMore,
}

// === impl Override ===

impl Override {
    /// As the model repository takes it.
    pub fn replacement(&self) -> trireme_model_repository::Replacement<'_> {
        trireme_model_repository::Replacement {
            config: self.config.as_deref(),
            files: Some(&self.files).filter(|files| !files.is_empty()),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// A failure of which the registry says nothing.
    pub fn failed(why: impl Into<String>) -> Outcome {
        Outcome::Failed { why: why.into(), entries: Vec::new() }
    }

    /// What the registry says since: who asked need not wait until it sees them there.
    pub fn entries(&self) -> &[WorkerEntry] {
        match self {
            Outcome::Done(entries) | Outcome::Failed { entries, .. } => entries,
            Outcome::NotMine | Outcome::Unreadable(_) => &[],
        }
    }
}

// === impl Command ===

impl Command {
    pub(super) fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(super) fn decode(body: &[u8]) -> Result<Command, rmp_serde::decode::Error> {
        decode(body)
    }
}

// === impl Recall ===

impl Recall {
    pub(super) fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(super) fn decode(body: &[u8]) -> Result<Recall, rmp_serde::decode::Error> {
        decode(body)
    }
}

// === impl Answer ===

impl Answer {
    pub(super) fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(super) fn decode(body: &[u8]) -> Result<Answer, rmp_serde::decode::Error> {
        decode(body)
    }
}

fn encode(value: &impl Serialize) -> Bytes {
    rmp_serde::to_vec_named(value).expect("texts, numbers and bytes can always be written").into()
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(body);
    reader.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut reader)
}

#[cfg(test)]
mod tests {
    use rmp_serde::decode::Error;

    use super::*;

    /// A short text.
    fn text(text: &str) -> Vec<u8> {
        [&[0xa0 | u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    }

    /// A map of what has to be there, and of a member that nobody knows, which is skipped: arrays or maps that deep.
    fn with_rubbish(known: &str, nesting: u8, depth: usize) -> Vec<u8> {
        let map = [vec![0x82], text(known), text("name"), text("rubbish")].concat();
        // An array of one, or a map from nothing to the next one.
        let nested = match nesting {
            0x91 => vec![0x91; depth],
            _ => [0x81, 0xc0].repeat(depth),
        };
        [map, nested, vec![0xc0]].concat()
    }

    fn in_variant(variant: &str, body: Vec<u8>) -> Vec<u8> {
        [vec![0x81], text(variant), body].concat()
    }

    #[test]
    fn rubbish_that_lies_too_deep_is_an_error() {
        for nesting in [0x91, 0x81] {
            let recall = |depth| Recall::decode(&with_rubbish("asked_by", nesting, depth)).map(drop);
            let command =
                |depth| Command::decode(&in_variant("Unload", with_rubbish("model", nesting, depth))).map(drop);
            let answer =
                |depth| Answer::decode(&in_variant("Working", with_rubbish("participant", nesting, depth))).map(drop);
            for decode in [&recall as &dyn Fn(usize) -> Result<(), Error>, &command, &answer] {
                decode(MAX_DEPTH / 2).unwrap();
                // The last one takes more stack than there is where nobody counts.
                for depth in [MAX_DEPTH, MAX_DEPTH * 2, 4 << 20] {
                    let error = decode(depth).unwrap_err();
                    assert!(matches!(error, Error::DepthLimitExceeded), "{depth}: {error}");
                }
            }
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        let files = BTreeMap::from([("1/model.onnx".to_owned(), Bytes::from_static(b"\0\xff"))]);
        let with = Override { config: Some("{}".to_owned()), files };
        match Command::decode(&Command::Load { model: "m".to_owned(), with: with.clone() }.encode()) {
            Ok(Command::Load { model, with: read }) => assert_eq!((model.as_str(), read), ("m", with)),
            other => panic!("{other:?}"),
        }
    }
}
