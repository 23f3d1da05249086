//! From an [`InferResponse`], or an error, to response messages.

use std::collections::BTreeMap;

use bytes::Bytes;
use trireme_inference::{InferError, InferResponse, ParameterValue, Tensor};

use super::wire::infer_parameter::ParameterChoice;
use super::wire::model_infer_response::InferOutputTensor;
use super::wire::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// A parameter of every response of a stream: whether it is the last one for its request.
const FINAL_RESPONSE: &str = "triton_final_response";

/// The id and model of a stream's request, for responses without other content.
#[derive(Clone, Debug)]
pub struct Named {
    id: String,
    model_name: String,
    model_version: String,
}

// === impl Named ===

impl Named {
    /// The id and model of `request`.
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

/// Encodes a response. Outputs always travel as raw bytes, one entry for each, and share their tensors' memory; an
/// output in shared memory has an empty entry. The id is repeated even if it is empty.
pub fn encode_infer_response(response: InferResponse) -> ModelInferResponse {
    let raw = |output: &Tensor| match response.shared.contains(output.name()) {
        true => Bytes::new(),
        false => output.data().clone(),
    };
    ModelInferResponse {
        model_name: response.model.name.to_string(),
        model_version: response.model.version.to_string(),
        id: response.id,
        parameters: response.parameters.into_iter().map(|(name, value)| (name, parameter(value))).collect(),
        raw_output_contents: response.outputs.iter().map(raw).collect(),
        outputs: response.outputs.iter().map(describe).collect(),
    }
}

/// Encodes a response of a stream. `is_final`: it is the last one for its request.
pub fn encode_stream_response(response: InferResponse, is_final: bool) -> ModelStreamInferResponse {
    let mut response = encode_infer_response(response);
    response.parameters.extend([final_flag(is_final)]);
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

/// Encodes the error of a stream's request, which `named` identifies. It is the last response for the request.
pub fn encode_stream_error(named: Named, error: InferError) -> ModelStreamInferResponse {
    stream_error(ModelInferResponse { parameters: BTreeMap::from([final_flag(true)]), ..named.response() }, error)
}

/// Encodes the error of a stream's request that was refused before the model got it. Like Triton's, it has neither the
/// model nor the mark of the last response.
pub fn encode_stream_refusal(named: Named, error: InferError) -> ModelStreamInferResponse {
    stream_error(ModelInferResponse { id: named.id, ..ModelInferResponse::default() }, error)
}

/// Encodes the end of a stream's request, if it has no further response.
pub fn encode_stream_end(named: Named) -> ModelStreamInferResponse {
    let response = ModelInferResponse { parameters: BTreeMap::from([final_flag(true)]), ..named.response() };
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

fn stream_error(response: ModelInferResponse, error: InferError) -> ModelStreamInferResponse {
    // Clients recognise an error by its text, so the text must not be empty.
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
