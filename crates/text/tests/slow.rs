//! Tokenizers that are a SentencePiece model: ids and texts equal those of transformers' slow tokenizers, recorded by
//! tests/models/slow_tokenizers.py. Texts decoded piece by piece equal texts decoded whole.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up shall fail")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde::Deserialize;
use trireme_text::{Padding, RequestOptions, TextError, TextTokenizer, TokenizeOptions};

const MODELS: [&str; 8] = ["m2m100", "m2m100-bytes", "nllb", "mbart", "mbart50", "marian", "t5", "t5-fixed"];

#[derive(Deserialize)]
struct Golden {
    input_ids: Vec<Vec<i64>>,
    decoded: Vec<String>,
    random: Vec<(Vec<u32>, String)>,
    languages: BTreeMap<String, i64>,
}

fn golden_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn read<T: for<'a> Deserialize<'a>>(path: &str) -> T {
    serde_json::from_slice(&std::fs::read(golden_path().join("slow").join(path)).unwrap()).unwrap()
}

fn load(folder: &str, parameters: &[(&str, &str)]) -> Result<TextTokenizer, TextError> {
    let parameters = parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let options = TokenizeOptions::from_parameters(&parameters)?;
    TextTokenizer::load(&golden_path().join(folder), options)
}

fn slow(model: &str) -> TextTokenizer {
    load(&format!("slow/{model}"), &[]).unwrap()
}

fn ids(tokenizer: &TextTokenizer, text: &str) -> Vec<i64> {
    tokenizer.encode(&[text], None, &RequestOptions::default()).unwrap().input_ids
}

#[test]
fn ids_are_those_of_transformers() {
    let texts: Vec<String> = read("texts.json");
    assert!(texts.len() > 250);
    for model in MODELS {
        let golden: Golden = read(&format!("{model}/golden.json"));
        let tokenizer = slow(model);
        let different: Vec<_> = texts
            .iter()
            .zip(&golden.input_ids)
            .filter(|(text, expected)| ids(&tokenizer, text) != **expected)
            .map(|(text, expected)| format!("{text:?}: {:?}, expected {expected:?}", ids(&tokenizer, text)))
            .collect();
        assert!(different.is_empty(), "{model}: {} texts differ:\n{}", different.len(), different.join("\n"));
    }
}

#[test]
fn texts_are_those_of_transformers() {
    for model in MODELS {
        let golden: Golden = read(&format!("{model}/golden.json"));
        let tokenizer = slow(model);
        let rows = golden.input_ids.iter().map(|row| row.iter().map(|&id| id as u32).collect()).zip(golden.decoded);
        for (ids, expected) in rows.chain(golden.random) {
            let ids: Vec<u32> = ids;
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), expected, "{model}: {ids:?}");
        }
    }
}

#[test]
fn languages_have_the_ids_of_transformers() {
    for model in ["m2m100", "nllb", "mbart", "mbart50"] {
        let golden: Golden = read(&format!("{model}/golden.json"));
        let tokenizer = slow(model);
        assert!(golden.languages.len() >= 25);
        for (language, id) in golden.languages {
            let request = RequestOptions { target_language: Some(&language), ..RequestOptions::default() };
            let encoded = tokenizer.encode(&["a"], None, &request).unwrap();
            assert_eq!(encoded.forced_bos_token_id, Some(id), "{model}: {language}");
        }
    }
}

#[test]
fn languages_come_from_the_request_then_the_parameters_then_the_files() {
    let first = |tokenizer: &TextTokenizer, source| {
        let request = RequestOptions { source_language: source, ..RequestOptions::default() };
        let encoded = tokenizer.encode(&["a"], None, &request).unwrap();
        (encoded.input_ids[0], encoded.forced_bos_token_id.unwrap())
    };
    let golden: Golden = read("m2m100/golden.json");
    let language = |code: &str| golden.languages[code];
    let of_files = slow("m2m100");
    assert_eq!(first(&of_files, None), (language("en"), language("sw")));
    assert_eq!(first(&of_files, Some("fr")), (language("fr"), language("sw")));
    let of_parameters = load("slow/m2m100", &[("source_language", "de"), ("target_language", "it")]).unwrap();
    assert_eq!(first(&of_parameters, None), (language("de"), language("it")));
    assert_eq!(first(&of_parameters, Some("fr")), (language("fr"), language("it")));
}

#[test]
fn languages_are_chosen_with_a_tokenizer_json_too() {
    let texts: Vec<String> = read("texts.json");
    for model in ["nllb", "mbart"] {
        let golden: BTreeMap<String, Vec<Vec<i64>>> = read(&format!("{model}-json/golden.json"));
        let tokenizer = slow(&format!("{model}-json"));
        assert_eq!(golden.len(), 2);
        for (language, rows) in golden {
            let request = RequestOptions { source_language: Some(&language), ..RequestOptions::default() };
            for (text, expected) in texts.iter().zip(rows) {
                let encoded = tokenizer.encode(&[text], None, &request).unwrap();
                assert_eq!(encoded.input_ids, expected, "{model}: {language}: {text:?}");
            }
        }
    }
}

#[test]
fn marian_has_the_target_language_before_the_text() {
    let tokenizer = slow("marian");
    let request = RequestOptions { target_language: Some("swa"), ..RequestOptions::default() };
    let encoded = tokenizer.encode(&["the answer"], None, &request).unwrap();
    assert_eq!(encoded.input_ids, ids(&tokenizer, ">>swa<<the answer"));
    assert_eq!(encoded.forced_bos_token_id, None);
}

#[test]
fn a_prefix_may_come_with_the_request() {
    let tokenizer = load("slow/t5", &[("prefix", "summarize: ")]).unwrap();
    assert_eq!(ids(&tokenizer, "the answer"), ids(&slow("t5"), "summarize: the answer"));
    let request = RequestOptions { prefix: Some("translate English to German: "), ..RequestOptions::default() };
    let encoded = tokenizer.encode(&["the answer"], None, &request).unwrap();
    assert_eq!(encoded.input_ids, ids(&slow("t5"), "translate English to German: the answer"));
}

#[test]
fn unknown_languages_are_refused_with_the_known_ones() {
    let refused =
        |model: &str, request: RequestOptions<'_>| slow(model).encode(&["a"], None, &request).unwrap_err().to_string();
    let source = RequestOptions { source_language: Some("xx"), ..RequestOptions::default() };
    let target = RequestOptions { target_language: Some("xx"), ..RequestOptions::default() };
    let message = refused("m2m100", source);
    assert!(message.starts_with("parameter 'source_language' is 'xx', expected one of af, am, ar, ast,"), "{message}");
    assert_eq!(refused("marian", target), "parameter 'target_language' is 'xx', expected one of fra, swa");
    assert_eq!(
        refused("t5", target),
        "parameter 'target_language' is 'xx', but this tokenizer has no tokens of target languages: leave it out"
    );
    assert!(refused("marian", source).contains("has no tokens of source languages"));
    let error = load("slow/nllb", &[("source_language", "english")]).unwrap_err();
    assert!(error.to_string().starts_with("parameter 'source_language' is 'english', expected one of ace_Arab,"));
    assert!(load("wordpiece", &[("target_language", "sw")]).is_err());
}

#[test]
fn rows_are_padded_and_cut_with_their_special_tokens() {
    let tokenizer = load("slow/mbart", &[("max_length", "6"), ("target_language", "de_DE")]).unwrap();
    let encoded = tokenizer.encode(&["the harbour is deep enough", "a"], None, &RequestOptions::default()).unwrap();
    let whole = ids(&slow("mbart"), "the harbour is deep enough");
    let (rows, special) = (encoded.input_ids.chunks(6).collect::<Vec<_>>(), &whole[whole.len() - 2..]);
    assert_eq!((&rows[0][..4], &rows[0][4..]), (&whole[..4], special));
    assert_eq!(encoded.attention_mask[6..].iter().sum::<i64>(), ids(&slow("mbart"), "a").len() as i64);
    assert_eq!(rows[1].last(), Some(&1), "padded with <pad>");
    let left = load("slow/mbart", &[("max_length", "6"), ("truncation_side", "left")]).unwrap();
    assert_eq!(ids(&left, "the harbour is deep enough"), whole[whole.len() - 6..]);
}

#[test]
fn damaged_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let source = golden_path().join("slow/mbart");
    let model = std::fs::read(source.join("sentencepiece.bpe.model")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
    let load = || TextTokenizer::load(directory.path(), TokenizeOptions::default());
    assert_eq!(load().unwrap_err().to_string().split(':').next_back().unwrap().trim(), "entity not found");

    write("sentencepiece.bpe.model", &model);
    let message = load().unwrap_err().to_string();
    assert!(message.contains("tokenizer_class is missing, expected M2M100Tokenizer, NllbTokenizer"), "{message}");
    write("vocab.json", b"{}");
    assert!(load().unwrap_err().to_string().contains("no token '<unk>'"));
    write("tokenizer_config.json", br#"{"tokenizer_class":"MBartTokenizer"}"#);
    assert!(load().is_ok());
    for length in (0..model.len()).step_by(97) {
        write("sentencepiece.bpe.model", &model[..length]);
        if let Ok(tokenizer) = load() {
            tokenizer.encode(&["the harbour"], None, &RequestOptions::default()).unwrap();
        }
    }
    write("sentencepiece.bpe.model", b"");
    assert!(load().unwrap_err().to_string().ends_with("it has no unknown piece"));
}

/// All tokenizers, those with `tokenizer.json` too.
fn every_tokenizer() -> Vec<(String, TextTokenizer)> {
    let folders = MODELS.map(|model| format!("slow/{model}")).into_iter();
    let folders = folders.chain(["wordpiece", "byte-bpe", "unigram"].map(str::to_owned));
    let options = || TokenizeOptions { padding: Padding::None, ..TokenizeOptions::default() };
    folders.map(|f| (f.clone(), TextTokenizer::load(&golden_path().join(f), options()).unwrap())).collect()
}

/// Checks that the text of `ids`, decoded in parts that end at `ends`, equals the text decoded whole.
fn check_parts(name: &str, tokenizer: &TextTokenizer, ids: &[u32], ends: &[usize], skip: bool) {
    let mut text = String::new();
    let mut sent = 0;
    for &end in ends {
        text += &tokenizer.decode_next(&ids[..end], sent, false, skip).unwrap();
        sent = end;
    }
    text += &tokenizer.decode_next(ids, sent, true, skip).unwrap();
    assert_eq!(text, tokenizer.decode(ids, skip).unwrap(), "{name}: {ids:?} at {ends:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn texts_in_pieces_are_the_whole_text(
        text in "([a-z ▁\t]|harbour|[é船€😀👍🏽]|</s>|<pad>){0,12}",
        random in proptest::collection::vec(0u32..400, 0..16),
        cuts in proptest::collection::vec(0.0..1.0f64, 0..12),
        skip: bool,
    ) {
        for (name, tokenizer) in every_tokenizer_once() {
            let encoded: Vec<u32> = ids(tokenizer, &text).into_iter().map(|id| id as u32).collect();
            for ids in [&encoded, &random] {
                let mut ends: Vec<usize> = cuts.iter().map(|cut| (cut * (ids.len() + 1) as f64) as usize).collect();
                ends.sort_unstable();
                check_parts(name, tokenizer, ids, &ends, skip);
                check_parts(name, tokenizer, ids, &(0..=ids.len()).collect::<Vec<_>>(), skip);
            }
        }
    }
}

fn every_tokenizer_once() -> &'static [(String, TextTokenizer)] {
    static ALL: std::sync::OnceLock<Vec<(String, TextTokenizer)>> = std::sync::OnceLock::new();
    ALL.get_or_init(every_tokenizer)
}

#[test]
fn characters_that_are_several_tokens_come_whole() {
    for model in ["slow/m2m100-bytes", "byte-bpe"] {
        let tokenizer = load(model, &[("padding", "none"), ("add_special_tokens", "false")]).unwrap();
        let ids: Vec<u32> = ids(&tokenizer, "a😀𓀀").into_iter().map(|id| id as u32).collect();
        let mut sent = 0;
        let mut pieces = Vec::new();
        for end in 1..=ids.len() {
            pieces.push(tokenizer.decode_next(&ids[..end], sent, end == ids.len(), true).unwrap());
            sent = end;
        }
        pieces.retain(|piece| !piece.is_empty());
        assert_eq!(pieces, ["a", "😀", "𓀀"], "{model}");
        let half = tokenizer.decode_next(&ids[..ids.len() - 1], 0, false, true).unwrap();
        assert_eq!(half, "a😀", "{model}: half a character waits");
        let cut = tokenizer.decode_next(&ids[..ids.len() - 1], ids.len() - 1, true, true).unwrap();
        assert!(cut.chars().all(|c| c == '\u{FFFD}') && !cut.is_empty(), "{model}: {cut:?}");
    }
}
