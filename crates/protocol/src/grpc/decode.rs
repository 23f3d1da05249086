//! From a `ModelInferRequest` to an [`InferRequest`].
//!
//! The order of checks is Triton's (version, parameters, names, data, outputs), so a request with several faults gets
//! the same error as from Triton.

use std::collections::HashSet;

use bytes::Bytes;
use trireme_inference::{
    DataType, InferError, InferRequest, RequestedOutput, Shape, SharedMemoryPart, TensorSpec, UncheckedTensor,
};

use super::wire::ModelInferRequest;
use super::wire::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use super::{contents, parameters, parse_model_version};
use crate::infer::request_prefix;

/// Decodes an infer request. Raw inputs share the message's memory.
///
/// Errors have Triton's codes and texts. `declared` are the model's inputs, which some texts name.
pub fn decode_infer_request(message: ModelInferRequest, declared: &[TensorSpec]) -> Result<InferRequest, InferError> {
    let mut request = InferRequest {
        version: parse_model_version(&message.model_version)?,
        id: message.id,
        model: message.model_name,
        ..InferRequest::default()
    };
    parameters::decode_request(message.parameters, &mut request)?;
    check_distinct(&request.id, "input", message.inputs.iter().map(|input| &*input.name))?;
    check_distinct(&request.id, "output", message.outputs.iter().map(|output| &*output.name))?;

    let mut raw =
        RawContents { any: !message.raw_input_contents.is_empty(), rest: message.raw_input_contents.into_iter() };
    for input in message.inputs {
        check_datatype(&request, &input, declared)?;
        let (input, part) = decode_input(&request.model, input, &mut raw)?;
        request.shared.inputs.extend(part.map(|part| (request.inputs.len(), part)));
        request.inputs.push(input);
    }
    for output in message.outputs {
        let (output, part) = decode_output(output)?;
        request.shared.outputs.extend(part.map(|part| (output.name.clone(), part)));
        request.outputs.push(output);
    }
    Ok(request)
}

fn check_distinct<'a>(id: &str, what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), InferError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            let prefix = request_prefix(id);
            return Err(InferError::invalid_arg(format!("{prefix}{what} '{name}' already exists in request")));
        }
    }
    Ok(())
}

/// Refuses an unknown datatype of a declared input. Triton's error for it names the datatype that the model expects.
fn check_datatype(request: &InferRequest, input: &InferInputTensor, declared: &[TensorSpec]) -> Result<(), InferError> {
    let expected = declared.iter().find(|spec| spec.name == input.name);
    let Some(expected) = expected.filter(|_| input.datatype.parse::<DataType>().is_err()) else { return Ok(()) };
    Err(InferError::invalid_arg(format!(
        "{}inference input '{}' data-type is '<invalid>', but model '{}' expects '{}'",
        request_prefix(&request.id),
        input.name,
        request.model,
        expected.datatype
    )))
}

/// The raw contents that no input has taken yet. It is no error if there are more of them than inputs.
struct RawContents {
    any: bool,
    rest: std::vec::IntoIter<Bytes>,
}

fn decode_input(
    model: &str,
    input: InferInputTensor,
    raw: &mut RawContents,
) -> Result<(UncheckedTensor, Option<SharedMemoryPart>), InferError> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = input;
    let Ok(datatype) = datatype.parse::<DataType>() else {
        return Err(InferError::invalid_arg(format!("invalid datatype for input {name}")));
    };
    let part = parameters::decode_part(&name, &parameters)?;
    let data = match contents {
        Some(_) if part.is_some() => {
            return Err(InferError::invalid_arg(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )));
        }
        // An input in shared memory takes no raw contents.
        None if part.is_some() => Bytes::new(),
        Some(_) if raw.any => {
            return Err(InferError::invalid_arg(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )));
        }
        Some(contents) => contents::to_bytes(&name, model, datatype, contents)?,
        None => raw.rest.next().ok_or_else(|| {
            InferError::invalid_arg(format!(
                "unable to find data for input tensor '{name}' for model '{model}' in request."
            ))
        })?,
    };
    Ok((UncheckedTensor { name: name.into(), datatype, shape: Shape::from(shape), data }, part))
}

fn decode_output(
    output: InferRequestedOutputTensor,
) -> Result<(RequestedOutput, Option<SharedMemoryPart>), InferError> {
    let part = parameters::decode_part(&output.name, &output.parameters)?;
    let classification = parameters::decode_classification(&output.parameters)?;
    if part.is_some() && classification > 0 {
        return Err(InferError::invalid_arg("output can't set both 'shared_memory_region' and 'classification'"));
    }
    Ok((RequestedOutput { name: output.name, classification }, part))
}
