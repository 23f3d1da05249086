//! The files beside a model: `tokenizer.json` or a SentencePiece model, and the fields of `tokenizer_config.json` that
//! change token ids.

use std::io;
use std::path::Path;

use tokenizers::{NormalizerWrapper, PostProcessorWrapper, Tokenizer};

use crate::completion;
use crate::config::{ConfigToken, TokenizerConfig};
use crate::core::Core;
use crate::family::{Family, Languages};
use crate::growth;
use crate::json_file::read_json;
use crate::slow::SlowTokenizer;
use crate::{Side, TextError};

/// A `model_max_length` above this means no limit (Hugging Face writes 1e30).
const LARGEST_LENGTH: f64 = 1e20;

/// The default padding tokens of tokenizer classes, for files without one.
const USUAL_PAD_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

/// A tokenizer, with the settings of its files for truncation, padding and languages.
pub(crate) struct TokenizerFiles {
    /// Without its own truncation, padding and post-processor.
    pub(crate) core: Core,
    pub(crate) post_processor: Option<PostProcessorWrapper>,
    /// Settings for translation, if the tokenizer is of a translation family.
    pub(crate) translation: Option<Translation>,
    /// `model_max_length`, if there is one.
    pub(crate) max_length: Option<usize>,
    pub(crate) padding_side: Side,
    pub(crate) truncation_side: Side,
    /// The padding token, if there is one.
    pub(crate) pad_token: Option<String>,
    /// The token type id of padding.
    pub(crate) pad_type_id: u32,
    /// `unk_token`.
    pub(crate) unknown_token: Option<String>,
    /// `mask_token`.
    pub(crate) mask_token: Option<String>,
    /// `eos_token`.
    pub(crate) end_token: Option<String>,
}

/// Settings of a translation model's tokenizer.
#[derive(Debug)]
pub(crate) struct Translation {
    pub(crate) family: Family,
    pub(crate) languages: Languages,
    pub(crate) eos: u32,
    /// `src_lang` and `tgt_lang`.
    pub(crate) source: Option<String>,
    pub(crate) target: Option<String>,
    /// See [`Family::template`].
    pub(crate) legacy: bool,
}

// === impl TokenizerFiles ===

impl TokenizerFiles {
    /// Reads the files in `directory`. It must contain `tokenizer.json` or a SentencePiece model;
    /// `tokenizer_config.json` is optional.
    pub(crate) fn read(directory: &Path) -> Result<TokenizerFiles, TextError> {
        let mut config = TokenizerConfig::read(directory)?;
        let mut padding = None;
        let mut truncation = None;
        let mut post_processor = None;
        let (core, family) = match read_json::<Tokenizer>(directory, "tokenizer.json")? {
            Some(mut tokenizer) => {
                config.set_bert_normalizer(&mut tokenizer).map_err(|reason| TextError::Malformed {
                    path: directory.join("tokenizer_config.json"),
                    reason: reason.to_string(),
                })?;
                let malformed =
                    |reason: String| TextError::Malformed { path: directory.join("tokenizer_config.json"), reason };
                let grows = tokenizer.get_normalizer().map_or(Ok(()), growth::check);
                grows.map_err(|reason| TextError::Malformed { path: directory.join("tokenizer.json"), reason })?;
                config.add_older_special_tokens(directory)?;
                completion::complete(&config, &mut tokenizer).map_err(malformed)?;
                padding = tokenizer.get_padding().cloned();
                truncation = tokenizer.get_truncation().cloned();
                post_processor = tokenizer.get_post_processor().cloned();
                tokenizer.with_padding(None);
                tokenizer.with_truncation(None).expect("no truncation has no faults");
                tokenizer.with_post_processor(None::<PostProcessorWrapper>);
                let family = config.tokenizer_class.as_deref().and_then(Family::of_class);
                (Core::Json(Box::new(tokenizer)), family)
            }
            None => {
                config.add_older_files(directory)?;
                let tokenizer = SlowTokenizer::load(directory, &config)?.ok_or_else(|| TextError::File {
                    path: directory.join("tokenizer.json"),
                    source: io::ErrorKind::NotFound.into(),
                })?;
                let family = tokenizer.family;
                (Core::Slow(Box::new(tokenizer)), Some(family))
            }
        };
        let translation = family.map(|family| Translation::new(family, &core, &config, directory)).transpose()?;
        let usual_pad_token = || USUAL_PAD_TOKENS.into_iter().find(|t| core.token_to_id(t).is_some());
        let pad_token = config
            .pad_token
            .map(|token| token.text().to_owned())
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
        Ok(TokenizerFiles {
            core,
            post_processor,
            translation,
            max_length,
            padding_side,
            truncation_side,
            pad_token,
            pad_type_id,
            unknown_token: config.unk_token.map(|token| token.text().to_owned()),
            mask_token: config.mask_token.map(|token| token.text().to_owned()),
            end_token: config.eos_token.map(|token| token.text().to_owned()),
        })
    }
}

// === impl Translation ===

impl Translation {
    fn new(family: Family, core: &Core, config: &TokenizerConfig, directory: &Path) -> Result<Translation, TextError> {
        let eos = config.eos_token.as_ref().map_or("</s>", ConfigToken::text);
        let eos = core.token_to_id(eos).ok_or_else(|| TextError::Malformed {
            path: directory.join("tokenizer_config.json"),
            reason: format!("its eos_token '{eos}' is not in the vocabulary"),
        })?;
        let languages = core.languages(family);
        let usual = family.usual_source().filter(|language| languages.id(language).is_some());
        Ok(Translation {
            family,
            eos,
            source: config.src_lang.clone().or_else(|| usual.map(str::to_owned)),
            target: config.tgt_lang.clone(),
            legacy: config.legacy_behaviour,
            languages,
        })
    }
}

/// The side with this name in `tokenizers`.
fn side(name: &str) -> Side {
    name.parse().unwrap_or(Side::Right)
}

// === impl TokenizerConfig ===

impl TokenizerConfig {
    /// In BERT's tokenizer classes, these three fields override the normalizer in `tokenizer.json`. The generic classes
    /// use the file as it is.
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
