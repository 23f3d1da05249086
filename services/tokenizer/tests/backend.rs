//! The backend as the worker uses it: load, then execute.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up shall fail")]

use std::path::Path;
use std::sync::Arc;

use trireme_engine::{Backend, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelSource};
use trireme_inference::{DataType, ErrorCode, InferError, ParameterValue, Tensor, TextFacts};
use trireme_model_repository::ModelConfig;
use trireme_tokenizer::TokenizerBackend;

const IO: &str = "input { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] } \
    output [ { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }, \
    { name: 'attention_mask' data_type: TYPE_INT32 dims: [ -1, -1 ] } ]";

fn load(text: &str, auto_complete: bool) -> Result<LoadedModel, LoadError> {
    load_from(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizer")), text, auto_complete)
}

fn load_from(version_path: &Path, text: &str, auto_complete: bool) -> Result<LoadedModel, LoadError> {
    let config = ModelConfig::parse(&format!("backend: 'tokenizer' {text}"), "tok").unwrap();
    let model_path = version_path.parent().unwrap();
    TokenizerBackend.load(&ModelSource {
        config: &config,
        version: 1,
        model_path,
        version_path,
        auto_complete,
        uploaded: None,
        calls: Default::default(),
    })
}

fn texts(name: &str, shape: &[i64], texts: &[&str]) -> Tensor {
    Tensor::from_bytes_elements(name, shape, texts).unwrap()
}

fn request(inputs: Vec<Tensor>) -> ExecuteRequest {
    ExecuteRequest::made_up("r", inputs, ["input_ids", "attention_mask", "token_type_ids"])
}

fn execute(model: &mut LoadedModel, inputs: Vec<Tensor>) -> Result<ExecuteResponse, InferError> {
    model.instances[0].as_batch().unwrap().execute(&[request(inputs)]).remove(0)
}

fn output<'a>(response: &'a ExecuteResponse, name: &str) -> &'a Tensor {
    response.outputs.iter().find(|tensor| tensor.name() == name).unwrap()
}

fn fault(result: Result<LoadedModel, LoadError>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn texts_become_padded_rows_of_the_declared_datatypes() {
    let mut model = load(IO, true).unwrap();
    let response = execute(&mut model, vec![texts("TEXT", &[2], &["hello world", "hello"])]).unwrap();
    assert_eq!(response.outputs.len(), 2, "token_type_ids is not declared");
    let ids = output(&response, "input_ids");
    assert_eq!((&**ids.shape(), &*ids.values::<i64>().unwrap()), (&[2, 2][..], &[4, 5, 4, 0][..]));
    assert_eq!(*output(&response, "attention_mask").values::<i32>().unwrap(), [1, 1, 1, 0]);
    assert!(!response.timing.compute_infer.is_zero());
    assert_eq!(response.timing.batch_size, 1);
    assert_eq!(response.texts, Some(TextFacts { tokens: 3, truncated: 0, windows: 0 }));
}

#[test]
fn only_outputs_asked_for_are_made() {
    let mut model = load(IO, true).unwrap();
    let mut request = request(vec![texts("TEXT", &[1], &["hello"])]);
    request.outputs = vec!["attention_mask".into()];
    let response = model.instances[0].as_batch().unwrap().execute(&[request]).remove(0).unwrap();
    assert_eq!(response.outputs.iter().map(Tensor::name).collect::<Vec<_>>(), ["attention_mask"]);
}

#[test]
fn a_configuration_without_tensors_gets_them() {
    let mut model = load("", true).unwrap();
    assert_eq!((model.config.inputs[0].name.as_str(), model.config.max_batch_size), ("TEXT", 0));
    let response = execute(&mut model, vec![texts("TEXT", &[0], &[])]).unwrap();
    assert!(response.outputs.iter().all(|t| **t.shape() == [0, 0] && t.datatype() == DataType::Int64));
    assert_eq!(response.outputs.len(), 3);
    assert!(fault(load("", false)).contains("it declares 0 inputs"));

    let mut model = load("max_batch_size: 16", true).unwrap();
    assert_eq!(*model.config.input_specs()[0].shape, [-1, 1]);
    let response = execute(&mut model, vec![texts("TEXT", &[3, 1], &["hello", "world", ""])]).unwrap();
    assert_eq!(**output(&response, "token_type_ids").shape(), [3, 1]);
    assert_eq!(response.timing.batch_size, 3);
}

#[test]
fn a_second_input_holds_the_pairs_and_may_be_optional() {
    let pair = |optional| {
        format!(
            "input [ {{ name: 'Q' data_type: TYPE_STRING dims: [ -1 ] }}, \
             {{ name: 'D' data_type: TYPE_STRING dims: [ -1 ] optional: {optional} }} ] \
             output {{ name: 'token_type_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }}"
        )
    };
    let query = || texts("Q", &[1], &["hello"]);
    let types = |response: ExecuteResponse| response.outputs[0].values::<i64>().unwrap().to_vec();
    let mut model = load(&pair(true), true).unwrap();
    let document = texts("D", &[1], &["hello world"]);
    assert_eq!(types(execute(&mut model, vec![document, query()]).unwrap()), [0, 1, 1]);
    assert_eq!(types(execute(&mut model, vec![query()]).unwrap()), [0]);
    let error = execute(&mut model, vec![query(), texts("D", &[2], &["a", "b"])]).unwrap_err();
    assert_eq!(error.message, "got 2 second texts for 1 texts, expected one for each");
    let mut model = load(&pair(false), true).unwrap();
    assert_eq!(execute(&mut model, vec![query()]).unwrap_err().code, ErrorCode::InvalidArg);
}

#[test]
fn a_text_that_is_not_utf8_fails_its_request_alone() {
    let mut model = load(IO, true).unwrap();
    let bad = Tensor::from_bytes_elements("TEXT", [2], &[&b"hello"[..], b"\xc3("]).unwrap();
    let requests = [request(vec![bad]), request(vec![texts("TEXT", &[1], &["hello"])])];
    let mut results = model.instances[0].as_batch().unwrap().execute(&requests).into_iter();
    let error = results.next().unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArg);
    assert_eq!(error.message, "tensor 'TEXT': element 1 is not valid UTF-8 at byte 0, expected UTF-8 text");
    assert_eq!(*output(&results.next().unwrap().unwrap(), "input_ids").values::<i64>().unwrap(), [4]);
}

#[test]
fn several_texts_in_a_row_are_refused() {
    let config = "max_batch_size: 4 input { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] } \
        output { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1 ] }";
    let mut model = load(config, true).unwrap();
    let error = execute(&mut model, vec![texts("TEXT", &[1, 2], &["hello", "world"])]).unwrap_err();
    assert_eq!(error.message, "tensor 'TEXT' has shape [1,2], expected one text for each row: [n,1]");
}

#[test]
fn instances_share_the_tokenizer_and_are_as_many_as_asked_for() {
    let groups = "instance_group [ { kind: KIND_CPU count: 2 }, { kind: KIND_CPU count: 1 } ]";
    let model = load(&format!("{IO} {groups}"), true).unwrap();
    assert_eq!(model.instances.len(), 3);
    assert!(
        fault(load(&format!("{IO} instance_group {{ kind: KIND_GPU count: 1 gpus: [ 0 ] }}"), true))
            .contains("KIND_GPU")
    );
}

#[test]
fn parameters_and_files_that_do_not_fit_are_named_with_the_model() {
    let parameter = "parameters { key: 'max_lenght' value { string_value: '3' } }";
    assert!(fault(load(&format!("{IO} {parameter}"), true)).starts_with("model 'tok': unknown parameter 'max_lenght'"));
    let empty = tempfile::tempdir().unwrap();
    let error = load_from(empty.path(), IO, true).err().unwrap();
    assert!(
        matches!(&error, LoadError::File { model, path, .. } if model == "tok" && path.ends_with("tokenizer.json"))
    );
}

/// A SentencePiece tokenizer of the text crate's tests.
fn load_m2m100(parameters: &str) -> Result<LoadedModel, LoadError> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/text/tests/golden/slow/m2m100"));
    let io = "input { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] } \
        output [ { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }, \
        { name: 'forced_bos_token_id' data_type: TYPE_INT64 dims: [ -1, 1 ] } ]";
    load_from(path, &format!("{io} {parameters}"), true)
}

#[test]
fn a_request_may_choose_its_languages() {
    let mut model = load_m2m100("parameters { key: 'target_language' value { string_value: 'fr' } }").unwrap();
    let mut run = |parameters: &[(&str, &str)]| {
        let mut request = request(vec![texts("TEXT", &[2], &["the harbour", "a"])]);
        request.outputs.push("forced_bos_token_id".into());
        request.parameters = Arc::new(parameters.iter().map(|&(k, v)| (k.to_owned(), v.into())).collect());
        model.instances[0].as_batch().unwrap().execute(&[request]).remove(0)
    };
    let ids = |response: &ExecuteResponse, name| output(response, name).values::<i64>().unwrap().to_vec();
    let usual = run(&[]).unwrap();
    assert_eq!(**output(&usual, "forced_bos_token_id").shape(), [2, 1]);
    let french = ids(&usual, "forced_bos_token_id");
    assert_eq!(french[0], french[1]);
    let chosen = run(&[("source_language", "fr"), ("target_language", "sw"), ("temperature", "1")]).unwrap();
    assert_eq!(ids(&chosen, "input_ids")[0], french[0], "the token of French before the text");
    assert_ne!(ids(&chosen, "forced_bos_token_id"), french);
    let error = run(&[("target_language", "tlh")]).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArg);
    assert!(error.message.starts_with("parameter 'target_language' is 'tlh', expected one of af, am,"), "{error:?}");
}

#[test]
fn without_a_target_language_no_token_is_forced() {
    let io = "input { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] } \
        output { name: 'forced_bos_token_id' data_type: TYPE_INT32 dims: [ -1, 1 ] }";
    let mut model = load(io, true).unwrap();
    let mut request = request(vec![texts("TEXT", &[2], &["hello", "world"])]);
    request.outputs = vec!["forced_bos_token_id".into()];
    let response = model.instances[0].as_batch().unwrap().execute(std::slice::from_ref(&request)).remove(0).unwrap();
    assert_eq!(*response.outputs[0].values::<i32>().unwrap(), [-1, -1]);
    request.parameters = Arc::new([("target_language".to_owned(), "sw".into())].into());
    let error = model.instances[0].as_batch().unwrap().execute(&[request]).remove(0).unwrap_err();
    assert!(error.message.contains("this tokenizer has no tokens of target languages"), "{error:?}");
    let error = fault(load_m2m100("parameters { key: 'source_language' value { string_value: 'xx' } }"));
    assert!(error.starts_with("model 'tok': parameter 'source_language' is 'xx', expected one of af,"), "{error}");
}

#[test]
fn the_translation_example_is_encoded_as_its_model_learnt_it() {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/translation/tokenizer"));
    let config = std::fs::read_to_string(directory.join("config.pbtxt")).unwrap();
    let config = ModelConfig::parse(&config, "tokenizer").unwrap();
    let version_path = &directory.join("1");
    let source = ModelSource {
        config: &config,
        version: 1,
        model_path: directory,
        version_path,
        auto_complete: true,
        uploaded: None,
        calls: Default::default(),
    };
    let mut model = TokenizerBackend.load(&source).unwrap();
    let mut request = request(vec![texts("TEXT", &[2], &["forty-two", "seven"])]);
    request.outputs.push("forced_bos_token_id".into());
    let response = model.instances[0].as_batch().unwrap().execute(&[request]).remove(0).unwrap();
    // As M2M100Tokenizer gives them: the token of English, the pieces, </s>, padding; and the token of Swahili.
    let ids = output(&response, "input_ids");
    assert_eq!(*ids.values::<i64>().unwrap(), [242, 93, 172, 98, 2, 242, 46, 2, 1, 1]);
    assert_eq!(*output(&response, "forced_bos_token_id").values::<i64>().unwrap(), [308, 308]);
}

#[test]
fn offsets_and_masks_are_made_where_they_are_declared() {
    let outputs = "output [ { name: 'offsets' data_type: TYPE_INT32 dims: [ -1, 2 ] }, \
        { name: 'special_tokens_mask' data_type: TYPE_INT64 dims: [ -1 ] }, \
        { name: 'pooling_mask' data_type: TYPE_INT64 dims: [ -1 ] }, \
        { name: 'position_ids' data_type: TYPE_INT64 dims: [ -1 ] } ]";
    let prompts = r#"parameters { key: 'prompts' value { string_value: '{"q": "world "}' } }"#;
    let input = "input { name: 'TEXT' data_type: TYPE_STRING dims: [ 1 ] }";
    let mut model = load(&format!("max_batch_size: 4 {input} {outputs} {prompts}"), true).unwrap();
    let wanted = ["offsets", "special_tokens_mask", "pooling_mask", "position_ids"];
    let mut request = ExecuteRequest::made_up("r", vec![texts("TEXT", &[2, 1], &["hello world", "hello"])], wanted);
    request.parameters = Arc::new([("prompt_name".to_owned(), "q".into())].into());
    let response = model.instances[0].as_batch().unwrap().execute(&[request]).remove(0).unwrap();
    let offsets = output(&response, "offsets");
    assert_eq!(**offsets.shape(), [2, 3, 2]);
    assert_eq!(*offsets.values::<i32>().unwrap(), [0, 0, 0, 5, 6, 11, 0, 0, 0, 5, 0, 0]);
    assert_eq!(*output(&response, "pooling_mask").values::<i64>().unwrap(), [0, 1, 1, 0, 1, 0]);
    assert_eq!(*output(&response, "special_tokens_mask").values::<i64>().unwrap(), [0, 0, 0, 0, 0, 1]);
    assert_eq!(*output(&response, "position_ids").values::<i64>().unwrap(), [0, 1, 2, 0, 1, 0]);
}

#[test]
fn faults_in_the_parameters_of_a_request_are_the_clients() {
    let mut model = load(IO, true).unwrap();
    let mut run = |name: &str, value: ParameterValue| {
        let mut request = request(vec![texts("TEXT", &[1], &["hello"])]);
        request.parameters = Arc::new([(name.to_owned(), value)].into());
        model.instances[0].as_batch().unwrap().execute(&[request]).remove(0).unwrap_err()
    };
    for (name, value) in [
        ("prompt_name", "q".into()),
        ("truncate", "no".into()),
        ("truncation_side", "middle".into()),
        ("max_tokens", ParameterValue::Double(1.5)),
    ] {
        let error = run(name, value);
        assert_eq!(error.code, ErrorCode::InvalidArg);
        assert!(error.message.starts_with(&format!("parameter '{name}' is ")), "{}", error.message);
    }
}
