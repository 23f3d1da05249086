//! The backend as the worker uses it: load, then execute.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up shall fail")]

use std::path::Path;
use std::sync::Arc;

use half::f16;
use trireme_engine::{Backend, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelSource};
use trireme_inference::{DataType, ErrorCode, InferError, ParameterValue, Tensor};
use trireme_model_repository::ModelConfig;
use trireme_ops::PostprocessBackend;

const HIDDEN: &str = "{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [ -1, 2 ] }";
const MASK: &str = "{ name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1 ] }";
const LOGITS: &str = "{ name: 'logits' data_type: TYPE_FP32 dims: [ 3 ] }";

/// A model that batches, with these inputs, outputs and ops.
fn config(ops: &str, inputs: &[&str], outputs: &[&str]) -> String {
    format!(
        "max_batch_size: 8 input [ {} ] output [ {} ] parameters {{ key: 'ops' value {{ string_value: '{ops}' }} }} ",
        inputs.join(","),
        outputs.join(",")
    )
}

fn load(text: &str) -> Result<LoadedModel, LoadError> {
    load_from(Path::new(env!("CARGO_MANIFEST_DIR")), text)
}

fn load_from(model_path: &Path, text: &str) -> Result<LoadedModel, LoadError> {
    let config = ModelConfig::parse(&format!("backend: 'postprocess' {text}"), "post").unwrap();
    let version_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer");
    let source = ModelSource {
        config: &config,
        version: 1,
        model_path,
        version_path: &version_path,
        auto_complete: true,
        uploaded: None,
        calls: Default::default(),
    };
    PostprocessBackend.load(&source)
}

fn fault(text: &str) -> String {
    load(text).err().unwrap().to_string()
}

fn request(inputs: Vec<Tensor>, outputs: &[&str]) -> ExecuteRequest {
    ExecuteRequest::made_up("r", inputs, outputs)
}

fn execute(model: &mut LoadedModel, inputs: Vec<Tensor>, outputs: &[&str]) -> Result<ExecuteResponse, InferError> {
    model.instances[0].as_batch().unwrap().execute(&[request(inputs, outputs)]).remove(0)
}

fn logits(rows: i64, values: &[f32]) -> Tensor {
    Tensor::from_values("logits", [rows, 3], values.to_vec()).unwrap()
}

fn texts(tensor: &Tensor) -> Vec<&str> {
    tensor.bytes_elements().unwrap().map(|e| std::str::from_utf8(e).unwrap()).collect()
}

#[test]
fn hidden_states_become_embeddings() {
    let text =
        config("pool:mean, normalize", &[HIDDEN, MASK], &["{ name: 'embedding' data_type: TYPE_FP16 dims: [ 2 ] }"]);
    let mut model = load(&text).unwrap();
    let hidden = Tensor::from_values("last_hidden_state", [2, 2, 2], vec![6.0f32, 8.0, 0.0, 0.0, 99.0, 99.0, 0.0, 5.0]);
    let mask = Tensor::from_values("attention_mask", [2, 2], vec![1i64, 1, 0, 1]);
    let response = execute(&mut model, vec![mask.unwrap(), hidden.unwrap()], &["embedding"]).unwrap();
    let embedding = &response.outputs[0];
    assert_eq!(**embedding.shape(), [2, 2]);
    assert_eq!(*embedding.values::<f16>().unwrap(), [0.6, 0.8, 0.0, 1.0].map(f16::from_f32));
    assert_eq!(response.timing.batch_size, 2);
}

#[test]
fn the_mask_may_have_any_name_and_either_integer_type() {
    let mask = "{ name: 'm' data_type: TYPE_INT32 dims: [ -1 ] }";
    let text = config("pool:last", &[HIDDEN, mask], &["{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }"]);
    let mut model = load(&text).unwrap();
    let hidden = Tensor::from_values("last_hidden_state", [1, 2, 2], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let mask = Tensor::from_values("m", [1, 2], vec![1i32, 0]).unwrap();
    let response = execute(&mut model, vec![hidden, mask], &["y"]).unwrap();
    assert_eq!(*response.outputs[0].values::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn logits_become_labels_from_a_label_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("labels.txt"), "bad\nso so\ngood\n").unwrap();
    let output = "{ name: 'class' data_type: TYPE_STRING dims: [ 2 ] label_filename: 'labels.txt' }";
    let text = config("softmax, top_k:2", &[LOGITS], &[output]);
    let mut model = load_from(directory.path(), &text).unwrap();
    let response = execute(&mut model, vec![logits(1, &[0.0, f32::NEG_INFINITY, 0.0])], &["class"]).unwrap();
    assert_eq!(texts(&response.outputs[0]), ["0.500000:0:bad", "0.500000:2:good"]);

    let error = load(&text).err().unwrap();
    assert!(matches!(&error, LoadError::File { model, path, .. } if model == "post" && path.ends_with("labels.txt")));
}

#[test]
fn only_outputs_asked_for_are_made() {
    let outputs = [
        "{ name: 'labels' data_type: TYPE_STRING dims: [ 1 ] }",
        "{ name: 'scores' data_type: TYPE_FP32 dims: [ 1 ] }",
        "{ name: 'indices' data_type: TYPE_INT32 dims: [ 1 ] }",
    ];
    let text = config("top_k:1", &[LOGITS], &outputs) + "parameters { key: 'labels' value { string_value: 'a,b,c' } }";
    let mut model = load(&text).unwrap();
    let response = execute(&mut model, vec![logits(1, &[1.0, 3.0, 2.0])], &["indices", "labels"]).unwrap();
    assert_eq!(response.outputs.iter().map(Tensor::name).collect::<Vec<_>>(), ["labels", "indices"]);
    assert_eq!(texts(&response.outputs[0]), ["b"]);
    assert_eq!(*response.outputs[1].values::<i32>().unwrap(), [1]);
}

#[test]
fn argmax_fits_dims_of_one() {
    let text = config("argmax", &[LOGITS], &["{ name: 'y' data_type: TYPE_INT64 dims: [ 1 ] }"]);
    let mut model = load(&text).unwrap();
    let response = execute(&mut model, vec![logits(2, &[0.0, 2.0, 1.0, 5.0, 2.0, 1.0])], &["y"]).unwrap();
    assert_eq!(**response.outputs[0].shape(), [2, 1]);
    assert_eq!(*response.outputs[0].values::<i64>().unwrap(), [1, 0]);
    let response = execute(&mut model, vec![logits(0, &[])], &["y"]).unwrap();
    assert_eq!(**response.outputs[0].shape(), [0, 1]);
}

#[test]
fn token_ids_become_text_without_a_batch_dimension() {
    let text = "input { name: 'ids' data_type: TYPE_INT32 dims: [ -1, -1 ] } \
        output { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] } \
        parameters { key: 'ops' value { string_value: 'decode' } }";
    let mut model = load(text).unwrap();
    let ids = Tensor::from_values("ids", [2, 3], vec![4i32, 5, 2, 5, 0, 0]).unwrap();
    let response = execute(&mut model, vec![ids], &["TEXT"]).unwrap();
    assert_eq!(texts(&response.outputs[0]), ["hello world", "world"]);
    assert_eq!(response.timing.batch_size, 1);
}

#[test]
fn a_failing_request_fails_alone() {
    let text = config(
        "slice:2",
        &["{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }"],
        &["{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }"],
    );
    let mut model = load(&text).unwrap();
    let x = |width: i64| Tensor::from_values("x", [1, width], vec![1.0f32; width as usize]).unwrap();
    let requests = [request(vec![x(1)], &["y"]), request(vec![x(3)], &["y"]), request(vec![], &["y"])];
    let results = model.instances[0].as_batch().unwrap().execute(&requests);
    assert_eq!(results[0].as_ref().unwrap_err().message, "slice takes the first 2 of the last axis, got 1");
    assert_eq!(**results[1].as_ref().unwrap().outputs[0].shape(), [1, 2]);
    assert_eq!(results[2].as_ref().unwrap_err().code, ErrorCode::InvalidArg);
}

#[test]
fn configurations_that_do_not_fit_are_refused_with_the_reason() {
    let y = "{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }";
    let prefix = "model 'post': ";
    assert!(fault(&config("", &[HIDDEN], &[y])).starts_with(&format!("{prefix}parameter 'ops' is '': op 1 is empty")));
    assert_eq!(
        fault(&config("normalize, pool:mean", &[HIDDEN], &[y])),
        format!(
            "{prefix}parameter 'ops' is 'normalize, pool:mean': op 2, 'pool': needs the attention mask: declare an input \
             'attention_mask' of TYPE_INT64 or TYPE_INT32"
        )
    );
    assert!(
        fault(&config("pool:cls", &[HIDDEN], &["{ name: 'y' data_type: TYPE_FP32 dims: [ 3 ] }"]))
            .contains("output 'y' has full shape [-1,3], expected [-1,2]")
    );
    assert!(
        fault(&config("softmax", &["{ name: 'x' data_type: TYPE_BOOL dims: [ 2 ] }"], &[y]))
            .contains("unexpected datatype TYPE_BOOL for inference input 'x'")
    );
    assert!(fault(&config("softmax", &[LOGITS, HIDDEN], &[y])).contains("input 'last_hidden_state' is used by no op"));
    let extra = "parameters { key: 'op' value { string_value: 'x' } }";
    assert!(
        fault(&(config("softmax", &[LOGITS], &[y]) + extra))
            .contains("unknown parameter 'op', expected one of beside_model, graph_ends_with, labels, ops")
    );
    let beside = "parameters { key: 'beside_model' value { string_value: 'yes' } }";
    let refused = fault(&(config("softmax", &[LOGITS], &[y]) + beside));
    assert_eq!(refused, format!("{prefix}parameter 'beside_model' is 'yes', expected 'true' or 'false'"));
    let gpu = "instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }";
    assert!(fault(&(config("softmax", &[LOGITS], &[y]) + gpu)).contains("KIND_GPU"));
}

#[test]
fn a_stream_is_decoded_part_by_part() {
    let text = "input [ { name: 'ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }, \
        { name: 'emitted' data_type: TYPE_INT64 dims: [ -1, 1 ] optional: true }, \
        { name: 'final' data_type: TYPE_BOOL dims: [ 1 ] optional: true } ] \
        output { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] } \
        parameters { key: 'ops' value { string_value: 'decode' } }";
    let mut model = load(text).unwrap();
    let all = [1i64, 4, 5, 6];
    let mut run = |length: usize, emitted: Option<i64>, last: Option<bool>| {
        let mut inputs = vec![Tensor::from_values("ids", [1, length as i64], all[..length].to_vec()).unwrap()];
        inputs.extend(emitted.map(|n| Tensor::from_values("emitted", [1, 1], vec![n]).unwrap()));
        inputs.extend(last.map(|last| Tensor::new("final", DataType::Bool, [1], vec![u8::from(last)].into()).unwrap()));
        let response = execute(&mut model, inputs, &["TEXT"]).unwrap();
        texts(&response.outputs[0])[0].to_owned()
    };
    let pieces = [run(2, Some(0), None), run(3, Some(2), Some(false)), run(4, Some(3), Some(true))];
    assert_eq!(pieces.concat(), run(4, None, None));
    assert_eq!(pieces, ["hello", " world", "!"]);
}

#[test]
fn inputs_of_a_stream_are_for_chains_that_decode() {
    let emitted = "{ name: 'emitted' data_type: TYPE_FP32 dims: [ 1 ] }";
    let ids = "{ name: 'ids' data_type: TYPE_INT64 dims: [ -1 ] }";
    let output = "{ name: 'TEXT' data_type: TYPE_STRING dims: [ 1 ] }";
    assert!(
        fault(&config("decode", &[ids, emitted], &[output])).contains(
            "unexpected datatype TYPE_FP32 for inference input 'emitted', expecting TYPE_INT64 or TYPE_INT32"
        )
    );
    let last = "{ name: 'final' data_type: TYPE_INT64 dims: [ 1 ] }";
    assert!(fault(&config("decode", &[ids, last], &[output])).contains("expecting TYPE_BOOL"));
    let y = "{ name: 'y' data_type: TYPE_FP32 dims: [ 3 ] }";
    let last = "{ name: 'final' data_type: TYPE_BOOL dims: [ 1 ] }";
    assert!(fault(&config("softmax", &[LOGITS, last], &[y])).contains("input 'final' is used by no op"));
}

#[test]
fn requests_choose_how_long_vectors_are() {
    let text = config("pool:mean, normalize", &[HIDDEN, MASK], &["{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }"]);
    let mut model = load(&text).unwrap();
    let mut run = |parameters: &[(&str, ParameterValue)]| {
        let hidden = Tensor::from_values("last_hidden_state", [1, 1, 2], vec![6.0f32, 8.0]).unwrap();
        let mask = Tensor::from_values("attention_mask", [1, 1], vec![1i64]).unwrap();
        let mut request = request(vec![hidden, mask], &["y"]);
        request.parameters =
            Arc::new(parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect());
        let result = model.instances[0].as_batch().unwrap().execute(&[request]).remove(0);
        result.map(|response| response.outputs[0].values::<f32>().unwrap().to_vec()).map_err(|error| error.message)
    };
    assert_eq!(run(&[]).unwrap(), [0.6, 0.8]);
    assert_eq!(run(&[("normalize", ParameterValue::Bool(false))]).unwrap(), [6.0, 8.0]);
    assert_eq!(run(&[("dimensions", ParameterValue::Int64(1))]).unwrap(), [1.0]);
    assert_eq!(
        run(&[("normalize", "no".into())]).unwrap_err(),
        "parameter 'normalize' is 'no', expected true or false"
    );
    let error = run(&[("dimensions", ParameterValue::Int64(3))]).unwrap_err();
    assert_eq!(error, "parameter 'dimensions' is 3, expected from 1 to the 2 of the embedding");
}

#[test]
fn prompts_are_left_out_by_a_mask_of_their_own() {
    let pooling = "{ name: 'pooling_mask' data_type: TYPE_INT64 dims: [ -1 ] }";
    let text = config("pool:mean", &[HIDDEN, MASK, pooling], &["{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }"]);
    let mut model = load(&text).unwrap();
    let hidden = Tensor::from_values("last_hidden_state", [1, 2, 2], vec![9.0f32, 9.0, 1.0, 2.0]).unwrap();
    let mask = Tensor::from_values("attention_mask", [1, 2], vec![1i64, 1]).unwrap();
    let pooled = Tensor::from_values("pooling_mask", [1, 2], vec![0i64, 1]).unwrap();
    let response = execute(&mut model, vec![hidden, mask, pooled], &["y"]).unwrap();
    assert_eq!(*response.outputs[0].values::<f32>().unwrap(), [1.0, 2.0]);
    let text = config("softmax", &[LOGITS, MASK, pooling], &["{ name: 'y' data_type: TYPE_FP32 dims: [ 3 ] }"]);
    assert!(fault(&text).contains("input 'pooling_mask' is used by no op"), "{}", fault(&text));
}

#[test]
fn sparse_vectors_are_two_outputs() {
    let outputs = [
        "{ name: 'sparse_values' data_type: TYPE_FP32 dims: [ -1 ] }",
        "{ name: 'sparse_indices' data_type: TYPE_INT64 dims: [ -1 ] }",
    ];
    let mut model = load(&config("splade, sparse", &[HIDDEN, MASK], &outputs)).unwrap();
    let hidden = Tensor::from_values("last_hidden_state", [1, 2, 2], vec![-1.0f32, 0.0, -3.0, 1.0]).unwrap();
    let mask = Tensor::from_values("attention_mask", [1, 2], vec![1i64, 1]).unwrap();
    let response = execute(&mut model, vec![hidden, mask], &["sparse_indices", "sparse_values"]).unwrap();
    assert_eq!(*response.outputs[0].values::<f32>().unwrap(), [2.0f32.ln()]);
    assert_eq!(*response.outputs[1].values::<i64>().unwrap(), [1]);
}

#[test]
fn entities_need_their_inputs_and_two_inputs_of_texts_are_one_too_many() {
    let tokens = "{ name: 'logits' data_type: TYPE_FP32 dims: [ -1, 3 ] }";
    let entities = "{ name: 'entities' data_type: TYPE_STRING dims: [ 1 ] }";
    let labels = "parameters { key: 'labels' value { string_value: '[\"O\", \"B-A\", \"I-A\"]' } }";
    let text = |name: &str| format!("{{ name: '{name}' data_type: TYPE_STRING dims: [ 1 ] }}");
    let ids = "{ name: 'input_ids' data_type: TYPE_INT64 dims: [ -1 ] }";
    let few = config("entities:simple", &[tokens, ids, &text("TEXT")], &[entities]) + labels;
    assert!(fault(&few).contains("does not declare: 'offsets', 'special_tokens_mask'"), "{}", fault(&few));
    let two = config("entities:simple", &[tokens, ids, &text("A"), &text("B")], &[entities]) + labels;
    assert!(fault(&two).contains("inputs 'A' and 'B' are for the same use"), "{}", fault(&two));
}
