//! The generate extension: flat JSON, whose keys are input names, instead of tensors.
//!
//! ```text
//! {"text_input": "hello", "max_tokens": 4}    one input and one parameter
//! {"model_name": "m", "model_version": "1", "text_output": "hello there"}
//! ```

use std::collections::HashSet;

use bytes::Bytes;
use trireme_inference::{InferError, InferRequest, InferResponse, Shape, TensorSpec, UncheckedTensor};

use crate::infer::{Room, data, parameters};
use crate::json::{self, JsonError, Value, Writer};

/// Decodes the body of a generate request for `model` with these `inputs`, batch dimension included, if there is `room`. Other keys, and
/// those within `parameters`, are request parameters; `id` is the request's id.
pub fn decode_generate_request(
    model: &str,
    inputs: &[TensorSpec],
    body: &[u8],
    room: Room<'_>,
) -> Result<InferRequest, InferError> {
    let document = json::parse(body)?;
    let mut request = InferRequest { model: model.to_owned(), ..InferRequest::default() };
    let mut seen = HashSet::new();
    for (key, value) in document.all_members()? {
        let key = String::from_utf8_lossy(&key);
        let is_input = inputs.iter().any(|input| input.name == *key);
        // As in Triton, a second value of an input is an error; of others the first one counts.
        if !is_input && !seen.insert(key.clone().into_owned()) {
            continue;
        }
        match &*key {
            "id" if !is_input => {
                let id = value.as_text().map_err(|error| error.context("Unable to parse 'id'"))?;
                request.id = id.into_owned();
            }
            "parameters" if is_input => {
                return Err(InferError::invalid_arg(
                    "Keyword 'parameters' for nested schema also given as input tensor name",
                ));
            }
            "parameters" => {
                if !matches!(value, Value::Object(_)) {
                    let error = JsonError::Type { kind: "object", wanted: "object" };
                    return Err(error.context("Expected JSON object for keyword: 'parameters'"));
                }
                for (key, value) in value.members()? {
                    put(&mut request, inputs, &String::from_utf8_lossy(&key), &value, room).map_err(|mut error| {
                        error.message = format!("Converting keyword: 'parameters': {}", error.message);
                        error
                    })?;
                }
            }
            _ => put(&mut request, inputs, &key, &value, room)?,
        }
    }
    Ok(request)
}

/// Puts a value into the input with its key's name, or among the parameters.
fn put(
    request: &mut InferRequest,
    inputs: &[TensorSpec],
    key: &str,
    value: &Value<'_>,
    room: Room<'_>,
) -> Result<(), InferError> {
    let Some(spec) = inputs.iter().find(|input| input.name == *key) else {
        return parameters::set(request, key, value);
    };
    if request.inputs.iter().any(|input| input.name == *key) {
        return Err(InferError::invalid_arg(format!("input '{key}' already exists in request")));
    }
    let count = match value {
        Value::Array(array) => array.iter().count() as u64,
        _ => 1,
    };
    let shape = fit(&spec.shape, count).ok_or_else(|| {
        InferError::invalid_arg(format!("The schema can not convert input '{key}' to tensor with proper shape"))
    })?;
    let data = match value {
        // Its elements may be arrays themselves, so the count of the outer array is not enough.
        Value::Array(array) => data::from_elements(key, spec.datatype, count, array.flatten(), array.text_len(), room)?,
        scalar => data::from_elements(key, spec.datatype, 1, std::iter::once(Ok(scalar.clone())), 1, room)?,
    };
    request.inputs.push(UncheckedTensor { name: key.into(), datatype: spec.datatype, shape, data });
    Ok(())
}

/// A shape by `schema` for `count` elements: fixed dimensions stay, the innermost variable one takes the remaining
/// factor, the others are 1.
fn fit(schema: &Shape, count: u64) -> Option<Shape> {
    let mut left = i64::try_from(count).ok()?;
    for &fixed in schema.iter().filter(|&&dimension| dimension >= 0) {
        match left.checked_rem(fixed) {
            Some(0) => left /= fixed,
            Some(_) => return None,
            // A dimension of zero fits only if there are no elements.
            None if left == 0 => left = 1,
            None => return None,
        }
    }
    let mut dimensions = schema.to_vec();
    for dimension in dimensions.iter_mut().rev().filter(|dimension| **dimension < 0) {
        *dimension = std::mem::replace(&mut left, 1);
    }
    (left == 1).then(|| Shape::from(dimensions))
}

/// Encodes the answer to a generate request: outputs by name, as a scalar if there is one element. Errors if an
/// output's datatype has no form in JSON.
pub fn encode_generate_response(response: &InferResponse) -> Result<Bytes, InferError> {
    for output in &response.outputs {
        data::check_writable(output.name(), output.datatype())?;
    }
    let mut w = Writer::default();
    w.object(|w| {
        w.name("model_name").string(&response.model.name);
        w.name("model_version").string(response.model.version.to_string());
        if !response.id.is_empty() {
            w.name("id").string(&response.id);
        }
        response.parameters.iter().for_each(|(name, value)| w.name(name).parameter(value));
        for output in &response.outputs {
            let w = w.name(output.name());
            match output.element_count() {
                1 => data::write_elements(output, w),
                _ => w.array(|w| data::write_elements(output, w)),
            }
        }
    });
    Ok(w.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_inference::{DataType, ErrorCode, Ledger, ModelKey, ParameterValue, Parameters, Tensor};

    fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, shape: Shape::from(shape), optional: false }
    }

    fn inputs() -> [TensorSpec; 3] {
        [
            spec("text", DataType::Bytes, &[-1, 1]),
            spec("numbers", DataType::Fp32, &[-1, -1, 2]),
            spec("flag", DataType::Bool, &[1]),
        ]
    }

    fn decode(body: &str) -> Result<InferRequest, InferError> {
        decode_generate_request("m", &inputs(), body.as_bytes(), &mut |_| Ok(()))
    }

    #[test]
    fn keys_become_inputs_and_parameters() {
        let body = r#"{"id":"7","text":"hello","numbers":[1,2,3,4.5],"flag":true,"temperature":0.5,
                       "parameters":{"max_tokens":4,"stop":"x"}}"#;
        let request = decode(body).unwrap();
        assert_eq!(request.id, "7");
        let shapes: Vec<_> = request.inputs.iter().map(|input| (&*input.name, input.shape.to_vec())).collect();
        assert_eq!(shapes, [("text", vec![1, 1]), ("numbers", vec![1, 2, 2]), ("flag", vec![1])]);
        assert_eq!(request.inputs[0].data, &b"\x05\0\0\0hello"[..]);
        let numbers = request.inputs[1].clone().check().unwrap();
        assert_eq!(*numbers.values::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.5]);
        let expected = Parameters::from([
            ("temperature".to_owned(), ParameterValue::Double(0.5)),
            ("max_tokens".to_owned(), ParameterValue::Int64(4)),
            ("stop".to_owned(), ParameterValue::from("x")),
        ]);
        assert_eq!(request.parameters, expected);
    }

    #[test]
    fn faulty_requests_are_refused() {
        use ErrorCode::{Internal, InvalidArg};
        let table = [
            ("", Internal, "The document is empty."),
            ("[]", Internal, "attempt to get members for non-object"),
            (r#"{"text":["a","b"]}"#, InvalidArg, ""),
            (
                r#"{"numbers":[1,2,3]}"#,
                InvalidArg,
                "The schema can not convert input 'numbers' to tensor with proper shape",
            ),
            (r#"{"flag":[true,true]}"#, InvalidArg, "The schema can not convert input 'flag'"),
            (r#"{"text":5}"#, Internal, "attempt to access JSON non-string as string"),
            (
                r#"{"numbers":[[1,2],[3,4]]}"#,
                Internal,
                "Unable to parse 'data': Shape does not match true shape of 'data' field",
            ),
            (r#"{"text":{}}"#, Internal, "attempt to access JSON non-string as string"),
            (r#"{"other":[1]}"#, InvalidArg, "parameter 'other' has invalid type."),
            (r#"{"parameters":1}"#, Internal, "Expected JSON object for keyword: 'parameters'"),
            (r#"{"parameters":{"a":null}}"#, InvalidArg, "Converting keyword: 'parameters': parameter 'a' has invalid"),
            (r#"{"text":"a","parameters":{"text":"b"}}"#, InvalidArg, "input 'text' already exists in request"),
            (r#"{"text":"a","flag":true,"text":"b"}"#, InvalidArg, "input 'text' already exists in request"),
            (r#"{"text":"a","flag":true,"flag":true}"#, InvalidArg, "input 'flag' already exists in request"),
            (r#"{"id":1}"#, Internal, "Unable to parse 'id'"),
            (r#"{"triton_x":1}"#, InvalidArg, "reserved for Triton usage"),
        ];
        for (body, code, message) in table {
            match decode(body) {
                // Two texts are two rows of one element.
                Ok(request) => {
                    assert_eq!((body, request.inputs[0].shape.to_vec()), (r#"{"text":["a","b"]}"#, vec![2, 1]))
                }
                Err(error) => {
                    assert_eq!(error.code, code, "{body}: {error}");
                    assert!(error.message.contains(message) && !message.is_empty(), "{body}: {error}");
                }
            }
        }
    }

    #[test]
    fn shapes_are_filled_from_the_inside() {
        let fits = |schema: &[i64], count| fit(&Shape::from(schema), count).map(|shape| shape.to_vec());
        assert_eq!(fits(&[-1, 16], 32), Some(vec![2, 16]));
        assert_eq!(fits(&[-1, -1], 3), Some(vec![1, 3]));
        assert_eq!(fits(&[], 1), Some(vec![]));
        assert_eq!(fits(&[], 2), None);
        assert_eq!(fits(&[-1], 0), Some(vec![0]));
        assert_eq!(fits(&[-1, 0], 0), Some(vec![1, 0]));
        assert_eq!(fits(&[0], 1), None);
        assert_eq!(fits(&[2, -1], 3), None);
    }

    #[test]
    fn responses_are_flat() {
        let response = InferResponse {
            id: "7".to_owned(),
            model: ModelKey { name: "m".into(), version: 2 },
            parameters: Parameters::from([("p".to_owned(), ParameterValue::Bool(true))]),
            outputs: vec![
                Tensor::from_bytes_elements("text", [1, 1], &["a\nb"]).unwrap(),
                Tensor::from_values("n", [2, 1], vec![1i64, 2]).unwrap(),
                Tensor::from_values::<f32>("none", [0], vec![]).unwrap(),
            ],
            shared: Default::default(),
            ledger: Ledger::default(),
        };
        let expected = r#"{"model_name":"m","model_version":"2","id":"7","p":true,"text":"a\nb","n":[1,2],"none":[]}"#;
        assert_eq!(encode_generate_response(&response).unwrap(), expected);
    }
}
