//! Cases that the golden files do not cover: faulty options and files, odd and huge texts, limits.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use trireme_inference::{DataType, ErrorCode, Tensor};
use trireme_text::{Extras, Padding, RequestOptions, Side, TextError, TextTokenizer, TokenizeOptions, texts_of};

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder)
}

fn load(folder: &str, parameters: &[(&str, &str)]) -> Result<TextTokenizer, TextError> {
    let parameters: BTreeMap<_, _> = parameters.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
    TextTokenizer::load(&golden(folder), TokenizeOptions::from_parameters(&parameters)?)
}

fn message<T>(result: Result<T, TextError>) -> String {
    result.err().expect("an error").to_string()
}

/// A folder with the byte-level tokenizer.json after `change`, and the given tokenizer_config.json.
fn folder(change: impl FnOnce(&mut serde_json::Value), config: Option<&str>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let file = std::fs::read(golden("byte-bpe/tokenizer.json")).unwrap();
    let mut tokenizer = serde_json::from_slice(&file).unwrap();
    change(&mut tokenizer);
    std::fs::write(directory.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    if let Some(config) = config {
        std::fs::write(directory.path().join("tokenizer_config.json"), config).unwrap();
    }
    directory
}

fn ids(folder: &Path, text: &str) -> Vec<i64> {
    let options = TokenizeOptions { padding: Padding::None, ..TokenizeOptions::default() };
    let tokenizer = TextTokenizer::load(folder, options).unwrap();
    tokenizer.encode(&[text], None, &RequestOptions::default()).unwrap().input_ids
}

#[test]
fn tokens_of_the_configuration_alone_are_one_id_each() {
    let text = "a planted word";
    let plain = folder(|_| {}, Some("{}"));
    let listed = r#"{"added_tokens_decoder": {"9999": {"content": "planted", "special": true, "normalized": false}}}"#;
    for config in [
        listed,
        r#"{"extra_special_tokens": ["planted"]}"#,
        r#"{"additional_special_tokens": ["planted"]}"#,
        r#"{"mask_token": "planted"}"#,
    ] {
        let with = folder(|_| {}, Some(config));
        let (without, with) = (ids(plain.path(), text), ids(with.path(), text));
        assert!(with.len() < without.len(), "{config}: {with:?} and {without:?}");
    }
    // An older folder has its special tokens in a file of their own.
    let older = folder(|_| {}, Some("{}"));
    std::fs::write(older.path().join("special_tokens_map.json"), r#"{"mask_token": "planted"}"#).unwrap();
    assert!(ids(older.path(), text).len() < ids(plain.path(), text).len());
    let older = folder(|_| {}, Some("{}"));
    std::fs::write(older.path().join("added_tokens.json"), r#"{"planted": 9999}"#).unwrap();
    assert!(ids(older.path(), text).len() < ids(plain.path(), text).len());
}

#[test]
fn files_may_begin_with_a_byte_order_mark() {
    let (plain, marked) = (folder(|_| {}, Some("{}")), folder(|_| {}, Some("{}")));
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let path = marked.path().join(name);
        let content = [b"\xef\xbb\xbf".to_vec(), std::fs::read(&path).unwrap()].concat();
        std::fs::write(path, content).unwrap();
    }
    assert_eq!(ids(marked.path(), "a word"), ids(plain.path(), "a word"));
}

#[test]
fn the_space_before_the_first_word_is_the_configurations_for_classes_that_ask_for_it() {
    let bytes = |adds: bool| {
        move |tokenizer: &mut serde_json::Value| {
            tokenizer["pre_tokenizer"] = serde_json::json!({"type": "ByteLevel", "add_prefix_space": adds, "trim_offsets": true, "use_regex": true});
        }
    };
    let of = |adds: bool, config: &str| ids(folder(bytes(adds), Some(config)).path(), "word");
    let roberta = |field: &str| format!(r#"{{"tokenizer_class": "RobertaTokenizerFast"{field}}}"#);
    assert_eq!(of(false, &roberta(r#", "add_prefix_space": true"#)), of(true, "{}"));
    assert_eq!(of(true, &roberta("")), of(false, "{}"), "the class's default");
    assert_ne!(of(true, "{}"), of(false, "{}"));
}

#[test]
fn rows_of_one_length_positions_and_types_are_as_the_parameters_say() {
    let encode = |parameters: &[(&str, &str)]| {
        let tokenizer = load("wordpiece", parameters).unwrap();
        let extras = Extras { position_ids: true, ..Extras::default() };
        tokenizer.encode_with(&["the the"], Some(&["the"]), &RequestOptions::default(), extras).unwrap()
    };
    let encoded = encode(&[("max_length", "6"), ("padding", "8"), ("first_position", "2")]);
    assert_eq!((encoded.length, encoded.attention_mask.iter().sum::<i64>()), (8, 6));
    assert_eq!(encoded.position_ids, [2, 3, 4, 5, 6, 7, 1, 1]);
    assert!(encoded.token_type_ids.contains(&1));
    assert!(!encode(&[("token_types", "false")]).token_type_ids.contains(&1));
    let fault = message(load("wordpiece", &[("max_length", "9"), ("padding", "8")]));
    assert!(fault.contains("'max_length' is 9, expected at most the 8 of 'padding'"), "{fault}");
}

#[test]
fn no_texts_make_an_empty_matrix() {
    for padding in ["longest", "max_length", "none"] {
        let encoded =
            load("wordpiece", &[("padding", padding)]).unwrap().encode(&[], None, &RequestOptions::default()).unwrap();
        assert_eq!((encoded.rows, encoded.length, encoded.input_ids.len()), (0, 0, 0), "{padding}");
    }
}

#[test]
fn tokens_are_counted_without_padding_and_rows_that_lost_some() {
    let tokenizer = load("wordpiece", &[("max_length", "5"), ("pad_to_multiple_of", "5")]).unwrap();
    let encode = |texts: &[&str], pairs: Option<&[&str]>| {
        let encoded = tokenizer.encode(texts, pairs, &RequestOptions::default()).unwrap();
        (encoded.length, encoded.tokens, encoded.truncated)
    };
    // Two special tokens for a text, three for a pair.
    assert_eq!(encode(&["the", "the the the", "the the the the"], None), (5, 3 + 5 + 5, 1));
    assert_eq!(encode(&["the", "the"], Some(&["the", "the the the"])), (5, 5 + 5, 1));
}

#[test]
fn without_padding_unequal_lengths_are_an_error_that_says_so() {
    let tokenizer = load("wordpiece", &[("padding", "none")]).unwrap();
    assert_eq!(tokenizer.encode(&["the", "the", "the"], None, &RequestOptions::default()).unwrap().length, 3);
    let error = tokenizer.encode(&["the", "the the"], None, &RequestOptions::default()).unwrap_err();
    assert!(matches!(error, TextError::UnequalLengths { index: 1, expected: 3, actual: 4 }), "{error}");
    assert_eq!(error.code(), ErrorCode::InvalidArg);
}

#[test]
fn fixed_padding_without_truncation_refuses_longer_texts() {
    let parameters = [("padding", "max_length"), ("max_length", "4"), ("truncation", "false")];
    let tokenizer = load("wordpiece", &parameters).unwrap();
    assert_eq!(tokenizer.encode(&["the"], None, &RequestOptions::default()).unwrap().length, 4);
    let error = tokenizer.encode(&["the", "the the the"], None, &RequestOptions::default()).unwrap_err();
    assert!(matches!(error, TextError::LongerThanPadding { index: 1, actual: 5, length: 4 }), "{error}");
}

#[test]
fn options_that_do_not_fit_the_tokenizer_are_refused_when_it_is_loaded() {
    let faults =
        message(load("wordpiece", &[("max_length", "1"), ("pad_to_multiple_of", "8"), ("pad_token", "<none>")]));
    assert_eq!(
        faults,
        "'max_length' is 1, expected at least the 2 tokens around texts; 'max_length' is 1, expected a multiple of \
         'pad_to_multiple_of', 8; padding token '<none>' is not in the vocabulary"
    );
    assert!(
        message(load("byte-bpe", &[("padding", "max_length")])).contains("neither 'max_length' nor model_max_length")
    );
    // Room for the special tokens of one text is not enough for those of a pair.
    let tokenizer = load("wordpiece", &[("max_length", "2")]).unwrap();
    assert_eq!(tokenizer.encode(&["the"], None, &RequestOptions::default()).unwrap().length, 2);
    assert!(matches!(
        tokenizer.encode(&["a"], Some(&["b"]), &RequestOptions::default()),
        Err(TextError::Truncation { index: 0, .. })
    ));
}

#[test]
fn a_tokenizer_without_padding_token_needs_one_or_no_padding() {
    let directory = folder(|_| {}, None);
    let load = |options| TextTokenizer::load(directory.path(), options);
    assert!(message(load(TokenizeOptions::default())).starts_with("the tokenizer has no padding token"));
    load(TokenizeOptions { padding: Padding::None, ..TokenizeOptions::default() }).unwrap();
    load(TokenizeOptions { pad_token: Some("<|endoftext|>".to_owned()), ..TokenizeOptions::default() }).unwrap();
}

#[test]
fn what_tokenizer_json_carries_fills_in_where_nothing_else_says() {
    let padding = serde_json::json!({"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 3, "pad_token": "<|endoftext|>"});
    let directory = folder(|tokenizer| tokenizer["padding"] = padding, Some(r#"{"model_max_length": 1e30}"#));
    let tokenizer = TextTokenizer::load(directory.path(), TokenizeOptions::default()).unwrap();
    let encoded = tokenizer.encode(&["", "a"], None, &RequestOptions::default()).unwrap();
    assert_eq!(encoded.length, 2, "fixed padding to 9 is not meant");
    assert_eq!(encoded.attention_mask, [0, 1, 1, 1]);
    assert_eq!(encoded.token_type_ids, [3, 0, 0, 0]);
}

#[test]
fn pairs_without_post_processor_are_told_apart() {
    let config = r#"{"pad_token": "<|endoftext|>"}"#;
    let directory = folder(|tokenizer| tokenizer["post_processor"] = serde_json::Value::Null, Some(config));
    let tokenizer = TextTokenizer::load(directory.path(), TokenizeOptions::default()).unwrap();
    assert_eq!(tokenizer.encode(&["a"], Some(&["b"]), &RequestOptions::default()).unwrap().token_type_ids, [0, 1]);
}

#[test]
fn files_that_are_missing_or_broken_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let error = TextTokenizer::load(empty.path(), TokenizeOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.to_string().contains("tokenizer.json"));
    let broken = folder(|tokenizer| tokenizer["model"]["type"] = "Nonsense".into(), None);
    assert!(matches!(
        TextTokenizer::load(broken.path(), TokenizeOptions::default()),
        Err(TextError::Malformed { path, .. }) if path.ends_with("tokenizer.json")
    ));
    let broken = folder(|_| {}, Some(r#"{"padding_side": "top"}"#));
    assert!(matches!(
        TextTokenizer::load(broken.path(), TokenizeOptions::default()),
        Err(TextError::Malformed { path, .. }) if path.ends_with("tokenizer_config.json")
    ));
}

#[test]
fn second_texts_must_be_as_many() {
    let tokenizer = load("wordpiece", &[]).unwrap();
    let error = tokenizer.encode(&["a", "b"], Some(&["c"]), &RequestOptions::default()).unwrap_err();
    assert!(matches!(error, TextError::PairCount { texts: 2, pairs: 1 }));
}

#[test]
fn huge_texts_are_encoded_in_every_tokenizer() {
    const SIZE: usize = 1 << 20;
    for folder in ["wordpiece", "byte-bpe", "unigram"] {
        let tokenizer = load(folder, &[("max_length", "32")]).unwrap();
        for piece in ["the harbour ", " ", "船", "\u{301}", "[CLS]"] {
            let text = piece.repeat(SIZE / piece.len());
            assert!(
                tokenizer.encode(&[&text], None, &RequestOptions::default()).unwrap().length <= 32,
                "{folder}: {piece:?}"
            );
        }
        // `tokenizers` itself would keep every combination of the pieces that it cuts off the two.
        let text = "a b ".repeat(SIZE >> 4);
        assert_eq!(
            tokenizer.encode(&[&text], Some(&[&text]), &RequestOptions::default()).unwrap().length,
            32,
            "{folder}"
        );
    }
}

#[test]
fn every_part_of_a_huge_text_is_encoded() {
    let tokenizer = load("byte-bpe", &[("truncation", "false")]).unwrap();
    for piece in ["the harbour ", " ", "\n", "a9 ", "x\u{a0}"] {
        let text = piece.repeat((1 << 20) / piece.len());
        let encoded = tokenizer.encode(&[&text], None, &RequestOptions::default()).unwrap();
        let ids: Vec<u32> = encoded.input_ids.iter().map(|&id| id as u32).collect();
        assert!(tokenizer.decode(&ids, true).unwrap() == text, "{piece:?}");
    }
}

#[test]
fn padding_of_one_long_text_among_many_is_bounded() {
    let tokenizer = load("byte-bpe", &[]).unwrap();
    let long = "a ".repeat(1 << 13);
    let mut texts = vec![""; 1 << 12];
    texts.push(&long);
    assert!(matches!(
        tokenizer.encode(&texts, None, &RequestOptions::default()),
        Err(TextError::TooManyTokens { rows: 4097, .. })
    ));
    let tokenizer = load("byte-bpe", &[("pad_to_multiple_of", &usize::MAX.to_string())]).unwrap();
    assert!(matches!(
        tokenizer.encode(&["a"], None, &RequestOptions::default()),
        Err(TextError::TooManyTokens { rows: 1, .. })
    ));
}

#[test]
fn texts_are_utf8_elements_of_bytes_tensors() {
    let tensor = Tensor::from_bytes_elements("TEXT", [3, 1], &["", "a\0b", "é"]).unwrap();
    assert_eq!(texts_of(&tensor).unwrap(), ["", "a\0b", "é"]);
    let tensor = Tensor::from_bytes_elements("TEXT", [2], &[&b"fine"[..], b"ab\xff"]).unwrap();
    assert_eq!(
        message(texts_of(&tensor)),
        "tensor 'TEXT': element 1 is not valid UTF-8 at byte 2, expected UTF-8 text"
    );
    let tensor = Tensor::from_values("TEXT", [1], vec![1i64]).unwrap();
    assert_eq!(message(texts_of(&tensor)), format!("tensor 'TEXT' holds INT64, expected {}", DataType::Bytes));
}

#[test]
fn unknown_ids_are_passed_over_when_decoding() {
    let tokenizer = load("byte-bpe", &[]).unwrap();
    assert_eq!(tokenizer.decode(&[], true).unwrap(), "");
    assert_eq!(tokenizer.decode(&[u32::MAX], true).unwrap(), "");
    assert_eq!(tokenizer.decode(&[0], false).unwrap(), "<|endoftext|>");
}

const EXTRAS: Extras = Extras {
    position_ids: true,
    offsets: true,
    special_tokens_mask: true,
    pooling_mask: true,
    scoring_mask: true,
    spans: false,
    windows: false,
    token_lists: false,
    decoded: false,
};
const TEXTS: Extras = Extras { token_lists: true, decoded: true, ..EXTRAS };

/// A WordPiece tokenizer that adds `[CLS]` and `[SEP]`.
fn bert(parameters: &[(&str, &str)]) -> TextTokenizer {
    load("wordpiece", parameters).unwrap()
}

#[test]
fn extras_are_made_only_when_asked_for() {
    let tokenizer = bert(&[]);
    let encoded = tokenizer.encode(&["the"], None, &RequestOptions::default()).unwrap();
    assert!(encoded.offsets.is_empty() && encoded.position_ids.is_empty() && encoded.pooling_mask.is_empty());
    let encoded = tokenizer.encode_with(&["the", ""], None, &RequestOptions::default(), EXTRAS).unwrap();
    let size = encoded.rows * encoded.length;
    assert_eq!((encoded.position_ids.len(), encoded.offsets.len()), (size, 2 * size));
    assert_eq!((encoded.special_tokens_mask.len(), encoded.pooling_mask.len()), (size, size));
    assert_eq!(encoded.pooling_mask, encoded.attention_mask, "there is no prompt");
}

#[test]
fn offsets_count_characters_of_the_text_and_not_those_of_the_prompt() {
    let tokenizer = bert(&[("prompts", r#"{"query": "é query: "}"#)]);
    let text = "thé 🎉 the";
    let offsets = |request: &RequestOptions<'_>| {
        let encoded = tokenizer.encode_with(&[text], None, request, EXTRAS).unwrap();
        let pairs: Vec<[i64; 2]> = encoded.offsets.as_chunks::<2>().0.to_vec();
        let special = encoded.special_tokens_mask.clone();
        let of_text = pairs.into_iter().zip(special).filter(|(pair, special)| *special == 0 && pair[1] > 0);
        of_text.map(|(pair, _)| pair).collect::<Vec<_>>()
    };
    let plain = offsets(&RequestOptions::default());
    assert_eq!(plain.last(), Some(&[6, 9]), "{plain:?}");
    assert_eq!(offsets(&RequestOptions { prompt_name: Some("query"), ..RequestOptions::default() }), plain);
}

/// The texts and places of tokens that a list has.
fn listed(list: &str) -> Vec<(String, Option<(u64, u64)>)> {
    let list: Vec<serde_json::Value> = serde_json::from_str(list).unwrap();
    let place = |token: &serde_json::Value| Some((token["start"].as_u64()?, token["stop"].as_u64()?));
    list.iter().map(|token| (token["text"].as_str().unwrap().to_owned(), place(token))).collect()
}

#[test]
fn tokens_are_listed_with_the_characters_they_stand_for() {
    let tokenizer = bert(&[("prompts", r#"{"query": "the "}"#)]);
    let list = |pair: Option<&[&str]>, request: &RequestOptions<'_>| {
        let encoded = tokenizer.encode_with(&["thé the"], pair, request, TEXTS).unwrap();
        listed(&encoded.token_lists[0])
    };
    let plain = list(None, &RequestOptions::default());
    assert_eq!(plain[0], ("[CLS]".to_owned(), None));
    assert_eq!(plain[plain.len() - 2..], [("the".to_owned(), Some((4, 7))), ("[SEP]".to_owned(), None)]);
    assert_eq!(plain[1].1.map(|(start, _)| start), Some(0));
    // A prompt is not in the text: its tokens have no place there.
    let prompted = list(None, &RequestOptions { prompt_name: Some("query"), ..RequestOptions::default() });
    assert_eq!(prompted[1], ("the".to_owned(), None));
    assert_eq!(prompted[2..], plain[1..]);
    let pair = list(Some(&["the"]), &RequestOptions::default());
    assert_eq!(pair[..plain.len()], plain);
    assert_eq!(pair[plain.len()..], [("the".to_owned(), Some((0, 3))), ("[SEP]".to_owned(), None)]);
    let bare = list(None, &RequestOptions { add_special_tokens: Some(false), ..RequestOptions::default() });
    assert_eq!(bare, plain[1..plain.len() - 1]);
}

#[test]
fn token_ids_come_in_place_of_texts() {
    let tokenizer = bert(&[("max_length", "4"), ("prefix", "the ")]);
    let request = RequestOptions { token_ids: true, ..RequestOptions::default() };
    let ids = tokenizer.encode(&["the the"], None, &RequestOptions { prefix: Some(""), ..RequestOptions::default() });
    let ids = ids.unwrap().input_ids;
    let text = format!("[{}]", ids.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
    let encode = |text: &str, request: &RequestOptions<'_>| tokenizer.encode_with(&[text], None, request, TEXTS);
    let encoded = encode(&text, &request).unwrap();
    assert_eq!((encoded.input_ids, encoded.truncated), (ids.clone(), 0), "neither prefix nor special tokens are added");
    assert_eq!(encoded.decoded, ["the the"]);
    assert_eq!(encoded.special_tokens_mask, [1, 0, 0, 1]);
    assert_eq!(listed(&encoded.token_lists[0])[1], ("the".to_owned(), None));
    let all = RequestOptions { skip_special_tokens: Some(false), ..request };
    assert_eq!(encode(&text, &all).unwrap().decoded, ["[CLS] the the [SEP]"]);
    let long = format!("[{0},{0},{0},{0},{1}]", ids[1], ids[3]);
    let cut = encode(&long, &request).unwrap();
    assert_eq!((cut.input_ids, cut.truncated), (vec![ids[1]; 4], 1));
    assert_eq!(encode("[]", &request).unwrap().length, 0);
    assert!(message(encode("the", &request)).starts_with("text 0 is no JSON array of token ids, which parameter"));
    assert!(message(encode("[-1]", &request)).contains("no JSON array of token ids"));
    assert_eq!(
        message(encode("[4000000]", &request)),
        "text 0 holds token id 4000000, which is out of vocabulary for this model"
    );
    let pair = tokenizer.encode(&["[1]"], Some(&["[1]"]), &request);
    assert_eq!(message(pair), "parameter 'token_ids' is true, expected pairs to come as texts");
}

#[test]
fn the_pooling_mask_leaves_out_prompt_and_padding_on_both_sides() {
    for side in ["left", "right"] {
        let tokenizer = bert(&[("padding_side", side), ("prompts", r#"{"q": "the the"}"#)]);
        let request = RequestOptions { prompt_name: Some("q"), ..RequestOptions::default() };
        let encoded = tokenizer.encode_with(&[" the the", " the"], None, &request, EXTRAS).unwrap();
        let expected: [i64; 12] = match side {
            "left" => [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1],
            _ => [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0],
        };
        assert_eq!(encoded.pooling_mask, expected, "{side}");
        assert_eq!(encoded.position_ids[..6], [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn requests_name_prompts() {
    let tokenizer = bert(&[("prompts", r#"{"q": "the ", "d": ""}"#), ("default_prompt", "q")]);
    let length = |request: &RequestOptions<'_>| tokenizer.encode(&["the"], None, request).map(|encoded| encoded.length);
    let named = |name| RequestOptions { prompt_name: Some(name), ..RequestOptions::default() };
    assert_eq!(length(&RequestOptions::default()).unwrap(), 4);
    assert_eq!(length(&named("d")).unwrap(), 3);
    assert_eq!(length(&RequestOptions { prefix: Some("the the "), ..RequestOptions::default() }).unwrap(), 5);
    assert_eq!(message(length(&named("x"))), "parameter 'prompt_name' is 'x', expected one of d, q");
    let both = RequestOptions { prefix: Some(""), ..named("q") };
    assert!(message(length(&both)).starts_with("parameters 'prefix' and 'prompt_name' ('q') are both given"));
    let none = bert(&[]).encode(&["the"], None, &named("q"));
    assert_eq!(message(none), "parameter 'prompt_name' is 'q', but this model has no prompts: leave it out");
}

#[test]
fn requests_choose_how_long_rows_are_and_what_becomes_of_longer_ones() {
    let tokenizer = bert(&[("max_length", "5")]);
    let encode = |text: &str, request: &RequestOptions<'_>| tokenizer.encode(&[text], None, request);
    let uncut = RequestOptions { truncate: Some(false), ..RequestOptions::default() };
    assert_eq!(encode("the the the", &uncut).unwrap().length, 5);
    let error = encode("the the the the", &uncut).unwrap_err();
    assert_eq!(
        error.to_string(),
        "text 0 has 6 tokens, expected at most 5: shorten it, or leave out parameter 'truncate'"
    );
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    let at_most = |tokens| RequestOptions { max_tokens: std::num::NonZero::new(tokens), ..RequestOptions::default() };
    assert_eq!(encode("the the the", &at_most(4)).unwrap().length, 4);
    assert_eq!(encode("the the the the", &at_most(9)).unwrap().length, 5, "never more than max_length");
    assert!(message(encode("the", &at_most(1))).contains("special tokens of a row exceed its longest length, 1"));
    let left = RequestOptions { truncation_side: Some(Side::Left), ..at_most(3) };
    let (right, left) = (encode("the a", &at_most(3)).unwrap(), encode("the a", &left).unwrap());
    assert_ne!(right.input_ids, left.input_ids);
    assert_eq!((right.truncated, right.tokens), (1, 3));
    let off = load("wordpiece", &[("max_length", "5"), ("truncation", "false")]).unwrap();
    let long = "the the the the the";
    assert_eq!(off.encode(&[long], None, &RequestOptions::default()).unwrap().length, 7);
    let cut = RequestOptions { truncate: Some(true), ..RequestOptions::default() };
    assert_eq!(off.encode(&[long], None, &cut).unwrap().length, 5);
    assert!(off.encode(&[long], None, &uncut).is_err());
}

#[test]
fn texts_are_cut_by_characters_before_they_are_tokenized() {
    let tokenizer = bert(&[("max_characters", "5")]);
    let encoded = tokenizer.encode(&["thé the", "the"], None, &RequestOptions::default()).unwrap();
    let whole = bert(&[]).encode(&["thé t", "the"], None, &RequestOptions::default()).unwrap();
    assert_eq!((encoded.input_ids, encoded.truncated), (whole.input_ids, 1));
    let uncut = RequestOptions { truncate: Some(false), ..RequestOptions::default() };
    let error = message(tokenizer.encode(&["thé the"], None, &uncut));
    assert!(error.starts_with("text 0 has 7 characters, expected at most 5"), "{error}");
}

#[test]
fn tokenizers_without_tokenizer_json_have_no_offsets() {
    let tokenizer = load("slow/t5", &[]).unwrap();
    assert_eq!(
        message(tokenizer.check(EXTRAS)),
        "output 'offsets' needs a tokenizer.json that adds the special tokens, but this tokenizer has no tokenizer.json"
    );
    assert!(tokenizer.check(Extras { offsets: false, special_tokens_mask: false, ..EXTRAS }).is_ok());
    assert!(bert(&[]).check(EXTRAS).is_ok());
}

#[test]
fn tokens_have_names_and_join_to_text() {
    let tokenizer = bert(&[]);
    assert!(tokenizer.marks_continued_words());
    assert!(!load("byte-bpe", &[]).unwrap().marks_continued_words());
    assert_eq!(tokenizer.token(tokenizer.unknown_id().unwrap()).unwrap(), "[UNK]");
    assert_eq!(tokenizer.token(u32::MAX), None);
    let tokens = ["the", "##re"].map(str::to_owned).to_vec();
    assert_eq!(tokenizer.join_tokens(tokens).unwrap(), "there");
}
