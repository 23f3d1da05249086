//! `tokenizer_config.json`, and the older files with parts of the same content.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tokenizers::AddedToken;

use crate::json_file::read_json;
use crate::{Side, TextError};

/// The fields of `tokenizer_config.json` that change token ids. The many other fields are ignored.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerConfig {
    pub(crate) tokenizer_class: Option<String>,
    pub(crate) model_max_length: Option<f64>,
    pub(crate) padding_side: Option<ConfigSide>,
    pub(crate) truncation_side: Option<ConfigSide>,
    pub(crate) pad_token_type_id: Option<u32>,
    // BERT.
    pub(crate) do_lower_case: Option<bool>,
    pub(crate) strip_accents: Option<bool>,
    pub(crate) tokenize_chinese_chars: Option<bool>,
    // Special tokens.
    pub(crate) bos_token: Option<ConfigToken>,
    pub(crate) eos_token: Option<ConfigToken>,
    pub(crate) unk_token: Option<ConfigToken>,
    pub(crate) sep_token: Option<ConfigToken>,
    pub(crate) pad_token: Option<ConfigToken>,
    pub(crate) cls_token: Option<ConfigToken>,
    pub(crate) mask_token: Option<ConfigToken>,
    pub(crate) additional_special_tokens: Option<Vec<ConfigToken>>,
    /// The newer name of the same, where a list is under it.
    pub(crate) extra_special_tokens: Option<serde_json::Value>,
    pub(crate) added_tokens_decoder: BTreeMap<u32, ConfigToken>,
    /// A text, or a list of templates with names.
    pub(crate) chat_template: Option<serde_json::Value>,
    // Translation.
    pub(crate) src_lang: Option<String>,
    pub(crate) tgt_lang: Option<String>,
    /// M2M100: the name of a list of languages.
    pub(crate) language_codes: Option<String>,
    /// NLLB: puts the language after the text.
    pub(crate) legacy_behaviour: bool,
    /// Marian: `target_vocab.json` has the vocabulary of the model's output.
    pub(crate) separate_vocabs: bool,
    /// T5: `false` keeps the spaces after special tokens.
    pub(crate) legacy: Option<bool>,
    pub(crate) add_prefix_space: Option<bool>,
    pub(crate) extra_ids: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ConfigSide {
    Left,
    Right,
}

/// A token: its text, or an object with its text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ConfigToken {
    Text(String),
    Added {
        content: String,
        #[serde(default)]
        lstrip: bool,
        #[serde(default)]
        rstrip: bool,
        #[serde(default)]
        special: bool,
        #[serde(default)]
        single_word: bool,
        normalized: Option<bool>,
    },
}

/// `special_tokens_map.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecialTokens {
    bos_token: Option<ConfigToken>,
    eos_token: Option<ConfigToken>,
    unk_token: Option<ConfigToken>,
    sep_token: Option<ConfigToken>,
    pad_token: Option<ConfigToken>,
    cls_token: Option<ConfigToken>,
    mask_token: Option<ConfigToken>,
    additional_special_tokens: Option<Vec<ConfigToken>>,
}

// === impl TokenizerConfig ===

impl TokenizerConfig {
    /// Reads `tokenizer_config.json` in `directory`, if it exists.
    pub(crate) fn read(directory: &Path) -> Result<TokenizerConfig, TextError> {
        Ok(read_json(directory, "tokenizer_config.json")?.unwrap_or_default())
    }

    /// All special tokens, in the order in which transformers adds those that tokenizer.json lacks.
    pub(crate) fn special_tokens(&self) -> impl Iterator<Item = ConfigToken> {
        let named = self.tokens().map(|(_, token)| token);
        let extra = self.extra_special_tokens.clone().and_then(|extra| match extra {
            serde_json::Value::Object(tokens) => {
                serde_json::from_value(tokens.into_iter().map(|(_, token)| token).collect()).ok()
            }
            list => serde_json::from_value::<Vec<ConfigToken>>(list).ok(),
        });
        let extra = extra.or_else(|| self.additional_special_tokens.clone()).unwrap_or_default();
        named.into_iter().flatten().cloned().collect::<Vec<_>>().into_iter().chain(extra)
    }

    /// The tokens that have a name in templates, by it.
    pub(crate) fn named_tokens(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.tokens().into_iter().filter_map(|(name, token)| Some((name, token.as_ref()?.text())))
    }

    fn tokens(&self) -> [(&'static str, &Option<ConfigToken>); 7] {
        [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("sep_token", &self.sep_token),
            ("pad_token", &self.pad_token),
            ("cls_token", &self.cls_token),
            ("mask_token", &self.mask_token),
        ]
    }

    /// Adds fields from `special_tokens_map.json` and `added_tokens.json` that are missing here. Tokenizers without
    /// `tokenizer.json` may have their special tokens there.
    pub(crate) fn add_older_files(&mut self, directory: &Path) -> Result<(), TextError> {
        self.add_map(directory)?;
        if self.added_tokens_decoder.is_empty() { self.add_tokens(directory, ConfigToken::Text) } else { Ok(()) }
    }

    /// Adds tokens from `special_tokens_map.json` and `added_tokens.json`, which count where this file is of the time before
    /// `added_tokens_decoder`.
    pub(crate) fn add_older_special_tokens(&mut self, directory: &Path) -> Result<(), TextError> {
        if !self.added_tokens_decoder.is_empty() {
            return Ok(());
        }
        self.add_map(directory)?;
        self.add_tokens(directory, ConfigToken::plain)
    }

    fn add_tokens(&mut self, directory: &Path, token: impl Fn(String) -> ConfigToken) -> Result<(), TextError> {
        let added: BTreeMap<String, u32> = read_json(directory, "added_tokens.json")?.unwrap_or_default();
        self.added_tokens_decoder = added.into_iter().map(|(text, id)| (id, token(text))).collect();
        Ok(())
    }

    fn add_map(&mut self, directory: &Path) -> Result<(), TextError> {
        let map: SpecialTokens = read_json(directory, "special_tokens_map.json")?.unwrap_or_default();
        for (ours, theirs) in [
            (&mut self.bos_token, map.bos_token),
            (&mut self.eos_token, map.eos_token),
            (&mut self.unk_token, map.unk_token),
            (&mut self.sep_token, map.sep_token),
            (&mut self.pad_token, map.pad_token),
            (&mut self.cls_token, map.cls_token),
            (&mut self.mask_token, map.mask_token),
        ] {
            *ours = ours.take().or(theirs);
        }
        self.additional_special_tokens = self.additional_special_tokens.take().or(map.additional_special_tokens);
        Ok(())
    }
}

// === impl ConfigToken ===

impl ConfigToken {
    pub(crate) fn text(&self) -> &str {
        match self {
            ConfigToken::Text(text) | ConfigToken::Added { content: text, .. } => text,
        }
    }

    /// Whether spaces on the left and on the right belong to the token.
    pub(crate) fn strips(&self) -> (bool, bool) {
        match *self {
            ConfigToken::Text(_) => (false, false),
            ConfigToken::Added { lstrip, rstrip, .. } => (lstrip, rstrip),
        }
    }

    /// The token as `tokenizers` adds it. A text alone is a special token.
    pub(crate) fn added(&self) -> AddedToken {
        match self {
            ConfigToken::Text(text) => AddedToken::from(text, true),
            ConfigToken::Added { content, lstrip, rstrip, special, single_word, normalized } => {
                AddedToken::from(content, *special)
                    .lstrip(*lstrip)
                    .rstrip(*rstrip)
                    .single_word(*single_word)
                    .normalized(normalized.unwrap_or(!*special))
            }
        }
    }

    /// A token that is found in normalized text and is not special, as those in `added_tokens.json` are.
    fn plain(content: String) -> ConfigToken {
        let (lstrip, rstrip, single_word) = (false, false, false);
        ConfigToken::Added { content, lstrip, rstrip, special: false, single_word, normalized: Some(true) }
    }

    /// Whether the token is marked as special, which means that it stands for no text.
    pub(crate) fn is_special(&self) -> bool {
        matches!(self, ConfigToken::Added { special: true, .. })
    }
}

// === impl ConfigSide ===

impl From<ConfigSide> for Side {
    fn from(side: ConfigSide) -> Self {
        match side {
            ConfigSide::Left => Side::Left,
            ConfigSide::Right => Side::Right,
        }
    }
}
