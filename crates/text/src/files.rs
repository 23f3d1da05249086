//! The files beside a model: `tokenizer.json`, and what of `tokenizer_config.json` changes token ids.

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::{NormalizerWrapper, Tokenizer};

use crate::{Side, TextError};

/// `model_max_length` above this is Hugging Face's way to say that there is none (it writes 1e30).
const LARGEST_LENGTH: f64 = 1e20;

/// What tokenizer classes use for padding when no file says it.
const USUAL_PAD_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

/// A tokenizer and what its files say about truncation and padding.
pub(crate) struct Files {
    /// Without truncation and padding of its own.
    pub(crate) tokenizer: Tokenizer,
    /// `model_max_length`, when there is one.
    pub(crate) max_length: Option<usize>,
    pub(crate) padding_side: Side,
    pub(crate) truncation_side: Side,
    /// The token that padding is made of, when there is one.
    pub(crate) pad_token: Option<String>,
    /// The token type id of padding.
    pub(crate) pad_type_id: u32,
}

/// The fields of `tokenizer_config.json` that change token ids. Others, of which there are many, are passed over.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
    padding_side: Option<ConfigSide>,
    truncation_side: Option<ConfigSide>,
    pad_token: Option<ConfigToken>,
    pad_token_type_id: Option<u32>,
    tokenizer_class: Option<String>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ConfigSide {
    Left,
    Right,
}

/// A token: its text, or an object that holds it.
#[derive(Deserialize)]
#[serde(untagged)]
enum ConfigToken {
    Text(String),
    Added { content: String },
}

// === impl Files ===

impl Files {
    /// Reads the files in `directory`. `tokenizer.json` must be there, `tokenizer_config.json` may be.
    pub(crate) fn read(directory: &Path) -> Result<Files, TextError> {
        let missing = |path| TextError::File { path, source: io::ErrorKind::NotFound.into() };
        let mut tokenizer: Tokenizer =
            read_json(directory, "tokenizer.json")?.ok_or_else(|| missing(directory.join("tokenizer.json")))?;
        let config: TokenizerConfig = read_json(directory, "tokenizer_config.json")?.unwrap_or_default();

        config.set_bert_normalizer(&mut tokenizer).map_err(|reason| TextError::Malformed {
            path: directory.join("tokenizer_config.json"),
            reason: reason.to_string(),
        })?;
        let padding = tokenizer.get_padding().cloned();
        let truncation = tokenizer.get_truncation().cloned();
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).expect("no truncation has no faults");

        let usual_pad_token = || USUAL_PAD_TOKENS.into_iter().find(|t| tokenizer.token_to_id(t).is_some());
        let pad_token = config
            .pad_token
            .map(ConfigToken::into_text)
            .or_else(|| padding.as_ref().map(|p| p.pad_token.clone()))
            .or_else(|| usual_pad_token().map(str::to_owned));
        let max_length =
            config.model_max_length.filter(|length| (1.0..LARGEST_LENGTH).contains(length)).map(|l| l as usize);
        let padding_side = match config.padding_side {
            Some(side) => side.into(),
            None => padding.as_ref().map_or(Side::Right, |p| side(p.direction.as_ref())),
        };
        let truncation_side = match config.truncation_side {
            Some(side) => side.into(),
            None => truncation.as_ref().map_or(Side::Right, |t| side(t.direction.as_ref())),
        };
        let pad_type_id = config.pad_token_type_id.or(padding.map(|p| p.pad_type_id)).unwrap_or(0);
        Ok(Files { tokenizer, max_length, padding_side, truncation_side, pad_token, pad_type_id })
    }
}

/// The side that `tokenizers` calls `name`.
fn side(name: &str) -> Side {
    name.parse().unwrap_or(Side::Right)
}

/// A JSON file of `directory`; `None` when there is no such file.
fn read_json<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>, TextError> {
    let path = directory.join(name);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TextError::File { path, source }),
    };
    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(TextError::Malformed { path, reason: error.to_string() }),
    }
}

// === impl TokenizerConfig ===

impl TokenizerConfig {
    /// BERT's tokenizer classes let these three fields win over the normalizer in `tokenizer.json`; the generic classes
    /// take the file as it is.
    fn set_bert_normalizer(&self, tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
        let generic = matches!(self.tokenizer_class.as_deref(), Some("PreTrainedTokenizerFast" | "TokenizersBackend"));
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = tokenizer.get_normalizer().filter(|_| !generic)
        else {
            return Ok(());
        };
        let mut normalizer = *normalizer;
        normalizer.lowercase = self.do_lower_case.unwrap_or(normalizer.lowercase);
        normalizer.strip_accents = self.strip_accents.or(normalizer.strip_accents);
        normalizer.handle_chinese_chars = self.tokenize_chinese_chars.unwrap_or(normalizer.handle_chinese_chars);
        tokenizer.with_normalizer(Some(normalizer))?;
        Ok(())
    }
}

// === impl ConfigToken ===

impl ConfigToken {
    fn into_text(self) -> String {
        match self {
            ConfigToken::Text(text) | ConfigToken::Added { content: text } => text,
        }
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
