//! How texts are encoded, as config.pbtxt `parameters` say it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::str::FromStr;

use trireme_inference::Parameters;

use crate::TextError;

/// How texts are encoded. The default is what `AutoTokenizer(texts, padding=True, truncation=True)` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizeOptions {
    /// `max_length`: most tokens of a row, special tokens included; `None`: `model_max_length` of
    /// `tokenizer_config.json`, and without that no limit.
    pub max_length: Option<NonZeroUsize>,
    /// `truncation`: which text is cut when a row is too long.
    pub truncation: Truncation,
    /// `padding`: what rows are filled up to.
    pub padding: Padding,
    /// `pad_to_multiple_of`: the padded length is rounded up to a multiple of this.
    pub pad_to_multiple_of: Option<NonZeroUsize>,
    /// `prefix`: put before each text as it is, not before the second text of a pair (`query: `).
    pub prefix: String,
    /// `source_language`: the language of the texts, by its code (`en`, `eng_Latn`, `en_XX`), for tokenizers that put its
    /// token beside the text; `None`: `src_lang` of `tokenizer_config.json`, and without that English.
    pub source_language: Option<String>,
    /// `target_language`: the language to translate into, likewise; `None`: `tgt_lang` of `tokenizer_config.json`.
    pub target_language: Option<String>,
    /// `add_special_tokens`: whether `[CLS]`, `</s>` and the like are added.
    pub add_special_tokens: bool,
    /// `padding_side`: where padding goes; `None`: as the tokenizer's files say, right if they do not.
    pub padding_side: Option<Side>,
    /// `truncation_side`: where tokens are cut off; `None`: as the tokenizer's files say, right if they do not.
    pub truncation_side: Option<Side>,
    /// `pad_token`: the token that padding is made of; `None`: as the tokenizer's files say.
    pub pad_token: Option<String>,
}

/// What one request may have otherwise than the [`TokenizeOptions`] say: its parameters of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions<'a> {
    /// `prefix`: put before each text.
    pub prefix: Option<&'a str>,
    /// `source_language`: the language of the texts.
    pub source_language: Option<&'a str>,
    /// `target_language`: the language to translate into.
    pub target_language: Option<&'a str>,
}

/// Which text of a row is cut when the row is longer than the maximal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// `false`: none.
    Off,
    /// `true`, `longest_first`: the longer one, both once they are equally long.
    LongestFirst,
    /// `only_first`: the first; an error when that is not enough.
    OnlyFirst,
    /// `only_second`: the second; an error when that is not enough.
    OnlySecond,
}

/// What rows are filled up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// `longest`: the longest row of the request.
    Longest,
    /// `max_length`: the maximal length, always.
    MaxLength,
    /// `none`: nothing; rows of unequal length are an error.
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
            truncation: Truncation::LongestFirst,
            padding: Padding::Longest,
            pad_to_multiple_of: None,
            prefix: String::new(),
            source_language: None,
            target_language: None,
            add_special_tokens: true,
            padding_side: None,
            truncation_side: None,
            pad_token: None,
        }
    }
}

impl TokenizeOptions {
    /// The parameters that [`TokenizeOptions::from_parameters`] knows.
    pub const PARAMETERS: [&str; 11] = [
        "add_special_tokens",
        "max_length",
        "pad_to_multiple_of",
        "pad_token",
        "padding",
        "padding_side",
        "prefix",
        "source_language",
        "target_language",
        "truncation",
        "truncation_side",
    ];

    /// Options from config.pbtxt `parameters`; what they do not name keeps its default. A key with a dot or a capital
    /// letter (`EXECUTION_ENV_PATH`) is somebody else's and passed over; any other unknown key is a fault. All faults
    /// are reported together, as [`TextError::Options`].
    pub fn from_parameters(parameters: &BTreeMap<String, String>) -> Result<TokenizeOptions, TextError> {
        let mut options = TokenizeOptions::default();
        let mut faults = Vec::new();
        for (key, value) in parameters {
            if let Err(expected) = options.set(key, value) {
                faults.push(match expected {
                    Some(expected) => format!("parameter '{key}' is '{value}', expected {expected}"),
                    None => format!("unknown parameter '{key}', expected one of {}", Self::PARAMETERS.join(", ")),
                });
            }
        }
        if faults.is_empty() { Ok(options) } else { Err(TextError::Options(faults)) }
    }

    /// Sets one option. The error is what was expected of the value, or `None` for an unknown key.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Option<&'static str>> {
        const NUMBER: &str = "a whole number from 1";
        const SIDE: &str = "'left' or 'right'";
        let trimmed = value.trim();
        let number = || trimmed.parse::<NonZeroUsize>().map(Some).map_err(|_| Some(NUMBER));
        let side = || trimmed.parse::<Side>().map(Some).map_err(|()| Some(SIDE));
        match key {
            "max_length" => self.max_length = number()?,
            "pad_to_multiple_of" => self.pad_to_multiple_of = number()?,
            "padding_side" => self.padding_side = side()?,
            "truncation_side" => self.truncation_side = side()?,
            "pad_token" => self.pad_token = Some(value.to_owned()),
            // Not trimmed: the blank of `query: ` belongs to it.
            "prefix" => value.clone_into(&mut self.prefix),
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
                    _ => return Err(Some("'longest', 'max_length' or 'none'")),
                }
            }
            _ if key.contains(|c: char| c == '.' || c.is_uppercase()) => {}
            _ => return Err(None),
        }
        Ok(())
    }
}

// === impl RequestOptions ===

impl<'a> RequestOptions<'a> {
    /// The options among a request's parameters. Others are passed over: they may be for other stages.
    pub fn from_parameters(parameters: &'a Parameters) -> Result<RequestOptions<'a>, TextError> {
        let text = |name: &'static str| {
            let value = parameters.get(name);
            value.map(|v| v.as_str().ok_or(TextError::NotText { parameter: name })).transpose()
        };
        Ok(RequestOptions {
            prefix: text("prefix")?,
            source_language: text("source_language")?,
            target_language: text("target_language")?,
        })
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<TokenizeOptions, TextError> {
        TokenizeOptions::from_parameters(&parameters.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    #[test]
    fn no_parameters_are_the_defaults_of_auto_tokenizer() {
        let options = parse(&[]).unwrap();
        assert_eq!(options, TokenizeOptions::default());
        assert_eq!((options.padding, options.truncation), (Padding::Longest, Truncation::LongestFirst));
    }

    #[test]
    fn every_parameter_is_read() {
        let options = parse(&[
            ("max_length", "256"),
            ("truncation", "only_second"),
            ("padding", "max_length"),
            ("pad_to_multiple_of", " 8 "),
            ("prefix", "query: "),
            ("source_language", "en"),
            ("target_language", "sw"),
            ("add_special_tokens", "false"),
            ("padding_side", "left"),
            ("truncation_side", "left"),
            ("pad_token", "<pad>"),
            ("EXECUTION_ENV_PATH", "x"),
            ("trireme.queue", "x"),
        ])
        .unwrap();
        let expected = TokenizeOptions {
            max_length: NonZeroUsize::new(256),
            truncation: Truncation::OnlySecond,
            padding: Padding::MaxLength,
            pad_to_multiple_of: NonZeroUsize::new(8),
            prefix: "query: ".to_owned(),
            source_language: Some("en".to_owned()),
            target_language: Some("sw".to_owned()),
            add_special_tokens: false,
            padding_side: Some(Side::Left),
            truncation_side: Some(Side::Left),
            pad_token: Some("<pad>".to_owned()),
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn all_faults_are_reported_together() {
        let error = parse(&[("max_lenght", "256"), ("padding", "yes"), ("pad_to_multiple_of", "0")]).unwrap_err();
        let TextError::Options(faults) = error else { panic!("{error}") };
        assert_eq!(
            faults[0],
            format!("unknown parameter 'max_lenght', expected one of {}", TokenizeOptions::PARAMETERS.join(", "))
        );
        assert_eq!(faults[1], "parameter 'pad_to_multiple_of' is '0', expected a whole number from 1");
        assert_eq!(faults[2], "parameter 'padding' is 'yes', expected 'longest', 'max_length' or 'none'");
        assert_eq!(faults.len(), 3);
    }

    #[test]
    fn the_listed_parameters_are_the_known_ones() {
        for key in TokenizeOptions::PARAMETERS {
            assert_ne!(TokenizeOptions::default().set(key, ""), Err(None), "{key}");
        }
    }

    proptest! {
        #[test]
        fn any_parameters_parse_or_are_refused(parameters: BTreeMap<String, String>) {
            let unknown = parameters.keys().any(|k| {
                !TokenizeOptions::PARAMETERS.contains(&k.as_str()) && !k.contains(|c: char| c == '.' || c.is_uppercase())
            });
            prop_assert!(!unknown || TokenizeOptions::from_parameters(&parameters).is_err());
        }
    }
}
