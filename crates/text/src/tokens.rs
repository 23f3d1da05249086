//! Single tokens: their names, and the text of several tokens, as in transformers' fast tokenizers.

use tokenizers::{Decoder, ModelWrapper};

use crate::core::Core;
use crate::{TextError, TextTokenizer};

// === impl TextTokenizer ===

impl TextTokenizer {
    /// The name of a token, mark of word or space included; `None`: the id does not exist, or there is no `tokenizer.json`.
    pub fn token(&self, id: u32) -> Option<String> {
        match &self.encoder.core {
            Core::Json(tokenizer) => tokenizer.id_to_token(id),
            Core::Slow(_) => None,
        }
    }

    /// The id of the token for input outside the vocabulary: `unk_token` of `tokenizer_config.json`, or else the model's in
    /// `tokenizer.json`.
    pub fn unknown_id(&self) -> Option<u32> {
        if let Some(token) = &self.unknown_token {
            return self.encoder.core.token_to_id(token);
        }
        let Core::Json(tokenizer) = &self.encoder.core else { return None };
        let token = match tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => Some(&model.unk_token),
            ModelWrapper::WordLevel(model) => Some(&model.unk_token),
            ModelWrapper::BPE(model) => model.unk_token.as_ref(),
            ModelWrapper::Unigram(_) => None,
        };
        self.encoder.core.token_to_id(token?)
    }

    /// The id of the token that fills rows up, if the tokenizer has one.
    pub fn padding_id(&self) -> Option<u32> {
        self.encoder.core.token_to_id(self.padding_token.as_deref()?)
    }

    /// Whether the vocabulary marks tokens that continue a word, as WordPiece does by `##`.
    pub fn marks_continued_words(&self) -> bool {
        let Core::Json(tokenizer) = &self.encoder.core else { return false };
        match tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => !model.continuing_subword_prefix.is_empty(),
            ModelWrapper::BPE(model) => model.continuing_subword_prefix.as_ref().is_some_and(|mark| !mark.is_empty()),
            ModelWrapper::WordLevel(_) | ModelWrapper::Unigram(_) => false,
        }
    }

    /// The text of tokens that are given by their names; any other string is taken as it is.
    pub fn join_tokens(&self, tokens: Vec<String>) -> Result<String, TextError> {
        let Core::Json(tokenizer) = &self.encoder.core else { return Ok(tokens.join(" ")) };
        match tokenizer.get_decoder() {
            Some(decoder) => decoder.decode(tokens).map_err(|error| TextError::Decode { reason: error.to_string() }),
            None => Ok(tokens.join(" ")),
        }
    }
}
