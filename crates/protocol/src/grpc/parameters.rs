//! Parameters of requests and of requested outputs: those with a meaning in the protocol, and those passed on to
//! models.

use std::collections::BTreeMap;

use trireme_inference::{InferError, InferRequest, ParameterValue, REQUEST_TIMEOUT, SharedMemoryPart};

use super::wire::infer_parameter::ParameterChoice;
use super::wire::{InferParameter, ModelInferRequest};

/// The only reserved key that a request may set; every C++ client sets it. It asks for an empty last response, if the
/// last response with outputs was not known to be the last.
const EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// Whether a stream's request wants a response without outputs at its end, if no other response marks the end.
pub fn wants_empty_final(request: &ModelInferRequest) -> bool {
    let parameter = request.parameters.get(EMPTY_FINAL_RESPONSE).and_then(|p| p.parameter_choice.as_ref());
    matches!(parameter, Some(ParameterChoice::BoolParam(true)))
}

/// Decodes a request's parameters into `request`.
pub(super) fn decode_request(
    parameters: BTreeMap<String, InferParameter>,
    request: &mut InferRequest,
) -> Result<(), InferError> {
    use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param};
    for (name, InferParameter { parameter_choice }) in parameters {
        let passed_on = match (name.as_str(), parameter_choice) {
            ("sequence_id", Some(Int64Param(id))) => ParameterValue::Int64(id),
            ("sequence_id", Some(StringParam(id))) => ParameterValue::String(id),
            ("sequence_id", _) => return Err(wrong_type(&name, "int64_param or string_param.")),
            ("sequence_start" | "sequence_end", Some(BoolParam(flag))) => ParameterValue::Bool(flag),
            ("sequence_start" | "sequence_end", _) => return Err(wrong_type(&name, "bool_param.")),
            ("priority", Some(Int64Param(level))) => {
                let Ok(level) = u64::try_from(level) else {
                    return Err(InferError::invalid_arg("invalid value for 'priority', expected value >= 0."));
                };
                request.priority = level;
                continue;
            }
            ("priority", Some(Uint64Param(level))) => {
                request.priority = level;
                continue;
            }
            ("priority", _) => return Err(wrong_type(&name, "int64_param or uint64_param.")),
            // 0 means none, as in Triton; -1 means the same in effect.
            ("timeout" | REQUEST_TIMEOUT, Some(Int64Param(..=0))) => continue,
            ("timeout" | REQUEST_TIMEOUT, Some(Int64Param(limit))) => ParameterValue::Uint64(limit.unsigned_abs()),
            ("timeout" | REQUEST_TIMEOUT, _) => return Err(wrong_type(&name, "int64_param.")),
            (EMPTY_FINAL_RESPONSE, Some(BoolParam(_))) => continue,
            (EMPTY_FINAL_RESPONSE, _) => return Err(wrong_type(&name, "bool_param.")),
            (reserved, _) if reserved.starts_with("triton_") => {
                return Err(InferError::invalid_arg(format!(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys \
                     starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
                )));
            }
            (_, Some(Int64Param(value))) => ParameterValue::Int64(value),
            (_, Some(BoolParam(value))) => ParameterValue::Bool(value),
            (_, Some(StringParam(value))) => ParameterValue::String(value),
            (_, Some(DoubleParam(value))) => ParameterValue::Double(value),
            (_, Some(Uint64Param(_)) | None) => {
                return Err(wrong_type(&name, "int64_param, bool_param, or string_param."));
            }
        };
        request.parameters.insert(name, passed_on);
    }
    Ok(())
}

/// The number of classes of a requested output; 0 requests the tensor itself.
pub(super) fn decode_classification(parameters: &BTreeMap<String, InferParameter>) -> Result<u32, InferError> {
    let Some(parameter) = parameters.get("classification") else { return Ok(0) };
    let Some(ParameterChoice::Int64Param(count)) = parameter.parameter_choice else {
        return Err(wrong_type("classification", "int64_param"));
    };
    if count <= 0 {
        return Err(InferError::invalid_arg("invalid value for 'classification' parameter, expected >= 0"));
    }
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The place of a tensor in shared memory, if its parameters name a region. Negative numbers are read as unsigned, as
/// in Triton: they become so large that no region is that long.
pub(super) fn decode_part(
    tensor: &str,
    parameters: &BTreeMap<String, InferParameter>,
) -> Result<Option<SharedMemoryPart>, InferError> {
    const REGION: &str = "shared_memory_region";
    let choice = |name| parameters.get(name).map(|parameter| parameter.parameter_choice.as_ref());
    let wrong_type = |name, expected| {
        InferError::invalid_arg(format!(
            "invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."
        ))
    };
    let region = match choice(REGION) {
        None => None,
        Some(Some(ParameterChoice::StringParam(region))) => Some(region.clone()),
        Some(_) => return Err(wrong_type(REGION, "string_param")),
    };
    let number = |name| match (choice(name), &region) {
        (None, _) => Ok(None),
        (Some(_), None) => Err(InferError::invalid_arg(format!(
            "'{name}' can not be specified without '{REGION}' parameter for tensor '{tensor}'"
        ))),
        (Some(Some(ParameterChoice::Int64Param(value))), _) => Ok(Some(*value as u64)),
        (Some(_), _) => Err(wrong_type(name, "int64_param")),
    };
    let (offset, byte_size) = (number("shared_memory_offset")?, number("shared_memory_byte_size")?);
    let Some(region) = region else { return Ok(None) };
    let byte_size = byte_size.ok_or_else(|| {
        InferError::invalid_arg(format!(
            "'shared_memory_byte_size' must be specified along with '{REGION}' parameter for tensor '{tensor}'"
        ))
    })?;
    Ok(Some(SharedMemoryPart { region, offset: offset.unwrap_or(0), byte_size }))
}

fn wrong_type(name: &str, expected: &str) -> InferError {
    InferError::invalid_arg(format!("invalid value type for '{name}' parameter, expected {expected}"))
}
