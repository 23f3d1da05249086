//! Requests checked against one configuration, with Triton's error texts.

use bytes::Bytes;

use super::*;

fn config(text: &str) -> ModelConfig {
    ModelConfig::parse(&format!("backend: 'b' {text}"), "m").unwrap_or_else(|error| panic!("{error}"))
}

/// A batching model of numbers, a string and something optional.
fn batching() -> ModelConfig {
    config(
        "max_batch_size: 8 input [
            { name: 'X' data_type: TYPE_FP32 dims: [2] }, { name: 'T' data_type: TYPE_STRING dims: [-1] },
            { name: 'O' data_type: TYPE_INT64 dims: [1] optional: true } ]
         output [ { name: 'Y' data_type: TYPE_FP32 dims: [2] }, { name: 'A' data_type: TYPE_FP32 dims: [2] } ]",
    )
}

fn raw(name: &str, datatype: DataType, shape: &[i64], data: impl Into<Vec<u8>>) -> UncheckedTensor {
    UncheckedTensor { name: name.into(), datatype, shape: shape.into(), data: Bytes::from(data.into()) }
}

fn x(shape: &[i64], bytes: usize) -> UncheckedTensor {
    raw("X", DataType::Fp32, shape, vec![0; bytes])
}

/// BYTES of these elements, in the binary form.
fn t(shape: &[i64], elements: &[&str]) -> UncheckedTensor {
    let mut data = Vec::new();
    for element in elements {
        data.extend((element.len() as u32).to_le_bytes());
        data.extend(element.as_bytes());
    }
    raw("T", DataType::Bytes, shape, data)
}

#[track_caller]
fn refused(config: &ModelConfig, inputs: Vec<UncheckedTensor>, expected: &str) {
    let error = config.admit("", inputs).unwrap_err();
    assert_eq!(error.code, trireme_inference::ErrorCode::InvalidArg);
    assert_eq!(error.message, expected);
}

#[test]
fn rows_of_one_text_are_texts_where_a_model_does_a_task() {
    let text = |more: &str| {
        config(&format!("max_batch_size: 0 input {{ name: 'T' data_type: TYPE_STRING dims: [ -1 ] }} {more}"))
    };
    let shape = |config: &ModelConfig, dims: &[i64], texts: &[&str]| {
        config.admit("", vec![t(dims, texts)]).map(|tensors| tensors[0].shape().to_vec()).map_err(|error| error.message)
    };
    let embeds = text("parameters { key: 'task' value { string_value: 'embed' } }");
    assert_eq!(shape(&embeds, &[2, 1], &["a", "b"]), Ok(vec![2]));
    assert_eq!(shape(&embeds, &[2], &["a", "b"]), Ok(vec![2]));
    assert!(shape(&embeds, &[1, 2], &["a", "b"]).unwrap_err().contains("Expected [-1], got [1,2]"));
    // As in Triton.
    assert!(shape(&text(""), &[2, 1], &["a", "b"]).unwrap_err().contains("Expected [-1], got [2,1]"));
}

#[test]
fn what_fits_is_admitted_whole() {
    let tensors = batching().admit("7", vec![t(&[2, 1], &["a", ""]), x(&[2, 2], 16)]).unwrap();
    assert_eq!(tensors.iter().map(Tensor::name).collect::<Vec<_>>(), ["T", "X"]);
    assert_eq!(batching().check_tensors(&tensors).unwrap(), 2);
    // Zero elements are fine everywhere but in the batch dimension.
    batching().admit("", vec![t(&[1, 0], &[]), x(&[1, 2], 8)]).unwrap();
    let plain = config("input { name: 'X' data_type: TYPE_FP32 dims: [-1, 2] }");
    assert_eq!(plain.check_tensors(&plain.admit("", vec![x(&[3, 2], 24)]).unwrap()).unwrap(), 1);
}

#[test]
fn wrong_inputs_are_counted_and_named() {
    let simple =
        config("input [{ name: 'I0' data_type: TYPE_FP32 dims: 1 }, { name: 'I1' data_type: TYPE_FP32 dims: 1 }]");
    let i = |name: &str| raw(name, DataType::Fp32, &[1], [0; 4]);
    let p = "[request id: <id_unknown>] ";
    let tail = "Please provide all required input(s).";
    refused(
        &simple,
        vec![i("I0")],
        &format!(
            "{p}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['I0'], but missing required input(s) ['I1']. {tail}"
        ),
    );
    refused(
        &simple,
        vec![],
        &format!(
            "{p}expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['I0','I1']. {tail}"
        ),
    );
    refused(
        &batching(),
        vec![x(&[1, 2], 8)],
        &format!(
            "{p}expected number of inputs between 2 and 3 but got 1 inputs for model 'm'. Got input(s) ['X'], but \
             missing required input(s) ['T']. {tail}"
        ),
    );
    refused(
        &batching(),
        vec![x(&[1, 2], 8), raw("O", DataType::Int64, &[1, 1], [0; 8])],
        &format!(
            "{p}expected number of inputs between 2 and 3 but got 2 inputs for model 'm'. Got input(s) ['X','O'], but \
             missing required input(s) ['T']. {tail}"
        ),
    );
    refused(
        &simple,
        vec![i("I0"), i("BAD")],
        "unexpected inference input 'BAD' for model 'm', allowed inputs are: I0, I1",
    );
    refused(&simple, vec![i("I0"), i("I0")], &format!("{p}input 'I0' already exists in request"));
    let error = simple.admit("r-1", vec![]).unwrap_err();
    assert!(error.message.starts_with("[request id: r-1] expected 2 inputs"), "{error}");
}

#[test]
fn batch_dimensions_agree_and_are_bounded() {
    let p = "[request id: <id_unknown>] ";
    let with = |shape: &[i64]| vec![x(shape, 0), t(&[1, 1], &["a"])];
    refused(&batching(), with(&[]), &format!("{p}input 'X' has no shape but model requires batch dimension for 'm'"));
    refused(&batching(), with(&[2, 2]), &format!("{p}input 'T' batch size does not match other inputs for 'm'"));
    for rows in [9, i64::MAX, -1] {
        refused(
            &batching(),
            vec![x(&[rows, 2], 0), t(&[rows, 1], &[])],
            &format!("{p}inference request batch-size must be <= 8 for 'm'"),
        );
    }
    refused(
        &batching(),
        vec![x(&[0, 2], 0), t(&[0, 1], &[])],
        &format!("{p}inference request batch-size must be >= 1 for 'm'"),
    );
}

#[test]
fn datatypes_and_shapes_are_held_against_the_schema() {
    let p = "[request id: <id_unknown>] ";
    refused(
        &batching(),
        vec![raw("X", DataType::Int32, &[1, 2], [0; 8]), t(&[1, 1], &["a"])],
        &format!("{p}inference input 'X' data-type is 'INT32', but model 'm' expects 'FP32'"),
    );
    let note = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended \
                to each input shape. If you want to specify the full shape including the batch dim in your input dims \
                config, try setting max_batch_size to zero. See the model configuration docs for more info on \
                max_batch_size.";
    for (shape, shown) in [(&[1, 3][..], "[1,3]"), (&[2][..], "[2]"), (&[1, 2, 1][..], "[1,2,1]")] {
        let rows = shape[0];
        refused(
            &batching(),
            vec![x(shape, 12), t(&[rows, 1], &["a"])],
            &format!("{p}unexpected shape for input 'X' for model 'm'. Expected [-1,2], got {shown}. {note}"),
        );
    }
    let plain = config("input { name: 'X' data_type: TYPE_FP32 dims: [-1, 2] }");
    refused(
        &plain,
        vec![x(&[2, 3], 24)],
        &format!("{p}unexpected shape for input 'X' for model 'm'. Expected [-1,2], got [2,3]. "),
    );
    refused(
        &plain,
        vec![x(&[-1, 2], 8)],
        &format!("{p}All input dimensions should be specified for input 'X' for model 'm', got [-1,2]"),
    );
    refused(&plain, vec![x(&[-5, 2], 8)], &format!("{p}tensor 'X' contains an invalid dimension in shape [-5,2]"));
    refused(
        &plain,
        vec![x(&[i64::MAX, 2], 8)],
        &format!("{p}element count for tensor 'X' exceeds maximum size of 9223372036854775807"),
    );
}

#[test]
fn bytes_are_counted() {
    let p = "[request id: <id_unknown>] ";
    refused(
        &batching(),
        vec![x(&[1, 2], 12), t(&[1, 1], &["a"])],
        &format!("{p}input byte size mismatch for input 'X' for model 'm'. Expected 8, got 12"),
    );
    let strings = |tensor| vec![x(&[1, 2], 8), tensor];
    let place = "for inference input 'T' for model 'm'";
    refused(&batching(), strings(t(&[1, 3], &["a"])), &format!("{p}expected 3 string elements {place}, got 1"));
    refused(
        &batching(),
        strings(t(&[1, 1], &["a", "b", "c"])),
        &format!("{p}unexpected number of string elements 2 {place}, expecting 1"),
    );
    refused(
        &batching(),
        strings(raw("T", DataType::Bytes, &[1, 1], [1, 0])),
        &format!(
            "{p}incomplete string length indicator {place}, expecting 4 bytes but only 2 bytes available. Please make \
             sure the string length indicator is in one buffer."
        ),
    );
    refused(
        &batching(),
        strings(raw("T", DataType::Bytes, &[1, 1], [5, 0, 0, 0, 97])),
        &format!("{p}incomplete string data {place}, expecting string of length 5 but only 1 bytes available"),
    );
}

#[test]
fn requested_outputs_must_exist_and_be_named_once() {
    let want = |names: &[&str]| -> Vec<_> {
        names.iter().map(|&name| RequestedOutput { name: name.into(), classification: 0 }).collect()
    };
    batching().check_outputs(&want(&["A", "Y"]), "").unwrap();
    batching().check_outputs(&[], "").unwrap();
    let message = |names: &[&str]| batching().check_outputs(&want(names), "9").unwrap_err().message;
    assert_eq!(message(&["Z"]), "unexpected inference output 'Z' for model 'm', allowed outputs are: A, Y");
    assert_eq!(message(&["A", "A"]), "[request id: 9] output 'A' already exists in request");
}

#[test]
fn what_stages_send_is_judged_too() {
    let tensor = Tensor::from_values("X", [1, 3], vec![0f32; 3]).unwrap();
    let text = Tensor::from_bytes_elements("T", [1, 1], &["a"]).unwrap();
    let error = batching().check_tensors(&[tensor, text]).unwrap_err();
    assert!(error.message.starts_with("unexpected shape for input 'X' for model 'm'. Expected [-1,2], got [1,3]"));
}
