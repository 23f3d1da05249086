//! Infer requests and responses over HTTP: a JSON header, and behind it the bytes of the tensors that travel in binary.
//!
//! Decoding judges the request by the protocol alone. Whether the tensors fit their own claims and the model's schema is
//! for [`trireme_inference::UncheckedTensor::check`] and the gateway.

pub(crate) mod data;
pub(crate) mod decode;
mod encode;
pub(crate) mod parameters;
mod raw;

use std::collections::BTreeMap;

use bytes::Bytes;
use trireme_inference::{InferRequest, TensorSpec};

pub use decode::decode_infer_request;
pub use encode::encode_infer_response;

/// The header, of requests and responses, with the length in bytes of the JSON that precedes binary tensors.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// What decoding needs to know of the model asked for.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its inputs, batch dimension included. Only a raw request, which names nothing itself, depends on them.
    pub inputs: &'a [TensorSpec],
    /// Its largest batch; 0 when shapes have no batch dimension.
    pub max_batch_size: u32,
    /// Largest JSON part, and largest input that comes as JSON, in bytes.
    pub max_json_size: usize,
}

/// A decoded request, and how its response is to be encoded.
#[derive(Clone, Debug)]
pub struct HttpInferRequest {
    /// What is asked. `model` is set, `version` is not: it is in the path.
    pub request: InferRequest,
    /// How the outputs are to travel.
    pub output_format: OutputFormat,
}

/// How an output's elements travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorFormat {
    /// In the JSON, as an array.
    #[default]
    Json,
    /// Behind the JSON, as bytes.
    Binary,
}

/// How each output travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    /// For outputs that the request does not list; `binary_data_output` sets it.
    pub unlisted: TensorFormat,
    /// For outputs that the request lists. These are JSON unless they ask for binary themselves, whatever `unlisted` is.
    pub listed: BTreeMap<String, TensorFormat>,
}

/// A response as it goes over HTTP: `json`, then each of `binary`.
#[derive(Clone, Debug)]
pub struct EncodedResponse {
    /// The JSON.
    pub json: Bytes,
    /// The bytes of the binary outputs, in order; none is empty.
    pub binary: Vec<Bytes>,
    /// The value for [`HEADER_LENGTH`] when there are binary bytes; without them the response is plain JSON.
    pub header_length: Option<usize>,
}

// === impl OutputFormat ===

impl OutputFormat {
    /// How the output `name` travels.
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

/// What Triton puts before the messages of its core, as opposed to those of its frontends.
pub(crate) fn request_prefix(id: &str) -> String {
    format!("[request id: {}] ", if id.is_empty() { "<id_unknown>" } else { id })
}

#[cfg(test)]
mod tests;
