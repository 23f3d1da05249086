//! Texts that are much longer than their rows.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::path::Path;

use trireme_text::{Padding, RequestOptions, Side, TextTokenizer, TokenizeOptions, Truncation};

const LENGTH: usize = 40;

fn load(folder: &str, options: TokenizeOptions) -> TextTokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    TextTokenizer::load(&folder, TokenizeOptions { padding: Padding::None, add_special_tokens: false, ..options })
        .unwrap()
}

fn cut_to_length(side: Side) -> TokenizeOptions {
    TokenizeOptions { max_length: LENGTH.try_into().ok(), truncation_side: Some(side), ..TokenizeOptions::default() }
}

#[test]
fn their_tokens_are_those_of_the_whole_text() {
    for folder in ["wordpiece", "byte-bpe", "unigram"] {
        let whole = load(folder, TokenizeOptions { truncation: Truncation::Off, ..TokenizeOptions::default() });
        for words in ["the model reads ", "Straße 東京 tiny, ", "日本語のテキスト"] {
            let text = words.repeat(2000);
            let ids = |tokenizer: &TextTokenizer| {
                let encoded = tokenizer.encode(&[text.as_str()], None, &RequestOptions::default()).unwrap();
                (encoded.input_ids, encoded.truncated)
            };
            let (all, _) = ids(&whole);
            assert!(all.len() > 1000 || !words.is_ascii(), "{folder}, {words}: {} tokens", all.len());
            let last = all.len() - LENGTH.min(all.len());
            let first = LENGTH.min(all.len());
            let truncated = u64::from(all.len() > LENGTH);
            assert_eq!(
                ids(&load(folder, cut_to_length(Side::Right))),
                (all[..first].to_vec(), truncated),
                "{folder}, {words}"
            );
            assert_eq!(
                ids(&load(folder, cut_to_length(Side::Left))),
                (all[last..].to_vec(), truncated),
                "{folder}, {words}"
            );
        }
    }
}

#[test]
fn they_are_refused_before_they_are_tokenized_as_a_whole() {
    let tokenizer = load("wordpiece", cut_to_length(Side::Right));
    let refused = |times: usize| {
        let text = "the model reads ".repeat(times);
        let request = RequestOptions { truncate: Some(false), ..RequestOptions::default() };
        tokenizer.encode(&[text.as_str()], None, &request).unwrap_err().to_string()
    };
    let long = refused(100_000);
    assert!(long.contains(" tokens or more, expected at most 40"), "{long}");
    assert_eq!(refused(200_000), long, "as much of it is tokenized");
    assert!(refused(20).contains(" tokens, expected at most 40"), "{}", refused(20));
}
