//! Infer requests and responses over HTTP: a JSON header, followed by the bytes of binary tensors.
//!
//! Decoding checks the request by the protocol alone. Two checks come later:
//! [`trireme_inference::UncheckedTensor::check`] compares a tensor's bytes with its shape, and the gateway compares it
//! with the model's schema.

pub(crate) mod data;
pub(crate) mod decode;
mod encode;
pub(crate) mod parameters;
mod raw;

use std::collections::BTreeMap;

use bytes::Bytes;
use trireme_inference::{InferError, InferRequest, TensorSpec};

pub use decode::decode_infer_request;
pub use encode::encode_infer_response;

/// The HTTP header of requests and responses with the length in bytes of the JSON before binary tensors.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// Asked for each tensor before it is converted from JSON: whether there is room for so many bytes. They are the most that the tensor
/// may have; numbers take up to four times the room of their digits. Its error is the request's.
pub type Room<'a> = &'a mut dyn FnMut(u64) -> Result<(), InferError>;

/// The properties of the requested model that decoding needs.
#[derive(Clone, Copy, Debug)]
pub struct InferTarget<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its inputs, batch dimension included. Only a raw request, which has no names itself, needs them.
    pub inputs: &'a [TensorSpec],
    /// Its largest batch; 0 if shapes have no batch dimension.
    pub max_batch_size: u32,
    /// Largest JSON part, and largest input in JSON, in bytes.
    pub max_json_size: usize,
}

/// A decoded request, and how its response is to be encoded.
#[derive(Clone, Debug)]
pub struct HttpInferRequest {
    /// The request. `model` is set, `version` is not: it is in the path.
    pub request: InferRequest,
    /// The formats of the outputs.
    pub output_format: OutputFormat,
}

/// The format of an output's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorFormat {
    /// In the JSON, as an array.
    #[default]
    Json,
    /// After the JSON, as bytes.
    Binary,
}

/// The format of each output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    /// For outputs that the request does not list; `binary_data_output` sets it.
    pub unlisted: TensorFormat,
    /// For outputs that the request lists. These are JSON unless they ask for binary themselves, whatever `unlisted`
    /// is.
    pub listed: BTreeMap<String, TensorFormat>,
}

/// A response as it is sent over HTTP: `json`, then each of `binary`.
#[derive(Clone, Debug)]
pub struct EncodedResponse {
    /// The JSON.
    pub json: Bytes,
    /// The bytes of the binary outputs, in order; none is empty.
    pub binary: Vec<Bytes>,
    /// The value of [`HEADER_LENGTH`]; `None` if there are no binary bytes and the response is plain JSON.
    pub header_length: Option<usize>,
}

// === impl OutputFormat ===

impl OutputFormat {
    /// The format of the output `name`.
    pub fn of(&self, name: &str) -> TensorFormat {
        self.listed.get(name).copied().unwrap_or(self.unlisted)
    }
}

// === impl EncodedResponse ===

impl EncodedResponse {
    /// The Content-Type.
    pub fn content_type(&self) -> &'static str {
        match self.header_length {
            Some(_) => "application/octet-stream",
            None => "application/json",
        }
    }
}

/// The prefix of messages that come from Triton's core. Messages of its frontends do not have it.
pub(crate) fn request_prefix(id: &str) -> String {
    format!("[request id: {}] ", if id.is_empty() { "<id_unknown>" } else { id })
}

#[cfg(test)]
mod tests;
