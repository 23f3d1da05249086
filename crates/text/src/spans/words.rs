//! The words of a text, as GLiNER's splitter `whitespace` finds them.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// Letters and digits, joined by hyphens and underscores, or any other character that is no blank. Python's `\w` has no combining marks, and its
/// `\s` has the four separators of ASCII.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+(?:[-_][\p{L}\p{N}_]+)*|[^\s\x1c-\x1f]").expect("a constant pattern"));

/// A word of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'t> {
    pub(super) text: &'t str,
    /// Its characters in the text.
    pub(super) characters: Range<usize>,
}

/// The words of `text`, at most so many, and whether there are more.
pub(super) fn words(text: &str, most: usize) -> (Vec<Word<'_>>, bool) {
    let (mut byte, mut character) = (0, 0);
    let mut found = WORD.find_iter(text);
    let words = found.by_ref().take(most).map(|word| {
        let begin = character + text[byte..word.start()].chars().count();
        (byte, character) = (word.end(), begin + word.as_str().chars().count());
        Word { text: word.as_str(), characters: begin..character }
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
            words(text, 100).0.into_iter().map(|word| (word.characters.start, word.characters.end)).collect()
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
        let (found, more) = words("a b c", 2);
        assert_eq!((found.len(), more), (2, true));
        assert!(!words("a b c", 3).1);
    }
}
