//! From an [`InferResponse`], or an error, to the messages that answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use trireme_inference::{InferError, InferResponse, ParameterValue, Tensor};

use super::wire::infer_parameter::ParameterChoice;
use super::wire::model_infer_response::InferOutputTensor;
use super::wire::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// On every response of a stream: whether it is the last one for its request.
const FINAL_RESPONSE: &str = "triton_final_response";

/// What a request of a stream calls itself and its model: on responses that have nothing else to say.
#[derive(Clone, Debug)]
pub struct Named {
    id: String,
    model_name: String,
    model_version: String,
}

// === impl Named ===

impl Named {
    /// What `request` says.
    pub fn of(request: &ModelInferRequest) -> Named {
        Named {
            id: request.id.clone(),
            model_name: request.model_name.clone(),
            model_version: request.model_version.clone(),
        }
    }

    fn response(self) -> ModelInferResponse {
        let Named { id, model_name, model_version } = self;
        ModelInferResponse { id, model_name, model_version, ..ModelInferResponse::default() }
    }
}

/// Encodes a response. Outputs always travel as raw bytes, one entry for each, and share their tensors' memory; the entry of
/// one in shared memory is empty. The id is echoed even when it is empty.
pub fn encode_infer_response(response: InferResponse) -> ModelInferResponse {
    let raw = |output: &Tensor| match response.shared.contains(output.name()) {
        true => Bytes::new(),
        false => output.data().clone(),
    };
    ModelInferResponse {
        model_name: response.model.name,
        model_version: response.model.version.to_string(),
        id: response.id,
        parameters: response.parameters.into_iter().map(|(name, value)| (name, parameter(value))).collect(),
        raw_output_contents: response.outputs.iter().map(raw).collect(),
        outputs: response.outputs.iter().map(describe).collect(),
    }
}

/// Encodes a response of a stream. `is_final`: no other one follows for its request.
pub fn encode_stream_response(response: InferResponse, is_final: bool) -> ModelStreamInferResponse {
    let mut response = encode_infer_response(response);
    response.parameters.extend([final_flag(is_final)]);
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

/// Encodes why a request of a stream, of which `named` says what it was, has no (further) result. It is the last response
/// for its request.
pub fn encode_stream_error(named: Named, error: InferError) -> ModelStreamInferResponse {
    stream_error(ModelInferResponse { parameters: BTreeMap::from([final_flag(true)]), ..named.response() }, error)
}

/// Encodes why a request of a stream was refused before its model had it. Triton says neither the model nor that it is final.
pub fn encode_stream_refusal(named: Named, error: InferError) -> ModelStreamInferResponse {
    stream_error(ModelInferResponse { id: named.id, ..ModelInferResponse::default() }, error)
}

/// Encodes that a request of a stream has no more responses.
pub fn encode_stream_end(named: Named) -> ModelStreamInferResponse {
    let response = ModelInferResponse { parameters: BTreeMap::from([final_flag(true)]), ..named.response() };
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

fn stream_error(response: ModelInferResponse, error: InferError) -> ModelStreamInferResponse {
    // Clients tell an error by its text being there.
    let error_message = if error.message.is_empty() { "unknown error".to_owned() } else { error.message };
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

fn final_flag(is_final: bool) -> (String, InferParameter) {
    (FINAL_RESPONSE.to_owned(), parameter(ParameterValue::Bool(is_final)))
}

fn describe(output: &Tensor) -> InferOutputTensor {
    InferOutputTensor {
        name: output.name().to_owned(),
        datatype: output.datatype().name().to_owned(),
        shape: output.shape().to_vec(),
        ..InferOutputTensor::default()
    }
}

fn parameter(value: ParameterValue) -> InferParameter {
    let choice = match value {
        ParameterValue::Bool(value) => ParameterChoice::BoolParam(value),
        ParameterValue::Int64(value) => ParameterChoice::Int64Param(value),
        ParameterValue::Uint64(value) => ParameterChoice::Uint64Param(value),
        ParameterValue::Double(value) => ParameterChoice::DoubleParam(value),
        ParameterValue::String(value) => ParameterChoice::StringParam(value),
    };
    InferParameter { parameter_choice: Some(choice) }
}
