//! Tokens that are searched in texts first: special tokens, and those added after training.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::joiner::is_space;

/// A token that texts may contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) content: String,
    pub(super) id: u32,
    /// Whether spaces before it belong to it.
    pub(super) strips_left: bool,
    /// Whether spaces after it belong to it.
    pub(super) strips_right: bool,
}

/// All added tokens of a tokenizer.
#[derive(Debug)]
pub(super) struct AddedTokens {
    tokens: Vec<AddedToken>,
    finder: AhoCorasick,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    Text(&'a str),
    Token(u32),
}

// === impl AddedTokens ===

impl AddedTokens {
    pub(super) fn new(tokens: Vec<AddedToken>) -> Result<AddedTokens, String> {
        let contents = tokens.iter().map(|token| token.content.as_str());
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
        Ok(AddedTokens { tokens, finder: finder.map_err(|error| format!("its added tokens are too many: {error}"))? })
    }

    /// The tokens in `text` and the texts between them. Empty texts are left out.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        let mut start = 0;
        let mut strip = false;
        let push = |segments: &mut Vec<_>, text: &'a str, strip_left: bool, strip_right: bool| {
            let text = if strip_left { text.trim_start_matches(is_space) } else { text };
            let text = if strip_right { text.trim_end_matches(is_space) } else { text };
            if !text.is_empty() {
                segments.push(Segment::Text(text));
            }
        };
        for found in self.finder.find_iter(text) {
            let token = &self.tokens[found.pattern().as_usize()];
            push(&mut segments, &text[start..found.start()], strip, token.strips_left);
            segments.push(Segment::Token(token.id));
            start = found.end();
            strip = token.strips_right;
        }
        push(&mut segments, &text[start..], strip, false);
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_and_take_their_spaces() {
        let token = |content: &str, id, strips_left, strips_right| AddedToken {
            content: content.to_owned(),
            id,
            strips_left,
            strips_right,
        };
        let tokens = [token("<x>", 1, true, true), token("<x>>", 2, false, false), token("</s>", 3, false, false)];
        let added = AddedTokens::new(tokens.into()).unwrap();
        use Segment::{Text, Token};
        assert_eq!(added.split("a <x> b <x>> </s>"), [Text("a"), Token(1), Text("b "), Token(2), Text(" "), Token(3)]);
        assert_eq!(added.split(" <x> <x> "), [Token(1), Token(1)]);
        assert_eq!(added.split(""), []);
        assert_eq!(AddedTokens::new(Vec::new()).unwrap().split("a"), [Text("a")]);
    }
}
