//! Token ids, masks, type ids and decoded texts equal those of Hugging Face's `AutoTokenizer`, which `golden/make.py`
//! recorded.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use trireme_text::{RequestOptions, TextTokenizer, TokenizeOptions};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    parameters: BTreeMap<String, String>,
    texts: Vec<Text>,
    pairs: Option<Vec<Text>>,
    input_ids: Vec<Vec<i64>>,
    attention_mask: Vec<String>,
    token_type_ids: Vec<String>,
    decoded: Option<Vec<String>>,
}

/// A text, or a piece and its number of repetitions.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Whole(String),
    Repeated(String, usize),
}

impl Text {
    fn expand(&self) -> String {
        match self {
            Text::Whole(text) => text.clone(),
            Text::Repeated(piece, times) => piece.repeat(*times),
        }
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Compares every case of `name`.json with the tokenizer in folder `name`; returns the number of texts.
fn check(name: &str) -> usize {
    let golden = std::fs::read(directory().join(format!("{name}.json"))).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let mut texts_seen = 0;
    for case in golden.cases {
        let options = TokenizeOptions::from_parameters(&case.parameters).unwrap();
        let tokenizer = TextTokenizer::load(&directory().join(name), options).unwrap();
        let texts: Vec<String> = case.texts.iter().map(Text::expand).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let pairs: Option<Vec<String>> = case.pairs.map(|p| p.iter().map(Text::expand).collect());
        let pairs: Option<Vec<&str>> = pairs.as_ref().map(|p| p.iter().map(String::as_str).collect());
        let encoded = tokenizer.encode(&texts, pairs.as_deref(), &RequestOptions::default()).unwrap();

        assert_eq!(encoded.rows, case.input_ids.len(), "{name}: {}", case.name);
        let digits = |row: &[i64]| row.iter().map(i64::to_string).collect::<String>();
        for (row, expected) in case.input_ids.iter().enumerate() {
            let place = format!("{name}: case '{}', text {row}: {:.60?}", case.name, texts[row]);
            let range = row * encoded.length..(row + 1) * encoded.length;
            assert_eq!(&encoded.input_ids[range.clone()], expected, "{place}");
            assert_eq!(digits(&encoded.attention_mask[range.clone()]), case.attention_mask[row], "{place}");
            assert_eq!(digits(&encoded.token_type_ids[range]), case.token_type_ids[row], "{place}");
            if let Some(decoded) = &case.decoded {
                let ids: Vec<u32> = expected.iter().map(|&id| id as u32).collect();
                assert_eq!(tokenizer.decode(&ids, true).unwrap(), decoded[row], "{place}");
            }
        }
        texts_seen += texts.len();
    }
    texts_seen
}

#[test]
fn wordpiece_equals_hugging_face() {
    assert!(check("wordpiece") > 200);
}

#[test]
fn byte_level_bpe_equals_hugging_face() {
    assert!(check("byte-bpe") > 200);
}

#[test]
fn unigram_equals_hugging_face() {
    assert!(check("unigram") > 200);
}

/// Runs only if TRIREME_REFERENCE_DIR names a folder with `data/texts-dev.jsonl` and a published tokenizer.
#[test]
fn a_published_tokenizer_equals_hugging_face_on_real_texts() {
    #[derive(Deserialize)]
    struct Reference {
        text: String,
        input_ids: Vec<i64>,
    }
    let Some(reference) = std::env::var_os("TRIREME_REFERENCE_DIR").map(PathBuf::from) else {
        eprintln!("TRIREME_REFERENCE_DIR is not set: nothing compared");
        return;
    };
    let parameters = BTreeMap::from([("max_length".to_owned(), "256".to_owned())]);
    let options = TokenizeOptions::from_parameters(&parameters).unwrap();
    let tokenizer = TextTokenizer::load(&reference.join("models/minilm-l6-v2-fp32"), options).unwrap();
    let lines = std::fs::read_to_string(reference.join("data/texts-dev.jsonl")).unwrap();
    let references: Vec<Reference> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!references.is_empty());

    let texts: Vec<&str> = references.iter().map(|r| r.text.as_str()).collect();
    let encoded = tokenizer.encode(&texts, None, &RequestOptions::default()).unwrap();
    assert_eq!(encoded.length, references.iter().map(|r| r.input_ids.len()).max().unwrap());
    for (row, reference) in references.iter().enumerate() {
        let ids = &encoded.input_ids[row * encoded.length..(row + 1) * encoded.length];
        let mask = &encoded.attention_mask[row * encoded.length..(row + 1) * encoded.length];
        let tokens = reference.input_ids.len();
        assert_eq!(ids[..tokens], reference.input_ids, "{}", reference.text);
        assert!(mask.iter().enumerate().all(|(i, &m)| m == i64::from(i < tokens)), "{}", reference.text);
    }
}
