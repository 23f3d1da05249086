//! Tokenizers that consist of a SentencePiece model and, for some, a `vocab.json`. They behave like Hugging Face's
//! tokenizer classes in Python, which are called slow; hence the name.
//!
//! [`SlowTokenizer::load`] reads the files of M2M100, NLLB, mBART, mBART-50, Marian and T5. Ids, special tokens and the
//! ids of languages are those of the classes. Not here: the tokens around a text (`family`), truncation and padding.

mod added;
mod languages;
mod load;

use std::collections::{HashMap, HashSet};

use crate::family::{Family, Languages};
use crate::joiner::Joiner;
use crate::sentencepiece::{SPACE, SentencePiece, byte_of};
use added::{AddedTokens, Segment};

/// A tokenizer without `tokenizer.json`.
#[derive(Debug)]
pub(crate) struct SlowTokenizer {
    pub(crate) family: Family,
    model: SentencePiece,
    /// The token id of each piece.
    piece_ids: Vec<u32>,
    /// The id of every token.
    ids: HashMap<String, u32>,
    /// The token of each id, for decoding.
    tokens: HashMap<u32, String>,
    /// Ids that stand for no text.
    special: HashSet<u32>,
    /// Tokens that are searched in texts before those are split into pieces.
    added: AddedTokens,
    unknown: u32,
    /// T5 only: the newer behaviour. The first one lost spaces after special tokens.
    fixed_spaces: Option<FixedSpaces>,
}

/// T5 with `legacy: false`: this crate adds the space, not SentencePiece.
#[derive(Clone, Copy, Debug)]
struct FixedSpaces {
    /// Whether a text begins with a space (`add_prefix_space`).
    before_text: bool,
}

// === impl SlowTokenizer ===

impl SlowTokenizer {
    /// The ids of `text`, without the special tokens around it.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let Some(spaces) = self.fixed_spaces.filter(|_| !text.is_empty()) else { return self.encode_segments(text).0 };
        let text = text.replace(SPACE, " ");
        let text = if spaces.before_text { format!("{SPACE}{text}") } else { text };
        let (mut ids, first_token) = self.encode_segments(&text);
        let begins_with_space = ids.first().is_some_and(|&id| self.ids.get(SPACE) == Some(&id));
        // The space before a text is left out if the text begins with a special token.
        if begins_with_space && first_token == Some(1) && self.special.contains(&ids[1]) {
            ids.remove(0);
        }
        ids
    }

    /// The ids of `text`, and the index of the first added token among them.
    fn encode_segments(&self, text: &str) -> (Vec<u32>, Option<usize>) {
        let mut ids = Vec::new();
        let mut first_token = None;
        for segment in self.added.split(text) {
            match segment {
                Segment::Token(id) => {
                    first_token.get_or_insert(ids.len());
                    ids.push(id);
                }
                Segment::Text(text) => self.encode_text(text, &mut ids),
            }
        }
        (ids, first_token)
    }

    /// The ids of a text without added tokens.
    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) {
        let mut text = text;
        if self.family == Family::Marian
            && let Some(end) = text.strip_prefix(">>").and_then(|rest| rest.find("<<"))
        {
            let (code, rest) = text.split_at(end + 4);
            ids.push(self.ids.get(code).copied().unwrap_or(self.unknown));
            text = rest;
        }
        // SentencePiece drops spaces at the beginning of a text, but keeps them after another piece.
        let guard = match self.fixed_spaces {
            Some(_) if text.starts_with(' ') || text.starts_with(SPACE) => self.guard(),
            _ => None,
        };
        let start = ids.len();
        let mut push = |piece: &str, id: u32| ids.push(self.token_id(piece, id));
        match guard {
            None => self.model.encode(text, push),
            Some((guard, length)) => {
                self.model.encode(&format!("{guard}{text}"), &mut push);
                if ids.len() - start >= length {
                    ids.drain(start..start + length);
                }
            }
        }
    }

    /// A text to put in front so that the spaces after it are kept, as in T5's class, and its number of pieces.
    fn guard(&self) -> Option<(&str, usize)> {
        let unknown = self.tokens.get(&self.unknown)?;
        let mut length = 0;
        self.model.encode(unknown, |_, _| length += 1);
        Some((unknown, length))
    }

    /// The id of a piece of text.
    fn token_id(&self, piece: &str, id: u32) -> u32 {
        if id == self.model.unknown() {
            // Vocabularies for several languages may contain pieces that one language's model does not have.
            return self.ids.get(piece).copied().unwrap_or(self.unknown);
        }
        self.piece_ids.get(id as usize).copied().unwrap_or(self.unknown)
    }

    /// The id of a token.
    pub(crate) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// The token of an id.
    pub(crate) fn id_to_token(&self, id: u32) -> Option<String> {
        self.tokens.get(&id).cloned()
    }

    /// Whether an id stands for no text.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The text of `ids`: the whole text, or only the part that further ids cannot change.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool, whole: bool) -> String {
        let mut joiner = Joiner::default();
        for id in ids {
            let Some(token) = self.tokens.get(id) else { continue };
            if self.special.contains(id) {
                if !skip_special_tokens {
                    joiner.push_special(token);
                }
            } else if let Some(byte) = byte_of(token) {
                joiner.push_byte(byte);
            } else if token.contains(SPACE) {
                joiner.push(&token.replace(SPACE, " "));
            } else {
                joiner.push(token);
            }
        }
        if whole { joiner.finish() } else { joiner.into_beginning() }
    }

    /// The languages that have a token.
    pub(crate) fn languages(&self) -> Languages {
        Languages::among(self.family, self.ids.iter().map(|(token, &id)| (token.clone(), id)))
    }
}
