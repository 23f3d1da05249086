//! Which spans stay, and where they are in the text.

use ndarray::Array4;
use trireme_inference::Tensor;

use super::*;

/// Spans of words by their first and last word, label and score.
type Given = (usize, usize, usize, f32);

fn options(flat: bool, multi_label: bool) -> Options {
    let labels = SpanLabels::parse("a, b").unwrap();
    Options { labels, thresholds: vec![0.5; 2], flat, multi_label, by_label: false }
}

fn best(options: &Options, given: &[Given]) -> Vec<(usize, usize, usize)> {
    let spans = given.iter().map(|&(first, last, label, score)| Span { first, last, label, score });
    options.best(spans.collect()).into_iter().map(|span| (span.first, span.last, span.label)).collect()
}

#[test]
fn the_best_of_spans_that_overlap_stays() {
    let given = [(0, 2, 0, 0.6), (2, 3, 0, 0.9), (2, 3, 1, 0.8), (3, 3, 1, 0.7), (5, 5, 0, 0.51)];
    assert_eq!(best(&options(true, false), &given), [(2, 3, 0), (5, 5, 0)]);
    assert_eq!(best(&options(true, true), &given), [(2, 3, 0), (2, 3, 1), (5, 5, 0)]);
    assert_eq!(best(&options(false, false), &given), [(2, 3, 0), (3, 3, 1), (5, 5, 0)]);
    assert_eq!(best(&options(false, true), &given), [(2, 3, 0), (2, 3, 1), (3, 3, 1), (5, 5, 0)]);
    // Of equal scores the one that begins first stays, and of spans with one beginning the shorter one.
    assert_eq!(best(&options(true, false), &[(0, 0, 0, 0.7), (0, 1, 0, 0.7), (1, 2, 1, 0.7)]), [(0, 0, 0), (1, 2, 1)]);
}

#[test]
fn by_label_only_spans_of_one_label_exclude_each_other() {
    let by_label = Options { by_label: true, ..options(true, false) };
    let given = [(0, 2, 0, 0.6), (2, 3, 0, 0.9), (2, 3, 1, 0.8), (3, 3, 1, 0.7), (5, 5, 1, 0.51), (5, 6, 0, 0.9)];
    assert_eq!(best(&by_label, &given), [(2, 3, 0), (2, 3, 1), (5, 6, 0), (5, 5, 1)]);
    let nested = Options { flat: false, ..by_label };
    assert_eq!(best(&nested, &given), [(2, 3, 0), (2, 3, 1), (3, 3, 1), (5, 6, 0), (5, 5, 1)]);
}

/// The answer for two windows of `né 京都 x`, which share the second word; by window, the spans with a logit of 2.
fn answer(parameters: &[(&str, ParameterValue)], high: &[[usize; 4]]) -> Result<String, String> {
    let mut logits = Array4::from_elem((2, 2, 2, 2), -1.0f32);
    high.iter().for_each(|at| logits[*at] = 2.0);
    let offsets = Tensor::from_values("word_offsets", [2, 2, 2], vec![0i64, 2, 3, 5, 3, 5, 6, 7]).unwrap();
    let windows = Tensor::from_values("windows", [2, 6], vec![0i64, 0, 5, 0, 3, 4, 0, 3, 7, 3, 7, 4]).unwrap();
    let texts = Tensor::from_bytes_elements("TEXT", [1], &["né 京都 x"]).unwrap();
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let side = Side {
        word_offsets: Some(&offsets),
        windows: Some(&windows),
        texts: Some(&texts),
        parameters: Some(&parameters),
        ..Side::default()
    };
    let value = Spans { threshold: THRESHOLD, by_label: false }.apply(Value::Floats(logits.into_dyn().into()), &side);
    match value.map_err(|error| error.message)? {
        Value::Texts(texts) => Ok(texts[[0]].clone()),
        other => panic!("{:?}", other.form()),
    }
}

#[test]
fn a_span_is_found_in_the_window_that_owns_its_first_word() {
    let labels = ("labels", r#"["city", "ship"]"#.into());
    let found = answer(std::slice::from_ref(&labels), &[[0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0]]).unwrap();
    // The second word is of the second window, and overlaps the first span.
    assert_eq!(found, r#"[{"entity_group":"city","score":0.880797,"word":"né 京都","start":0,"end":5}]"#);
    // A span may not be longer than the window.
    let found = answer(std::slice::from_ref(&labels), &[[1, 0, 1, 1], [1, 1, 1, 0]]).unwrap();
    assert_eq!(found, r#"[{"entity_group":"ship","score":0.880797,"word":"京都 x","start":3,"end":7}]"#);
    let high = answer(&[labels.clone(), ("threshold", ParameterValue::Double(0.9))], &[[1, 0, 0, 0]]);
    assert_eq!(high.unwrap(), "[]");
    let own = ("labels", r#"{"city": 0.9, "ship": null}"#.into());
    let found = answer(&[own], &[[0, 0, 0, 0], [1, 1, 0, 1]]).unwrap();
    assert_eq!(found, r#"[{"entity_group":"ship","score":0.880797,"word":"x","start":6,"end":7}]"#);
}

#[test]
fn wrong_parameters_are_named() {
    let refused = |parameters: &[(&str, ParameterValue)]| answer(parameters, &[]).unwrap_err();
    let labels = ("labels", "a, b".into());
    assert!(refused(&[]).starts_with("parameter 'labels' is missing"));
    assert!(refused(&[("labels", "a".into())]).contains("has 1 labels of the request, got 2 classes"));
    let threshold = refused(&[labels.clone(), ("threshold", ParameterValue::Int64(2))]);
    assert_eq!(threshold, "parameter 'threshold' is 2, expected a number from 0 to 1");
    assert_eq!(
        refused(&[labels.clone(), ("flat_ner", "no".into())]),
        "parameter 'flat_ner' is 'no', expected true or false"
    );
    assert!(refused(&[labels, ("token_scores", ParameterValue::Bool(true))]).contains("scores spans of words"));
}
