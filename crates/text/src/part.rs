//! The part of a very long text that its row is made of, so that nobody waits while the rest is tokenized only to be cut off.

use crate::Side;
use crate::core::Core;

/// Bytes of a first part for each token that a row may have: more than the tokens of any language need, runs of blanks aside.
const BYTES_PER_TOKEN: usize = 16;

/// The shortest first part, in bytes. Tokenizing it takes less than a millisecond.
const SHORTEST: usize = 4 << 10;

/// Tokens beyond those of the row. The tokens at the cut are not those of the whole text; these keep them out of the row.
const MARGIN: usize = 32;

/// How far a cut is moved to lie between two words, in bytes.
const LONGEST_WORD: usize = 256;

/// A part of `text` at its beginning, or at its end where rows lose their beginnings (`side` is the one that is cut off), which has more
/// than `tokens` tokens; the whole text if it is not much longer. `Err` is the tokenizer's own.
pub(crate) fn part<'t>(core: &Core, text: &'t str, tokens: usize, side: Side) -> Result<&'t str, tokenizers::Error> {
    let mut bytes = tokens.saturating_mul(BYTES_PER_TOKEN).max(SHORTEST);
    // A part that is nearly the whole text saves nothing.
    while bytes < text.len() / 2 {
        let part = match side {
            Side::Right => &text[..beginning(text, bytes)],
            Side::Left => &text[end(text, text.len() - bytes)..],
        };
        if core.ids(part)?.len() > tokens + MARGIN {
            return Ok(part);
        }
        bytes *= 4;
    }
    Ok(text)
}

/// Where a beginning of about `bytes` bytes ends: before a blank, if there is one near.
fn beginning(text: &str, bytes: usize) -> usize {
    let at = text.ceil_char_boundary(bytes);
    let near = &text[at..text.ceil_char_boundary(at + LONGEST_WORD)];
    near.find(char::is_whitespace).map_or(at, |blank| at + blank)
}

/// Where an end begins that goes from about the byte `at`: at a blank, if there is one near.
fn end(text: &str, at: usize) -> usize {
    let at = text.floor_char_boundary(at);
    let near = &text[text.floor_char_boundary(at.saturating_sub(LONGEST_WORD))..at];
    near.rfind(char::is_whitespace).map_or(at, |blank| at - near.len() + blank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_lie_between_words() {
        let text = "one two three";
        assert_eq!(&text[..beginning(text, 5)], "one two");
        assert_eq!(&text[..beginning(text, 7)], "one two");
        assert_eq!(&text[..beginning(text, 9)], "one two t");
        assert_eq!(&text[end(text, 10)..], " three");
        assert_eq!(&text[end(text, 2)..], "e two three");
        assert_eq!(&"äöü"[..beginning("äöü", 1)], "ä");
        assert_eq!(&"äöü"[end("äöü", 3)..], "öü");
        let word = "w".repeat(2 * LONGEST_WORD) + " ";
        assert_eq!(beginning(&word, 7), 7);
    }
}
