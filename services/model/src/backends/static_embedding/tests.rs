//! Tables of every precision, refusals, and the backend conformance suite.

use std::collections::HashMap;

use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;
use trireme_model_repository::ModelConfig;

use super::*;
use crate::backends::conformance::{self, Case, load, request};

/// A folder of a model with these tensors and this `config.json`.
fn folder(tensors: &[(&str, Dtype, &[usize], &[u8])], config: Option<&str>) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let version = directory.path().join("1");
    std::fs::create_dir(&version).unwrap();
    let views: HashMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape.to_vec(), data).unwrap()))
        .collect();
    safetensors::serialize_to_file(views, None, &version.join("model.safetensors")).unwrap();
    if let Some(config) = config {
        std::fs::write(version.join("config.json"), config).unwrap();
    }
    directory
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Three tokens of two components.
const VECTORS: [f32; 6] = [3.0, 4.0, 1.0, -2.0, 0.0, 8.0];

fn plain() -> TempDir {
    folder(&[("embeddings", Dtype::F32, &[3, 2], &bytes(&VECTORS))], None)
}

fn config(rest: &str) -> ModelConfig {
    ModelConfig::parse(&format!("backend: 'static' {rest}"), "m").unwrap()
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ")
}

fn tokens(rows: i64, ids: &[i64]) -> Tensor {
    Tensor::from_values(INPUT_IDS, [rows, ids.len() as i64 / rows.max(1)], ids.to_vec()).unwrap()
}

fn embed(directory: &TempDir, rest: &str, inputs: Vec<Tensor>) -> Result<Vec<f32>, InferError> {
    let mut model = load(&StaticEmbedding, &config(rest), directory.path()).unwrap();
    let response = model.instances[0].as_batch().unwrap().execute(&[request(&inputs, &[EMBEDDING])]).remove(0)?;
    Ok(response.outputs[0].values::<f32>().unwrap().to_vec())
}

#[test]
fn conforms() {
    let case = Case {
        inputs: [vec![0i64], vec![1, 2], vec![2, 2, 0, 1]].map(|ids| vec![tokens(1, &ids)]).to_vec(),
        outputs: vec![EMBEDDING.to_owned()],
    };
    let wide = folder(&[("embeddings", Dtype::F32, &[3, 4], &bytes(&[VECTORS, VECTORS].concat()))], None);
    conformance::check(&StaticEmbedding, &config("max_batch_size: 8"), wide.path(), &case);
}

#[test]
fn texts_are_the_means_of_their_tokens() {
    let mask = Tensor::from_values(ATTENTION_MASK, [2, 3], vec![1i64, 1, 0, 0, 0, 0]).unwrap();
    let means = embed(&plain(), "", vec![tokens(2, &[0, 1, 2, 0, 0, 0]), mask]).unwrap();
    assert_eq!(means, [2.0, 1.0, 0.0, 0.0], "a row without tokens gives zeros");
    let unknown = parameter("unknown_token_id", "1");
    assert_eq!(embed(&plain(), &unknown, vec![tokens(1, &[0, 1, 2])]).unwrap(), [1.5, 6.0]);
    let normalize = parameter("normalize", "true");
    assert_eq!(embed(&plain(), &normalize, vec![tokens(2, &[0, 2])]).unwrap(), [0.6, 0.8, 0.0, 1.0]);
}

#[test]
fn tables_of_every_precision_are_read() {
    let halves: Vec<u8> = VECTORS.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let small: Vec<u8> = VECTORS.iter().map(|&v| (v as i8) as u8).collect();
    let wide: Vec<u8> = VECTORS.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
    for (dtype, data) in [(Dtype::F16, halves), (Dtype::I8, small), (Dtype::F64, wide)] {
        let directory = folder(&[("embedding.weight", dtype, &[3, 2], &data)], None);
        assert_eq!(embed(&directory, "", vec![tokens(1, &[0, 1])]).unwrap(), [2.0, 1.0], "{dtype:?}");
    }
}

#[test]
fn a_number_for_each_token_is_not_added_up() {
    let directory = folder(&[("weight", Dtype::F32, &[3], &bytes(&[0.5, -2.0, 7.0]))], None);
    let mut model = load(&StaticEmbedding, &config(""), directory.path()).unwrap();
    let mask = Tensor::from_values(ATTENTION_MASK, [2, 2], vec![1i64, 1, 1, 0]).unwrap();
    let run = |inputs: &[Tensor], name: &str| request(inputs, &[name]);
    let instance = model.instances[0].as_batch().unwrap();
    let response = instance.execute(&[run(&[tokens(2, &[1, 1, 2, 0]), mask], TOKEN_WEIGHTS)]).remove(0).unwrap();
    assert_eq!(*response.outputs[0].shape(), Shape::from([2, 2, 1]));
    assert_eq!(*response.outputs[0].values::<f32>().unwrap(), [-2.0, -2.0, 7.0, 0.0]);
    let error = instance.execute(&[run(&[tokens(1, &[3])], TOKEN_WEIGHTS)]).remove(0).unwrap_err();
    assert_eq!(error.message, "model 'm': input 'input_ids' holds 3, expected token ids from 0 to 2");
    let error = instance.execute(&[run(&[tokens(1, &[0])], EMBEDDING)]).remove(0).unwrap_err();
    assert!(error.message.ends_with("allowed outputs are: token_weights"), "{error}");
}

#[test]
fn weights_and_mapping_are_of_tokens() {
    let mapping: Vec<u8> = [2i64, 0, 0, 1].iter().flat_map(|row| row.to_le_bytes()).collect();
    let weights: Vec<u8> = [1.0f64, 2.0, 0.0, 10.0].iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let vectors = bytes(&VECTORS);
    let tensors: [(&str, Dtype, &[usize], &[u8]); 3] = [
        ("embeddings", Dtype::F32, &[3, 2], &vectors),
        ("mapping", Dtype::I64, &[4], &mapping),
        ("weights", Dtype::F64, &[4], &weights),
    ];
    let directory = folder(&tensors, Some(r#"{"normalize": false}"#));
    assert_eq!(embed(&directory, "", vec![tokens(3, &[1, 2, 3])]).unwrap(), [6.0, 8.0, 0.0, 0.0, 10.0, -20.0]);
    let error = embed(&directory, "", vec![tokens(1, &[4])]).unwrap_err();
    assert_eq!(error.message, "model 'm': input 'input_ids' holds 4, expected token ids from 0 to 3");
}

#[test]
fn requests_choose_dimensions_and_length() {
    let directory = folder(&[("embeddings", Dtype::F32, &[3, 2], &bytes(&VECTORS))], Some(r#"{"normalize": true}"#));
    let mut model = load(&StaticEmbedding, &config(""), directory.path()).unwrap();
    let mut run = |name: &str, value: ParameterValue| {
        let mut request = request(&[tokens(1, &[0])], &[EMBEDDING]);
        request.parameters = Arc::new([(name.to_owned(), value)].into());
        let result = model.instances[0].as_batch().unwrap().execute(&[request]).remove(0);
        result.map(|response| response.outputs[0].values::<f32>().unwrap().to_vec()).map_err(|error| error.message)
    };
    assert_eq!(run("normalize", ParameterValue::Bool(true)).unwrap(), [0.6, 0.8]);
    assert_eq!(run("normalize", ParameterValue::Bool(false)).unwrap(), [3.0, 4.0]);
    assert_eq!(run("dimensions", ParameterValue::Int64(1)).unwrap(), [1.0]);
    assert!(run("dimensions", ParameterValue::Int64(3)).unwrap_err().contains("is 3, expected from 1 to the 2"));
    assert!(run("normalize", "no".into()).unwrap_err().contains("is 'no', expected true or false"));
}

#[test]
fn requests_of_different_length_share_a_run() {
    let model = load(&StaticEmbedding, &config("max_batch_size: 8"), plain().path()).unwrap();
    let now = Instant::now();
    let candidate =
        |ids: &[i64]| Candidate { arrived: now, priority: 0, description: model.policy.describe(&[tokens(1, ids)]) };
    let waiting = [candidate(&[0]), candidate(&[0, 1, 2])];
    assert_eq!(model.policy.decide(&waiting, now), Decision::Run(vec![0, 1]));
}

#[test]
fn what_does_not_fit_is_named() {
    let refused = |directory: &TempDir, rest: &str| {
        load(&StaticEmbedding, &config(rest), directory.path()).err().unwrap().to_string()
    };
    let other = folder(&[("weight", Dtype::F32, &[3, 2], &bytes(&VECTORS))], None);
    assert!(
        refused(&other, "")
            .contains("no tensor 'embeddings' or 'embedding.weight', and no 'weight' of one dimension, found 'weight'")
    );
    let mapping: Vec<u8> = 9i64.to_le_bytes().to_vec();
    let vectors = bytes(&VECTORS);
    let broken: [(&str, Dtype, &[usize], &[u8]); 2] =
        [("embeddings", Dtype::F32, &[3, 2], &vectors), ("mapping", Dtype::I64, &[1], &mapping)];
    assert!(refused(&folder(&broken, None), "").contains("'mapping' names row 9, expected one of the 3 rows"));
    let short: [(&str, Dtype, &[usize], &[u8]); 2] =
        [("embeddings", Dtype::F32, &[3, 2], &vectors), ("weights", Dtype::F32, &[1], &vectors[..4])];
    assert!(refused(&folder(&short, None), "").contains("'weights' has 1 numbers, expected one for each of 3 tokens"));
    assert!(refused(&plain(), &parameter("normalize", "maybe")).contains("is 'maybe', expected 'true' or 'false'"));
    let output = "output { name: 'sentence_embedding' data_type: TYPE_FP32 dims: [ -1, 5 ] }";
    let input = "input { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }";
    assert!(refused(&plain(), &format!("{input} {output}")).contains("has full shape [-1,5], expected [-1,2]"));
    let empty = tempfile::tempdir().unwrap();
    assert!(refused(&empty, "").contains("1/model.safetensors"));
}
