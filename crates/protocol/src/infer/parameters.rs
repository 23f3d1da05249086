//! The parameters of a request: those with a meaning in the protocol, and those passed on to models.

use trireme_inference::{InferError, InferRequest, ParameterValue, REQUEST_TIMEOUT};

use super::TensorFormat;
use crate::json::{Number, Value};
use crate::refusal::unable_to_parse;

/// Decodes the parameters into `request`; returns the format of unlisted outputs.
pub(super) fn decode(parameters: &Value<'_>, request: &mut InferRequest) -> Result<TensorFormat, InferError> {
    let mut unlisted = TensorFormat::Json;
    let members = parameters.members().map_err(|error| error.context("failed to get request params."))?;
    for (name, value) in members {
        let name = String::from_utf8_lossy(&name);
        match &*name {
            "binary_data_output" => {
                if value.as_bool().map_err(unable_to_parse(&name))? {
                    unlisted = TensorFormat::Binary;
                }
            }
            _ => set(request, &name, &value)?,
        }
    }
    Ok(unlisted)
}

/// Sets one parameter in `request`.
pub(crate) fn set(request: &mut InferRequest, name: &str, value: &Value<'_>) -> Result<(), InferError> {
    let unable = || unable_to_parse(name);
    let passed_on = match name {
        "priority" => {
            let level = value.as_u64().map_err(unable())?;
            request.priority = level;
            return Ok(());
        }
        // 0 means none, as in Triton.
        "timeout" | REQUEST_TIMEOUT => match value.as_u64().map_err(unable())? {
            0 => return Ok(()),
            limit => unsigned(limit),
        },
        "sequence_id" => match value.as_u64() {
            Ok(id) => unsigned(id),
            Err(_) => ParameterValue::String(value.as_text().map_err(unable())?.into_owned()),
        },
        "sequence_start" | "sequence_end" => ParameterValue::Bool(value.as_bool().map_err(unable())?),
        reserved if reserved.starts_with("triton_") => {
            return Err(InferError::invalid_arg(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            ));
        }
        custom => decode_custom(custom, value)?,
    };
    request.parameters.insert(name.to_owned(), passed_on);
    Ok(())
}

fn decode_custom(name: &str, value: &Value<'_>) -> Result<ParameterValue, InferError> {
    Ok(match value {
        Value::Bool(value) => ParameterValue::Bool(*value),
        Value::String(text) => ParameterValue::String(String::from_utf8_lossy(text).into_owned()),
        Value::Number(number) => match (value.as_i64(), number) {
            (Ok(integer), _) => ParameterValue::Int64(integer),
            // An integer above i64 becomes a double, as in Triton.
            (Err(_), Number::Unsigned(large)) => ParameterValue::Double(*large as f64),
            (Err(_), Number::Negative(small)) => ParameterValue::Int64(*small),
            (Err(_), Number::Double(double)) => ParameterValue::Double(*double),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => {
            return Err(InferError::invalid_arg(format!(
                "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
            )));
        }
    })
}

fn unsigned(value: u64) -> ParameterValue {
    i64::try_from(value).map_or(ParameterValue::Uint64(value), ParameterValue::Int64)
}
