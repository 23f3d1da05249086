//! Folds of rows that are written out.

use ndarray::{ArrayD, Axis, array};
use trireme_inference::Tensor;

use super::*;
use crate::inputs::SideInputs;
use crate::options::RequestOptions;

/// Two windows of a text, of 3 and 1 tokens, the row of another, and three windows of a third.
const WINDOWS: [[i64; 6]; 6] = [
    [0, 0, 9, 0, 7, 3],
    [0, 5, 12, 7, 12, 1],
    [1, 0, 3, 0, 3, 2],
    [2, 0, 4, 0, 4, 1],
    [2, 3, 8, 4, 8, 2],
    [2, 8, 9, 8, 9, 1],
];

fn rows() -> ArrayD<f32> {
    array![[1.0, 0.0], [0.0, 1.0], [5.0, -5.0], [-1.0, 2.0], [-3.0, 0.5], [-2.0, 4.0]].into_dyn()
}

fn inputs() -> SideInputs {
    SideInputs { windows: Some("windows".to_owned()), ..SideInputs::default() }
}

fn fold(argument: &str, options: RequestOptions, windows: &[[i64; 6]]) -> Result<ArrayD<f32>, String> {
    let inputs = inputs();
    let op = build(Some(argument), &Resources { inputs: &inputs, ..Resources::default() })?;
    let windows = Tensor::from_values("windows", [windows.len() as i64, 6], windows.concat()).unwrap();
    let side = Side { windows: Some(&windows), options, ..Side::default() };
    let folded = op.apply(Value::Floats(CowArray::from(rows())), &side).map_err(|error| error.message)?;
    Ok(folded.into_floats().map_err(|error| error.message)?.into_owned())
}

#[test]
fn each_kind_makes_one_row_of_the_windows_of_a_text_or_keeps_them() {
    let folded = |argument| fold(argument, RequestOptions::default(), &WINDOWS).unwrap();
    assert_eq!(folded("mean"), array![[0.75, 0.25], [5.0, -5.0], [-2.25, 1.75]].into_dyn());
    assert_eq!(folded("first"), array![[1.0, 0.0], [5.0, -5.0], [-1.0, 2.0]].into_dyn());
    assert_eq!(folded("max"), array![[1.0, 1.0], [5.0, -5.0], [-1.0, 4.0]].into_dyn());
    assert_eq!(folded("keep"), rows());
    assert_eq!(folded("keep+normalize"), rows(), "each row is as its window has it");
    // A request may choose another one.
    let kept = RequestOptions { fold: Some(Fold::Keep), ..RequestOptions::default() };
    assert_eq!(fold("mean", kept, &WINDOWS).unwrap(), rows());
    let error = fold("mean", kept, &WINDOWS[..5]).unwrap_err();
    assert_eq!(error, "tensor 'windows' is INT64 of shape [5,6], expected INT64 or INT32 of shape [6,6]");
    let asked = RequestOptions { fold: Some(Fold::First), ..RequestOptions::default() };
    assert_eq!(fold("mean", asked, &WINDOWS).unwrap(), folded("first"));
}

#[test]
fn folded_vectors_get_their_length_again_and_single_rows_stay_as_they_are() {
    let folded = fold("mean + normalize", RequestOptions::default(), &WINDOWS);
    assert!(
        folded.unwrap_err().starts_with("argument is 'mean + normalize', expected 'mean', 'first', 'max' or 'keep'")
    );
    let folded = fold("mean+normalize", RequestOptions::default(), &WINDOWS).unwrap();
    assert_eq!(folded[[1, 0]], 5.0);
    for text in [0, 2] {
        let length: f32 = folded.index_axis(Axis(0), text).iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-6, "{folded}");
    }
    let raw = RequestOptions { normalize: false, ..RequestOptions::default() };
    let plain = fold("mean", RequestOptions::default(), &WINDOWS);
    assert_eq!(fold("mean+normalize", raw, &WINDOWS), plain);
}

#[test]
fn texts_of_one_row_each_and_nothing_stay_as_they_are() {
    let single: Vec<[i64; 6]> = (0..6).map(|text| [text, 0, 3, 0, 3, 2]).collect();
    assert_eq!(fold("max", RequestOptions::default(), &single).unwrap(), rows());
    let error = fold("max", RequestOptions::default(), &single[..5]).unwrap_err();
    assert_eq!(error, "tensor 'windows' is INT64 of shape [5,6], expected INT64 or INT32 of shape [6,6]");
}

#[test]
fn the_windows_are_needed() {
    let error = build(Some("mean"), &Resources::default()).err();
    assert!(error.unwrap().starts_with("needs an input 'windows' of TYPE_INT64"));
    let op = build(Some("mean"), &Resources { inputs: &inputs(), ..Resources::default() }).unwrap();
    let error = op.apply(Value::Floats(CowArray::from(rows())), &Side::default()).unwrap_err();
    assert_eq!(error.message, "input 'windows' is missing");
}
