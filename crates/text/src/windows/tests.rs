//! Windows of generated texts: their tokens are those of the whole text, and each character has one owner.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::{Encoded, Extras, LongTexts, RequestOptions, TextTokenizer, TokenizeOptions, WindowsOf};

fn tokenizer(files: &str, max_length: usize, long_texts: LongTexts) -> TextTokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(files);
    let options =
        TokenizeOptions { max_length: std::num::NonZero::new(max_length), long_texts, ..TokenizeOptions::default() };
    TextTokenizer::load(&path, options).expect("a tokenizer")
}

const EXTRAS: Extras = Extras {
    position_ids: false,
    offsets: true,
    special_tokens_mask: true,
    pooling_mask: false,
    scoring_mask: false,
    spans: false,
    windows: true,
    token_lists: false,
    decoded: false,
};

/// A window of an answer: its part of the text, and the tokens of that part as ids with their characters.
#[derive(Debug)]
struct Found {
    window: Vec<usize>,
    tokens: Vec<(i64, i64, i64)>,
}

fn encode(tokenizer: &TextTokenizer, texts: &[&str], overlap: Option<usize>) -> Result<Vec<Found>, TextError> {
    let request = RequestOptions { overlap, ..RequestOptions::default() };
    let encoded = tokenizer.encode_with(texts, None, &request, EXTRAS)?;
    let row = |row: usize| {
        let tokens = (row * encoded.length..(row + 1) * encoded.length)
            .filter(|&at| encoded.special_tokens_mask[at] == 0)
            .map(|at| (encoded.input_ids[at], encoded.offsets[2 * at], encoded.offsets[2 * at + 1]))
            .collect();
        let window = encoded.windows[6 * row..6 * row + 5].iter().map(|&number| number as usize).collect();
        Found { window, tokens }
    };
    Ok((0..encoded.rows).map(row).collect())
}

fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        "harbour",
        "the",
        "ship",
        " ",
        ". ",
        "! ",
        "\n",
        ", ",
        "東京は日本の首都です。",
        "กรุงเทพมหานคร",
        "e\u{301}",
        "न\u{93f}",
        "👩\u{200d}👩\u{200d}👧",
        "🇰🇪",
        "🙂",
        "naïve",
        "İ",
        "ﬁ",
        "한국어 ",
        "السلام ",
        "\u{200b}",
        "supercalifragilistic",
    ]);
    prop::collection::vec(fragment, 0..120).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The tokens that the windows own are those of the text as one row, and the characters that they own are the whole text.
    #[test]
    fn windows_own_each_token_once(text in fragments(), longest in 8usize..40, overlap in 0usize..3) {
        for files in ["wordpiece", "byte-bpe", "unigram"] {
            let whole = encode(&tokenizer(files, 100_000, LongTexts::Cut), &[&text], None).unwrap().remove(0);
            let windows = match encode(&tokenizer(files, longest, LongTexts::Windows), &[&text], Some(overlap)) {
                Err(TextError::TooManyWindows { windows, most, .. }) if windows > most => return Ok(()),
                windows => windows.unwrap(),
            };
            let mut owned = Vec::new();
            let mut next = 0;
            for Found { window, tokens } in &windows {
                let [of, first, end, core, core_end] = window[..] else { panic!("five numbers") };
                prop_assert_eq!((of, core), (0, next));
                prop_assert!(first <= core || tokens.is_empty());
                prop_assert!(core_end >= core && end >= first);
                prop_assert!(tokens.len() <= longest);
                next = core_end;
                // A blank at the end of a text has no character that is its first.
                let end = if core_end == text.chars().count() { usize::MAX } else { core_end };
                let is_owned = |token: &&(i64, i64, i64)| (core..end).contains(&(token.1 as usize));
                owned.extend(tokens.iter().filter(is_owned).copied());
            }
            prop_assert_eq!(next, text.chars().count());
            prop_assert_eq!(&owned, &whole.tokens, "{}", files);
        }
    }

    /// A cut lies before a sentence, or before a word, where such a border is near.
    #[test]
    fn cuts_lie_at_the_best_borders(words in prop::collection::vec("[a-z]{1,4}", 30..90), room in 8usize..24) {
        let text = words.join(" ");
        let offsets: Vec<(usize, usize)> = text
            .split(' ')
            .scan(0, |at, word| {
                let begin = *at;
                *at += word.len() + 1;
                // Each word has two tokens where it has two letters.
                Some((begin, begin + word.len()))
            })
            .flat_map(|(begin, end)| match end - begin {
                1 => vec![(begin, end)],
                _ => vec![(begin, begin + 1), (begin + 1, end)],
            })
            .collect();
        let borders = borders(&text, &offsets, 0);
        for Slice { tokens, owns_from } in slices(&borders, room, room / 4) {
            prop_assert!(tokens.len() <= room && !tokens.is_empty() && tokens.contains(&owns_from));
            prop_assert!(borders[tokens.start] >= Border::Word && borders[owns_from] >= Border::Word);
        }
    }
}

#[test]
fn windows_end_with_sentences() {
    let tokenizer = tokenizer("wordpiece", 14, LongTexts::Windows);
    let text = "The harbour is deep. The ship is in the harbour. The harbour is deep";
    let windows = encode(&tokenizer, &[text], Some(0)).unwrap();
    let characters: Vec<char> = text.chars().collect();
    let of = |found: &Found| characters[found.window[1]..found.window[2]].iter().collect::<String>();
    let texts: Vec<String> = windows.iter().map(of).collect();
    assert_eq!(texts, ["The harbour is deep.", "The ship is in the harbour.", "The harbour is deep"]);
    // Each window is the row of its characters alone.
    for (found, text) in windows.iter().zip(&texts) {
        let alone = encode(&tokenizer, &[text], None).unwrap().remove(0);
        let ids = |found: &Found| found.tokens.iter().map(|token| token.0).collect::<Vec<_>>();
        assert_eq!(ids(found), ids(&alone));
    }
}

#[test]
fn a_short_text_has_the_row_that_it_has_without_windows() {
    for files in ["wordpiece", "byte-bpe", "unigram"] {
        let texts = ["the harbour is deep", "", "naïve 東京 🙂"];
        let (own, cut) = (tokenizer(files, 64, LongTexts::Windows), tokenizer(files, 64, LongTexts::Cut));
        let request = RequestOptions::default();
        let found = own.encode_with(&texts, None, &request, EXTRAS).unwrap();
        assert_eq!(found, cut.encode_with(&texts, None, &request, EXTRAS).unwrap(), "{files}");
        assert_eq!(found.windows[..5], [0, 0, 19, 0, 19], "{files}");
        assert_eq!(own.encode(&texts, None, &request).unwrap().input_ids, found.input_ids, "{files}");
    }
}

#[test]
fn what_windows_cannot_be_is_refused_with_both_numbers() {
    let tokenizer = tokenizer("wordpiece", 12, LongTexts::Windows);
    let long = "the ship ".repeat(100_000);
    let error = encode(&tokenizer, &["a", &long], None).unwrap_err().to_string();
    assert!(
        error.starts_with("text 1 needs ") && error.contains(" or more of 10 tokens, expected at most 128"),
        "{error}"
    );
    let error = encode(&tokenizer, &["a"], Some(6)).unwrap_err().to_string();
    assert_eq!(error, "parameter 'overlap' is 6, expected at most 5, half of the tokens that a row has for a text");
    let request = RequestOptions { windows: Some(true), ..RequestOptions::default() };
    let error = tokenizer.encode(&["a"], None, &request).unwrap_err().to_string();
    assert_eq!(
        error,
        "parameter 'windows' asks for windows, but this model does not fold those of a text: leave it out"
    );
}

#[test]
fn a_request_may_have_its_text_cut() {
    let tokenizer = tokenizer("wordpiece", 12, LongTexts::Windows);
    let long = "the ship ".repeat(20);
    let request = RequestOptions { windows: Some(false), ..RequestOptions::default() };
    let encoded = tokenizer.encode_with(&[&long], None, &request, EXTRAS).unwrap();
    assert_eq!((encoded.rows, encoded.truncated), (1, 1));
    let encoded = tokenizer.encode_with(&[&long], None, &RequestOptions::default(), EXTRAS).unwrap();
    assert!(encoded.rows > 4 && encoded.truncated == 0, "{} rows", encoded.rows);
}

/// A tokenizer for pairs.
fn pair_tokenizer(files: &str, max_length: usize, long_texts: LongTexts, windows_of: WindowsOf) -> TextTokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(files);
    let max_length = std::num::NonZero::new(max_length);
    let options = TokenizeOptions { max_length, long_texts, windows_of, ..TokenizeOptions::default() };
    TextTokenizer::load(&path, options).expect("a tokenizer")
}

/// The ids and token types of a row, without padding.
fn row(encoded: &Encoded, row: usize) -> Vec<(i64, i64)> {
    let of = row * encoded.length..(row + 1) * encoded.length;
    let kept = of.filter(|&at| encoded.attention_mask[at] == 1);
    kept.map(|at| (encoded.input_ids[at], encoded.token_type_ids[at])).collect()
}

#[test]
fn a_short_pair_has_the_row_that_it_has_without_windows() {
    for files in ["wordpiece", "byte-bpe", "unigram"] {
        let [own, cut] =
            [LongTexts::Windows, LongTexts::Cut].map(|long| pair_tokenizer(files, 64, long, WindowsOf::Second));
        let (first, second) = (["is the ship there?", "", "naïve 東京"], ["the harbour is deep", "naïve 🙂", ""]);
        let request = RequestOptions { prefix: Some("query: "), ..RequestOptions::default() };
        let found = own.encode_with(&first, Some(&second), &request, EXTRAS).unwrap();
        assert_eq!(found, cut.encode_with(&first, Some(&second), &request, EXTRAS).unwrap(), "{files}");
        assert_eq!((found.windowed, &found.windows[..5]), (0, &[0, 0, 19, 0, 19][..]), "{files}");
    }
}

/// Each row of a long pair is that of the whole query and a part of the document.
#[test]
fn the_query_of_a_pair_is_whole_in_each_window() {
    let tokenizer = pair_tokenizer("wordpiece", 32, LongTexts::Windows, WindowsOf::Second);
    let query = "is the ship in the harbour";
    let document = "The harbour is deep. The ship is there. ".repeat(9);
    let request = RequestOptions { prefix: Some("the "), ..RequestOptions::default() };
    let encoded = tokenizer.encode_with(&["a", query], Some(&["b", &document]), &request, EXTRAS).unwrap();
    assert!(
        encoded.rows > 6 && encoded.windowed == encoded.rows as u64 - 1 && encoded.truncated == 0,
        "{}",
        encoded.rows
    );
    let characters: Vec<char> = document.chars().collect();
    let mut next = 0;
    for at in 1..encoded.rows {
        let [of, first, end, core, core_end] = encoded.windows[6 * at..6 * at + 5] else { panic!("five numbers") };
        assert_eq!((of, core), (1, next));
        assert_eq!(encoded.windows[6 * at + 5], row(&encoded, at).len() as i64);
        next = core_end;
        let part: String = characters[first as usize..end as usize].iter().collect();
        let alone = tokenizer.encode_with(&[query], Some(&[&part]), &request, EXTRAS).unwrap();
        assert_eq!((alone.rows, row(&encoded, at)), (1, row(&alone, 0)), "{part}");
        // Characters of the query are its own, and those of a part are the document's.
        for token in 0..alone.length {
            let [own, whole] = [(&alone, 0), (&encoded, at)].map(|(of, row)| of.offsets[2 * (row * of.length + token)]);
            let shift =
                if alone.token_type_ids[token] == 1 && alone.special_tokens_mask[token] == 0 { first } else { 0 };
            assert_eq!(own + shift, whole, "token {token} of {part}");
        }
    }
    assert_eq!(next as usize, characters.len());
}

#[test]
fn the_longer_text_of_a_pair_may_have_the_windows() {
    let tokenizer = pair_tokenizer("wordpiece", 16, LongTexts::Windows, WindowsOf::Longer);
    let (long, short) = ("the ship is in the harbour. ".repeat(6), "it is deep");
    let request = RequestOptions::default();
    for (first, second) in [(long.as_str(), short), (short, long.as_str())] {
        let encoded = tokenizer.encode_with(&[first], Some(&[second]), &request, EXTRAS).unwrap();
        assert!(encoded.windowed > 3, "{}", encoded.windowed);
        let types = i64::from(first == short);
        let length = |row: &[(i64, i64)]| row.iter().filter(|token| token.1 != types).count();
        let rows: Vec<_> = (0..encoded.rows).map(|at| row(&encoded, at)).collect();
        assert!(rows.iter().all(|row| length(row) == length(&rows[0]) && row.len() <= 16), "{rows:?}");
    }
    let tokenizer = pair_tokenizer("wordpiece", 16, LongTexts::Windows, WindowsOf::Second);
    let error = tokenizer.encode_with(&[&long], Some(&[short]), &request, EXTRAS).unwrap_err().to_string();
    assert_eq!(
        error,
        "text 0: the text of the pair that is whole in each window has 66 tokens, which leave no room for the other in a row of 16"
    );
}
