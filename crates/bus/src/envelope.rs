//! The wire form of messages: each is a MessagePack map, as described in `docs/message-contract.md`.
//!
//! Decoding copies no tensor bytes (tensors are slices of the message) and trusts nothing: sizes are checked against
//! the bytes present before anything is allocated, and entries of lists are counted while they are read. The encoder
//! refuses any message that the decoder would refuse, so the sender gets the error.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;
use trireme_inference::{
    Callers, DataType, InferError, Ledger, ModelKey, Name, Owner, Parameters, Route, Shape, Step, Tensor, TensorError,
    TooMany, TraceParent, UnixMicros, check_listed, read_list, read_parameters,
};

use crate::message::{AnswerForm, Output, Reply, SequenceStates, WorkMessage};

/// The contract's version, sent with every message. A worker sets messages of another one aside.
pub const CONTRACT_VERSION: u32 = 4;

/// Bytes of the longest name of a request, gateway, model or claim in a message. Names become tokens of subjects, with
/// up to three bytes for each byte, and a broker closes the connection of a client that sends a line longer than its
/// `max_control_line` (4096).
pub const MAX_NAME: usize = 256;

/// Bytes of the longest name of a tensor, at the model or in a step.
pub const MAX_TENSOR_NAME: usize = 1024;

/// Depth of nested maps and arrays that a message may have. The present contract needs six; the rest is for future
/// keys.
const MAX_DEPTH: usize = 32;

/// Why a message cannot be decoded or encoded.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// The contract version is not the one of this build.
    #[error("message of contract version {0}, expected {CONTRACT_VERSION}")]
    Version(String),
    /// A header that routing needs is missing or unreadable.
    #[error("message header '{name}' is {found}, expected {expected}")]
    Header {
        /// The header.
        name: &'static str,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: &'static str,
    },
    /// The body is not MessagePack, or not the map that the contract requires.
    #[error("message body is not readable: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    /// A value that MessagePack cannot hold.
    #[error("message body cannot be written: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// The name of a step's model is too long for a queue.
    #[error("message leads to a model whose name has {0} bytes, expected {MAX_NAME} at most")]
    ModelName(usize),
    /// A list has more entries than a reader accepts.
    #[error("message holds {0}")]
    TooMany(#[from] TooMany),
    /// The name of a tensor is too long, in the tensor or in a step.
    #[error("message holds a name of a tensor of {0} bytes, expected {MAX_TENSOR_NAME} at most")]
    TensorName(usize),
    /// A tensor's fields contradict each other.
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

/// The steps of a route, as the decoder reads them.
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
    #[serde(default, skip_serializing_if = "is_of_a_client")]
    callers: std::borrow::Cow<'a, Callers>,
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

/// The states of a sequence.
#[derive(Serialize, Deserialize)]
struct WireStates<'a> {
    #[serde(borrow, deserialize_with = "read_tensors")]
    tensors: Vec<WireTensor<'a>>,
    #[serde(borrow)]
    request: std::borrow::Cow<'a, str>,
    #[serde(deserialize_with = "read_begun")]
    steps: std::borrow::Cow<'a, [String]>,
}

fn read_begun<'de, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<std::borrow::Cow<'a, [String]>, D::Error> {
    read_list(deserializer, "steps of a sequence").map(std::borrow::Cow::Owned)
}

fn is_of_a_client(callers: &Callers) -> bool {
    callers.is_empty()
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

/// The fields of a [`WorkMessage`] that travel in headers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of WorkMessage")]
pub struct WorkHeaders {
    pub request_id: Name,
    pub gateway: Name,
    pub deadline: UnixMicros,
    pub priority: u64,
    pub traceparent: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Name>,
    pub answer: AnswerForm,
    #[serde(default)]
    pub job: Option<Name>,
    #[serde(default)]
    pub owner: Owner,
}

/// The fields of a [`Reply`] that travel in headers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of Reply")]
pub struct ReplyHeaders {
    pub request_id: Name,
    pub gateway: Name,
    pub sequence: u32,
    pub last: bool,
}

impl WorkHeaders {
    /// The headers of a message.
    pub fn of(message: &WorkMessage) -> WorkHeaders {
        let trace = message.traceparent.as_ref();
        WorkHeaders {
            request_id: message.request_id.clone(),
            gateway: message.gateway.clone(),
            deadline: message.deadline,
            priority: message.priority,
            traceparent: trace.map(|trace| trace.parent.clone()),
            tracestate: trace.and_then(|trace| trace.state.clone()),
            answer: message.answer,
            job: message.job.clone(),
            owner: message.owner.clone(),
        }
    }
}

/// Encodes the body of a work message.
///
/// ```
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// use trireme_bus::{WorkHeaders, decode_work, encode_work};
///
/// let message = message(&model, 7);
/// let (headers, body) = (WorkHeaders::of(&message), encode_work(&message)?);
/// assert_eq!(decode_work(headers, &body)?, message);
/// # Ok::<(), trireme_bus::EnvelopeError>(())
/// ```
pub fn encode_work(message: &WorkMessage) -> Result<Bytes, EnvelopeError> {
    let route = &message.route;
    check_route(route.remaining())?;
    check_lists(&message.tensors, &message.parameters, &message.ledger)?;
    check_listed("callers", message.callers.models().len())?;
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
            callers: std::borrow::Cow::Borrowed(&message.callers),
        },
        &message.tensors,
    )
}

/// Decodes a work message from its headers and body. Its tensors share `body`'s memory.
pub fn decode_work(headers: WorkHeaders, body: &Bytes) -> Result<WorkMessage, EnvelopeError> {
    let wire: WireWork<'_, Steps> = decode_body(body)?;
    let model = ModelKey { name: wire.route.model.into_owned().into(), version: wire.route.version };
    let steps = wire.route.steps.0;
    check_route(&steps)?;
    Ok(WorkMessage {
        request_id: headers.request_id,
        gateway: headers.gateway,
        deadline: headers.deadline,
        priority: headers.priority,
        traceparent: headers.traceparent.map(|parent| TraceParent::new(parent, headers.tracestate)),
        client_id: wire.id.into_owned().into(),
        sent_at: wire.sent_at,
        route: Route::resume(model, wire.route.ensemble, wire.route.step, steps),
        tensors: own_tensors(wire.tensors, body)?,
        parameters: Arc::new(wire.parameters.into_owned()),
        ledger: wire.ledger.into_owned(),
        answer: headers.answer,
        callers: wire.callers.into_owned(),
        job: headers.job,
        owner: headers.owner,
    })
}

/// Encodes the body of a reply.
///
/// ```
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// # use trireme_inference::InferError;
/// use trireme_bus::{ReplyHeaders, decode_reply, encode_reply};
///
/// let reply = message(&model, 7).reply(Err(InferError::unavailable("no worker is ready")));
/// let (headers, body) = (ReplyHeaders::of(&reply), encode_reply(&reply)?);
/// assert_eq!(decode_reply(headers, &body)?, reply);
/// # Ok::<(), trireme_bus::EnvelopeError>(())
/// ```
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

/// Decodes a reply from its headers and body. Its tensors share `body`'s memory.
pub fn decode_reply(headers: ReplyHeaders, body: &Bytes) -> Result<Reply, EnvelopeError> {
    let wire: WireReply<'_> = decode_body(body)?;
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

/// Encodes the states of a sequence.
pub(crate) fn encode_states(states: &SequenceStates) -> Result<Bytes, EnvelopeError> {
    check_listed("steps of a sequence", states.steps.len())?;
    check_tensors(&states.tensors)?;
    let wire = WireStates {
        tensors: wire_tensors(&states.tensors),
        request: states.request.as_str().into(),
        steps: states.steps.as_slice().into(),
    };
    encode(&wire, &states.tensors)
}

/// Decodes the states of a sequence. Their tensors share `body`'s memory.
pub(crate) fn decode_states(body: &Bytes) -> Result<SequenceStates, EnvelopeError> {
    let wire: WireStates<'_> = decode_body(body)?;
    Ok(SequenceStates {
        request: wire.request.into_owned(),
        steps: wire.steps.into_owned(),
        tensors: own_tensors(wire.tensors, body)?,
    })
}

impl ReplyHeaders {
    /// The headers of a reply.
    pub fn of(reply: &Reply) -> ReplyHeaders {
        ReplyHeaders {
            request_id: reply.request_id.clone(),
            gateway: reply.gateway.clone(),
            sequence: reply.sequence,
            last: reply.last,
        }
    }
}

impl Reply {
    /// The reply with an error, made from headers alone.
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

/// Checks the steps of a message, before writing and after reading.
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

/// Checks the other lists of a message before writing.
fn check_lists(tensors: &[Tensor], parameters: &Parameters, ledger: &Ledger) -> Result<(), EnvelopeError> {
    check_listed("parameters", parameters.len())?;
    check_listed("hops", ledger.0.len())?;
    check_tensors(tensors)
}

fn check_tensors(tensors: &[Tensor]) -> Result<(), EnvelopeError> {
    check_listed("tensors", tensors.len())?;
    for tensor in tensors {
        check_listed("dimensions", tensor.shape().len())?;
        check_tensor_name(tensor.name())?;
    }
    Ok(())
}

fn check_tensor_name(name: &str) -> Result<(), EnvelopeError> {
    if name.len() > MAX_TENSOR_NAME { Err(EnvelopeError::TensorName(name.len())) } else { Ok(()) }
}

/// Reads MessagePack that another process sent.
pub fn decode_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(body);
    // The library's default limit would let a hostile message overflow a thread's stack.
    reader.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut reader)
}

fn encode<T: Serialize>(value: &T, tensors: &[Tensor]) -> Result<Bytes, EnvelopeError> {
    // Room for the tensors and a route of a few steps: most messages need only one allocation.
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
