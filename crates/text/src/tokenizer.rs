//! [`TextTokenizer`]: texts to padded rows of token ids, and ids to text.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::path::Path;

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, TruncationDirection};
use trireme_inference::Tensor;

use crate::core::Core;
use crate::family::Template;
use crate::files::{Files, Translation};
use crate::truncate::kept_tokens;
use crate::{Padding, RequestOptions, Side, TextError, TokenizeOptions, Truncation};

/// The most tokens, padding included, that one call of [`TextTokenizer::encode`] makes: 128 MiB for each output. What
/// keeps one long text among many short ones from filling the memory with padding.
pub const MAX_PADDED_TOKENS: usize = 1 << 24;

/// A tokenizer with its options. Encoding and decoding need `&self` only.
#[derive(Debug)]
pub struct TextTokenizer {
    /// Without truncation, padding and post-processor: those come after it, here.
    core: Core,
    post_processor: Option<PostProcessorWrapper>,
    translation: Option<Translation>,
    options: TokenizeOptions,
    /// Most tokens of a row; `None` is no limit.
    max_length: Option<usize>,
    truncation_side: Side,
    padding_side: Side,
    pad_id: i64,
    pad_type_id: i64,
}

/// Rows of tokens, all of one length: row-major `[rows, length]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Number of texts, or of pairs of texts.
    pub rows: usize,
    /// Tokens in each row, padding included.
    pub length: usize,
    /// Token ids.
    pub input_ids: Vec<i64>,
    /// 1 for a token, 0 for padding.
    pub attention_mask: Vec<i64>,
    /// Which text of a pair a token belongs to, as the tokenizer's post-processor says.
    pub token_type_ids: Vec<i64>,
    /// The token that the output has to begin with, so that it is in the target language; `None` where no target language
    /// was given, or the model is told of it otherwise.
    pub forced_bos_token_id: Option<i64>,
}

/// The texts of a BYTES tensor, row-major. Errors for another datatype, or name the first element that is not UTF-8.
pub fn texts_of(tensor: &Tensor) -> Result<Vec<&str>, TextError> {
    let text = |(index, element)| {
        std::str::from_utf8(element).map_err(|error| TextError::InvalidUtf8 {
            tensor: tensor.name().to_owned(),
            index,
            offset: error.valid_up_to(),
        })
    };
    tensor.bytes_elements()?.enumerate().map(text).collect()
}

// === impl TextTokenizer ===

impl TextTokenizer {
    /// Loads `tokenizer.json`, or else a SentencePiece model, and, where there is one, `tokenizer_config.json` of `directory`. Options that the
    /// tokenizer cannot follow are errors here, not when a text comes.
    pub fn load(directory: &Path, options: TokenizeOptions) -> Result<TextTokenizer, TextError> {
        let files = Files::read(directory)?;
        let mut faults = Vec::new();
        let max_length = options.max_length.map(NonZeroUsize::get).or(files.max_length);
        let mut tokenizer = TextTokenizer {
            core: files.core,
            post_processor: files.post_processor,
            translation: files.translation,
            max_length,
            truncation_side: options.truncation_side.unwrap_or(files.truncation_side),
            padding_side: options.padding_side.unwrap_or(files.padding_side),
            pad_id: 0,
            pad_type_id: i64::from(files.pad_type_id),
            options,
        };
        let options = &tokenizer.options;
        let special_tokens = match tokenizer.around(&RequestOptions::default()) {
            Ok(around) => tokenizer.special_tokens(&around, false),
            Err(error) => {
                faults.push(error.to_string());
                0
            }
        };
        if let Some(length) = max_length.filter(|&length| length < special_tokens) {
            faults.push(format!("'max_length' is {length}, expected at least the {special_tokens} special tokens"));
        }
        if options.padding == Padding::MaxLength && max_length.is_none() {
            faults.push("'padding' is 'max_length', but neither 'max_length' nor model_max_length is given".to_owned());
        }
        if let (Some(multiple), Some(length)) = (options.pad_to_multiple_of, max_length)
            && options.padding != Padding::None
            && options.truncation != Truncation::Off
            && length % multiple != 0
        {
            faults.push(format!("'max_length' is {length}, expected a multiple of 'pad_to_multiple_of', {multiple}"));
        }
        let pad_token = options.pad_token.clone().or(files.pad_token);
        let pad_id = match (&pad_token, options.padding) {
            (_, Padding::None) => Some(0),
            (Some(token), _) => {
                let id = tokenizer.core.token_to_id(token);
                if id.is_none() {
                    faults.push(format!("padding token '{token}' is not in the vocabulary"));
                }
                id
            }
            (None, _) => {
                faults.push(
                    "the tokenizer has no padding token: name one with 'pad_token', or set 'padding' to 'none'"
                        .to_owned(),
                );
                None
            }
        };
        let (true, Some(pad_id)) = (faults.is_empty(), pad_id) else { return Err(TextError::Options(faults)) };
        tokenizer.pad_id = i64::from(pad_id);
        Ok(tokenizer)
    }

    /// Encodes texts, or pairs of texts when `pairs` holds as many second ones. No text gives `[0, 0]`. One text that
    /// cannot be encoded fails the call.
    pub fn encode(
        &self,
        texts: &[&str],
        pairs: Option<&[&str]>,
        request: &RequestOptions<'_>,
    ) -> Result<Encoded, TextError> {
        if let Some(pairs) = pairs.filter(|p| p.len() != texts.len()) {
            return Err(TextError::PairCount { texts: texts.len(), pairs: pairs.len() });
        }
        let around = self.around(request)?;
        let row = |(index, &text)| self.encode_row(index, text, pairs.map(|p| p[index]), &around);
        let rows: Vec<Row> = texts.iter().enumerate().map(row).collect::<Result<_, _>>()?;
        let length = self.padded_length(&rows)?;

        let size = rows.len().checked_mul(length).filter(|&size| size <= MAX_PADDED_TOKENS);
        let size = size.ok_or(TextError::TooManyTokens { rows: rows.len(), length })?;
        let mut encoded = Encoded {
            rows: rows.len(),
            length,
            input_ids: Vec::with_capacity(size),
            attention_mask: Vec::with_capacity(size),
            token_type_ids: Vec::with_capacity(size),
            forced_bos_token_id: around.forced_bos.map(i64::from),
        };
        for row in rows {
            let padding = length - row.ids.len();
            let (left, right) = match self.padding_side {
                Side::Left => (padding, 0),
                Side::Right => (0, padding),
            };
            extend_padded(&mut encoded.attention_mask, row.ids.iter().map(|_| 1), left, right, 0);
            extend_padded(&mut encoded.input_ids, row.ids.into_iter().map(i64::from), left, right, self.pad_id);
            let type_ids = row.type_ids.into_iter().map(i64::from);
            extend_padded(&mut encoded.token_type_ids, type_ids, left, right, self.pad_type_id);
        }
        Ok(encoded)
    }

    /// The text of `ids`, as the model's own tokenizer joins it; ids that are in no vocabulary are passed over.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        self.core.decode(ids, skip_special_tokens)
    }

    /// What `ids` add to the text of the first `sent` of them, which was given before by this function. Together the
    /// pieces are the text of all ids: what more ids may still change, such as half a character, waits for the call that
    /// is the `last`.
    pub fn decode_next(
        &self,
        ids: &[u32],
        sent: usize,
        last: bool,
        skip_special_tokens: bool,
    ) -> Result<String, TextError> {
        let mut text = if last {
            self.core.decode(ids, skip_special_tokens)?
        } else {
            self.core.decode_beginning(ids, skip_special_tokens)?
        };
        let sent = sent.min(ids.len());
        let before = self.core.decode_beginning(&ids[..sent], skip_special_tokens)?;
        if !text.starts_with(&before) {
            return Err(TextError::NotIncremental { sent, total: ids.len() });
        }
        text.drain(..before.len());
        Ok(text)
    }

    /// What goes around the texts of a request.
    fn around<'a>(&'a self, request: &RequestOptions<'a>) -> Result<Around<'a>, TextError> {
        let ours = |own: &'a Option<String>| own.as_deref();
        let prefix = request.prefix.unwrap_or(&self.options.prefix);
        let source = request.source_language.or(ours(&self.options.source_language));
        let target = request.target_language.or(ours(&self.options.target_language));
        let translation = self.translation.as_ref();
        let token = |parameter, language: Option<&str>, known: bool| {
            language.map(|language| {
                let found = translation.filter(|_| known).filter(|t| !t.languages.0.is_empty());
                let language = language.to_owned();
                let Some(found) = found else { return Err(TextError::NoLanguages { parameter, language }) };
                let id = found.languages.id(&language);
                id.ok_or_else(|| TextError::UnknownLanguage { parameter, language, known: found.languages.known() })
            })
        };
        let begins_output = translation.is_some_and(|t| t.family.target_begins_output());
        let source = token("source_language", source, begins_output).transpose()?;
        let target = token("target_language", target, true).transpose()?;
        let Some(translation) = translation else { return Ok(Around { prefix, template: None, forced_bos: None }) };

        let of_files = |language: &Option<String>| language.as_ref().and_then(|l| translation.languages.id(l));
        let source = source.or_else(|| of_files(&translation.source));
        let target = target.or_else(|| of_files(&translation.target));
        // The template in tokenizer.json is for one language. Without languages it is as good as ours.
        let is_ours = matches!(self.core, Core::Slow(_)) || !translation.languages.0.is_empty();
        let template =
            is_ours.then(|| translation.family.template(translation.eos, source, target, translation.legacy));
        Ok(Around { prefix, template, forced_bos: target.filter(|_| begins_output) })
    }

    /// One row without padding.
    fn encode_row(&self, index: usize, text: &str, pair: Option<&str>, around: &Around<'_>) -> Result<Row, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let text = match around.prefix {
            "" => Cow::Borrowed(text),
            prefix => Cow::Owned(format!("{prefix}{text}")),
        };
        let (Core::Json(tokenizer), None) = (&self.core, &around.template) else {
            let template = around.template.clone().unwrap_or_default();
            let mut first = self.core.ids(&text).map_err(failed)?;
            let mut second = pair.map(|p| self.core.ids(p)).transpose().map_err(failed)?;
            if let Some(kept) = self.kept(index, first.len(), second.as_ref().map(Vec::len), around)? {
                self.truncate_ids(&mut first, kept.0);
                if let Some(second) = &mut second {
                    self.truncate_ids(second, kept.1);
                }
            }
            let template = if self.options.add_special_tokens { template } else { Template::default() };
            let ids = template.row(&first, second.as_deref());
            return Ok(Row { type_ids: vec![0; ids.len()], ids });
        };
        let mut first = tokenizer.encode_fast(text, false).map_err(failed)?;
        let mut second = pair.map(|p| tokenizer.encode_fast(p, false)).transpose().map_err(failed)?;
        if let Some(kept) = self.kept(index, first.len(), second.as_ref().map(Encoding::len), around)? {
            self.truncate(&mut first, kept.0);
            if let Some(second) = &mut second {
                self.truncate(second, kept.1);
            }
        }
        let encoding = match &self.post_processor {
            Some(processor) => processor.process(first, second, self.options.add_special_tokens).map_err(failed)?,
            None => {
                if let Some(mut second) = second {
                    second.set_type_ids(vec![1; second.len()]);
                    first.merge_with(second, false);
                }
                first
            }
        };
        Ok(Row { ids: encoding.get_ids().to_vec(), type_ids: encoding.get_type_ids().to_vec() })
    }

    /// How many tokens of each text a row keeps; `None`: all.
    fn kept(
        &self,
        index: usize,
        first: usize,
        second: Option<usize>,
        around: &Around<'_>,
    ) -> Result<Option<(usize, usize)>, TextError> {
        let Some(max_length) = self.max_length.filter(|_| self.options.truncation != Truncation::Off) else {
            return Ok(None);
        };
        let special_tokens = self.special_tokens(around, second.is_some());
        let truncated = |reason| TextError::Truncation { index, reason };
        let room = max_length.checked_sub(special_tokens).ok_or_else(|| {
            truncated(format!("the {special_tokens} special tokens of a pair exceed 'max_length', {max_length}"))
        })?;
        kept_tokens(first, second, room, self.options.truncation).map(Some).map_err(truncated)
    }

    /// Cuts `encoding` to `length` tokens and drops the pieces cut off.
    fn truncate(&self, encoding: &mut Encoding, length: usize) {
        let direction = match self.truncation_side {
            Side::Left => TruncationDirection::Left,
            Side::Right => TruncationDirection::Right,
        };
        encoding.truncate(length, 0, direction);
        encoding.take_overflowing();
    }

    fn truncate_ids(&self, ids: &mut Vec<u32>, length: usize) {
        match self.truncation_side {
            Side::Left => drop(ids.drain(..ids.len() - length)),
            Side::Right => ids.truncate(length),
        }
    }

    /// Number of special tokens that a row gets.
    fn special_tokens(&self, around: &Around<'_>, pair: bool) -> usize {
        match (&around.template, &self.post_processor) {
            _ if !self.options.add_special_tokens => 0,
            (Some(template), _) => template.len(pair),
            (None, processor) => processor.as_ref().map_or(0, |p| p.added_tokens(pair)),
        }
    }

    /// The length that rows are padded to.
    fn padded_length(&self, rows: &[Row]) -> Result<usize, TextError> {
        let longest = rows.iter().map(|r| r.ids.len()).max().unwrap_or(0);
        let length = match self.options.padding {
            Padding::None => {
                let expected = rows.first().map_or(0, |r| r.ids.len());
                if let Some(index) = rows.iter().position(|r| r.ids.len() != expected) {
                    return Err(TextError::UnequalLengths { index, expected, actual: rows[index].ids.len() });
                }
                return Ok(expected);
            }
            Padding::MaxLength if rows.is_empty() => 0,
            Padding::MaxLength => {
                let length = self.max_length.expect("checked when the tokenizer was loaded");
                if let Some(index) = rows.iter().position(|r| r.ids.len() > length) {
                    return Err(TextError::LongerThanPadding { index, actual: rows[index].ids.len(), length });
                }
                length
            }
            Padding::Longest => longest,
        };
        let multiple = self.options.pad_to_multiple_of.map_or(1, NonZeroUsize::get);
        length.checked_next_multiple_of(multiple).ok_or(TextError::TooManyTokens { rows: rows.len(), length })
    }
}

/// One text's tokens.
struct Row {
    ids: Vec<u32>,
    type_ids: Vec<u32>,
}

/// What goes around the texts of a request.
struct Around<'a> {
    prefix: &'a str,
    /// The special tokens of each row; `None`: the post-processor of `tokenizer.json` knows them.
    template: Option<Template>,
    forced_bos: Option<u32>,
}

/// Appends `row` with `left` and `right` times `padding` around it.
fn extend_padded(matrix: &mut Vec<i64>, row: impl Iterator<Item = i64>, left: usize, right: usize, padding: i64) {
    matrix.extend(std::iter::repeat_n(padding, left));
    matrix.extend(row);
    matrix.extend(std::iter::repeat_n(padding, right));
}
