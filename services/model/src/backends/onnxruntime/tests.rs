//! The backend on small models, with the real library. Without the library these tests fail.

mod accelerated;
mod accuracy;
mod chosen;
mod external;
mod hostile;
mod packing;
mod padding;
mod proof;
mod shared;
mod stopping;
mod tasks;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::TempDir;
use trireme_engine::{ExecuteResponse, LoadError, LoadedModel};
use trireme_inference::{DataType, ErrorCode, InferError, Tensor};
use trireme_model_repository::ModelConfig;

use super::*;
use crate::backends::conformance::{self, Case, request};

fn backend() -> OnnxRuntime {
    OnnxRuntime::new(OnnxRuntimeOptions::default())
}

/// A model of the committed test repository.
/// A model of the basic repository. Cargo sets the variable, and so does whatever runs this program on another machine.
fn committed(name: &str) -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&crate_folder).join("../../tests/repositories/basic").join(name)
}

fn config(name: &str, text: &str) -> ModelConfig {
    ModelConfig::parse(&format!("backend: 'onnxruntime' {text}"), name).expect("the test's configuration is valid")
}

fn load(directory: impl AsRef<Path>, config: &ModelConfig) -> Result<LoadedModel, LoadError> {
    conformance::load(&backend(), config, directory)
}

fn load_error(directory: impl AsRef<Path>, config: &ModelConfig) -> String {
    load(directory, config).err().expect("the model must not load").to_string()
}

fn execute(model: &mut LoadedModel, inputs: &[&[Tensor]], output: &str) -> Vec<Result<ExecuteResponse, InferError>> {
    let requests: Vec<_> = inputs.iter().map(|inputs| request(inputs, &[output])).collect();
    model.instances[0].as_batch().unwrap().execute(&requests)
}

fn output(result: &Result<ExecuteResponse, InferError>) -> &Tensor {
    &result.as_ref().expect("the request succeeds").outputs[0]
}

/// A model that copies `x` to `y`, written by hand as ONNX's protobuf: `[batch, n]` elements with ONNX's type number.
fn identity_model(element_type: u8, dimensions: &[&str]) -> TempDir {
    let dimension = |name: &&str| field(1, &field(2, name.as_bytes()));
    let shape = field(2, &dimensions.iter().flat_map(dimension).collect::<Vec<_>>());
    let tensor_type = [vec![1 << 3, element_type], shape].concat();
    let value = |name: &str| [field(1, name.as_bytes()), field(2, &field(1, &tensor_type))].concat();
    let node = [field(1, b"x"), field(2, b"y"), field(4, b"Identity")].concat();
    let graph = [field(1, &node), field(2, b"g"), field(11, &value("x")), field(12, &value("y"))].concat();
    let opset = field(8, &[2 << 3, 17]);
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("1")).unwrap();
    let model = [vec![1 << 3, 8], field(7, &graph), opset].concat();
    std::fs::write(directory.path().join("1/model.onnx"), model).unwrap();
    directory
}

/// A protobuf field: its number, its length in two bytes, and its content.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = [bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8];
    [&[number << 3 | 2][..], &length, bytes].concat()
}

#[test]
fn conforms() {
    let directory = committed("simple");
    let text = std::fs::read_to_string(directory.join("config.pbtxt")).unwrap();
    let config = ModelConfig::parse(&text, "simple").unwrap();
    let row = |start: i32| {
        let values: Vec<i32> = (start..start + 16).collect();
        vec![
            Tensor::from_values("INPUT0", [1, 16], values.clone()).unwrap(),
            Tensor::from_values("INPUT1", [1, 16], values).unwrap(),
        ]
    };
    let case = Case { inputs: (0..4).map(row).collect(), outputs: vec!["OUTPUT0".into(), "OUTPUT1".into()] };
    conformance::check(&backend(), &config, &directory, &case);

    let mut model = load(&directory, &config).unwrap();
    let results = execute(&mut model, &[&row(0)], "OUTPUT0");
    assert_eq!(output(&results[0]).values::<i32>().unwrap()[..3], [0, 2, 4]);
}

#[test]
fn every_datatype_passes_whatever_its_alignment_or_size() {
    // ONNX's numbers of the element types.
    let numbers = [
        (DataType::Fp32, 1),
        (DataType::Uint8, 2),
        (DataType::Int8, 3),
        (DataType::Uint16, 4),
        (DataType::Int16, 5),
        (DataType::Int32, 6),
        (DataType::Int64, 7),
        (DataType::Bytes, 8),
        (DataType::Bool, 9),
        (DataType::Fp16, 10),
        (DataType::Fp64, 11),
        (DataType::Uint32, 12),
        (DataType::Uint64, 13),
        (DataType::Bf16, 16),
    ];
    for (datatype, number) in numbers {
        let directory = identity_model(number, &["b", "n"]);
        let mut model = load(&directory, &config("m", "max_batch_size: 8")).unwrap();
        assert_eq!(model.config.inputs[0].datatype, datatype);
        let tensor = |name: &str, rows: i64, columns: i64, offset: usize| {
            let size = datatype.element_size().unwrap_or(4) * (rows * columns) as usize;
            let bytes: Vec<u8> = match datatype {
                DataType::Bytes => vec![0; size + offset],
                _ => (0..size + offset).map(|i| (i % 2) as u8).collect(),
            };
            Tensor::new(name, datatype, [rows, columns], Bytes::from(bytes).slice(offset..)).unwrap()
        };
        for (rows, columns, offset) in [(2, 3, 0), (2, 3, 1), (2, 0, 0), (1, 1, 0)] {
            let results = execute(&mut model, &[&[tensor("x", rows, columns, offset)]], "y");
            assert_eq!(
                *output(&results[0]),
                tensor("y", rows, columns, offset),
                "{datatype} {rows}x{columns}+{offset}"
            );
        }
        let (one, two) = (tensor("x", 1, 3, 0), tensor("x", 2, 3, 1));
        let results = execute(&mut model, &[&[one], &[two]], "y");
        assert_eq!(*output(&results[0]), tensor("y", 1, 3, 0));
        assert_eq!(*output(&results[1]), tensor("y", 2, 3, 1));
    }
}

#[test]
fn any_byte_but_zero_is_true() {
    let directory = identity_model(9, &["b"]);
    let mut model = load(&directory, &config("m", "")).unwrap();
    let tensor = Tensor::new("x", DataType::Bool, [3], Bytes::from_static(&[0, 1, 255])).unwrap();
    assert_eq!(output(&execute(&mut model, &[&[tensor]], "y")[0]).data()[..], [0, 1, 1]);
}

#[test]
fn strings_are_bytes() {
    let directory = committed("simple_identity");
    let config = config("simple_identity", "max_batch_size: 8");
    let mut model = load(directory, &config).unwrap();
    let texts =
        |name: &str, texts: &[&[u8]]| Tensor::from_bytes_elements(name, [texts.len() as i64, 1], texts).unwrap();
    let batch: [&[&[u8]]; 3] =
        [&[b"plain", b""], &[b"nul \0 inside", "caf\u{e9}".as_bytes()], &[b"\xff\xfe not UTF-8"]];
    let inputs: Vec<_> = batch.iter().map(|elements| [texts("INPUT0", elements)]).collect();
    let results = execute(&mut model, &inputs.iter().map(|i| &i[..]).collect::<Vec<_>>(), "OUTPUT0");
    for (result, elements) in results.iter().zip(batch) {
        assert_eq!(*output(result), texts("OUTPUT0", elements));
    }
    assert_eq!(results[0].as_ref().unwrap().timing.batch_size, 5);
}

#[test]
fn what_the_configuration_leaves_out_comes_from_the_model() {
    let found = load(committed("autocomplete"), &config("autocomplete", "")).unwrap();
    assert_eq!(found.config.max_batch_size, 4);
    assert!(found.config.dynamic_batching.is_some());
    assert_eq!((found.config.inputs[0].name.as_str(), &found.config.inputs[0].dims[..]), ("x", &[4][..]));
    assert_eq!(found.policy.max_rows(), 4);
    let given = load(committed("autocomplete"), &config("autocomplete", "max_batch_size: 16")).unwrap();
    assert_eq!(given.config.max_batch_size, 16);

    let scalar = identity_model(1, &[]);
    let mut model = load(&scalar, &config("m", "")).unwrap();
    assert_eq!((model.config.max_batch_size, &model.config.inputs[0].dims[..]), (0, &[1][..]));
    let one = |name: &str| Tensor::from_values(name, [1], vec![2.5f32]).unwrap();
    assert_eq!(*output(&execute(&mut model, &[&[one("x")]], "y")[0]), one("y"));
}

#[test]
fn a_bad_request_fails_alone() {
    let encoder = "max_batch_size: 8
        input [{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1] }, { name: 'attention_mask' data_type: TYPE_INT64 dims: [-1] }]
        output [{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [-1, 8] }]";
    let mut model = load(committed("tiny_encoder"), &config("tiny_encoder", encoder)).unwrap();
    let text = |id: i64, mask: i64| {
        let ints = |name, values: Vec<i64>| Tensor::from_values(name, [1, values.len() as i64], values).unwrap();
        [ints("input_ids", vec![2, id, 3]), ints("attention_mask", vec![1; mask as usize])]
    };
    let (good, unknown_id) = (text(7, 3), text(1 << 40, 3));
    let alone = output(&execute(&mut model, &[&good], "last_hidden_state")[0]).clone();
    let results = execute(&mut model, &[&good, &unknown_id, &good], "last_hidden_state");
    assert_eq!((output(&results[0]), output(&results[2])), (&alone, &alone));
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArg, "{error}");
    assert!(
        error.message.starts_with("model 'tiny_encoder': onnxruntime: ")
            && error.message.contains("out of data bounds")
    );
    assert!(!error.message.contains('\n'));

    // Shapes that each fit the model, but not each other.
    let error = execute(&mut model, &[&text(7, 2)], "last_hidden_state").remove(0).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArg, "{error}");
}

#[test]
fn reshapes_apply_both_ways() {
    let io = |name: &str| format!("{{ name: '{name}' data_type: TYPE_INT32 dims: [4, 4] reshape {{ shape: [16] }} }}");
    let text = format!("max_batch_size: 8 input [{}, {}] output [{}]", io("INPUT0"), io("INPUT1"), io("OUTPUT0"));
    let mut model = load(committed("simple"), &config("simple", &text)).unwrap();
    let ones = |name| Tensor::from_values(name, [2, 4, 4], vec![1i32; 32]).unwrap();
    let results = execute(&mut model, &[&[ones("INPUT0"), ones("INPUT1")]], "OUTPUT0");
    assert_eq!(*output(&results[0]), Tensor::from_values("OUTPUT0", [2, 4, 4], vec![2i32; 32]).unwrap());
}

#[test]
fn a_configuration_that_contradicts_the_model_is_refused_in_tritons_words() {
    let io =
        |name: &str, datatype: &str, dims: &str| format!("{{ name: '{name}' data_type: {datatype} dims: {dims} }}");
    let (a, b) = (io("INPUT0", "TYPE_INT32", "[16]"), io("INPUT1", "TYPE_INT32", "[16]"));
    let out = io("OUTPUT0", "TYPE_INT32", "[16]");
    let fail = |batch: u32, inputs: &str, outputs: &str| {
        let text = format!("max_batch_size: {batch} input [{inputs}] output [{outputs}]");
        load_error(committed("simple"), &config("simple", &text))
    };
    assert_eq!(fail(8, &a, &out), "unable to load model 'simple', configuration expects 1 inputs, model provides 2");
    assert_eq!(
        fail(8, &format!("{a}, {}", io("INPUT1", "TYPE_INT32", "[4, 4]")), &out),
        "model 'simple', tensor 'INPUT1': the model expects 2 dimensions (shape [-1,16]) but the model configuration \
         specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
         shape, making complete shape [-1,4,4])"
    );
    let full = |name| io(name, "TYPE_INT32", "[-1, 16]");
    assert_eq!(
        fail(0, &format!("{}, {}", full("INPUT0"), full("INPUT1")), &out),
        "model 'simple', tensor 'OUTPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration \
         specifies 1 dimensions (shape [16])"
    );
    assert_eq!(
        fail(8, &format!("{a}, {}", io("INPUT1", "TYPE_FP32", "[16]")), &out),
        "unable to load model 'simple', unexpected datatype INT32 for input 'INPUT1', expecting TYPE_FP32"
    );
    assert_eq!(
        fail(8, &format!("{a}, {b}"), &io("OUTPUT9", "TYPE_INT32", "[16]")),
        "unable to load model 'simple', unexpected inference output 'OUTPUT9', allowed outputs are: OUTPUT0, OUTPUT1"
    );
    let fixed = identity_model(1, &["b"]);
    assert!(load(&fixed, &config("m", "max_batch_size: 2")).is_ok());
    let scalar = identity_model(1, &[]);
    assert_eq!(
        load_error(&scalar, &config("m", "max_batch_size: 2")),
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    );
}

#[test]
fn a_missing_or_corrupt_file_is_named() {
    let directory = identity_model(1, &["b"]);
    let file = directory.path().join("1/model.onnx");
    let other = load_error(&directory, &config("m", "default_model_filename: 'other.onnx'"));
    assert!(other.starts_with("model 'm': cannot read ") && other.contains("1/other.onnx"), "{other}");
    let there = "; the version folder holds model.onnx: to serve model.onnx, write default_model_filename: \"model.onnx\" in \
                 config.pbtxt";
    assert!(other.ends_with(there), "{other}");
    std::fs::write(&file, "not a model").unwrap();
    let corrupt = load_error(&directory, &config("m", ""));
    assert!(
        corrupt.starts_with("model 'm': ") && corrupt.contains("model.onnx") && !corrupt.contains('\n'),
        "{corrupt}"
    );
    // A directory with this name contains the model and its external weights.
    std::fs::remove_file(&file).unwrap();
    let (nested, good) = (directory.path().join("1/model.onnx"), identity_model(1, &["b"]));
    std::fs::create_dir(&nested).unwrap();
    std::fs::copy(good.path().join("1/model.onnx"), nested.join("model.onnx")).unwrap();
    assert!(load(&directory, &config("m", "")).is_ok());
}

#[test]
fn warmup_runs_on_every_instance_or_fails_the_load() {
    let sample = |data: &str, dims: &str| {
        format!(
            "model_warmup [{{ name: 's' batch_size: 2 inputs {{ key: 'x' value {{ data_type: TYPE_FP32 dims: {dims} {data} }} }} }}]"
        )
    };
    let io = "max_batch_size: 8 instance_group [{ count: 2 kind: KIND_CPU }]";
    for data in ["zero_data: true", "random_data: true"] {
        let model = load(committed("autocomplete"), &config("m", &format!("{io} {}", sample(data, "[4]")))).unwrap();
        assert_eq!(model.instances.len(), 2);
    }
    let wrong =
        load_error(committed("autocomplete"), &config("m", &format!("{io} {}", sample("zero_data: true", "[5]"))));
    assert!(wrong.starts_with("model 'm': failed to run warmup sample 's': model 'm': onnxruntime: "), "{wrong}");
    assert!(wrong.contains("Got: 5 Expected: 4"), "{wrong}");
}

#[test]
fn tritons_session_options_are_taken() {
    let options = [
        ("intra_op_thread_count", "2"),
        ("inter_op_thread_count", "2"),
        ("execution_mode", "1"),
        ("enable_mem_arena", "1"),
        ("enable_mem_pattern", "1"),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
        ("session.use_device_allocator_for_initializers", "1"),
    ];
    let parameter =
        |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ");
    let text = options.iter().map(parameter).collect::<String>() + "optimization { graph { level: 2 } }";
    let mut model = load(committed("autocomplete"), &config("m", &text)).unwrap();
    let x = Tensor::from_values("x", [1, 4], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
    for _ in 0..2 {
        assert_eq!(
            *output(&execute(&mut model, &[std::slice::from_ref(&x)], "y")[0]).values::<f32>().unwrap(),
            [2.0, 4.0, 6.0, 8.0]
        );
    }
}

#[test]
fn long_messages_become_one_short_line() {
    assert_eq!(trireme_engine::one_line(" a\n  b\t c \n"), "a b c");
    assert_eq!(trireme_engine::one_line(&"é".repeat(1000)).chars().count(), 601);
}
