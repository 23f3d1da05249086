//! Request bodies and answers byte for byte, and Triton's texts for invalid requests.

use bytes::Bytes;
use trireme_inference::{
    DataType, ErrorCode, InferError, InferResponse, Ledger, ModelKey, ParameterValue, Parameters, Shape,
    SharedMemoryPart, Tensor, TensorSpec, UncheckedTensor,
};

use super::*;

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: Shape::from(shape), optional: false }
}

fn decode_with(body: &[u8], header_length: Option<&str>) -> Result<HttpInferRequest, InferError> {
    let target = InferTarget { model: "m", inputs: &[], max_batch_size: 0, max_json_size: 64 << 20 };
    decode_infer_request(&target, &Bytes::copy_from_slice(body), header_length, &mut |_| Ok(()))
}

fn decode(body: &str) -> Result<HttpInferRequest, InferError> {
    decode_with(body.as_bytes(), None)
}

/// Decodes a request with one input, `x`, that has these members.
fn decode_input(members: &str) -> Result<UncheckedTensor, InferError> {
    let decoded = decode(&format!(r#"{{"inputs":[{{"name":"x",{members}}}]}}"#))?;
    Ok(decoded.request.inputs.into_iter().next().unwrap())
}

fn decode_parameters(parameters: &str) -> Result<HttpInferRequest, InferError> {
    decode(&format!(r#"{{"parameters":{parameters},"inputs":[]}}"#))
}

fn decode_outputs(outputs: &str) -> Result<HttpInferRequest, InferError> {
    decode(&format!(r#"{{"inputs":[],"outputs":{outputs}}}"#))
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, InferError>, code: ErrorCode, message: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (code, message));
}

// --- bodies ---

#[test]
fn bodies_that_are_no_requests_are_refused_in_tritons_words() {
    use ErrorCode::{Internal, InvalidArg};
    let missing = "attempt to access non-existing object member";
    let table: &[(&str, ErrorCode, String)] = &[
        (" ", Internal, "failed to parse the request JSON buffer: The document is empty. at 1".into()),
        (
            "{\"a\"",
            Internal,
            "failed to parse the request JSON buffer: Missing a colon after a name of object member. at 4".into(),
        ),
        ("{}", Internal, format!("Unable to parse 'inputs': {missing} 'inputs'")),
        ("[]", Internal, format!("Unable to parse 'inputs': {missing} 'inputs'")),
        (r#"{"inputs":5}"#, Internal, "Unable to parse 'inputs': attempt to access JSON non-array as array".into()),
        (
            r#"{"id":5,"inputs":[]}"#,
            Internal,
            "Unable to parse 'id': attempt to access JSON non-string as string".into(),
        ),
        (r#"{"inputs":[{"data":[]}]}"#, Internal, format!("Unable to parse 'name': {missing} 'name'")),
        (
            r#"{"inputs":[{"data":[],"name":"x"}]}"#,
            Internal,
            format!("Unable to parse 'datatype': {missing} 'datatype'"),
        ),
        (
            r#"{"inputs":[{"data":[],"name":"x","datatype":"INT8"}]}"#,
            Internal,
            format!("Unable to parse 'shape': {missing} 'shape'"),
        ),
        (
            r#"{"inputs":[7]}"#,
            InvalidArg,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
             'shared_memory_region' in 'parameters'. But no field is set"
                .into(),
        ),
        (
            r#"{"inputs":[{"data":[],"parameters":{"binary_data_size":4}}]}"#,
            InvalidArg,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
             'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'"
                .into(),
        ),
        (
            r#"{"id":"7","inputs":[{"name":"x","datatype":"INT8","shape":[0],"data":[]},{"name":"x","datatype":"INT8","shape":[0],"data":[]}]}"#,
            InvalidArg,
            "[request id: 7] input 'x' already exists in request".into(),
        ),
    ];
    for (body, code, message) in table {
        assert_refused(decode(body), *code, message);
    }
}

#[test]
fn a_whole_request_is_understood_in_any_order_of_keys() {
    let decoded = decode(
        r#"{"outputs":[{"name":"o","parameters":{"binary_data":true}},{"name":"p","parameters":{"classification":3}}],
            "inputs":[{"data":[[1,2],[3,4]],"shape":[2,2],"ignored":[{}],"datatype":"INT32","name":"x"}],
            "unknown":null,"id":"r1","id":"r2","parameters":{"binary_data_output":true,"priority":2,"timeout":1500,"trireme_timeout_ms":2}}"#,
    )
    .unwrap();
    let HttpInferRequest { request, output_format } = decoded;
    assert_eq!((request.id.as_str(), request.model.as_str(), request.version), ("r1", "m", None));
    assert_eq!(request.priority, 2);
    let limits = [("timeout", 1500), ("trireme_timeout_ms", 2)];
    assert_eq!(request.parameters, limits.map(|(name, limit)| (name.to_owned(), ParameterValue::Int64(limit))).into());
    let tensor = request.inputs[0].clone().check().unwrap();
    assert_eq!(*tensor.values::<i32>().unwrap(), [1, 2, 3, 4]);
    let outputs: Vec<_> = request.outputs.iter().map(|o| (o.name.as_str(), o.classification)).collect();
    assert_eq!(outputs, [("o", 0), ("p", 3)]);
    // Listed outputs are JSON unless they ask for binary, whatever `binary_data_output` is.
    assert_eq!(output_format.of("o"), TensorFormat::Binary);
    assert_eq!(output_format.of("p"), TensorFormat::Json);
    assert_eq!(output_format.of("q"), TensorFormat::Binary);
}

// --- the header length ---

#[test]
fn header_length_is_read_like_stoi() {
    let body = br#"{"inputs":[]}"#;
    for value in ["13", " 13", "+13", "13abc", "13.9"] {
        assert!(decode_with(body, Some(value)).is_ok(), "{value:?}");
    }
    let unable = "Unable to parse Inference-Header-Content-Length";
    for (value, message) in [
        ("x", format!("{unable}, got: x")),
        ("", format!("{unable}, got: ")),
        ("-", format!("{unable}, got: -")),
        ("99999999999", format!("{unable}, value is out of range [ -2147483648, 2147483647 ], got: 99999999999")),
        ("14", "inference header size should be in range (0, 13), got: 14".to_owned()),
        ("-1", "inference header size should be in range (0, 13), got: -1".to_owned()),
    ] {
        assert_refused(decode_with(body, Some(value)), ErrorCode::InvalidArg, &message);
    }
}

// --- binary inputs ---

fn binary_request(sizes: &[u64], blob: &[u8]) -> Result<HttpInferRequest, InferError> {
    let inputs: Vec<String> = sizes
        .iter()
        .enumerate()
        .map(|(i, size)| {
            format!(r#"{{"name":"x{i}","datatype":"UINT8","shape":[1],"parameters":{{"binary_data_size":{size}}}}}"#)
        })
        .collect();
    let mut body = format!(r#"{{"inputs":[{}]}}"#, inputs.join(",")).into_bytes();
    let header_length = body.len().to_string();
    body.extend_from_slice(blob);
    decode_with(&body, Some(&header_length))
}

#[test]
fn binary_inputs_are_slices_of_the_body_in_input_order() {
    let body = Bytes::from_static(
        br#"{"inputs":[{"name":"a","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}},{"name":"j","datatype":"UINT8","shape":[1],"data":[9]},{"name":"b","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}]}abc"#,
    );
    let header_length = (body.len() - 3).to_string();
    let target = InferTarget { model: "m", inputs: &[], max_batch_size: 0, max_json_size: 64 << 20 };
    let inputs = decode_infer_request(&target, &body, Some(&header_length), &mut |_| Ok(())).unwrap().request.inputs;
    let data: Vec<&[u8]> = inputs.iter().map(|input| &input.data[..]).collect();
    assert_eq!(data, [&b"ab"[..], &[9], b"c"]);
    assert!(body.as_ptr_range().contains(&inputs[0].data.as_ptr()));

    // A few bytes do not keep a long JSON in memory.
    let (json, binary) = body.split_at(body.len() - 3);
    let long: Bytes = [json, &[b' '; 10_000], binary].concat().into();
    let header_length = (long.len() - 3).to_string();
    let inputs = decode_infer_request(&target, &long, Some(&header_length), &mut |_| Ok(())).unwrap().request.inputs;
    assert_eq!(&inputs[2].data[..], b"c");
    assert!(!long.as_ptr_range().contains(&inputs[2].data.as_ptr()));
}

#[test]
fn binary_bytes_must_be_used_up_exactly() {
    assert!(binary_request(&[2, 0, 1], b"abc").is_ok());
    assert_refused(
        binary_request(&[2, 3], b"abc"),
        ErrorCode::InvalidArg,
        "unexpected size for input 'x1', expecting 2 additional bytes for model 'm'",
    );
    assert_refused(
        binary_request(&[u64::MAX], b"abc"),
        ErrorCode::InvalidArg,
        "unexpected size for input 'x0', expecting 18446744073709551612 additional bytes for model 'm'",
    );
    assert_refused(
        binary_request(&[1], b"abc"),
        ErrorCode::InvalidArg,
        "unexpected additional input data for model 'm'",
    );
    assert_refused(
        decode_input(r#""datatype":"INT8","shape":[1],"parameters":{"binary_data_size":"4"}"#),
        ErrorCode::Internal,
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
    );
}

// --- JSON inputs ---

fn json_bytes(datatype: &str, shape: &str, data: &str) -> Result<Bytes, InferError> {
    decode_input(&format!(r#""datatype":"{datatype}","shape":{shape},"data":{data}"#)).map(|tensor| tensor.data)
}

#[test]
fn json_data_becomes_little_endian_bytes() {
    let table: &[(&str, &str, &[u8])] = &[
        ("BOOL", "[true,[false]]", &[1, 0]),
        // Integers wrap.
        ("INT8", "[300,-1]", &[44, 255]),
        ("UINT8", "[258,0]", &[2, 0]),
        ("INT16", "[-2,1]", &[254, 255, 1, 0]),
        ("UINT16", "[1,65537]", &[1, 0, 1, 0]),
        ("UINT32", "[1,4294967296]", &[1, 0, 0, 0, 0, 0, 0, 0]),
        ("FP32", "[1,-0.5]", &[0, 0, 128, 63, 0, 0, 0, 191]),
        ("FP32", "[Infinity,-Inf]", &[0, 0, 128, 127, 0, 0, 128, 255]),
        ("BYTES", r#"["a\u0000",""]"#, &[2, 0, 0, 0, b'a', 0, 0, 0, 0, 0]),
    ];
    for (datatype, data, bytes) in table {
        assert_eq!(json_bytes(datatype, "[2]", data).unwrap(), bytes[..], "{datatype} {data}");
    }
    assert_eq!(json_bytes("UINT64", "[1]", "[18446744073709551615]").unwrap(), u64::MAX.to_le_bytes()[..]);
    assert_eq!(json_bytes("FP64", "[1]", "[0.1]").unwrap(), 0.1f64.to_le_bytes()[..]);
    assert!(f32::from_le_bytes(json_bytes("FP32", "[]", "[NaN]").unwrap()[..].try_into().unwrap()).is_nan());
}

#[test]
fn json_data_that_does_not_fit_is_refused_in_tritons_words() {
    use ErrorCode::{Internal, InvalidArg};
    let unable = "Unable to parse 'data': attempt to access JSON non-";
    let deep = "[".repeat(100) + "1" + &"]".repeat(100);
    let deep_text = "[".repeat(100) + "\"\"" + &"]".repeat(100);
    let limit = "JSON nesting depth exceeds maximum allowed limit (100)";
    let table: &[(&str, &str, &str, ErrorCode, String)] = &[
        ("INT32", "[3]", "[1,2]", Internal, "Failed to parse 'data' field: shape does not match true shape".into()),
        ("INT32", "[1]", "[1,2]", Internal, "Unable to parse 'data': Shape does not match true shape of 'data' field".into()),
        ("INT32", "[1]", "[1,true]", Internal, "Unable to parse 'data': Shape does not match true shape of 'data' field".into()),
        ("INT32", "[1]", "5", Internal, format!("{unable}array as array")),
        ("INT32", "[1]", "[1.0]", Internal, format!("{unable}signed-integer as signed-integer")),
        ("UINT8", "[1]", "[-1]", Internal, format!("{unable}unsigned-integer as unsigned-integer")),
        ("BOOL", "[1]", "[1]", Internal, format!("{unable}boolean as boolean")),
        ("FP32", "[1]", "[\"1\"]", Internal, format!("{unable}number as double")),
        ("FP32", "[1]", "[{}]", Internal, format!("{unable}number as double")),
        ("BYTES", "[1]", "[1]", Internal, "Unable to parse JSON bytes array: attempt to access JSON non-string as string".into()),
        ("INT8", "[1]", &deep, InvalidArg, format!("Unable to parse 'data': {limit}")),
        ("BYTES", "[1]", &deep_text, InvalidArg, limit.into()),
        ("FP16", "[1]", "[1]", InvalidArg, "receiving FP16 data via JSON is not supported. Please use the binary data format for input x".into()),
        ("BF16", "[1]", "[1]", InvalidArg, "receiving BF16 data via JSON is not supported. Please use the binary data format for input x".into()),
        ("FP8", "[1]", "[1]", InvalidArg, "invalid datatype for input x".into()),
        ("INT8", "[-1]", "[1]", Internal, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer".into()),
        ("INT8", "[1.0]", "[1]", Internal, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer".into()),
        ("INT8", "1", "[1]", Internal, "Unable to parse 'shape': attempt to access JSON non-array as array".into()),
        ("INT8", "[18446744073709551614]", "[1]", InvalidArg, "invalid shape for input 'x': shape [-2] contains one or more invalid dimensions".into()),
        (
            "INT8",
            "[4611686018427387904,4]",
            "[1]",
            InvalidArg,
            "invalid shape for input 'x': shape [4611686018427387904,4] causes total element count to exceed maximum size of 9223372036854775807".into(),
        ),
        (
            "INT32",
            "[4611686018427387904]",
            "[1]",
            InvalidArg,
            "byte size overflow for input 'x': element count (4611686018427387904) * data type size (4) exceeds maximum allowed size (9223372036854775807)".into(),
        ),
        // The shape is huge, but nothing of that size is allocated.
        ("INT8", "[67108864]", "[1]", Internal, "Failed to parse 'data' field: shape does not match true shape".into()),
        (
            "INT8",
            "[67108865]",
            "[1]",
            InvalidArg,
            "JSON input 'x' has a byte_size (67108865 bytes) that exceeds the maximum allowed value of 67108864 bytes. Use --http-max-input-size to increase the limit.".into(),
        ),
    ];
    for (datatype, shape, data, code, message) in table {
        assert_refused(json_bytes(datatype, shape, data), *code, message);
    }
}

#[test]
fn data_of_an_empty_shape_is_not_read() {
    assert_eq!(json_bytes("INT8", "[2,0]", "7").unwrap(), b""[..]);
}

#[test]
fn strings_are_counted_when_the_tensor_is_checked() {
    let tensor = decode_input(r#""datatype":"BYTES","shape":[2],"data":["a"]"#).unwrap();
    assert!(tensor.check().is_err());
}

#[test]
fn invalid_utf8_in_strings_reaches_the_tensor_as_it_is() {
    let body = b"{\"inputs\":[{\"name\":\"x\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"\xff\"]}]}";
    assert_eq!(decode_with(body, None).unwrap().request.inputs[0].data, b"\x01\0\0\0\xff"[..]);
}

// --- shared memory ---

#[test]
fn tensors_in_shared_memory_are_named_and_take_no_bytes() {
    let part = |offset, byte_size| SharedMemoryPart { region: "r".to_owned(), offset, byte_size };
    let decoded = decode(
        r#"{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]},
                      {"name":"y","datatype":"INT8","shape":[4],
                       "parameters":{"shared_memory_region":"r","shared_memory_byte_size":4,"shared_memory_offset":8}}],
            "outputs":[{"name":"o","parameters":{"shared_memory_region":"r","binary_data":false}},{"name":"p"}]}"#,
    )
    .unwrap();
    let request = decoded.request;
    assert_eq!(request.shared.inputs, [(1, part(8, 4))]);
    assert_eq!(request.inputs[1].data, b""[..]);
    // A region without a size counts as empty.
    assert_eq!(request.shared.outputs, [("o".to_owned(), part(0, 0))].into());
}

#[test]
fn faulty_places_in_shared_memory_are_refused_in_tritons_words() {
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    for (parameters, message) in [
        (
            r#"{"shared_memory_region":5}"#,
            "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string".to_owned(),
        ),
        (
            r#"{"shared_memory_region":"r","shared_memory_offset":-1}"#,
            format!("Unable to parse 'shared_memory_offset': {unsigned}"),
        ),
        (
            r#"{"shared_memory_region":"r","shared_memory_byte_size":"x"}"#,
            format!("Unable to parse 'shared_memory_byte_size': {unsigned}"),
        ),
    ] {
        let input = decode_input(&format!(r#""datatype":"INT8","shape":[4],"parameters":{parameters}"#));
        assert_refused(input, ErrorCode::Internal, &message);
        let output = decode_outputs(&format!(r#"[{{"name":"o","parameters":{parameters}}}]"#));
        assert_refused(output, ErrorCode::Internal, &message);
    }
}

// --- outputs and parameters ---

#[test]
fn faulty_outputs_are_refused_in_tritons_words() {
    use ErrorCode::{Internal, InvalidArg};
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let boolean = "attempt to access JSON non-boolean as boolean";
    let table: &[(&str, ErrorCode, String)] = &[
        ("{}", Internal, "Unable to parse 'outputs': attempt to access JSON non-array as array".into()),
        ("[{}]", Internal, "Unable to parse 'name': attempt to access non-existing object member 'name'".into()),
        (
            r#"[{"name":"o"},{"name":"o"}]"#,
            InvalidArg,
            "[request id: <id_unknown>] output 'o' already exists in request".into(),
        ),
        (
            r#"[{"name":"o","parameters":{"classification":-1}}]"#,
            Internal,
            format!("Unable to set 'classification': {unsigned}"),
        ),
        (
            r#"[{"name":"o","parameters":{"binary_data":1}}]"#,
            Internal,
            format!("Unable to parse 'binary_data': {boolean}"),
        ),
        (
            r#"[{"name":"o","parameters":{"shared_memory_region":"r","binary_data":1}}]"#,
            Internal,
            format!("Unable to set 'binary_data': {boolean}"),
        ),
        (
            r#"[{"name":"o","parameters":{"shared_memory_region":"r","binary_data":true}}]"#,
            InvalidArg,
            "Output can't set both 'shared_memory_region' and 'binary_data'".into(),
        ),
        (
            r#"[{"name":"o","parameters":{"shared_memory_region":"r","classification":1}}]"#,
            InvalidArg,
            "Output can't set both 'shared_memory_region' and 'classification'".into(),
        ),
    ];
    for (outputs, code, message) in table {
        assert_refused(decode_outputs(outputs), *code, message);
    }
}

#[test]
fn parameters_keep_their_types() {
    let decoded = decode_parameters(
        r#"{"sequence_id":7,"sequence_start":true,"sequence_end":false,"s":"t","i":-3,"d":1.5,"big":18446744073709551615,
            "s":"second","priority":99999999999,"timeout":0,"trireme_timeout_ms":0,"binary_data_output":false}"#,
    )
    .unwrap();
    let expected = Parameters::from([
        ("sequence_id".to_owned(), ParameterValue::Int64(7)),
        ("sequence_start".to_owned(), ParameterValue::Bool(true)),
        ("sequence_end".to_owned(), ParameterValue::Bool(false)),
        ("s".to_owned(), ParameterValue::from("t")),
        ("i".to_owned(), ParameterValue::Int64(-3)),
        ("d".to_owned(), ParameterValue::Double(1.5)),
        ("big".to_owned(), ParameterValue::Double(u64::MAX as f64)),
    ]);
    assert_eq!(decoded.request.parameters, expected);
    assert_eq!(decoded.request.priority, 99_999_999_999);
    assert_eq!(decoded.output_format, OutputFormat::default());
    let sequence_id = |value: &str| {
        let decoded = decode_parameters(&format!(r#"{{"sequence_id":{value}}}"#)).unwrap();
        decoded.request.parameters["sequence_id"].clone()
    };
    assert_eq!(sequence_id("\"abc\""), ParameterValue::from("abc"));
    assert_eq!(sequence_id("18446744073709551615"), ParameterValue::Uint64(u64::MAX));
}

#[test]
fn faulty_parameters_are_refused_in_tritons_words() {
    use ErrorCode::{Internal, InvalidArg};
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let boolean = "attempt to access JSON non-boolean as boolean";
    let invalid_type = "has invalid type. It should be either 'int', 'bool', or 'string'.";
    let table: &[(&str, ErrorCode, String)] = &[
        ("[]", Internal, "failed to get request params.: attempt to get members for non-object".into()),
        (r#"{"priority":-1}"#, Internal, format!("Unable to parse 'priority': {unsigned}")),
        (r#"{"timeout":"1"}"#, Internal, format!("Unable to parse 'timeout': {unsigned}")),
        (r#"{"trireme_timeout_ms":0.5}"#, Internal, format!("Unable to parse 'trireme_timeout_ms': {unsigned}")),
        (r#"{"binary_data_output":1}"#, Internal, format!("Unable to parse 'binary_data_output': {boolean}")),
        (r#"{"sequence_start":1}"#, Internal, format!("Unable to parse 'sequence_start': {boolean}")),
        (r#"{"sequence_end":1}"#, Internal, format!("Unable to parse 'sequence_end': {boolean}")),
        (
            r#"{"sequence_id":-1}"#,
            Internal,
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string".into(),
        ),
        (
            r#"{"triton_enable_empty_final_response":true}"#,
            InvalidArg,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.".into(),
        ),
        (r#"{"x":null}"#, InvalidArg, format!("parameter 'x' {invalid_type}")),
        (r#"{"x":[1]}"#, InvalidArg, format!("parameter 'x' {invalid_type}")),
        (r#"{"x":{}}"#, InvalidArg, format!("parameter 'x' {invalid_type}")),
    ];
    for (parameters, code, message) in table {
        assert_refused(decode_parameters(parameters), *code, message);
    }
}

// --- raw requests ---

fn raw(inputs: &[TensorSpec], max_batch_size: u32, body: &'static [u8]) -> Result<HttpInferRequest, InferError> {
    let target = InferTarget { model: "m", inputs, max_batch_size, max_json_size: 64 << 20 };
    decode_infer_request(&target, &Bytes::from_static(body), Some("0"), &mut |_| Ok(()))
}

#[test]
fn raw_requests_deduce_the_only_input() {
    let input = |spec: TensorSpec, max_batch_size, body| {
        let decoded = raw(&[spec], max_batch_size, body).unwrap();
        assert_eq!(decoded.output_format.of("any"), TensorFormat::Binary);
        decoded.request.inputs[0].clone().check().unwrap()
    };
    let ids = input(spec("ids", DataType::Int32, &[-1, -1, 2]), 8, &[0; 24]);
    assert_eq!((ids.name(), ids.shape().to_vec()), ("ids", vec![1, 3, 2]));
    assert_eq!(input(spec("x", DataType::Int8, &[-1]), 0, b"abc").shape().to_vec(), [3]);
    assert_eq!(input(spec("x", DataType::Int8, &[-1, -1]), 8, b"").shape().to_vec(), [1, 0]);
    let text = input(spec("text", DataType::Bytes, &[-1, 1]), 8, b"hello");
    assert_eq!(text.bytes_elements().unwrap().collect::<Vec<_>>(), [b"hello"]);
    assert_eq!(text.shape().to_vec(), [1, 1]);
    assert_eq!(input(spec("text", DataType::Bytes, &[1]), 0, b"").element_count(), 1);
}

#[test]
fn raw_requests_that_leave_doubt_are_refused_in_tritons_words() {
    let two = [spec("a", DataType::Int8, &[1]), spec("b", DataType::Int8, &[1])];
    let table: &[(&[TensorSpec], &str)] = &[
        (
            &two,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        (
            &[spec("x", DataType::Int8, &[-1, -1])],
            "The shape of the raw input 'x' can not be deduced because there are more than one variable-sized dimension",
        ),
        (&[spec("x", DataType::Bytes, &[-1])], "For BYTE datatype raw input 'x', the model must have input shape [1]"),
    ];
    for (inputs, message) in table {
        let message = format!("[request id: <id_unknown>] {message}");
        assert_refused(raw(inputs, 0, b"abc"), ErrorCode::InvalidArg, &message);
    }
    let message = "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 0 inputs \
                   in 'm' model configuration";
    assert_refused(decode(""), ErrorCode::InvalidArg, message);
    // No schema causes a division by zero.
    assert!(raw(&[spec("x", DataType::Int8, &[0, -1])], 0, b"abc").unwrap().request.inputs[0].clone().check().is_err());
}

// --- responses ---

fn response(outputs: Vec<Tensor>) -> InferResponse {
    InferResponse {
        id: String::new(),
        model: ModelKey { name: "m".into(), version: 3 },
        parameters: Parameters::new(),
        outputs,
        shared: Default::default(),
        ledger: Ledger::default(),
    }
}

fn json_format() -> OutputFormat {
    OutputFormat::default()
}

fn binary_format() -> OutputFormat {
    OutputFormat { unlisted: TensorFormat::Binary, ..OutputFormat::default() }
}

#[test]
fn outputs_in_shared_memory_are_described_and_left_out() {
    let outputs = ["in", "out"].map(|name| Tensor::from_values(name, [2], vec![1i32, 2]).unwrap());
    // FP16 has no form in JSON, and needs none in shared memory.
    let half = Tensor::new("half", DataType::Fp16, [1], Bytes::from_static(&[0, 0])).unwrap();
    let shared = ["in", "half"].map(str::to_owned).into();
    let response = InferResponse { shared, ..response([&outputs[..], &[half]].concat()) };
    let described = r#"{"model_name":"m","model_version":"3","outputs":[{"name":"in","datatype":"INT32","shape":[2]},"#;
    let half = r#"{"name":"half","datatype":"FP16","shape":[1]}]}"#;
    let json = encode_infer_response(&response, &json_format()).unwrap();
    assert_eq!(json.json, format!(r#"{described}{{"name":"out","datatype":"INT32","shape":[2],"data":[1,2]}},{half}"#));
    let binary = encode_infer_response(&response, &binary_format()).unwrap();
    assert_eq!(binary.binary, [outputs[1].data().clone()]);
}

#[test]
fn json_responses_are_flat_and_plain() {
    let response = InferResponse {
        id: "r\"1".to_owned(),
        parameters: Parameters::from([("p".to_owned(), ParameterValue::Double(f64::NAN))]),
        ..response(vec![
            Tensor::from_values("f", [2, 2], vec![0.1f32, 1.0, f32::NAN, f32::NEG_INFINITY]).unwrap(),
            Tensor::new("b", DataType::Bool, [2], Bytes::from_static(&[0, 2])).unwrap(),
            Tensor::from_values("i", [1], vec![i64::MIN]).unwrap(),
            Tensor::from_bytes_elements("t", [2], &["a\n", ""]).unwrap(),
            Tensor::from_values::<u8>("none", [0, 3], vec![]).unwrap(),
        ])
    };
    let encoded = encode_infer_response(&response, &json_format()).unwrap();
    assert_eq!(
        encoded.json,
        concat!(
            r#"{"id":"r\"1","model_name":"m","model_version":"3","parameters":{"p":NaN},"outputs":["#,
            r#"{"name":"f","datatype":"FP32","shape":[2,2],"data":[0.10000000149011612,1.0,NaN,-Infinity]},"#,
            r#"{"name":"b","datatype":"BOOL","shape":[2],"data":[false,true]},"#,
            r#"{"name":"i","datatype":"INT64","shape":[1],"data":[-9223372036854775808]},"#,
            r#"{"name":"t","datatype":"BYTES","shape":[2],"data":["a\n",""]},"#,
            r#"{"name":"none","datatype":"UINT8","shape":[0,3],"data":[]}]}"#
        )
    );
    assert_eq!((encoded.binary.len(), encoded.header_length, encoded.content_type()), (0, None, "application/json"));
}

#[test]
fn binary_outputs_share_their_tensors_memory() {
    let tensor = Tensor::from_values("h", [2], vec![1.0f32, 2.0]).unwrap();
    let empty = Tensor::from_values::<f32>("none", [0], vec![]).unwrap();
    let mut format = binary_format();
    format.listed.insert("j".to_owned(), TensorFormat::Json);
    let json = Tensor::from_values("j", [1], vec![7i8]).unwrap();
    let encoded = encode_infer_response(&response(vec![tensor.clone(), empty, json]), &format).unwrap();
    assert_eq!(
        encoded.json,
        concat!(
            r#"{"model_name":"m","model_version":"3","outputs":["#,
            r#"{"name":"h","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}},"#,
            r#"{"name":"none","datatype":"FP32","shape":[0],"parameters":{"binary_data_size":0}},"#,
            r#"{"name":"j","datatype":"INT8","shape":[1],"data":[7]}]}"#
        )
    );
    assert_eq!(encoded.binary[0].as_ptr(), tensor.data().as_ptr());
    assert_eq!(encoded.binary.len(), 1);
    assert_eq!(encoded.header_length, Some(encoded.json.len()));
    assert_eq!(encoded.content_type(), "application/octet-stream");
}

#[test]
fn a_lone_empty_binary_output_makes_a_plain_json_response() {
    let empty = Tensor::from_values::<f32>("none", [0], vec![]).unwrap();
    let encoded = encode_infer_response(&response(vec![empty]), &binary_format()).unwrap();
    assert_eq!((encoded.binary.len(), encoded.header_length), (0, None));
}

#[test]
fn half_floats_travel_in_binary_only() {
    for (datatype, name) in [(DataType::Fp16, "FP16"), (DataType::Bf16, "BF16")] {
        let tensor = Tensor::new("h", datatype, [1], Bytes::from_static(&[0, 0])).unwrap();
        assert!(encode_infer_response(&response(vec![tensor.clone()]), &binary_format()).is_ok());
        assert_refused(
            encode_infer_response(&response(vec![tensor]), &json_format()),
            ErrorCode::InvalidArg,
            &format!("sending {name} data via JSON is not supported. Please use the binary data format for output h"),
        );
    }
}
