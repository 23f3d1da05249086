//! The ops, one file each. A new op is a file and a line in [`OPS`].

pub mod argmax;
pub mod classes;
pub mod decode;
pub mod dense;
pub mod distinct;
pub mod entities;
pub mod fold;
pub mod layer_norm;
pub mod lexical;
pub mod logit_score;
pub mod mask;
pub mod normalize;
mod op;
pub mod pool;
pub mod records;
pub mod redact;
pub mod sigmoid;
pub mod slice;
pub mod softmax;
pub mod spans;
pub mod sparse;
pub mod splade;
pub mod tanh;
pub mod top_k;
mod windows;
mod words;

pub use op::{BuildOp, Op, OpEntry, Resources};

/// Every op.
pub static OPS: &[OpEntry] = &[
    pool::ENTRY,
    logit_score::ENTRY,
    normalize::ENTRY,
    dense::ENTRY,
    layer_norm::ENTRY,
    mask::ENTRY,
    softmax::ENTRY,
    sigmoid::ENTRY,
    tanh::ENTRY,
    argmax::ENTRY,
    top_k::ENTRY,
    slice::ENTRY,
    splade::ENTRY,
    sparse::ENTRY,
    lexical::ENTRY,
    distinct::ENTRY,
    fold::ENTRY,
    entities::ENTRY,
    spans::ENTRY,
    classes::ENTRY,
    records::ENTRY,
    redact::ENTRY,
    decode::ENTRY,
];

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use ndarray::{ArrayD, CowArray, IxDyn};
    use trireme_inference::{DataType, ErrorCode, MAX_MESSAGE_BYTES, Tensor};

    use super::op::compare_scores;
    use super::*;
    use crate::inputs::{Side, SideInputs};
    use crate::weights::tests::write;
    use crate::{Form, Labels, Signature, Value};

    /// A structure of one field.
    const STRUCTURES: &str = r#"{"s": {"fields": [{"name": "f"}]}}"#;

    /// A use of each op, with an input that it takes.
    fn sample(name: &str) -> (Option<&'static str>, Signature) {
        match name {
            "pool" => (Some("mean"), Signature::new(Form::Floats, [2, 3, 4])),
            "top_k" => (Some("2"), Signature::new(Form::Floats, [2, 4])),
            "slice" => (Some("3"), Signature::new(Form::Floats, [2, 4])),
            "decode" => (None, Signature::new(Form::Ints, [2, 4])),
            "dense" => (Some("dense"), Signature::new(Form::Floats, [2, 4])),
            "layer_norm" => (Some("layer_norm"), Signature::new(Form::Floats, [2, 4])),
            "logit_score" => (Some("1-0"), Signature::new(Form::Floats, [2, 3, 4])),
            "mask" | "splade" => (None, Signature::new(Form::Floats, [2, 3, 4])),
            "lexical" | "distinct" => (None, Signature::new(Form::Floats, [2, 3, 1])),
            "fold" => (Some("mean"), Signature::new(Form::Floats, [2, 4])),
            "redact" => (None, Signature::new(Form::Texts, [2])),
            "records" => (None, Signature::new(Form::Floats, [2, 2, 3, 2, 1])),
            "spans" => (Some("0.5"), Signature::new(Form::Floats, [2, 3, 2, 2])),
            "entities" => (Some("simple"), Signature::new(Form::Floats, [2, 3, 2])),
            _ => (None, Signature::new(Form::Floats, [2, 4])),
        }
    }

    fn value(signature: &Signature) -> Value<'static> {
        let dims: Vec<usize> = signature.dims.iter().map(|&d| d.max(0) as usize).collect();
        match signature.form {
            Form::Ints => Value::Ints(CowArray::from(ArrayD::from_elem(IxDyn(&dims), 7))),
            Form::Texts => Value::Texts(ArrayD::from_elem(IxDyn(&dims), "[]".to_owned())),
            _ => Value::Floats(CowArray::from(ArrayD::from_elem(IxDyn(&dims), 0.5))),
        }
    }

    /// Elements of a row, open dimensions left out.
    fn elements(signature: &Signature) -> i64 {
        signature.dims.iter().skip(1).filter(|dim| **dim >= 0).product()
    }

    /// The files of all ops, and their inputs besides the data.
    fn surroundings() -> (tempfile::TempDir, Labels, SideInputs) {
        let directory = tempfile::tempdir().unwrap();
        let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizer/tokenizer.json");
        std::fs::copy(tokenizer, directory.path().join("tokenizer.json")).unwrap();
        let dense = r#"{"in_features": 4, "out_features": 2, "bias": false}"#;
        write(directory.path(), "dense", dense, &[("linear.weight", &[2, 4], &[0.5; 8])]);
        let norm: [(&str, &[usize], &[f32]); 2] = [("norm.weight", &[4], &[1.0; 4]), ("norm.bias", &[4], &[0.0; 4])];
        write(directory.path(), "layer_norm", r#"{"dimension": 4}"#, &norm);
        let some = |name: &str| Some(name.to_owned());
        let inputs = SideInputs {
            attention: some("attention_mask"),
            input_ids: some("input_ids"),
            offsets: some("offsets"),
            special_tokens_mask: some("special_tokens_mask"),
            windows: some("windows"),
            word_offsets: some("word_offsets"),
            texts: some("TEXT"),
            ..SideInputs::default()
        };
        (directory, Labels::from_list("a,b"), inputs)
    }

    /// Rows without tokens cost nothing but claim a result each, whatever the op.
    #[test]
    fn no_op_makes_much_of_nothing() {
        let (directory, labels, inputs) = surroundings();
        let resources = Resources { version_path: directory.path(), labels: &labels, inputs: &inputs };
        let rows = 1 << 17;
        let tensor = |name, datatype, dims: &[i64]| Tensor::new(name, datatype, dims, bytes::Bytes::new()).unwrap();
        let tokens = tensor("attention_mask", DataType::Int64, &[rows, 0]);
        let offsets = tensor("offsets", DataType::Int64, &[rows, 0, 2]);
        let texts = tensor("TEXT", DataType::Bytes, &[0]);
        let side = Side {
            model: "m",
            mask: Some(&tokens),
            attention: Some(&tokens),
            input_ids: Some(&tokens),
            offsets: Some(&offsets),
            special_tokens_mask: Some(&tokens),
            texts: Some(&texts),
            ..Side::default()
        };
        let tasks = r#"[{"task": "t", "labels": ["a", "b", "c", "d"]}]"#;
        let parameters = [("labels", "a, b"), ("classifications", tasks), ("structures", STRUCTURES)];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.into())).into();
        let side = Side { word_offsets: Some(&offsets), parameters: Some(&parameters), ..side };
        let mut refused = Vec::new();
        for entry in OPS {
            let (argument, input) = sample(entry.name);
            let op = (entry.build)(argument, &resources).unwrap();
            let mut dims = input.dims.to_vec();
            dims[0] = rows;
            dims.iter_mut().skip(1).take(1).for_each(|length| *length = 0);
            if let Some(width @ 4) = dims.get_mut(2) {
                *width = 384;
            }
            match entry.apply(op.as_ref(), value(&Signature::new(input.form, dims)), &side) {
                Ok(value) => assert!(value.size() <= MAX_MESSAGE_BYTES, "{}: {} bytes", entry.name, value.size()),
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::InvalidArg, "{}: {error}", entry.name);
                    let limit = " bytes, and a request may ask for 134217728 at most";
                    let named = format!("model 'm': tensor 'result of {}' of shape [131072", entry.name);
                    refused.extend(
                        (error.message.starts_with(&named) && error.message.contains(limit)).then_some(entry.name),
                    );
                }
            }
        }
        assert_eq!(refused, ["pool", "splade"], "a row of these has a vector without tokens");
    }

    #[test]
    fn every_op_in_the_table_does_what_its_signature_says() {
        let (directory, labels, inputs) = surroundings();
        let resources = Resources { version_path: directory.path(), labels: &labels, inputs: &inputs };
        let names: std::collections::BTreeSet<_> = OPS.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), OPS.len(), "names are unique");
        for entry in OPS {
            assert!(!entry.doc.is_empty() && entry.usage.starts_with(entry.name), "{}", entry.name);
            assert!((entry.build)(Some("nonsense"), &resources).is_err(), "{} takes any argument", entry.name);
            let (argument, input) = sample(entry.name);
            let op = (entry.build)(argument, &resources).unwrap();
            for rows in [2i64, 0] {
                let mut dims = input.dims.to_vec();
                dims[0] = rows;
                let input = Signature::new(input.form, dims);
                let mask = Tensor::from_values("attention_mask", [rows, 3], vec![1i64; 3 * rows as usize]).unwrap();
                let ids = Tensor::from_values("input_ids", [rows, 3], vec![4i64; 3 * rows as usize]).unwrap();
                let offsets = Tensor::from_values("offsets", [rows, 3, 2], vec![0i64; 6 * rows as usize]).unwrap();
                let special = Tensor::from_values("special_tokens_mask", [rows, 3], vec![0i64; 3 * rows as usize]);
                let special = special.unwrap();
                let texts = Tensor::from_bytes_elements("TEXT", [rows], &vec!["hello"; rows as usize]).unwrap();
                let tasks = r#"[{"task": "t", "labels": ["a", "b", "c", "d"]}]"#;
                let parameters = [("labels", "a, b"), ("classifications", tasks), ("structures", STRUCTURES)];
                let parameters = parameters.map(|(name, value)| (name.to_owned(), value.into())).into();
                let windows = (0..rows).flat_map(|row| [row, 0, 5, 0, 5, 3]).collect();
                let windows = Tensor::from_values("windows", [rows, 6], windows).unwrap();
                let side = Side {
                    mask: Some(&mask),
                    attention: Some(&mask),
                    input_ids: Some(&ids),
                    offsets: Some(&offsets),
                    special_tokens_mask: Some(&special),
                    windows: Some(&windows),
                    word_offsets: Some(&offsets),
                    parameters: Some(&parameters),
                    texts: Some(&texts),
                    ..Side::default()
                };
                let expected = op.signature(&input).unwrap();
                assert!(!entry.reduces || elements(&expected) < elements(&input), "{} reduces nothing", entry.name);
                let output = op.apply(value(&input), &side).unwrap();
                assert_eq!(output.form(), expected.form, "{}", entry.name);
                assert!(
                    expected.dims.accepts(&output.dims().iter().map(|&d| d as i64).collect::<Vec<_>>()),
                    "{}",
                    entry.name
                );
            }
            let takes_texts = op.signature(&Signature::new(Form::Texts, [2])).is_ok();
            assert_eq!(takes_texts, entry.name == "redact", "{}", entry.name);
        }
    }

    #[test]
    fn scores_are_totally_ordered() {
        assert_eq!(compare_scores(0.0, -0.0), Ordering::Equal);
        assert_eq!(compare_scores(f32::NAN, f32::INFINITY), Ordering::Greater);
        assert_eq!(compare_scores(f32::NEG_INFINITY, -f32::NAN), Ordering::Less);
        assert_eq!(compare_scores(f32::NAN, -f32::NAN), Ordering::Equal);
        assert_eq!(compare_scores(1.0, 2.0), Ordering::Less);
    }
}
