//! Converts a text to ids and back, for tokenizers from any files.

use tokenizers::Tokenizer;

use crate::TextError;
use crate::family::{Family, Languages};
use crate::sentencepiece::byte_of;
use crate::slow::SlowTokenizer;

/// A tokenizer without truncation, padding and the tokens around a text.
#[derive(Debug)]
pub(crate) enum Core {
    /// From `tokenizer.json`.
    Json(Box<Tokenizer>),
    /// From a SentencePiece model.
    Slow(Box<SlowTokenizer>),
}

// === impl Core ===

impl Core {
    /// The id of a token.
    pub(crate) fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Core::Json(tokenizer) => tokenizer.token_to_id(token),
            Core::Slow(tokenizer) => tokenizer.token_to_id(token),
        }
    }

    /// The token of an id.
    pub(crate) fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Core::Json(tokenizer) => tokenizer.id_to_token(id),
            Core::Slow(tokenizer) => tokenizer.id_to_token(id),
        }
    }

    /// Whether the token of an id stands for no text.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        match self {
            Core::Json(tokenizer) => tokenizer.id_to_token(id).is_some_and(|token| is_special(tokenizer, &token)),
            Core::Slow(tokenizer) => tokenizer.is_special(id),
        }
    }

    /// The ids of a text.
    pub(crate) fn ids(&self, text: &str) -> Result<Vec<u32>, tokenizers::Error> {
        match self {
            Core::Json(tokenizer) => Ok(tokenizer.encode_fast(text, false)?.get_ids().to_vec()),
            Core::Slow(tokenizer) => Ok(tokenizer.encode(text)),
        }
    }

    /// The languages that have a token.
    pub(crate) fn languages(&self, family: Family) -> Languages {
        match self {
            Core::Json(tokenizer) => Languages::among(family, tokenizer.get_vocab(true)),
            Core::Slow(tokenizer) => tokenizer.languages(),
        }
    }

    /// The text of `ids`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        match self {
            Core::Json(tokenizer) => tokenizer
                .decode(ids, skip_special_tokens)
                .map_err(|error| TextError::Decode { reason: error.to_string() }),
            Core::Slow(tokenizer) => Ok(tokenizer.decode(ids, skip_special_tokens, true)),
        }
    }

    /// The part of the text of `ids` that stays the same whatever ids follow.
    pub(crate) fn decode_beginning(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        match self {
            Core::Slow(tokenizer) => Ok(tokenizer.decode(ids, skip_special_tokens, false)),
            Core::Json(tokenizer) => {
                // Bytes at the end may be joined with later bytes, even across special tokens.
                let is_open = |&id: &u32| match tokenizer.id_to_token(id) {
                    Some(token) => byte_of(&token).is_some() || (skip_special_tokens && is_special(tokenizer, &token)),
                    None => true,
                };
                let end = ids.iter().rposition(|id| !is_open(id)).map_or(0, |last| last + 1);
                let mut text = self.decode(&ids[..end], skip_special_tokens)?;
                // A byte-level decoder shows the first bytes of a character as replacement characters. They may change
                // too.
                text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
                Ok(text)
            }
        }
    }
}

fn is_special(tokenizer: &Tokenizer, token: &str) -> bool {
    tokenizer.get_added_vocabulary().is_special_token(token)
}
