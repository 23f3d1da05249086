//! Which records a text has, and the values of their fields.

use ndarray::Array5;
use trireme_inference::{ParameterValue, Tensor};

use super::*;

const STRUCTURES: &str = r#"{"item": {"fields": [{"name": "name", "dtype": "str"}, {"name": "size", "choices": ["S", "l"], "dtype": "str"}, {"name": "tags", "threshold": 0.8}]}}"#;
/// `( item: size ( S | l ) )`.
const BEFORE: usize = 9;

/// A record's span: row, record, first word of the text, width, field, logit.
type Given = (usize, usize, usize, usize, usize, f32);

/// The answer for rows of the text `né 京都 x` and an added full stop: one row, or two windows that share the second word. So many records are there; logits that
/// are not given are -1.
fn answer(windows: usize, records: usize, given: &[Given], choices: [f32; 2]) -> Result<String, String> {
    let mut logits = Array5::from_elem((windows, 3, BEFORE + 4, 2, 5), -1.0f32);
    logits.slice_mut(ndarray::s![.., records.., .., .., ..]).fill(NONE);
    for row in 0..windows {
        for record in 0..records {
            // `S` and `l` are the words 4 and 6.
            logits[[row, record, 4, 0, 1]] = choices[0];
            logits[[row, record, 6, 0, 1]] = choices[1];
        }
    }
    given.iter().for_each(|&(row, record, word, width, field, logit)| {
        logits[[row, record, BEFORE + word, width, field]] = logit;
    });
    let none = [0i64; 2 * BEFORE];
    let words: &[&[i64]] = match windows {
        1 => &[&[0, 2, 3, 5, 6, 7, 7, 7]],
        _ => &[&[0, 2, 3, 5, 0, 0, 0, 0], &[3, 5, 6, 7, 7, 7, 0, 0]],
    };
    let offsets = words.iter().flat_map(|words| none.iter().chain(*words)).copied().collect();
    let offsets = Tensor::from_values("word_offsets", [windows as i64, (BEFORE + 4) as i64, 2], offsets).unwrap();
    let own = [[0i64, 0, 5, 0, 3, 20], [0, 3, 7, 3, 7, 20]];
    let own = if windows == 1 { vec![0, 0, 7, 0, 7, 20] } else { own.concat() };
    let own = Tensor::from_values("windows", [windows as i64, 6], own).unwrap();
    let texts = Tensor::from_bytes_elements("TEXT", [1], &["né 京都 x"]).unwrap();
    let parameters = [("structures", STRUCTURES), ("relations", r#"["of"]"#)];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), ParameterValue::from(value))).into();
    let side = Side {
        word_offsets: Some(&offsets),
        windows: Some(&own),
        texts: Some(&texts),
        parameters: Some(&parameters),
        ..Side::default()
    };
    let value = Records.apply(Value::Floats(logits.into_dyn().into()), &side).map_err(|error| error.message)?;
    let Value::Texts(texts) = value else { panic!("texts") };
    Ok(texts[[0]].clone())
}

#[test]
fn a_record_has_the_values_that_reach_their_thresholds() {
    let found = answer(
        1,
        2,
        &[
            (0, 0, 0, 0, 0, 1.0),
            (0, 0, 0, 1, 0, 2.0),
            (0, 0, 1, 0, 2, 1.0),
            (0, 0, 2, 0, 2, 1.5),
            (0, 0, 2, 1, 2, 1.4),
            (0, 1, 3, 0, 0, 2.0),
        ],
        [-0.5, 0.0],
    )
    .unwrap();
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let item = &found["structures"]["item"];
    // The second record has no value but its choice: an added full stop is none.
    assert_eq!(item.as_array().map(Vec::len), Some(2), "{found}");
    assert_eq!((&item[0]["name"]["word"], &item[0]["name"]["end"]), (&"né 京都".into(), &5.into()), "{found}");
    assert_eq!(item[0]["size"], serde_json::json!({"label": "l", "score": 0.5}));
    assert_eq!(item[0]["tags"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(item[0]["tags"][0]["word"], "x");
    assert_eq!((&item[1]["name"], &item[1]["tags"]), (&serde_json::Value::Null, &serde_json::json!([])));
    assert_eq!(found["relations"]["of"], serde_json::json!([]), "a relation has both spans");
    let fields: Vec<_> = item[0].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["name", "size", "tags"]);
}

#[test]
fn what_has_no_value_is_left_out() {
    let nothing = answer(1, 3, &[], [-1.0, -1.0]).unwrap();
    assert_eq!(nothing, r#"{"structures":{"item":[]},"relations":{"of":[]}}"#);
    let none = answer(1, 0, &[(0, 0, 1, 0, 2, NONE)], [3.0, 3.0]).unwrap();
    assert_eq!(none, nothing);
    let half = answer(1, 1, &[(0, 0, 0, 0, 3, 1.0)], [-1.0, -1.0]).unwrap();
    assert_eq!(half, nothing, "a head without a tail");
    let both = answer(1, 1, &[(0, 0, 0, 0, 3, 1.0), (0, 0, 2, 0, 4, 0.0)], [-1.0, -1.0]).unwrap();
    assert!(
        both.contains(r#""of":[{"head":{"word":"né","#)
            && both.contains(r#""tail":{"word":"x","score":0.5,"start":6,"end":7}"#),
        "{both}"
    );
}

#[test]
fn a_record_of_two_windows_is_there_once() {
    let both = [(0, 0, 1, 0, 0, 1.0), (1, 0, 0, 0, 0, 2.0), (1, 1, 1, 0, 0, 2.0)];
    let found = answer(2, 2, &both, [-1.0, -1.0]).unwrap();
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let words: Vec<_> = found["structures"]["item"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"]["word"].as_str().unwrap())
        .collect();
    assert_eq!(words, ["京都", "x"]);
    let score = found["structures"]["item"][0]["name"]["score"].as_f64().unwrap();
    assert!((score - 0.8808).abs() < 1e-4, "that with the higher score: {score}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let parameters = [("structures".to_owned(), ParameterValue::from(r#"{"s": {"fields": [{"name": "a"}]}}"#))].into();
    let side = Side { parameters: Some(&parameters), ..Side::default() };
    let value = || Value::Floats(Array5::<f32>::zeros((1, 1, 1, 1, 2)).into_dyn().into());
    let error = Records.apply(value(), &side).unwrap_err().message;
    assert_eq!(error, "records has 1 fields of the request, got 2");
    let parameters = [(
        "structures".to_owned(),
        ParameterValue::from(r#"{"s": {"fields": [{"name": "a", "choices": ["b"]}, {"name": "c"}]}}"#),
    )]
    .into();
    let error = Records.apply(value(), &Side { parameters: Some(&parameters), ..Side::default() }).unwrap_err().message;
    assert_eq!(error, "records has 7 words of choices, got 1 words in all");
    let error = Records.apply(value(), &Side::default()).unwrap_err().message;
    assert!(error.contains("parameters 'structures' and 'relations' are missing"), "{error}");
}
