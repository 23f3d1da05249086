//! The words of a text, as the splitters `whitespace` of GLiNER and GLiNER2 find them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use crate::SpanForm;

/// Letters and digits, joined by hyphens and underscores, or any other character that is no blank. Python's `\w` has no combining marks, and its
/// `\s` has the four separators of ASCII.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+(?:[-_][\p{L}\p{N}_]+)*|[^\s\x1c-\x1f]").expect("a constant pattern"));

/// Addresses, names behind an @, words with their combining marks, or any other character that is no blank. Where case does not count, Python's
/// `[a-z]` has the letters `ı` and `İ`, too.
static WORD_OF_GLINER2: LazyLock<Regex> = LazyLock::new(|| {
    let word = r"[\p{L}\p{N}\p{M}_\u{200c}\u{200d}]";
    let pattern = format!(
        r"(?i)https?://[^\s\x1c-\x1f]+|www\.[^\s\x1c-\x1f]+|[a-zıİ0-9._%+-]+@[a-zıİ0-9.-]+\.[a-zıİ]{{2,}}|@[a-zıİ0-9_]+|{word}+(?:[-_]{word}+)*|[^\s\x1c-\x1f]"
    );
    Regex::new(&pattern).expect("a constant pattern")
});

/// The ends of sentences for GLiNER2; a text without such an end gets a full stop.
const ENDS: [char; 3] = ['.', '!', '?'];

/// A word of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'t> {
    /// As it is tokenized.
    pub(super) text: Cow<'t, str>,
    /// Its characters in the text. An added full stop has an empty range at the end.
    pub(super) characters: Range<usize>,
}

/// The words of `text`, at most so many, and whether there are more.
pub(super) fn words(text: &str, form: SpanForm, most: usize) -> (Vec<Word<'_>>, bool) {
    match form {
        SpanForm::Gliner => found(&WORD, text, most, Cow::Borrowed),
        SpanForm::Gliner2 => {
            let lower = |word: &str| Cow::Owned(word.to_lowercase());
            if text.ends_with(ENDS) {
                return found(&WORD_OF_GLINER2, text, most, lower);
            }
            let (mut words, has_more) = found(&WORD_OF_GLINER2, &format!("{text}."), most, lower);
            let characters = text.chars().count();
            if let Some(last) = words.last_mut() {
                last.characters = last.characters.start.min(characters)..last.characters.end.min(characters);
            }
            (words, has_more)
        }
    }
}

fn found<'w, 't>(
    pattern: &Regex,
    text: &'t str,
    most: usize,
    form: impl Fn(&'t str) -> Cow<'w, str>,
) -> (Vec<Word<'w>>, bool) {
    let (mut byte, mut character) = (0, 0);
    let mut found = pattern.find_iter(text);
    let words = found.by_ref().take(most).map(|word| {
        let begin = character + text[byte..word.start()].chars().count();
        (byte, character) = (word.end(), begin + word.as_str().chars().count());
        Word { text: form(word.as_str()), characters: begin..character }
    });
    let words: Vec<_> = words.collect();
    (words, found.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words as `re.finditer(r"\w+(?:[-_]\w+)*|\S", text)` gives them in Python.
    #[test]
    fn words_are_those_of_python() {
        let split = |text| -> Vec<(usize, usize)> {
            words(text, SpanForm::Gliner, 100)
                .0
                .into_iter()
                .map(|word| (word.characters.start, word.characters.end))
                .collect()
        };
        assert_eq!(split("Ada Lovelace, 1815."), [(0, 3), (4, 12), (12, 13), (14, 18), (18, 19)]);
        assert_eq!(split("state-of_the-art -x- a_"), [(0, 16), (17, 18), (18, 19), (19, 20), (21, 23)]);
        // A combining mark is no letter for Python, and a word of its own.
        assert_eq!(split("e\u{301}t"), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(split("東京は雨 ½ Ⅷ ٣"), [(0, 4), (5, 6), (7, 8), (9, 10)]);
        assert_eq!(split("👩‍🚀 ok"), [(0, 1), (1, 2), (2, 3), (4, 6)]);
        assert_eq!(split("a\u{1f}b\u{a0}c\u{200b}"), [(0, 1), (2, 3), (4, 5), (5, 6)]);
        assert_eq!(split(" \n\t"), []);
    }

    #[test]
    fn no_more_words_are_found_than_wanted() {
        let (found, more) = words("a b c", SpanForm::Gliner, 2);
        assert_eq!((found.len(), more), (2, true));
        assert!(!words("a b c", SpanForm::Gliner, 3).1);
    }

    /// The words as `WhitespaceTokenSplitter` of gliner2 2.1 gives them for a text that `_normalize_text` has ended.
    #[test]
    fn words_of_gliner2_are_in_lower_case_and_end_with_a_sentence() {
        let split = |text| -> Vec<(String, usize, usize)> {
            let (words, _) = words(text, SpanForm::Gliner2, 100);
            words.into_iter().map(|word| (word.text.into_owned(), word.characters.start, word.characters.end)).collect()
        };
        let expected = |words: &[(&str, usize, usize)]| -> Vec<(String, usize, usize)> {
            words.iter().map(|&(word, start, end)| (word.to_owned(), start, end)).collect()
        };
        assert_eq!(split("Ada!"), expected(&[("ada", 0, 3), ("!", 3, 4)]));
        assert_eq!(split("Ada L"), expected(&[("ada", 0, 3), ("l", 4, 5), (".", 5, 5)]));
        assert_eq!(
            split("Ask A.B@ex.org, @Ada or https://EX.org/a?b"),
            expected(&[
                ("ask", 0, 3),
                ("a.b@ex.org", 4, 14),
                (",", 14, 15),
                ("@ada", 16, 20),
                ("or", 21, 23),
                // The full stop belongs to the address.
                ("https://ex.org/a?b.", 24, 42)
            ])
        );
        assert_eq!(split("e\u{301}t İ."), expected(&[("e\u{301}t", 0, 3), ("i\u{307}", 4, 5), (".", 5, 6)]));
        assert_eq!(split(""), expected(&[(".", 0, 0)]));
    }
}
