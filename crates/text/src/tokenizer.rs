//! [`TextTokenizer`]: texts to padded rows of token ids, and ids to text.

use std::num::NonZeroUsize;
use std::path::Path;

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Tokenizer, TruncationDirection};
use trireme_inference::Tensor;

use crate::files::Files;
use crate::truncate::kept_tokens;
use crate::{Padding, Side, TextError, TokenizeOptions, Truncation};

/// The most tokens, padding included, that one call of [`TextTokenizer::encode`] makes: 128 MiB for each output. What
/// keeps one long text among many short ones from filling the memory with padding.
pub const MAX_PADDED_TOKENS: usize = 1 << 24;

/// A tokenizer with its options. Encoding and decoding need `&self` only.
#[derive(Debug)]
pub struct TextTokenizer {
    /// Without truncation, padding and post-processor: those come after it, here.
    tokenizer: Tokenizer,
    post_processor: Option<PostProcessorWrapper>,
    options: TokenizeOptions,
    /// Most tokens of a row; `None` is no limit.
    max_length: Option<usize>,
    truncation_direction: TruncationDirection,
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
    /// Loads `tokenizer.json` and, where there is one, `tokenizer_config.json` of `directory`. Options that the
    /// tokenizer cannot follow are errors here, not when a text comes.
    pub fn load(directory: &Path, options: TokenizeOptions) -> Result<TextTokenizer, TextError> {
        let mut files = Files::read(directory)?;
        let post_processor = files.tokenizer.get_post_processor().cloned();
        files.tokenizer.with_post_processor(None::<PostProcessorWrapper>);

        let mut faults = Vec::new();
        let max_length = options.max_length.map(NonZeroUsize::get).or(files.max_length);
        let special_tokens = special_tokens(post_processor.as_ref(), false, &options);
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
                let id = files.tokenizer.token_to_id(token);
                if id.is_none() {
                    faults.push(format!("padding token '{token}' is not in the vocabulary of tokenizer.json"));
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
        Ok(TextTokenizer {
            tokenizer: files.tokenizer,
            post_processor,
            max_length,
            truncation_direction: match options.truncation_side.unwrap_or(files.truncation_side) {
                Side::Left => TruncationDirection::Left,
                Side::Right => TruncationDirection::Right,
            },
            padding_side: options.padding_side.unwrap_or(files.padding_side),
            pad_id: i64::from(pad_id),
            pad_type_id: i64::from(files.pad_type_id),
            options,
        })
    }

    /// Encodes texts, or pairs of texts when `pairs` holds as many second ones. No text gives `[0, 0]`. One text that
    /// cannot be encoded fails the call.
    pub fn encode(&self, texts: &[&str], pairs: Option<&[&str]>) -> Result<Encoded, TextError> {
        if let Some(pairs) = pairs.filter(|p| p.len() != texts.len()) {
            return Err(TextError::PairCount { texts: texts.len(), pairs: pairs.len() });
        }
        let row = |(index, &text)| self.encode_row(index, text, pairs.map(|p| p[index]));
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

    /// The text of `ids`, as the decoder in `tokenizer.json` joins it; ids that are in no vocabulary are passed over.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        self.tokenizer.decode(ids, skip_special_tokens).map_err(|error| TextError::Decode { reason: error.to_string() })
    }

    /// One row without padding.
    fn encode_row(&self, index: usize, text: &str, pair: Option<&str>) -> Result<Row, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let mut first = match self.options.prefix.as_str() {
            "" => self.tokenizer.encode_fast(text, false),
            prefix => self.tokenizer.encode_fast(format!("{prefix}{text}"), false),
        }
        .map_err(failed)?;
        let mut second = pair.map(|p| self.tokenizer.encode_fast(p, false)).transpose().map_err(failed)?;

        if let Some(max_length) = self.max_length.filter(|_| self.options.truncation != Truncation::Off) {
            let special_tokens = special_tokens(self.post_processor.as_ref(), pair.is_some(), &self.options);
            let truncated = |reason| TextError::Truncation { index, reason };
            let room = max_length.checked_sub(special_tokens).ok_or_else(|| {
                truncated(format!("the {special_tokens} special tokens of a pair exceed 'max_length', {max_length}"))
            })?;
            let second_length = second.as_ref().map(Encoding::len);
            let kept = kept_tokens(first.len(), second_length, room, self.options.truncation).map_err(truncated)?;
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

    /// Cuts `encoding` to `length` tokens and drops the pieces cut off.
    fn truncate(&self, encoding: &mut Encoding, length: usize) {
        encoding.truncate(length, 0, self.truncation_direction);
        encoding.take_overflowing();
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

/// Number of special tokens that a row gets.
fn special_tokens(processor: Option<&PostProcessorWrapper>, pair: bool, options: &TokenizeOptions) -> usize {
    processor.filter(|_| options.add_special_tokens).map_or(0, |p| p.added_tokens(pair))
}

/// Appends `row` with `left` and `right` times `padding` around it.
fn extend_padded(matrix: &mut Vec<i64>, row: impl Iterator<Item = i64>, left: usize, right: usize, padding: i64) {
    matrix.extend(std::iter::repeat_n(padding, left));
    matrix.extend(row);
    matrix.extend(std::iter::repeat_n(padding, right));
}
