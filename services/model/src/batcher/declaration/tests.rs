//! The meaning of declarations, and all errors of faulty ones.

use super::*;

const IO: &str = "input [{ name: 'ids' data_type: TYPE_INT64 dims: [-1, -1] },
                         { name: 'mask:0' data_type: TYPE_FP32 dims: [-1, -1] },
                         { name: 'topic' data_type: TYPE_INT32 dims: [-1, 4] }]
                  output [{ name: 'hidden' data_type: TYPE_FP32 dims: [-1, -1, 8] },
                          { name: 'pooled' data_type: TYPE_FP32 dims: [-1, 8] }]";

fn parse(io: &str, parameters: &[(&str, &str)]) -> Result<Option<Declaration>, String> {
    let parameter =
        |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ");
    let text = format!("backend: 'onnxruntime' {io} {}", parameters.iter().map(parameter).collect::<String>());
    let config = ModelConfig::parse(&text, "m").expect("the test's configuration is valid");
    Declaration::parse(&config).map_err(|error| error.to_string())
}

#[test]
fn defaults() {
    assert_eq!(parse(IO, &[]), Ok(None));
    let declared = parse(IO, &[("pad_inputs", "ids:-7, mask:0:0.5")]).unwrap().unwrap();
    let input =
        |name: &str, value: &[u8]| PaddedInput { name: name.into(), axis: 1, value: value.to_vec(), left: false };
    assert_eq!(
        declared,
        Declaration {
            padding: Padding {
                inputs: vec![input("ids", &(-7i64).to_le_bytes()), input("mask:0", &0.5f32.to_le_bytes())],
                outputs: vec![UnpaddedOutput { name: "hidden".into(), axis: 1, left: false }],
                steps: Steps::default(),
            },
            has_multiple: false,
            max_rows: 64,
            token_budget: None,
            max_overtake: None,
            measure: true,
            check: true,
            alone: false,
            sample_rows: Vec::new(),
            longest_row: None,
            fixed_length: None,
            packing: None,
        }
    );
}

#[test]
fn everything_may_be_said() {
    let declared = parse(
        IO,
        &[
            ("pad_inputs", "ids:0"),
            ("unpad_outputs", ""),
            ("token_budget", "512"),
            ("max_overtake_microseconds", "0"),
            ("max_rows", "16"),
            ("pad_to_multiple_of", "8"),
            ("cost_model", "off"),
        ],
    );
    let declared = declared.unwrap().unwrap();
    assert_eq!((declared.has_multiple, declared.padding.steps.of(9)), (true, 16));
    assert!(declared.padding.outputs.is_empty() && !declared.measure);
    assert_eq!(
        (declared.token_budget, declared.max_rows, declared.max_overtake),
        (Some(512), 16, Some(Duration::ZERO))
    );
}

#[test]
fn an_implied_batch_dimension_counts_too() {
    let io = "max_batch_size: 8
        input [{ name: 'x' data_type: TYPE_FP32 dims: [4, -1] }]
        output [{ name: 'y' data_type: TYPE_FP32 dims: [4, -1] }, { name: 'z' data_type: TYPE_FP32 dims: [-1, 4] }]";
    let declared = parse(io, &[("pad_inputs", "x:0")]).unwrap().unwrap();
    assert_eq!((declared.padding.inputs[0].axis, declared.max_rows), (2, 8));
    assert_eq!(declared.padding.outputs, [UnpaddedOutput { name: "z".into(), axis: 1, left: false }]);
    let declared = parse(io, &[("pad_inputs", "x:0"), ("unpad_outputs", "y")]).unwrap().unwrap();
    assert_eq!(declared.padding.outputs, [UnpaddedOutput { name: "y".into(), axis: 2, left: false }]);
    assert_eq!(
        parse(io, &[("pad_inputs", "x:0"), ("max_rows", "4")]).unwrap_err(),
        "model 'm': parameter 'max_rows' is for models of max_batch_size 0, found 8"
    );
}

#[test]
fn all_faults_are_told_together() {
    let fault = |parameters: &[(&str, &str)]| parse(IO, parameters).unwrap_err();
    assert_eq!(
        fault(&[
            ("pad_inputs", "ids, ids:x, words:0, topic:0, mask:0:0, mask:0:1"),
            ("unpad_outputs", "pooled, scores"),
            ("token_budget", "0"),
            ("max_overtake_microseconds", "-1"),
            ("max_rows", "many"),
            ("cost_model", "guess"),
        ]),
        "model 'm': parameter 'pad_inputs' has to list 'input:value', found 'ids'; \
         parameter 'pad_inputs': the padding of input 'ids' has to be a value of INT64, found 'x'; \
         parameter 'pad_inputs': there is no input 'words', inputs are: ids, mask:0, topic; \
         parameter 'pad_inputs': input 'topic' has no dimension of -1 to pad, found dims [-1,4]; \
         parameter 'pad_inputs' names input 'mask:0' twice; \
         parameter 'unpad_outputs': output 'pooled' has no dimension of -1 to cut, found dims [-1,8]; \
         parameter 'unpad_outputs': there is no output 'scores', outputs are: hidden, pooled; \
         parameter 'max_rows' has to be a whole number of at least 1, found 'many'; \
         parameter 'token_budget' has to be a whole number of at least 1, found '0'; \
         parameter 'max_overtake_microseconds' has to be a whole number of microseconds, found '-1'; \
         parameter 'cost_model' has to be measured or off, found 'guess'"
    );
    assert_eq!(fault(&[("max_rows", "3")]), "model 'm': parameter 'max_rows' has no effect without 'pad_inputs'");
    assert_eq!(fault(&[("pad_inputs", "")]), "model 'm': parameter 'pad_inputs' has to list 'input:value', found ''");
}

#[test]
fn what_has_no_batch_or_cannot_be_filled_is_refused() {
    let io = |input: &str, output: &str| {
        format!("input [{{ name: 'x' {input} }}] output [{{ name: 'y' data_type: TYPE_FP32 dims: {output} }}]")
    };
    let pad = [("pad_inputs", "x:0")];
    assert_eq!(
        parse(&io("data_type: TYPE_FP32 dims: [-1, -1]", "[8]"), &pad).unwrap_err(),
        "model 'm': parameter 'pad_inputs' with max_batch_size 0 needs the batch as first dimension, which has to be -1; \
         output 'y' has dims [8]"
    );
    let strings = parse(&io("data_type: TYPE_STRING dims: [-1, -1]", "[-1, 8]"), &pad).unwrap_err();
    assert!(strings.ends_with("input 'x' of BYTES cannot be padded"), "{strings}");
    let reshaped = "data_type: TYPE_FP32 dims: [-1, 1] reshape { shape: [-1] }";
    let reshaped = parse(&format!("max_batch_size: 2 {}", io(reshaped, "[-1]")), &pad).unwrap_err();
    assert!(reshaped.ends_with("input 'x' has a reshape and cannot be padded"), "{reshaped}");
}

#[test]
fn padding_takes_the_bytes_of_its_datatype() {
    for datatype in DataType::ALL {
        let size = datatype.element_size();
        assert_eq!(element(datatype, "1").map(|bytes| bytes.len()), size, "{datatype}");
        assert_eq!(element(datatype, "one"), None);
    }
    assert_eq!(element(DataType::Int8, "128"), None);
    assert_eq!(element(DataType::Fp16, "-inf"), Some(half::f16::NEG_INFINITY.to_le_bytes().to_vec()));
}
