//! The wire form of messages: a MessagePack map each, as `docs/message-contract.md` writes it down.
//!
//! Decoding copies no tensor bytes (tensors are slices of the message) and trusts nothing: sizes are held against the
//! bytes that are there before anything is allocated, lists are counted while they are read. What a reader would refuse
//! is not written either: who sends it learns it.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;
use trireme_inference::{
    DataType, InferError, Ledger, ModelKey, Parameters, Route, Shape, Step, Tensor, TensorError, TooMany, UnixMicros,
    check_listed, read_list, read_parameters,
};

use crate::message::{Answer, Output, Reply, WorkMessage};

/// The contract's version, sent with every message. A worker refuses messages of another one.
pub const CONTRACT_VERSION: u32 = 1;

/// Bytes of the longest name of a request, gateway, model or claim in a message. They become tokens of subjects, with up to
/// three bytes for each, and a broker closes the connection of who sends a line longer than its `max_control_line` (4096).
pub const MAX_NAME: usize = 256;

/// Bytes of the longest name of a tensor, and of what a step calls one: they are compared with one another.
pub const MAX_TENSOR_NAME: usize = 1024;

/// Maps and arrays inside one another that a message may hold. What we know takes six; the rest is for keys to come.
const MAX_DEPTH: usize = 32;

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// Of a contract that this build does not speak.
    #[error("message of contract version {0}, expected {CONTRACT_VERSION}")]
    Version(String),
    /// A header that routing needs is missing or unreadable.
    #[error("message header '{name}' is {found}, expected {expected}")]
    Header {
        /// The header.
        name: &'static str,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// Not MessagePack, or not the map that the contract calls for.
    #[error("message body is not readable: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    /// A value that MessagePack cannot hold.
    #[error("message body cannot be written: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// A step's model that no queue can have.
    #[error("message leads to a model whose name has {0} bytes, expected {MAX_NAME} at most")]
    ModelName(usize),
    /// A list of more entries than anybody reads.
    #[error("message holds {0}")]
    TooMany(#[from] TooMany),
    /// A tensor whose name is too long, or a step's name of one.
    #[error("message holds a name of a tensor of {0} bytes, expected {MAX_TENSOR_NAME} at most")]
    TensorName(usize),
    /// A tensor that contradicts itself.
    #[error("message holds a malformed tensor: {0}")]
    Tensor(#[from] TensorError),
}

#[derive(Serialize, Deserialize)]
struct WireTensor<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    datatype: DataType,
    shape: Shape,
    #[serde(with = "serde_bytes", borrow)]
    data: &'a [u8],
}

/// The steps of a route as they are read.
#[derive(Deserialize)]
#[serde(transparent)]
struct Steps(#[serde(deserialize_with = "read_steps")] Vec<Step>);

#[derive(Serialize, Deserialize)]
struct WireRoute<'a, Steps> {
    #[serde(borrow)]
    model: std::borrow::Cow<'a, str>,
    version: i64,
    ensemble: bool,
    /// Number of the first of `steps`, counted from 0 at the gateway.
    step: u32,
    steps: Steps,
}

/// The body of a work message; the rest of [`WorkMessage`] travels in headers.
#[derive(Serialize, Deserialize)]
struct WireWork<'a, Steps> {
    #[serde(borrow)]
    route: WireRoute<'a, Steps>,
    #[serde(borrow, deserialize_with = "read_tensors")]
    tensors: Vec<WireTensor<'a>>,
    #[serde(deserialize_with = "read_own_parameters")]
    parameters: std::borrow::Cow<'a, Parameters>,
    ledger: std::borrow::Cow<'a, Ledger>,
    #[serde(borrow)]
    id: std::borrow::Cow<'a, str>,
    sent_at: UnixMicros,
}

/// The body of a reply.
#[derive(Serialize, Deserialize)]
struct WireReply<'a> {
    #[serde(borrow, deserialize_with = "read_tensors")]
    tensors: Vec<WireTensor<'a>>,
    #[serde(deserialize_with = "read_own_parameters")]
    parameters: std::borrow::Cow<'a, Parameters>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<std::borrow::Cow<'a, InferError>>,
    ledger: std::borrow::Cow<'a, Ledger>,
    sent_at: UnixMicros,
}

fn read_steps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Step>, D::Error> {
    read_list(deserializer, "steps")
}

fn read_tensors<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WireTensor<'a>>, D::Error> {
    read_list(deserializer, "tensors")
}

fn read_own_parameters<'de, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<std::borrow::Cow<'a, Parameters>, D::Error> {
    read_parameters(deserializer).map(std::borrow::Cow::Owned)
}

/// What a message's headers carry of a [`WorkMessage`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of WorkMessage")]
pub struct WorkHeaders {
    pub request_id: String,
    pub gateway: String,
    pub deadline: UnixMicros,
    pub priority: u32,
    pub traceparent: Option<String>,
    pub answer: Answer,
}

/// What a message's headers carry of a [`Reply`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of Reply")]
pub struct ReplyHeaders {
    pub request_id: String,
    pub gateway: String,
    pub sequence: u32,
    pub last: bool,
}

/// The body of a work message.
pub fn encode_work(message: &WorkMessage) -> Result<Bytes, EnvelopeError> {
    let route = &message.route;
    check_route(route.remaining())?;
    check_lists(&message.tensors, &message.parameters, &message.ledger)?;
    encode(
        &WireWork {
            route: WireRoute {
                model: route.model().name.as_str().into(),
                version: route.model().version,
                ensemble: route.is_ensemble(),
                step: route.step_number(),
                steps: route.remaining(),
            },
            tensors: wire_tensors(&message.tensors),
            parameters: std::borrow::Cow::Borrowed(&message.parameters),
            ledger: std::borrow::Cow::Borrowed(&message.ledger),
            id: message.client_id.as_str().into(),
            sent_at: message.sent_at,
        },
        &message.tensors,
    )
}

/// A work message from its headers and body. Its tensors share `body`'s memory.
pub fn decode_work(headers: WorkHeaders, body: &Bytes) -> Result<WorkMessage, EnvelopeError> {
    let wire: WireWork<'_, Steps> = decode(body)?;
    let model = ModelKey { name: wire.route.model.into_owned(), version: wire.route.version };
    let steps = wire.route.steps.0;
    check_route(&steps)?;
    Ok(WorkMessage {
        request_id: headers.request_id,
        gateway: headers.gateway,
        deadline: headers.deadline,
        priority: headers.priority,
        traceparent: headers.traceparent,
        client_id: wire.id.into_owned(),
        sent_at: wire.sent_at,
        route: Route::resume(model, wire.route.ensemble, wire.route.step, steps),
        tensors: own_tensors(wire.tensors, body)?,
        parameters: Arc::new(wire.parameters.into_owned()),
        ledger: wire.ledger.into_owned(),
        answer: headers.answer,
    })
}

/// The body of a reply.
pub fn encode_reply(reply: &Reply) -> Result<Bytes, EnvelopeError> {
    let none = Output::default();
    let (output, error) = match &reply.outcome {
        Ok(output) => (output, None),
        Err(error) => (&none, Some(std::borrow::Cow::Borrowed(error))),
    };
    check_lists(&output.tensors, &output.parameters, &reply.ledger)?;
    encode(
        &WireReply {
            tensors: wire_tensors(&output.tensors),
            parameters: std::borrow::Cow::Borrowed(&output.parameters),
            error,
            ledger: std::borrow::Cow::Borrowed(&reply.ledger),
            sent_at: reply.sent_at,
        },
        &output.tensors,
    )
}

/// A reply from its headers and body. Its tensors share `body`'s memory.
pub fn decode_reply(headers: ReplyHeaders, body: &Bytes) -> Result<Reply, EnvelopeError> {
    let wire: WireReply<'_> = decode(body)?;
    let outcome = match wire.error {
        Some(error) => Err(error.into_owned()),
        None => Ok(Output { tensors: own_tensors(wire.tensors, body)?, parameters: wire.parameters.into_owned() }),
    };
    Ok(Reply {
        request_id: headers.request_id,
        gateway: headers.gateway,
        sequence: headers.sequence,
        last: headers.last,
        outcome,
        ledger: wire.ledger.into_owned(),
        sent_at: wire.sent_at,
    })
}

impl Reply {
    /// The reply to a request of which only these headers are known: it failed.
    pub(crate) fn failed(headers: ReplyHeaders, error: InferError) -> Reply {
        Reply {
            request_id: headers.request_id,
            gateway: headers.gateway,
            sequence: headers.sequence,
            last: true,
            outcome: Err(error),
            ledger: Ledger::default(),
            sent_at: UnixMicros::now(),
        }
    }
}

/// What has to hold of the steps of every message, for who writes it and for who reads it.
fn check_route(steps: &[Step]) -> Result<(), EnvelopeError> {
    check_listed("steps", steps.len())?;
    for step in steps {
        check_listed("inputs of a step", step.inputs.len())?;
        check_listed("outputs of a step", step.outputs.len())?;
        check_listed("dead tensors of a step", step.dead.len())?;
        if step.model.name.len() > MAX_NAME {
            return Err(EnvelopeError::ModelName(step.model.name.len()));
        }
        let inputs = step.inputs.iter().flat_map(|input| [&input.name, &input.tensor]);
        let outputs = step.outputs.iter().flat_map(|output| [&output.name, &output.tensor]);
        inputs.chain(outputs).chain(&step.dead).try_for_each(|name| check_tensor_name(name))?;
    }
    Ok(())
}

/// What has to hold of the rest of a message before it is written.
fn check_lists(tensors: &[Tensor], parameters: &Parameters, ledger: &Ledger) -> Result<(), EnvelopeError> {
    check_listed("tensors", tensors.len())?;
    check_listed("parameters", parameters.len())?;
    check_listed("hops", ledger.0.len())?;
    for tensor in tensors {
        check_listed("dimensions", tensor.shape().len())?;
        check_tensor_name(tensor.name())?;
    }
    Ok(())
}

fn check_tensor_name(name: &str) -> Result<(), EnvelopeError> {
    if name.len() > MAX_TENSOR_NAME { Err(EnvelopeError::TensorName(name.len())) } else { Ok(()) }
}

fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(body);
    // The library's own limit lets a hostile message use up a thread's stack.
    reader.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut reader)
}

fn encode<T: Serialize>(value: &T, tensors: &[Tensor]) -> Result<Bytes, EnvelopeError> {
    // Room for the tensors and a route of a few steps: one allocation for most messages.
    let size = tensors.iter().map(|t| t.data().len() + 64).sum::<usize>() + 1024;
    let mut body = Vec::with_capacity(size);
    value.serialize(&mut rmp_serde::Serializer::new(&mut body).with_struct_map())?;
    Ok(body.into())
}

fn wire_tensors(tensors: &[Tensor]) -> Vec<WireTensor<'_>> {
    let wire = |t| {
        let t: &Tensor = t;
        WireTensor { name: t.name().into(), datatype: t.datatype(), shape: t.shape().clone(), data: t.data() }
    };
    tensors.iter().map(wire).collect()
}

fn own_tensors(tensors: Vec<WireTensor<'_>>, body: &Bytes) -> Result<Vec<Tensor>, EnvelopeError> {
    let own = |t: WireTensor<'_>| {
        check_tensor_name(&t.name)?;
        Ok(Tensor::new(t.name, t.datatype, t.shape, body.slice_ref(t.data))?)
    };
    tensors.into_iter().map(own).collect()
}

#[cfg(test)]
mod tests;
