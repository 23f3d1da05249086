//! The headers of frames: the messages between a worker and a child. docs/stage-protocol.md is for readers of other languages.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use trireme_inference::{Action, DataType, ErrorCode, InferError, Name, Parameters};
use trireme_runtime::statistics::own::{SampleChange, What};
use trireme_telemetry::metrics::Kind;

/// A message of the worker.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToChild<'a> {
    /// Load the model; the first frame.
    Load {
        /// The model file.
        file: &'a Path,
        /// The arguments of `initialize`, under Triton's names.
        args: &'a BTreeMap<&'static str, String>,
        /// Whether a request may have any number of responses.
        decoupled: bool,
        /// Only complete the configuration.
        complete: bool,
    },
    /// Execute these requests. The worker sends no further requests until `execute` has returned.
    Execute {
        /// The requests.
        requests: Vec<RequestHeader<'a>>,
        /// Whether each request is a call of `execute` of its own.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        apart: bool,
    },
    /// Nobody waits for these requests any more.
    Cancel {
        /// Their tickets.
        ids: Vec<u64>,
    },
    /// A response to a request of the model.
    Answer(AnswerHeader<'a>),
    /// Whether the model is ready, in its own opinion; only where the child has said that it has one.
    Ready,
    /// Clean up and end.
    Finalize,
}

/// A response in [`ToChild::Answer`].
#[derive(Debug, Serialize)]
pub struct AnswerHeader<'a> {
    /// The id that the child gave its request.
    pub id: u64,
    /// Whether it is the request's last.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// Its outputs; empty where there is an error.
    pub outputs: Vec<TensorHeader<'a>>,
    /// The response's parameters.
    pub parameters: &'a Parameters,
    /// Why there are no outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorHeader>,
}

/// A request in [`ToChild::Execute`].
#[derive(Debug, Serialize)]
pub struct RequestHeader<'a> {
    /// Its ticket, by which responses name it.
    pub id: u64,
    /// The client's id of the request.
    pub request_id: &'a str,
    /// Its inputs.
    pub inputs: Vec<TensorHeader<'a>>,
    /// The names of outputs that somebody needs.
    pub outputs: &'a [Name],
    /// Its parameters, those of the protocol among them.
    pub parameters: &'a Parameters,
}

/// A tensor, whose bytes are in the frame.
#[derive(Debug, Serialize, Deserialize)]
pub struct TensorHeader<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Datatype of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Cow<'a, [i64]>,
    /// Where its bytes begin.
    pub offset: u64,
    /// How many bytes it has.
    pub size: u64,
}

/// A message of the child.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromChild {
    /// The model is loaded, or its configuration is complete.
    Loaded {
        /// The configuration, where that was asked for.
        #[serde(default)]
        config: Option<serde_json::Value>,
        /// Whether the model wants to be asked whether it is ready.
        #[serde(default)]
        asks_ready: bool,
    },
    /// The answer to [`ToChild::Ready`].
    Ready {
        /// Whether the model is ready.
        ready: bool,
    },
    /// The model could not be loaded.
    Failed {
        /// Why.
        message: String,
        /// Where, for the log.
        #[serde(default)]
        traceback: String,
    },
    /// Responses to requests.
    Responses(Responses),
    /// A request of the model to another model.
    Infer(Box<InferHeader>),
    /// The model waits no longer for the answers to these requests.
    HangUp {
        /// The ids that the child gave them.
        ids: Vec<u64>,
    },
    /// Changes of the model's own metrics.
    Metrics {
        /// The changes, in their order.
        changes: Vec<MetricChange>,
    },
    /// A line for the log.
    Log {
        /// INFO, WARNING, ERROR or VERBOSE.
        level: String,
        /// The line, or several.
        message: String,
    },
    /// The model has cleaned up; the child ends.
    Finalized,
    /// A request of the model to another model that cannot be read.
    #[serde(skip)]
    Unreadable {
        /// The id that the child gave it.
        id: u64,
        /// The fault of the value.
        reason: String,
    },
}

impl FromChild {
    /// Reads a header. Serde keeps a copy of a message in memory until it knows its `type`; the message of each batch is read without one.
    pub fn read(header: &[u8]) -> serde_json::Result<FromChild> {
        #[derive(Deserialize)]
        struct Typed<'a> {
            #[serde(rename = "type", borrow)]
            kind: Cow<'a, str>,
        }
        match serde_json::from_slice::<Typed<'_>>(header)?.kind.as_ref() {
            "responses" => serde_json::from_slice(header).map(FromChild::Responses),
            _ => serde_json::from_slice(header),
        }
    }
}

/// A request in [`FromChild::Infer`].
#[derive(Debug, Deserialize)]
pub struct InferHeader {
    /// Names the request in [`ToChild::Answer`]; unique in the process.
    pub id: u64,
    /// The action: `infer`, `load`, `unload` or `ready`.
    #[serde(default)]
    pub action: Action,
    /// The model or ensemble.
    pub model: String,
    /// Its version; without one, or below 1, the latest.
    #[serde(default)]
    pub version: Option<i64>,
    /// The id that the model gives to the request.
    #[serde(default)]
    pub request_id: String,
    /// Its inputs; the files of a model to load.
    #[serde(default)]
    pub inputs: Vec<TensorHeader<'static>>,
    /// The outputs that are wanted; none means all.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// Its parameters.
    #[serde(default)]
    pub parameters: Parameters,
    /// Whether any number of responses may come.
    #[serde(default)]
    pub in_parts: bool,
}

/// A change in [`FromChild::Metrics`].
#[derive(Debug, Deserialize)]
pub struct MetricChange {
    /// The family's name.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: MetricKind,
    /// Its help text.
    #[serde(default)]
    pub help: String,
    /// The sample's labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// `add`, `set` or `observe`.
    pub what: MetricVerb,
    /// How much; without it the sample only begins to exist.
    #[serde(default)]
    pub value: Option<f64>,
    /// The bounds of a histogram.
    #[serde(default)]
    pub bounds: Vec<f64>,
}

/// The type of a metric in a [`MetricChange`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant is Prometheus' own word")]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// How a [`MetricChange`] changes its sample.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words of MetricChange::what")]
pub enum MetricVerb {
    Add,
    Set,
    Observe,
}

/// The fields of [`FromChild::Responses`].
#[derive(Debug, Deserialize)]
pub struct Responses {
    /// The responses.
    pub responses: Vec<ResponseHeader>,
    /// Whether `execute` has returned, so that the child can take more requests.
    #[serde(default)]
    pub executed: bool,
    /// With `executed`: the memory file of the requests is not used any more.
    #[serde(default)]
    pub released: bool,
    /// With `executed`: the time in `execute`, in nanoseconds.
    #[serde(default)]
    pub took_ns: Option<u64>,
}

/// A response in [`Responses`].
#[derive(Debug, Deserialize)]
pub struct ResponseHeader {
    /// The ticket of its request.
    pub id: u64,
    /// Whether it is the request's last.
    #[serde(rename = "final", default)]
    pub is_final: bool,
    /// Its outputs; without outputs and error it only says that it is the last.
    #[serde(default)]
    pub outputs: Option<Vec<TensorHeader<'static>>>,
    /// The response's parameters.
    #[serde(default)]
    pub parameters: Parameters,
    /// Why there are none.
    #[serde(default)]
    pub error: Option<ErrorHeader>,
}

/// An error in a [`ResponseHeader`] or an [`AnswerHeader`].
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorHeader {
    /// One of Triton's codes.
    pub code: ErrorCode,
    /// The message for clients.
    pub message: String,
    /// Whether the model has not executed the request, so that it is tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

impl From<ErrorHeader> for InferError {
    fn from(error: ErrorHeader) -> Self {
        InferError { of_model: !error.again, ..InferError::new(error.code, error.message) }
    }
}

impl From<InferError> for ErrorHeader {
    fn from(error: InferError) -> Self {
        ErrorHeader { code: error.code, message: error.message, again: false }
    }
}

impl From<MetricChange> for SampleChange {
    fn from(change: MetricChange) -> Self {
        let value = change.value;
        SampleChange {
            kind: match change.kind {
                MetricKind::Counter => Kind::Counter,
                MetricKind::Gauge => Kind::Gauge,
                MetricKind::Histogram => Kind::Histogram,
            },
            what: match change.what {
                MetricVerb::Add => What::Add(value.unwrap_or_default()),
                MetricVerb::Set => What::Set(value.unwrap_or_default()),
                MetricVerb::Observe => What::Observe(change.bounds, value),
            },
            name: change.name,
            help: change.help,
            labels: change.labels,
        }
    }
}
