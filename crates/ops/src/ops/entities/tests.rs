//! transformers' results for the same logits, and refusals.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value as Json;

use trireme_inference::Tensor;

use super::*;
use crate::SideInputs;
use crate::options::RequestOptions;

/// The record that `tests/entities/make.py` writes.
#[derive(Deserialize)]
struct Golden {
    labels: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    input_ids: Vec<i64>,
    offsets: Vec<[i64; 2]>,
    special_tokens_mask: Vec<i64>,
    logits: Vec<Vec<f32>>,
    entities: BTreeMap<String, Json>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/entities")).join(name)
}

fn inputs() -> SideInputs {
    let some = |name: &str| Some(name.to_owned());
    SideInputs {
        input_ids: some("input_ids"),
        offsets: some("offsets"),
        special_tokens_mask: some("special_tokens_mask"),
        texts: some("TEXT"),
        ..SideInputs::default()
    }
}

/// The answer for a text that comes as two rows of all its tokens, of which the first one owns the characters before `at`.
fn answer_in_windows(op: &dyn Op, case: &Case, options: RequestOptions, at: i64) -> Json {
    let (length, classes) = (case.logits.len(), case.logits[0].len());
    let logits = ndarray::Array3::from_shape_vec((2, length, classes), case.logits.concat().repeat(2)).unwrap();
    let rows = [2, length as i64];
    let ids = Tensor::from_values("input_ids", rows, case.input_ids.repeat(2)).unwrap();
    let offsets = Tensor::from_values("offsets", [2, length as i64, 2], case.offsets.concat().repeat(2)).unwrap();
    let special = Tensor::from_values("special_tokens_mask", rows, case.special_tokens_mask.repeat(2)).unwrap();
    let texts = Tensor::from_bytes_elements("TEXT", [1], &[&case.text]).unwrap();
    let end = case.text.chars().count() as i64;
    let windows = Tensor::from_values("windows", [2, 6], vec![0, 0, end, 0, at, 0, 0, 0, end, at, end, 0]).unwrap();
    let side = Side {
        input_ids: Some(&ids),
        offsets: Some(&offsets),
        special_tokens_mask: Some(&special),
        texts: Some(&texts),
        windows: Some(&windows),
        options,
        ..Side::default()
    };
    let Ok(Value::Texts(texts)) = op.apply(Value::Floats(logits.into_dyn().into()), &side) else { panic!("no texts") };
    assert_eq!(texts.len(), 1);
    serde_json::from_str(&texts[0]).unwrap()
}

fn answer(op: &dyn Op, case: &Case, options: RequestOptions) -> Result<Json, InferError> {
    let (length, classes) = (case.logits.len(), case.logits.first().map_or(0, Vec::len));
    let logits = ndarray::Array3::from_shape_vec((1, length, classes), case.logits.concat()).unwrap();
    let rows = [1, length as i64];
    let ids = Tensor::from_values("input_ids", rows, case.input_ids.clone()).unwrap();
    let offsets = Tensor::from_values("offsets", [1, length as i64, 2], case.offsets.concat()).unwrap();
    let special = Tensor::from_values("special_tokens_mask", rows, case.special_tokens_mask.clone()).unwrap();
    let texts = Tensor::from_bytes_elements("TEXT", [1], &[&case.text]).unwrap();
    let side = Side {
        input_ids: Some(&ids),
        offsets: Some(&offsets),
        special_tokens_mask: Some(&special),
        texts: Some(&texts),
        options,
        ..Side::default()
    };
    let Value::Texts(texts) = op.apply(Value::Floats(logits.into_dyn().into()), &side)? else { panic!("no texts") };
    Ok(serde_json::from_str(&texts[0]).unwrap())
}

/// Equal, scores to within rounding.
fn assert_same(found: &Json, expected: &Json, what: &str) {
    let without_score = |list: &Json| {
        let mut list = list.as_array().unwrap().clone();
        let scores: Vec<f64> = list.iter().map(|entity| entity["score"].as_f64().unwrap()).collect();
        list.iter_mut().for_each(|entity| drop(entity.as_object_mut().unwrap().remove("score")));
        (list, scores)
    };
    let ((found, scores), (expected, expected_scores)) = (without_score(found), without_score(expected));
    assert_eq!(found, expected, "{what}");
    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 2e-6;
    assert!(scores.iter().zip(&expected_scores).all(close), "{what}: {scores:?} {expected_scores:?}");
}

#[test]
fn entities_are_those_of_transformers() {
    for name in ["wordpiece", "byte-level", "unigram"] {
        let golden: Golden = serde_json::from_slice(&std::fs::read(folder(name).join("golden.json")).unwrap()).unwrap();
        let labels = Labels::from_list(&serde_json::to_string(&golden.labels).unwrap());
        let (version_path, inputs) = (folder(name), inputs());
        let resources = Resources { version_path: &version_path, labels: &labels, inputs: &inputs };
        let by_request = build(Some("none"), &resources).unwrap();
        let mut compared = 0;
        for strategy in ["none", "simple", "first", "average", "max"] {
            let by_argument = build(Some(strategy), &resources).unwrap();
            let options =
                RequestOptions { aggregation_strategy: Aggregation::named(strategy), ..RequestOptions::default() };
            for case in &golden.cases {
                let what = format!("{name}, {strategy}, '{}'", case.text);
                let expected = &case.entities[strategy];
                assert_same(&answer(&*by_argument, case, RequestOptions::default()).unwrap(), expected, &what);
                assert_same(&answer(&*by_request, case, options).unwrap(), expected, &what);
                compared += expected.as_array().unwrap().len();
            }
        }
        assert!(compared > 100, "{name} has entities: {compared}");
    }
}

#[test]
fn entities_are_those_of_one_row_wherever_windows_meet() {
    for name in ["wordpiece", "byte-level", "unigram"] {
        let golden: Golden = serde_json::from_slice(&std::fs::read(folder(name).join("golden.json")).unwrap()).unwrap();
        let labels = Labels::from_list(&serde_json::to_string(&golden.labels).unwrap());
        let inputs = SideInputs { windows: Some("windows".to_owned()), ..inputs() };
        let resources = Resources { version_path: &folder(name), labels: &labels, inputs: &inputs };
        let op = build(Some("none"), &resources).unwrap();
        assert_eq!(op.signature(&Signature::new(Form::Floats, [2, 9, -1])).unwrap(), Signature::new(Form::Texts, [-1]));
        let mut compared = 0;
        for strategy in ["none", "simple", "first", "average", "max"] {
            let options =
                RequestOptions { aggregation_strategy: Aggregation::named(strategy), ..RequestOptions::default() };
            for case in &golden.cases {
                for at in 0..=case.text.chars().count() as i64 {
                    let what = format!("{name}, {strategy}, '{}' at {at}", case.text);
                    assert_same(&answer_in_windows(&*op, case, options, at), &case.entities[strategy], &what);
                    compared += 1;
                }
            }
        }
        assert!(compared > 100, "{name} has windows: {compared}");
    }
}

#[test]
fn what_the_op_needs_is_named() {
    let (version_path, labels) = (folder("wordpiece"), Labels::from_list("O,B"));
    let refused = |argument, inputs: &SideInputs, labels| {
        build(argument, &Resources { version_path: &version_path, labels, inputs }).err().unwrap()
    };
    let none = SideInputs { texts: None, offsets: None, ..inputs() };
    assert_eq!(
        refused(Some("simple"), &none, &labels),
        "needs inputs that the model does not declare: 'offsets', the texts (TYPE_STRING)"
    );
    let unnamed = Labels::default();
    assert!(refused(Some("simple"), &inputs(), &unnamed).starts_with("needs the names of classes"));
    assert!(refused(Some("mean"), &inputs(), &labels).starts_with("argument is 'mean', expected 'none'"));
    assert!(refused(None, &inputs(), &labels).starts_with("argument is missing"));
    let inputs = inputs();
    let op = build(Some("none"), &Resources { version_path: &version_path, labels: &labels, inputs: &inputs }).unwrap();
    let error = op.signature(&Signature::new(Form::Floats, [-1, -1, 3])).unwrap_err();
    assert!(error.starts_with("has 2 labels"), "{error}");
}

#[test]
fn tokens_have_the_scores_of_all_classes_and_padding_none() {
    let (version_path, labels, inputs) = (folder("wordpiece"), Labels::from_list("O,B"), inputs());
    let op =
        build(Some("simple"), &Resources { version_path: &version_path, labels: &labels, inputs: &inputs }).unwrap();
    let tokenizer = TextTokenizer::load(&version_path, TokenizeOptions::default()).unwrap();
    let padding = i64::from(tokenizer.padding_id().unwrap());
    let (text, around) = (padding + 5, padding + 2);
    let case = Case {
        text: "a".to_owned(),
        input_ids: vec![padding, around, text, around, padding, padding],
        offsets: vec![[0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]],
        special_tokens_mask: vec![1, 1, 0, 1, 1, 1],
        logits: [[9.0, 9.0], [0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [9.0, 9.0], [9.0, 9.0]].map(Vec::from).to_vec(),
        entities: BTreeMap::new(),
    };
    let scores = |raw_scores| {
        let options = RequestOptions { token_scores: true, raw_scores, ..RequestOptions::default() };
        serde_json::from_value::<Vec<Vec<f32>>>(answer(&*op, &case, options).unwrap()).unwrap()
    };
    assert_eq!(scores(true), [[0.0, 0.0], [0.0, 2.0], [1.0, 0.0]]);
    let probabilities = scores(false);
    assert_eq!(probabilities[0], [0.5, 0.5]);
    assert!((probabilities[1][1] - 0.880_797).abs() < 1e-6, "{probabilities:?}");
}

#[test]
fn odd_tensors_are_refused_not_believed() {
    let (version_path, labels, inputs) = (folder("wordpiece"), Labels::from_list("O,B"), inputs());
    let op =
        build(Some("first"), &Resources { version_path: &version_path, labels: &labels, inputs: &inputs }).unwrap();
    let case = |id: i64, offsets: [i64; 2]| Case {
        text: "é".to_owned(),
        input_ids: vec![id],
        offsets: vec![offsets],
        special_tokens_mask: vec![0],
        logits: vec![vec![0.0, 1.0]],
        entities: BTreeMap::new(),
    };
    let message = |case: &Case| answer(&*op, case, RequestOptions::default()).unwrap_err().message;
    assert!(message(&case(99_999, [0, 1])).contains("holds 99999, which is no token"));
    assert!(message(&case(5, [-1, 1])).contains("holds -1, expected positions"));
    // Offsets beyond the text cover nothing of it.
    let far = answer(&*op, &case(5, [7, i64::MAX]), RequestOptions::default()).unwrap();
    assert_eq!(far.as_array().unwrap().len(), 1);
}
