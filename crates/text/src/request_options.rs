//! Options for encoding texts, from the parameters of a request.

use std::num::NonZeroUsize;

use trireme_inference::{ParameterValue, Parameters};

use crate::{Side, TextError};

/// Most bytes of a parameter that is a text: it is tokenized with each text of the request.
const LONGEST_TEXT: usize = 64 << 10;

/// Options that one request overrides, by parameters with the same names.
///
/// ```
/// # use std::path::Path;
/// # use trireme_text::{TextTokenizer, TokenizeOptions};
/// let tokenizer = TextTokenizer::load(Path::new("tests/golden/wordpiece"), TokenizeOptions::default())?;
/// use trireme_inference::{ParameterValue, Parameters};
/// use trireme_text::RequestOptions;
///
/// let parameters = Parameters::from([("max_tokens".to_owned(), ParameterValue::Int64(4))]);
/// let options = RequestOptions::from_parameters(&parameters)?;
/// let encoded = tokenizer.encode(&["the harbour is deep"], None, &options)?;
/// assert_eq!((encoded.length, encoded.truncated), (4, 1));
/// # Ok::<(), trireme_text::TextError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions<'a> {
    /// `prefix`: put before each text.
    pub prefix: Option<&'a str>,
    /// `prompt_name`: the entry of `prompts` to put before each text.
    pub prompt_name: Option<&'a str>,
    /// `instruction`: what the model shall do with the texts. It is the prompt of a chat template, and takes the place of the one in a prompt
    /// of the form `Instruct: …\nQuery: `.
    pub instruction: Option<&'a str>,
    /// `truncate`: `false` makes a text that is too long an error, `true` has it cut; NVIDIA NIM's words for it are `NONE`, and `START` and
    /// `END`, which say the side, too.
    pub truncate: Option<bool>,
    /// `truncation_side`: where tokens are cut off.
    pub truncation_side: Option<Side>,
    /// `max_tokens`: most tokens of a row, where that is less than `max_length`.
    pub max_tokens: Option<NonZeroUsize>,
    /// `max_text_tokens`: most tokens of a text, or of the first text of a pair; what follows them is cut off, whatever `truncate` says.
    pub max_text_tokens: Option<NonZeroUsize>,
    /// `max_pair_tokens`: the same of the second text of a pair.
    pub max_pair_tokens: Option<NonZeroUsize>,
    /// `windows`: whether a text that is longer than the longest row has several rows; `None`: the tokenizer's `long_texts` decides.
    pub windows: Option<bool>,
    /// `overlap`: tokens that two neighbouring windows share, at most; `None`: a quarter of a window.
    pub overlap: Option<usize>,
    /// `max_windows`: most windows of a text; what follows them is cut off. `None`: a text of more than [`MOST_WINDOWS`](trireme_inference::MOST_WINDOWS) is an
    /// error.
    pub max_windows: Option<NonZeroUsize>,
    /// `labels`: what the entities are that a model of spans shall find, as [`SpanLabels`](crate::SpanLabels) reads them.
    pub labels: Option<&'a str>,
    /// `classifications`: the tasks by which such a model shall judge texts, as [`Classifications`](crate::Classifications) reads them.
    pub classifications: Option<&'a str>,
    /// `structures`: the structures that such a model shall find, as [`Records`](crate::Records) reads them.
    pub structures: Option<&'a str>,
    /// `relations`: likewise the relations.
    pub relations: Option<&'a str>,
    /// `source_language`: the language of the texts.
    pub source_language: Option<&'a str>,
    /// `target_language`: the language to translate into.
    pub target_language: Option<&'a str>,
    /// `add_special_tokens`: whether `[CLS]`, `</s>` and the like are added.
    pub add_special_tokens: Option<bool>,
    /// `skip_special_tokens`: whether decoded texts are without them; `None`: they are.
    pub skip_special_tokens: Option<bool>,
    /// `token_ids`: rows are JSON arrays of token ids, not texts.
    pub token_ids: bool,
    /// `messages`: rows are conversations as JSON, of which the chat template of the tokenizer's files makes the text.
    pub messages: bool,
}

// === impl RequestOptions ===

impl<'a> RequestOptions<'a> {
    /// The options among a request's parameters. Others are ignored: they may be for other stages.
    pub fn from_parameters(parameters: &'a Parameters) -> Result<RequestOptions<'a>, TextError> {
        let text = |name: &'static str| {
            let read = |value: &'a ParameterValue| match value.as_str() {
                None => Err(TextError::NotText { parameter: name }),
                Some(text) if text.len() > LONGEST_TEXT => {
                    Err(TextError::LongText { parameter: name, bytes: text.len(), most: LONGEST_TEXT })
                }
                Some(text) => Ok(text),
            };
            parameters.get(name).map(read).transpose()
        };
        let wrong = |parameter, value: &ParameterValue, expected| TextError::Parameter {
            parameter,
            found: value.to_string(),
            expected,
        };
        let flag = |name: &'static str| {
            let read = |value: &ParameterValue| match *value {
                ParameterValue::Bool(flag) => Ok(flag),
                _ => Err(wrong(name, value, "true or false")),
            };
            parameters.get(name).map(read).transpose()
        };
        let side = parameters.get("truncation_side").map(|value| {
            let side = value.as_str().and_then(|side| side.to_ascii_lowercase().parse().ok());
            side.ok_or_else(|| wrong("truncation_side", value, "'left' or 'right'"))
        });
        let cut = parameters.get("truncate").map(|value| match value {
            ParameterValue::Bool(flag) => Ok((*flag, None)),
            ParameterValue::String(word) if word == "NONE" => Ok((false, None)),
            ParameterValue::String(word) if word == "START" => Ok((true, Some(Side::Left))),
            ParameterValue::String(word) if word == "END" => Ok((true, Some(Side::Right))),
            _ => Err(wrong("truncate", value, "true or false, or NONE, START or END")),
        });
        let (truncate, cut_side) = cut.transpose()?.map_or((None, None), |(truncate, side)| (Some(truncate), side));
        let count = |name: &'static str| {
            let read = |value: &ParameterValue| {
                let number = value.as_u64().and_then(|number| usize::try_from(number).ok()).and_then(NonZeroUsize::new);
                number.ok_or_else(|| wrong(name, value, "a whole number from 1"))
            };
            parameters.get(name).map(read).transpose()
        };
        let overlap = parameters.get("overlap").map(|value| {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            number.ok_or_else(|| wrong("overlap", value, "a whole number of tokens from 0"))
        });
        // Other models may take labels in a form of their own.
        let of_any_form = |name: &str| parameters.get(name).and_then(ParameterValue::as_str);
        Ok(RequestOptions {
            prefix: text("prefix")?,
            prompt_name: text("prompt_name")?,
            instruction: text("instruction")?,
            truncate,
            truncation_side: side.transpose()?.or(cut_side),
            max_tokens: count("max_tokens")?,
            max_text_tokens: count("max_text_tokens")?,
            max_pair_tokens: count("max_pair_tokens")?,
            windows: flag("windows")?,
            overlap: overlap.transpose()?,
            max_windows: count("max_windows")?,
            labels: of_any_form("labels"),
            classifications: of_any_form("classifications"),
            structures: of_any_form("structures"),
            relations: of_any_form("relations"),
            source_language: text("source_language")?,
            target_language: text("target_language")?,
            add_special_tokens: flag("add_special_tokens")?,
            skip_special_tokens: flag("skip_special_tokens")?,
            token_ids: flag("token_ids")?.unwrap_or(false),
            messages: flag("messages")?.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_requests_are_read_or_named() {
        let read = |name: &str, value: ParameterValue| {
            let parameters: Parameters = [(name.to_owned(), value)].into();
            RequestOptions::from_parameters(&parameters).map(|o| format!("{o:?}")).map_err(|error| error.to_string())
        };
        assert!(read("truncation_side", "LEFT".into()).unwrap().contains("Some(Left)"));
        assert!(read("truncate", ParameterValue::Bool(false)).unwrap().contains("truncate: Some(false)"));
        let nims = read("truncate", "START".into()).unwrap();
        assert!(nims.contains("truncate: Some(true), truncation_side: Some(Left)"), "{nims}");
        assert!(read("truncate", "NONE".into()).unwrap().contains("truncate: Some(false), truncation_side: None"));
        assert!(read("max_tokens", ParameterValue::Uint64(9)).unwrap().contains("max_tokens: Some(9)"));
        let wrong = |name, value| read(name, value).unwrap_err();
        assert!(read("instruction", "a".repeat(65_536).as_str().into()).is_ok());
        assert_eq!(
            wrong("instruction", "a".repeat(65_537).as_str().into()),
            "parameter 'instruction' has 65537 bytes, expected at most 65536"
        );
        assert_eq!(
            wrong("truncate", "no".into()),
            "parameter 'truncate' is 'no', expected true or false, or NONE, START or END"
        );
        assert_eq!(
            wrong("max_tokens", ParameterValue::Int64(0)),
            "parameter 'max_tokens' is 0, expected a whole number from 1"
        );
        assert_eq!(
            wrong("truncation_side", "top".into()),
            "parameter 'truncation_side' is 'top', expected 'left' or 'right'"
        );
        assert_eq!(
            wrong("prompt_name", ParameterValue::Int64(1)),
            "parameter 'prompt_name' is not a string, expected text"
        );
    }
}
