//! Messages as clients send and compare them, one by one, and every error text.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message;
use trireme_inference::{
    DataType, ErrorCode, InferError, InferRequest, InferResponse, Ledger, ModelKey, ParameterValue, Parameters,
    RequestedOutput, Shape, SharedMemoryPart, Tensor, TensorSpec, request_timeout,
};

use crate::metadata::spaces;

use super::wire::infer_parameter::ParameterChoice::{
    self, BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param,
};
use super::wire::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use super::wire::{self, InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use super::*;

fn message() -> ModelInferRequest {
    ModelInferRequest { model_name: "m".to_owned(), id: "r".to_owned(), ..ModelInferRequest::default() }
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

fn parameters(entries: &[(&str, ParameterChoice)]) -> BTreeMap<String, InferParameter> {
    let entry = |(name, choice): &(&str, ParameterChoice)| {
        ((*name).to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })
    };
    entries.iter().map(entry).collect()
}

fn text(text: &str) -> ParameterChoice {
    StringParam(text.to_owned())
}

/// Decodes typed contents to bytes.
fn contents(datatype: &str, contents: InferTensorContents) -> Result<Bytes, InferError> {
    let inputs = vec![InferInputTensor { contents: Some(contents), ..input("x", datatype, &[1]) }];
    decode_infer_request(ModelInferRequest { inputs, ..message() }, &[]).map(|request| request.inputs[0].data.clone())
}

fn with_parameters(entries: &[(&str, ParameterChoice)]) -> Result<InferRequest, InferError> {
    decode_infer_request(ModelInferRequest { parameters: parameters(entries), ..message() }, &[])
}

fn output(entries: &[(&str, ParameterChoice)]) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: "o".to_owned(), parameters: parameters(entries) }
}

fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, InferError>, code: ErrorCode, message: &str) {
    let error = outcome.expect_err(message);
    assert_eq!((error.code, error.message.as_str()), (code, message));
}

fn assert_invalid<T: std::fmt::Debug>(outcome: Result<T, InferError>, message: &str) {
    assert_refused(outcome, ErrorCode::InvalidArg, message);
}

// --- requests ---

#[test]
fn raw_inputs_are_slices_of_the_message() {
    let (first, second) = (Bytes::from(vec![1u8; 4000]), Bytes::from(vec![2u8; 8]));
    let sent = ModelInferRequest {
        model_version: "3".to_owned(),
        inputs: vec![input("a", "FP32", &[1000]), input("b", "INT64", &[1])],
        outputs: vec![output(&[("classification", Int64Param(5))])],
        raw_input_contents: vec![first.clone(), second.clone(), Bytes::from_static(b"surplus is ignored")],
        ..message()
    };
    let encoded = Bytes::from(sent.encode_to_vec());
    let received = ModelInferRequest::decode(encoded.clone()).unwrap();
    let request = decode_infer_request(received, &[]).unwrap();
    assert_eq!((request.id.as_str(), request.model.as_str(), request.version), ("r", "m", Some(3)));
    assert_eq!((&request.inputs[0].data, &request.inputs[1].data), (&first, &second));
    assert_eq!((request.inputs[0].datatype, &*request.inputs[0].shape), (DataType::Fp32, &[1000][..]));
    assert_eq!(request.outputs, [RequestedOutput { name: "o".to_owned(), classification: 5 }]);
    let memory = encoded.as_ptr_range();
    for input in &request.inputs {
        assert!(memory.contains(&input.data.as_ptr()), "input '{}' was copied", input.name);
    }
}

#[test]
fn typed_contents_become_bytes() {
    let signed = |values: &[i32]| InferTensorContents { int_contents: values.to_vec(), ..Default::default() };
    let unsigned = |values: &[u32]| InferTensorContents { uint_contents: values.to_vec(), ..Default::default() };
    assert_eq!(contents("INT8", signed(&[-1, 0x1234])).unwrap(), b"\xff\x34"[..]);
    assert_eq!(contents("INT16", signed(&[-2])).unwrap(), b"\xfe\xff"[..]);
    assert_eq!(contents("INT32", signed(&[-2])).unwrap(), b"\xfe\xff\xff\xff"[..]);
    assert_eq!(contents("UINT8", unsigned(&[255, 256])).unwrap(), b"\xff\0"[..]);
    assert_eq!(contents("UINT16", unsigned(&[0x0102])).unwrap(), b"\x02\x01"[..]);
    assert_eq!(contents("UINT32", unsigned(&[1])).unwrap(), b"\x01\0\0\0"[..]);
    let bools = InferTensorContents { bool_contents: vec![true, false], ..Default::default() };
    assert_eq!(contents("BOOL", bools).unwrap(), b"\x01\0"[..]);
    let longs = InferTensorContents { int64_contents: vec![-1], ..Default::default() };
    assert_eq!(contents("INT64", longs).unwrap(), (-1i64).to_le_bytes()[..]);
    let longs = InferTensorContents { uint64_contents: vec![7], ..Default::default() };
    assert_eq!(contents("UINT64", longs).unwrap(), 7u64.to_le_bytes()[..]);
    let floats = InferTensorContents { fp32_contents: vec![1.5], ..Default::default() };
    assert_eq!(contents("FP32", floats).unwrap(), 1.5f32.to_le_bytes()[..]);
    let doubles = InferTensorContents { fp64_contents: vec![1.5], ..Default::default() };
    assert_eq!(contents("FP64", doubles).unwrap(), 1.5f64.to_le_bytes()[..]);
    let texts =
        InferTensorContents { bytes_contents: vec![Bytes::from_static(b"ab"), Bytes::new()], ..Default::default() };
    assert_eq!(contents("BYTES", texts).unwrap(), b"\x02\0\0\0ab\0\0\0\0"[..]);
    assert_eq!(contents("FP16", InferTensorContents::default()).unwrap(), b""[..]);
}

#[test]
fn contents_of_the_wrong_kind_are_refused() {
    let unexpected = "unexpected explicit tensor data for input tensor 'x' for model 'm'";
    let floats = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
    for (datatype, holds) in [("INT32", "FP32"), ("FP16", "FP32"), ("BF16", "FP32"), ("FP64", "FP32")] {
        let text = format!("{unexpected} of type '{holds}', expected datatype '{datatype}'");
        assert_invalid(contents(datatype, floats.clone()), &text);
    }
    let ints = InferTensorContents { int_contents: vec![1], ..Default::default() };
    assert_invalid(
        contents("UINT8", ints.clone()),
        &format!("{unexpected} of type 'INT32', expected datatype 'UINT8'"),
    );
    let both = InferTensorContents { fp32_contents: vec![1.0], ..ints };
    assert_invalid(contents("INT32", both.clone()), &format!("{unexpected}, binary data was already supplied."));
    assert_invalid(contents("FP32", both), &format!("{unexpected} of type 'INT32', expected datatype 'FP32'"));
}

#[test]
fn data_that_is_missing_or_double_is_refused() {
    let both = ModelInferRequest {
        inputs: vec![InferInputTensor { contents: Some(InferTensorContents::default()), ..input("x", "INT8", &[1]) }],
        raw_input_contents: vec![Bytes::from_static(b"1")],
        ..message()
    };
    assert_invalid(
        decode_infer_request(both, &[]),
        "contents field must not be specified when using raw_input_contents for 'x' for model 'm'",
    );
    let one_of_two = ModelInferRequest {
        inputs: vec![input("x", "INT8", &[1]), input("y", "INT8", &[1])],
        raw_input_contents: vec![Bytes::from_static(b"1")],
        ..message()
    };
    assert_invalid(
        decode_infer_request(one_of_two, &[]),
        "unable to find data for input tensor 'y' for model 'm' in request.",
    );
}

#[test]
fn names_and_datatypes_are_checked() {
    let twice = ModelInferRequest { inputs: vec![input("x", "INT8", &[1]), input("x", "INT8", &[1])], ..message() };
    assert_invalid(decode_infer_request(twice, &[]), "[request id: r] input 'x' already exists in request");
    let twice = ModelInferRequest { id: String::new(), outputs: vec![output(&[]), output(&[])], ..message() };
    assert_invalid(decode_infer_request(twice, &[]), "[request id: <id_unknown>] output 'o' already exists in request");
    let unknown = ModelInferRequest { inputs: vec![input("x", "TYPE_INT8", &[1])], ..message() };
    assert_invalid(decode_infer_request(unknown, &[]), "invalid datatype for input x");
}

#[test]
fn tensors_in_shared_memory_are_named_and_take_no_bytes() {
    let region = |at| {
        [
            ("shared_memory_region", text("r")),
            ("shared_memory_byte_size", Int64Param(4)),
            ("shared_memory_offset", Int64Param(at)),
        ]
    };
    let shared = InferInputTensor { parameters: parameters(&region(8)), ..input("x", "INT8", &[4]) };
    let decoded = decode_infer_request(
        ModelInferRequest {
            inputs: vec![shared, input("y", "INT8", &[1])],
            outputs: vec![output(&region(-1))],
            raw_input_contents: vec![Bytes::from_static(b"y")],
            ..message()
        },
        &[],
    )
    .unwrap();
    let part = |offset| SharedMemoryPart { region: "r".to_owned(), offset, byte_size: 4 };
    assert_eq!(decoded.shared.inputs, [(0, part(8))]);
    assert_eq!(decoded.shared.outputs, [("o".to_owned(), part(u64::MAX))].into());
    assert_eq!((&decoded.inputs[0].data[..], &decoded.inputs[1].data[..]), (&b""[..], &b"y"[..]));
}

#[test]
fn faulty_places_in_shared_memory_are_refused_in_tritons_words() {
    let (region, size, offset) = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset");
    let whole = [(region, text("r")), (size, Int64Param(4))];
    let table: &[(&[(&str, ParameterChoice)], &str)] = &[
        (
            &[(region, BoolParam(true))],
            "invalid value type for 'shared_memory_region' parameter for tensor 'o', expected string_param.",
        ),
        (
            &[(region, text("r")), (size, text("4"))],
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'o', expected int64_param.",
        ),
        (
            &[(region, text("r"))],
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'o'",
        ),
        (
            &[(size, Int64Param(4))],
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'o'",
        ),
        (
            &[(offset, Int64Param(4))],
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'o'",
        ),
        (
            &[whole[0].clone(), whole[1].clone(), ("classification", Int64Param(1))],
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
    ];
    for (parameters, text) in table {
        let faulty = ModelInferRequest { outputs: vec![output(parameters)], ..message() };
        assert_invalid(decode_infer_request(faulty, &[]), text);
    }
    let contents = InferTensorContents { int_contents: vec![1], ..Default::default() };
    let twice =
        InferInputTensor { parameters: parameters(&whole), contents: Some(contents), ..input("x", "INT32", &[1]) };
    assert_invalid(
        decode_infer_request(ModelInferRequest { inputs: vec![twice], ..message() }, &[]),
        "unexpected 'content' provided when using shared memory for input tensor 'x' for model 'm'",
    );
}

#[test]
fn parameters_keep_their_types() {
    let request = with_parameters(&[
        ("sequence_id", Int64Param(7)),
        ("sequence_start", BoolParam(true)),
        ("sequence_end", BoolParam(false)),
        ("priority", Uint64Param(u64::MAX)),
        ("timeout", Int64Param(1500)),
        ("trireme_timeout_ms", Int64Param(2)),
        ("triton_enable_empty_final_response", BoolParam(true)),
        ("b", BoolParam(true)),
        ("d", DoubleParam(0.5)),
        ("i", Int64Param(-1)),
        ("s", text("t")),
    ])
    .unwrap();
    let expected = Parameters::from([
        ("b".to_owned(), ParameterValue::Bool(true)),
        ("d".to_owned(), ParameterValue::Double(0.5)),
        ("i".to_owned(), ParameterValue::Int64(-1)),
        ("s".to_owned(), ParameterValue::from("t")),
        ("sequence_end".to_owned(), ParameterValue::Bool(false)),
        ("sequence_id".to_owned(), ParameterValue::Int64(7)),
        ("sequence_start".to_owned(), ParameterValue::Bool(true)),
        ("timeout".to_owned(), ParameterValue::Uint64(1500)),
        ("trireme_timeout_ms".to_owned(), ParameterValue::Uint64(2)),
    ]);
    assert_eq!(request.parameters, expected);
    assert_eq!((request.priority, request_timeout(&request.parameters)), (u64::MAX, Some(Duration::from_millis(2))));
    let request = with_parameters(&[("priority", Int64Param(2)), ("timeout", Int64Param(0))]).unwrap();
    assert_eq!((request.priority, request.parameters), (2, Parameters::new()));
    let request = with_parameters(&[
        ("sequence_id", text("s")),
        ("timeout", Int64Param(-1)),
        ("trireme_timeout_ms", Int64Param(-1)),
    ])
    .unwrap();
    assert_eq!(request.parameters, [("sequence_id".to_owned(), ParameterValue::from("s"))].into());
}

#[test]
fn faulty_parameters_are_refused_in_tritons_words() {
    let wrong = |name: &str, expected: &str| format!("invalid value type for '{name}' parameter, expected {expected}");
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting \
                    with 'triton_' are allowed: triton_enable_empty_final_response";
    let table: &[(&str, ParameterChoice, String)] = &[
        ("sequence_id", BoolParam(true), wrong("sequence_id", "int64_param or string_param.")),
        ("sequence_start", Int64Param(1), wrong("sequence_start", "bool_param.")),
        ("sequence_end", text("x"), wrong("sequence_end", "bool_param.")),
        ("priority", text("1"), wrong("priority", "int64_param or uint64_param.")),
        ("priority", Int64Param(-1), "invalid value for 'priority', expected value >= 0.".to_owned()),
        ("timeout", Uint64Param(1), wrong("timeout", "int64_param.")),
        ("trireme_timeout_ms", text("1"), wrong("trireme_timeout_ms", "int64_param.")),
        ("custom", Uint64Param(1), wrong("custom", "int64_param, bool_param, or string_param.")),
        (
            "triton_enable_empty_final_response",
            Int64Param(1),
            wrong("triton_enable_empty_final_response", "bool_param."),
        ),
        ("triton_other", BoolParam(true), reserved.to_owned()),
    ];
    for (name, choice, text) in table {
        assert_invalid(with_parameters(&[(name, choice.clone())]), text);
    }
    let unset = BTreeMap::from([("custom".to_owned(), InferParameter::default())]);
    let outcome = decode_infer_request(ModelInferRequest { parameters: unset, ..message() }, &[]);
    assert_invalid(outcome, &wrong("custom", "int64_param, bool_param, or string_param."));

    let outputs = |choice| ModelInferRequest { outputs: vec![output(&[("classification", choice)])], ..message() };
    assert_invalid(decode_infer_request(outputs(text("3")), &[]), &wrong("classification", "int64_param"));
    assert_invalid(
        decode_infer_request(outputs(Int64Param(0)), &[]),
        "invalid value for 'classification' parameter, expected >= 0",
    );
}

#[test]
fn versions_are_read_as_stol_does() {
    for (text, version) in [("", None), ("1", Some(1)), (" 12abc", Some(12)), ("+3", Some(3)), ("0", Some(0))] {
        assert_eq!(parse_model_version(text).unwrap(), version, "{text:?}");
    }
    let found = "failed to get model version from specified version string";
    let expected = "version should be an integral value > 0";
    for text in ["x", "-", " ", "99999999999999999999"] {
        assert_invalid(parse_model_version(text), &format!("{found} '{text}' (details: stol), {expected}"));
    }
    assert_invalid(parse_model_version("-1"), &format!("{found} '-1', {expected}"));
    let request = ModelInferRequest { model_version: "x".to_owned(), ..message() };
    assert_invalid(decode_infer_request(request, &[]), &format!("{found} 'x' (details: stol), {expected}"));
}

// --- responses ---

fn response() -> InferResponse {
    InferResponse {
        id: String::new(),
        model: ModelKey { name: "m".into(), version: 3 },
        parameters: Parameters::from([("n".to_owned(), ParameterValue::Uint64(1))]),
        outputs: vec![
            Tensor::from_values("b", [2, 1], vec![1.0f32, 2.0]).unwrap(),
            Tensor::from_values::<i64>("a", [0], vec![]).unwrap(),
        ],
        shared: Default::default(),
        ledger: Ledger::default(),
    }
}

#[test]
fn every_output_travels_raw_and_in_order() {
    let sent = response();
    let memory = sent.outputs[0].data().clone();
    let message = encode_infer_response(sent);
    assert_eq!((message.model_name.as_str(), message.model_version.as_str(), message.id.as_str()), ("m", "3", ""));
    let described: Vec<_> =
        message.outputs.iter().map(|o| (o.name.as_str(), o.datatype.as_str(), o.shape.as_slice())).collect();
    assert_eq!(described, [("b", "FP32", &[2, 1][..]), ("a", "INT64", &[0][..])]);
    assert!(message.outputs.iter().all(|output| output.contents.is_none()));
    assert_eq!(message.raw_output_contents, [memory.clone(), Bytes::new()]);
    assert_eq!(message.raw_output_contents[0].as_ptr(), memory.as_ptr());
    assert_eq!(message.parameters, parameters(&[("n", Uint64Param(1))]));
}

#[test]
fn stream_responses_say_whether_they_are_the_last() {
    let message = encode_stream_response(response(), true);
    assert_eq!(message.error_message, "");
    let expected = parameters(&[("n", Uint64Param(1)), ("triton_final_response", BoolParam(true))]);
    assert_eq!(message.infer_response.unwrap().parameters, expected);
    let message = encode_stream_response(response(), false).infer_response.unwrap();
    assert_eq!(message.parameters["triton_final_response"].parameter_choice, Some(BoolParam(false)));
}

#[test]
fn stream_errors_name_their_request() {
    let request = ModelInferRequest { id: "r".to_owned(), model_name: "m".to_owned(), ..ModelInferRequest::default() };
    let named = Named::of(&request);
    let is_last = parameters(&[("triton_final_response", BoolParam(true))]);
    let message = encode_stream_error(named.clone(), InferError::internal("failed"));
    assert_eq!(message.error_message, "failed");
    let expected = ModelInferResponse {
        id: "r".to_owned(),
        model_name: "m".to_owned(),
        parameters: is_last,
        ..ModelInferResponse::default()
    };
    assert_eq!(message.infer_response, Some(expected.clone()));
    let message = encode_stream_end(named.clone());
    assert_eq!((message.error_message.as_str(), message.infer_response), ("", Some(expected)));

    let message = encode_stream_refusal(named.clone(), InferError::not_found("no such model"));
    assert_eq!(message.error_message, "no such model");
    let expected = ModelInferResponse { id: "r".to_owned(), ..ModelInferResponse::default() };
    assert_eq!(message.infer_response, Some(expected), "nothing but the id, as Triton's");
    assert!(!encode_stream_error(named, InferError::internal("")).error_message.is_empty());
}

#[test]
fn only_who_asks_for_it_is_told_of_an_end_without_outputs() {
    let request = |flags: &[_]| ModelInferRequest { parameters: parameters(flags), ..ModelInferRequest::default() };
    assert!(wants_empty_final(&request(&[("triton_enable_empty_final_response", BoolParam(true))])));
    assert!(!wants_empty_final(&request(&[("triton_enable_empty_final_response", BoolParam(false))])));
    assert!(!wants_empty_final(&request(&[])));
}

#[test]
fn statuses_have_the_tables_code_and_bounded_text() {
    use tonic::Code;
    let table = [
        (ErrorCode::Unknown, Code::Unknown),
        (ErrorCode::Internal, Code::Internal),
        (ErrorCode::NotFound, Code::NotFound),
        (ErrorCode::InvalidArg, Code::InvalidArgument),
        (ErrorCode::Unavailable, Code::Unavailable),
        (ErrorCode::Unsupported, Code::Unimplemented),
        (ErrorCode::AlreadyExists, Code::AlreadyExists),
        (ErrorCode::Cancelled, Code::Cancelled),
    ];
    for (code, expected) in table {
        let status = status(&InferError::new(code, "why"));
        assert_eq!((status.code(), status.message()), (expected, "why"));
    }
    let long = status(&InferError::internal("ü".repeat(10_000)));
    assert!(long.message().len() < 2100 && long.message().ends_with("ü ..."), "{}", long.message().len());
}

#[test]
fn a_limit_of_an_owner_says_when_to_ask_again() {
    let error = InferError::unavailable("enough").because(trireme_inference::Cause::OwnerLimit);
    let status = status(&InferError { retry_after: Some(std::time::Duration::from_millis(2100)), ..error });
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "3");
}

// --- metadata ---

#[test]
fn metadata_has_versions_as_text_and_full_shapes() {
    let spec = TensorSpec { name: "t".into(), datatype: DataType::Bytes, shape: Shape::from([-1, 1]), optional: false };
    let message =
        model_metadata("m", &[1, 3], "ensemble", std::slice::from_ref(&spec), &[], &spaces(Some("ab.cd"), &["ef"]));
    let properties = [("space", "ab.cd"), ("equivalent_spaces", "ef")];
    assert_eq!(message.properties, properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!((message.name.as_str(), message.platform.as_str()), ("m", "ensemble"));
    assert_eq!(message.versions, ["1", "3"]);
    let input = &message.inputs[0];
    assert_eq!((input.name.as_str(), input.datatype.as_str(), &input.shape[..]), ("t", "BYTES", &[-1, 1][..]));
    let server = server_metadata("triton", "0.1.0", &["statistics"]);
    assert_eq!((server.name.as_str(), server.version.as_str()), ("triton", "0.1.0"));
    assert_eq!(server.extensions, ["statistics"]);
}

#[test]
fn a_configuration_is_passed_on_whole() {
    let config = wire::ModelConfig { name: "m".to_owned(), max_batch_size: 8, ..wire::ModelConfig::default() };
    assert_eq!(model_config(config.encode_to_vec()).unwrap().config.unwrap(), config);
    let mut broken = BytesMut::from(&config.encode_to_vec()[..]);
    broken.truncate(2);
    assert_eq!(model_config(broken.to_vec()).unwrap_err().code, ErrorCode::Internal);
}
