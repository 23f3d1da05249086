//! Options for encoding texts, from config.pbtxt `parameters`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::str::FromStr;

use trireme_inference::nearest;

use crate::TextError;
use crate::expansion::QueryExpansion;
use crate::span_prompt::SpanPrompt;

/// Options for encoding texts. The default equals `AutoTokenizer(texts, padding=True, truncation=True)`.
///
/// ```
/// use trireme_text::{Padding, TokenizeOptions};
///
/// let parameters = [("max_length", "128"), ("padding", "max_length")];
/// let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
/// let options = TokenizeOptions::from_parameters(&parameters)?;
/// assert_eq!((options.max_length.map(Into::into), options.padding), (Some(128_usize), Padding::MaxLength));
///
/// let error = TokenizeOptions::from_parameters(&[("maxlength".to_owned(), "128".to_owned())].into()).unwrap_err();
/// assert_eq!(error.to_string(), "unknown parameter 'maxlength', did you mean 'max_length'?");
/// # Ok::<(), trireme_text::TextError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizeOptions {
    /// `max_length`: most tokens of a row, special tokens included. `None`: `model_max_length` of
    /// `tokenizer_config.json`, or no limit if that is missing.
    pub max_length: Option<NonZeroUsize>,
    /// `max_characters`: texts are cut to this many characters before they are tokenized, as model2vec does it.
    pub max_characters: Option<NonZeroUsize>,
    /// `truncation`: which text is cut if a row is too long.
    pub truncation: Truncation,
    /// `padding`: the length to which rows are padded.
    pub padding: Padding,
    /// `pad_to_multiple_of`: the padded length is rounded up to a multiple of this.
    pub pad_to_multiple_of: Option<NonZeroUsize>,
    /// `prefix`: put before each text, but not before the second text of a pair (`query: `).
    pub prefix: String,
    /// `prompts`: texts to put before each text, by the names that requests use; a JSON object.
    pub prompts: BTreeMap<String, String>,
    /// `default_prompt`: the entry of `prompts` for requests that name none; it takes the place of `prefix`.
    pub default_prompt: Option<String>,
    /// `source_language`: the language of the texts, by its code (`en`, `eng_Latn`, `en_XX`), for tokenizers that put
    /// its token beside the text. `None`: `src_lang` of `tokenizer_config.json`, or English if that is missing.
    pub source_language: Option<String>,
    /// `target_language`: the language to translate into, by its code. `None`: `tgt_lang` of `tokenizer_config.json`.
    pub target_language: Option<String>,
    /// `add_special_tokens`: whether `[CLS]`, `</s>` and the like are added.
    pub add_special_tokens: bool,
    /// `padding_side`: the side of the padding. `None`: the setting in the tokenizer's files, right by default.
    pub padding_side: Option<Side>,
    /// `truncation_side`: the side on which tokens are cut off. `None`: the setting in the tokenizer's files, right by
    /// default.
    pub truncation_side: Option<Side>,
    /// `pad_token`: the padding token. `None`: the one in the tokenizer's files.
    pub pad_token: Option<String>,
    /// `query_length`: most tokens of a query, in place of `max_length`.
    pub query_length: Option<NonZeroUsize>,
    /// `document_length`: most tokens of a document, in place of `max_length`.
    pub document_length: Option<NonZeroUsize>,
    /// `query_expansion`: how queries are filled up; a JSON object.
    pub query_expansion: Option<QueryExpansion>,
    /// `skiplist_words`: tokens that `scoring_mask` leaves out; a JSON array.
    pub skiplist_words: Vec<String>,
    /// `skiplist_tasks`: the sides that `skiplist_words` is for, of `query` and `document`; a JSON array.
    pub skiplist_tasks: Vec<String>,
    /// `first_position`: the position of a row's first token in `position_ids`; padding has the position before that, or 0.
    pub first_position: u32,
    /// `token_types`: whether texts of a pair have token types of their own. `false`: all are 0.
    pub token_types: bool,
    /// `long_texts`: what becomes of a text that is longer than the longest row.
    pub long_texts: LongTexts,
    /// `windows_of`: which text of a pair has windows.
    pub windows_of: WindowsOf,
    /// `spans`: labels of the request stand before each text, and the model scores spans of its words; a JSON object.
    pub spans: Option<SpanPrompt>,
    /// `prompts_as_tokens`: a prompt that the vocabulary has as one token becomes that token.
    pub prompts_as_tokens: bool,
    /// `message_format`: texts become messages with contents of this form, of which the chat template of the tokenizer's files makes the
    /// text that is tokenized. A prompt becomes a message of the role `system`. `None`: no template is applied.
    pub message_format: Option<MessageFormat>,
    /// `chat_template_kwargs`: further variables of the chat template, as `{"add_generation_prompt": true}`; a JSON object.
    pub chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
}

/// The treatment of a text that is longer than the longest row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongTexts {
    /// `cut`: its row has its beginning, or its end by `truncation_side`.
    Cut,
    /// `windows`: it has several rows, where requests want the output `windows`.
    Windows,
}

/// Which text of a pair has windows; the other one is whole in each of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowsOf {
    /// `second`: the second one, as the document beside a query.
    Second,
    /// `longer`: the one of more tokens, the second one of equal ones.
    Longer,
}

/// The form of a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFormat {
    /// `flat`: a text.
    Flat,
    /// `structured`: a list with one part of type `text`.
    Structured,
}

/// Which text of a row is cut if the row is longer than the maximal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// `false`: neither.
    Off,
    /// `true`, `longest_first`: the longer one; both, once they are equally long.
    LongestFirst,
    /// `only_first`: the first; an error if that is not enough.
    OnlyFirst,
    /// `only_second`: the second; an error if that is not enough.
    OnlySecond,
}

/// The length to which rows are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// `longest`: the length of the request's longest row.
    Longest,
    /// `max_length`: always the maximal length.
    MaxLength,
    /// A number: always this length.
    To(NonZeroUsize),
    /// `none`: no padding; rows of unequal length are an error.
    None,
}

/// An end of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "left and right need no words")]
pub enum Side {
    Left,
    Right,
}

// === impl TokenizeOptions ===

impl Default for TokenizeOptions {
    fn default() -> Self {
        TokenizeOptions {
            max_length: None,
            max_characters: None,
            truncation: Truncation::LongestFirst,
            padding: Padding::Longest,
            pad_to_multiple_of: None,
            prefix: String::new(),
            prompts: BTreeMap::new(),
            default_prompt: None,
            source_language: None,
            target_language: None,
            add_special_tokens: true,
            padding_side: None,
            truncation_side: None,
            pad_token: None,
            query_length: None,
            document_length: None,
            query_expansion: None,
            skiplist_words: Vec::new(),
            skiplist_tasks: vec!["document".to_owned()],
            first_position: 0,
            token_types: true,
            long_texts: LongTexts::Cut,
            windows_of: WindowsOf::Second,
            spans: None,
            prompts_as_tokens: false,
            message_format: None,
            chat_template_kwargs: serde_json::Map::new(),
        }
    }
}

impl TokenizeOptions {
    /// The parameters that [`TokenizeOptions::from_parameters`] accepts.
    pub const PARAMETERS: [&str; 27] = [
        "add_special_tokens",
        "chat_template_kwargs",
        "default_prompt",
        "document_length",
        "first_position",
        "long_texts",
        "max_characters",
        "max_length",
        "message_format",
        "pad_to_multiple_of",
        "pad_token",
        "padding",
        "padding_side",
        "prefix",
        "prompts",
        "prompts_as_tokens",
        "query_expansion",
        "query_length",
        "skiplist_tasks",
        "skiplist_words",
        "source_language",
        "spans",
        "target_language",
        "token_types",
        "truncation",
        "truncation_side",
        "windows_of",
    ];

    /// Options from config.pbtxt `parameters`; missing ones keep their defaults. A key with a dot or a capital letter
    /// (`EXECUTION_ENV_PATH`) belongs to something else and is ignored; any other unknown key is a fault. All faults
    /// are reported together, as [`TextError::Options`].
    pub fn from_parameters(parameters: &BTreeMap<String, String>) -> Result<TokenizeOptions, TextError> {
        let mut options = TokenizeOptions::default();
        let mut faults = Vec::new();
        for (key, value) in parameters {
            if let Err(expected) = options.set(key, value) {
                faults.push(match expected {
                    Some(expected) => format!("parameter '{key}' is '{value}', expected {expected}"),
                    None => match nearest(key, Self::PARAMETERS) {
                        Some(meant) => format!("unknown parameter '{key}', did you mean '{meant}'?"),
                        None => format!("unknown parameter '{key}', expected one of {}", Self::PARAMETERS.join(", ")),
                    },
                });
            }
        }
        faults.extend(options.prompt_fault());
        if faults.is_empty() { Ok(options) } else { Err(TextError::Options(faults)) }
    }

    /// The fault of the default prompt, if it has one.
    fn prompt_fault(&self) -> Option<String> {
        let name = self.default_prompt.as_ref()?;
        if !self.prompts.contains_key(name) {
            let known = self.prompts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "nothing".to_owned() } else { known };
            return Some(format!(
                "parameter 'default_prompt' is '{name}', expected a name in 'prompts', which has {known}"
            ));
        }
        let both = !self.prefix.is_empty();
        both.then(|| {
            format!(
                "parameters 'prefix' ('{}') and 'default_prompt' ('{name}') are both given, expected one",
                self.prefix
            )
        })
    }

    /// Sets one option. The error is the expected form of the value, or `None` for an unknown key.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Option<&'static str>> {
        const NUMBER: &str = "a whole number from 1";
        const SIDE: &str = "'left' or 'right'";
        const PROMPTS: &str = r#"a JSON object of texts, as {"query": "query: "}"#;
        const EXPANSION: &str = r#"a JSON object, as {"strategy": "fixed", "attend": false, "length": 32}; strategies are 'fixed' and 'min'"#;
        const WORDS: &str = r#"a JSON array of tokens, as [".", ","]"#;
        const TASKS: &str = r#"a JSON array of "query" and "document""#;
        let trimmed = value.trim();
        let number = || trimmed.parse::<NonZeroUsize>().map(Some).map_err(|_| Some(NUMBER));
        let side = || trimmed.parse::<Side>().map(Some).map_err(|()| Some(SIDE));
        match key {
            "max_length" => self.max_length = number()?,
            "query_length" => self.query_length = number()?,
            "document_length" => self.document_length = number()?,
            "query_expansion" => {
                self.query_expansion = serde_json::from_str(value).map(Some).map_err(|_| Some(EXPANSION))?;
            }
            "skiplist_words" => self.skiplist_words = serde_json::from_str(value).map_err(|_| Some(WORDS))?,
            "skiplist_tasks" => {
                let tasks: Vec<String> = serde_json::from_str(value).map_err(|_| Some(TASKS))?;
                let known = tasks.iter().all(|task| ["query", "document"].contains(&task.as_str()));
                self.skiplist_tasks = if known { tasks } else { return Err(Some(TASKS)) };
            }
            "long_texts" => {
                self.long_texts = match trimmed {
                    "cut" => LongTexts::Cut,
                    "windows" => LongTexts::Windows,
                    _ => return Err(Some("'cut' or 'windows'")),
                }
            }
            "windows_of" => {
                self.windows_of = match trimmed {
                    "second" => WindowsOf::Second,
                    "longer" => WindowsOf::Longer,
                    _ => return Err(Some("'second' or 'longer'")),
                }
            }
            "spans" => self.spans = serde_json::from_str(value).map(Some).map_err(|_| Some(SpanPrompt::EXPECTED))?,
            "prompts_as_tokens" => {
                self.prompts_as_tokens = trimmed.parse().map_err(|_| Some("'true' or 'false'"))?;
            }
            "message_format" => {
                self.message_format = match trimmed {
                    "flat" => Some(MessageFormat::Flat),
                    "structured" => Some(MessageFormat::Structured),
                    _ => return Err(Some("'flat' or 'structured'")),
                }
            }
            "chat_template_kwargs" => {
                let expected = r#"a JSON object, as {"add_generation_prompt": true}"#;
                self.chat_template_kwargs = serde_json::from_str(value).map_err(|_| Some(expected))?;
            }
            "first_position" => self.first_position = trimmed.parse().map_err(|_| Some("a whole number from 0"))?,
            "token_types" => self.token_types = trimmed.parse().map_err(|_| Some("'true' or 'false'"))?,
            "max_characters" => self.max_characters = number()?,
            "pad_to_multiple_of" => self.pad_to_multiple_of = number()?,
            "padding_side" => self.padding_side = side()?,
            "truncation_side" => self.truncation_side = side()?,
            "pad_token" => self.pad_token = Some(value.to_owned()),
            // Not trimmed: the blank at the end of `query: ` belongs to the prefix.
            "prefix" => value.clone_into(&mut self.prefix),
            "prompts" => self.prompts = serde_json::from_str(value).map_err(|_| Some(PROMPTS))?,
            "default_prompt" => self.default_prompt = Some(trimmed.to_owned()),
            "source_language" => self.source_language = Some(trimmed.to_owned()),
            "target_language" => self.target_language = Some(trimmed.to_owned()),
            "add_special_tokens" => {
                self.add_special_tokens = trimmed.parse().map_err(|_| Some("'true' or 'false'"))?;
            }
            "truncation" => {
                self.truncation = match trimmed {
                    "true" | "longest_first" => Truncation::LongestFirst,
                    "only_first" => Truncation::OnlyFirst,
                    "only_second" => Truncation::OnlySecond,
                    "false" => Truncation::Off,
                    _ => return Err(Some("'true', 'false', 'longest_first', 'only_first' or 'only_second'")),
                }
            }
            "padding" => {
                self.padding = match trimmed {
                    "longest" => Padding::Longest,
                    "max_length" => Padding::MaxLength,
                    "none" => Padding::None,
                    number => match number.parse() {
                        Ok(length) => Padding::To(length),
                        Err(_) => return Err(Some("'longest', 'max_length', 'none' or a number of tokens")),
                    },
                }
            }
            // Another program's parameter, unless it is almost a known one.
            _ if key.contains(|c: char| c == '.' || c.is_uppercase()) && nearest(key, Self::PARAMETERS).is_none() => {}
            _ => return Err(None),
        }
        Ok(())
    }
}

// === impl Side ===

impl FromStr for Side {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "left" => Ok(Side::Left),
            "right" => Ok(Side::Right),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests;
