//! [`TextTokenizer`]: converts texts to padded rows of token ids, and ids to text.

use std::num::NonZeroUsize;
use std::path::Path;

use trireme_inference::{Tensor, TextFacts};

use crate::around::{Around, role};
use crate::chat::Chat;
use crate::core::Core;
use crate::encoded::{Encoded, Extras, extend_padded};
use crate::files::{TokenizerFiles, Translation};
use crate::limits::MAX_PADDED_TOKENS;
use crate::row::{Row, RowEncoder};
use crate::sides::{Sides, join_prompts};
use crate::window::Window;
use crate::windows::Cutting;
use crate::{LongTexts, MessageFormat, Padding, RequestOptions, Side, TextError, TokenizeOptions, Truncation};

/// A tokenizer with its options. Encoding and decoding need `&self` only.
///
/// A tokenizer of four tokens:
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let directory = directory.path();
/// use trireme_text::{RequestOptions, TextTokenizer, TokenizeOptions};
///
/// let file = r#"{"version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
///     "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
///     "model": {"type": "WordLevel", "unk_token": "[UNK]",
///               "vocab": {"[PAD]": 0, "[UNK]": 1, "hello": 2, "world": 3}}}"#;
/// std::fs::write(directory.join("tokenizer.json"), file)?;
/// let tokenizer = TextTokenizer::load(directory, TokenizeOptions::default())?;
///
/// let encoded = tokenizer.encode(&["Hello world", "hello"], None, &RequestOptions::default())?;
/// assert_eq!((encoded.rows, encoded.length), (2, 2));
/// assert_eq!((encoded.input_ids, encoded.attention_mask), (vec![2, 3, 2, 0], vec![1, 1, 1, 0]));
/// assert_eq!(tokenizer.decode(&[2, 3], true)?, "hello world");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TextTokenizer {
    pub(crate) encoder: RowEncoder,
    translation: Option<Translation>,
    pub(crate) options: TokenizeOptions,
    /// `unk_token`, if the files name one.
    pub(crate) unknown_token: Option<String>,
    /// The token that fills rows up, if an option or the files name one.
    pub(crate) padding_token: Option<String>,
    /// Most tokens of a row; `None` means no limit.
    max_length: Option<usize>,
    /// Queries and documents.
    sides: Sides,
    truncation_side: Side,
    padding_side: Side,
    pub(crate) pad_id: i64,
    pub(crate) pad_type_id: i64,
}

/// The texts of a BYTES tensor, row-major. Errors for another datatype; for invalid UTF-8 the error names the first
/// such element.
///
/// ```
/// # use trireme_inference::Tensor;
/// use trireme_text::{TextError, texts_of};
///
/// let tensor = Tensor::from_bytes_elements("TEXT", [2], &["hello", "naïve"])?;
/// assert_eq!(texts_of(&tensor)?, ["hello", "naïve"]);
/// let tensor = Tensor::from_bytes_elements("TEXT", [1], &[[0xff]])?;
/// assert!(matches!(texts_of(&tensor), Err(TextError::InvalidUtf8 { index: 0, .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// Whether texts of any length are cut to one that is known.
    pub fn is_limited(&self) -> bool {
        self.max_length.is_some() || self.encoder.max_characters.is_some()
    }

    /// Loads `tokenizer.json` or a SentencePiece model from `directory`, and `tokenizer_config.json` if it exists.
    /// Errors if the tokenizer cannot follow the options, so that this does not fail later at a text.
    pub fn load(directory: &Path, options: TokenizeOptions) -> Result<TextTokenizer, TextError> {
        let mut files = TokenizerFiles::read(directory)?;
        let mut faults = Vec::new();
        if options.prompts_as_tokens {
            faults.extend(join_prompts(&mut files.core, options.prompts.values()).err());
        }
        let sides = Sides::new(&options, &files.core, files.mask_token, files.end_token, &mut faults);
        let max_length = options.max_length.map(NonZeroUsize::get).or(files.max_length);
        let chat = options.message_format.map(|format| Chat::read(directory, format, &options.chat_template_kwargs));
        let chat = chat.transpose()?;
        let conversations = Chat::read(directory, MessageFormat::Flat, &options.chat_template_kwargs);
        if chat.is_some() {
            faults.extend(chat_faults(&options, &files.core));
        }
        let mut tokenizer = TextTokenizer {
            encoder: RowEncoder {
                core: files.core,
                post_processor: files.post_processor,
                chat,
                conversations: conversations.map_err(|error| match error {
                    TextError::Options(_) => "the model has no chat template: send texts".to_owned(),
                    TextError::Malformed { reason, .. } => format!("the model's chat template is not valid: {reason}"),
                    _ => "the model's chat template cannot be read".to_owned(),
                }),
                max_characters: options.max_characters,
            },
            translation: files.translation,
            max_length,
            sides,
            truncation_side: options.truncation_side.unwrap_or(files.truncation_side),
            padding_side: options.padding_side.unwrap_or(files.padding_side),
            pad_id: 0,
            pad_type_id: i64::from(files.pad_type_id),
            unknown_token: files.unknown_token,
            padding_token: options.pad_token.clone().or(files.pad_token),
            options,
        };
        let options = &tokenizer.options;
        let special_tokens = match tokenizer.around(&RequestOptions::default()) {
            Ok(around) => tokenizer.encoder.frame_tokens(&around),
            Err(error) => {
                faults.push(error.to_string());
                0
            }
        };
        if let Some(length) = max_length.filter(|&length| length < special_tokens) {
            faults
                .push(format!("'max_length' is {length}, expected at least the {special_tokens} tokens around texts"));
        }
        if let (Padding::To(to), Some(length)) = (options.padding, max_length)
            && length > to.get()
        {
            faults.push(format!("'max_length' is {length}, expected at most the {to} of 'padding'"));
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
        let pad_id = match (&tokenizer.padding_token, options.padding) {
            (_, Padding::None) => Some(0),
            (Some(token), _) => {
                let id = tokenizer.encoder.core.token_to_id(token);
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
        faults.extend(tokenizer.span_faults());
        let (true, Some(pad_id)) = (faults.is_empty(), pad_id) else { return Err(TextError::Options(faults)) };
        tokenizer.pad_id = i64::from(pad_id);
        Ok(tokenizer)
    }

    /// An error where this tokenizer cannot give one of the further outputs: only `tokenizer.json` says which characters a token
    /// stands for.
    pub fn check(&self, extras: Extras) -> Result<(), TextError> {
        let around = self.around(&RequestOptions::default())?;
        let output = match extras {
            Extras { spans: true, .. } if self.options.spans.is_none() => {
                return Err(TextError::Options(vec![
                    "outputs of words and spans need parameter 'spans', which says how labels stand before texts"
                        .to_owned(),
                ]));
            }
            Extras { offsets: true, .. } => "offsets",
            Extras { windows: true, .. } => "windows",
            Extras { special_tokens_mask: true, .. } => "special_tokens_mask",
            _ => return Ok(()),
        };
        match (&self.encoder.core, around.template) {
            (Core::Json(_), None) => Ok(()),
            (Core::Slow(_), _) => Err(TextError::NoOffsets { output, kind: "has no tokenizer.json" }),
            (Core::Json(_), Some(_)) => Err(TextError::NoOffsets { output, kind: "is one of a translation model" }),
        }
    }

    /// Why the tokenizer's chat template, if it has one, cannot carry texts that come alone (`false`) or those of pairs (`true`).
    pub fn check_messages(&self, pairs: bool) -> Result<(), TextError> {
        self.encoder.chat.as_ref().map_or(Ok(()), |chat| chat.check(pairs))
    }

    /// Encodes texts, or pairs of texts if `pairs` has as many second ones. No texts give `[0, 0]`. If one text cannot
    /// be encoded, the call fails.
    pub fn encode(
        &self,
        texts: &[&str],
        pairs: Option<&[&str]>,
        request: &RequestOptions<'_>,
    ) -> Result<Encoded, TextError> {
        self.encode_with(texts, pairs, request, Extras::default())
    }

    /// The same, with `extras`, which [`TextTokenizer::check`] has found possible.
    ///
    /// ```
    /// # use std::path::Path;
    /// # use trireme_text::{RequestOptions, TextTokenizer, TokenizeOptions};
    /// let tokenizer = TextTokenizer::load(Path::new("tests/golden/wordpiece"), TokenizeOptions::default())?;
    /// use trireme_text::Extras;
    ///
    /// let extras = Extras { offsets: true, ..Extras::default() };
    /// tokenizer.check(extras)?;
    /// let encoded = tokenizer.encode_with(&["the harbour"], None, &RequestOptions::default(), extras)?;
    /// assert_eq!(encoded.offsets[..4], [0, 0, 0, 3], "[CLS] stands for no text, and 'the' for three characters");
    /// # Ok::<(), trireme_text::TextError>(())
    /// ```
    pub fn encode_with(
        &self,
        texts: &[&str],
        pairs: Option<&[&str]>,
        request: &RequestOptions<'_>,
        extras: Extras,
    ) -> Result<Encoded, TextError> {
        if let Some(pairs) = pairs.filter(|p| p.len() != texts.len()) {
            return Err(TextError::PairCount { texts: texts.len(), pairs: pairs.len() });
        }
        if extras.spans {
            return self.encode_spans(texts, pairs, request, extras);
        }
        let around = Around { offsets: extras.offsets || extras.token_lists, ..self.around(request)? };
        if !extras.windows && !extras.token_lists && !extras.decoded {
            let asked = [
                ("windows", request.windows == Some(true)),
                ("overlap", request.overlap.is_some()),
                ("max_windows", request.max_windows.is_some()),
            ];
            if let Some((parameter, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
                return Err(TextError::NoWindows { parameter });
            }
        }
        let in_windows = extras.windows && self.is_in_windows(request);
        let cutting = Cutting { overlap: request.overlap, of: self.options.windows_of, most: request.max_windows };
        let (mut rows, rows_of_each) = self.rows_of(texts, |index, text, rows: &mut Vec<Row>| {
            let pair = pairs.map(|pairs| pairs[index]);
            if in_windows {
                rows.extend(self.encoder.encode_windows(index, text, pair, cutting, &around)?);
                return Ok(());
            }
            let mut row = self.encoder.encode_row(index, text, pair, &around)?;
            if extras.windows {
                row.window = Window::whole(index, pair.unwrap_or(text));
            }
            rows.push(row);
            Ok(())
        })?;
        rows.iter_mut().for_each(|row| self.sides.expand(around.role, row));
        let mut encoded = Encoded {
            forced_bos_token_id: around.forced_bos.map(i64::from),
            ..self.matrices_of(&rows, &rows_of_each)?
        };
        let prompt_tokens = if extras.pooling_mask { self.encoder.prompt_tokens(&around)? } else { 0 };
        for (index, row) in rows.into_iter().enumerate() {
            // Lists and decoded texts are asked for without windows.
            let index = if extras.windows { row.window.text } else { index };
            let (left, right) = self.sides_of_padding(encoded.length - row.ids.len());
            if extras.token_lists {
                encoded.token_lists.push(self.list(&row, texts[index], pairs.map(|pairs| pairs[index])));
            }
            if extras.decoded {
                encoded.decoded.push(self.decode(&row.ids, request.skip_special_tokens.unwrap_or(true))?);
            }
            encoded.extend(&row, (left, right), prompt_tokens, extras, i64::from(self.options.first_position));
            let texts = row.ids.len() - row.expansion;
            let attended = (0..row.ids.len()).map(|position| i64::from(position < texts || row.attends));
            extend_padded(&mut encoded.attention_mask, attended, left, right, 0);
            if extras.scoring_mask {
                let counted = row.ids.iter().map(|&id| i64::from(self.sides.counts(around.role, id)));
                extend_padded(&mut encoded.scoring_mask, counted, left, right, 0);
            }
            extend_padded(&mut encoded.input_ids, row.ids.into_iter().map(i64::from), left, right, self.pad_id);
            let types = i64::from(self.options.token_types);
            let type_ids = row.type_ids.into_iter().map(|id| i64::from(id) * types);
            extend_padded(&mut encoded.token_type_ids, type_ids, left, right, self.pad_type_id);
        }
        Ok(encoded)
    }

    /// Whether a long text of the request becomes windows, where the model takes them.
    pub(crate) fn is_in_windows(&self, request: &RequestOptions<'_>) -> bool {
        request.windows.unwrap_or(self.options.long_texts == LongTexts::Windows)
    }

    /// The rows of all texts, to which `add_rows` adds those of one text, and how many each text has.
    pub(crate) fn rows_of<R: AsRef<Row>>(
        &self,
        texts: &[&str],
        add_rows: impl Fn(usize, &str, &mut Vec<R>) -> Result<(), TextError>,
    ) -> Result<(Vec<R>, Vec<usize>), TextError> {
        let (mut rows, mut rows_of_each) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
        for (index, &text) in texts.iter().enumerate() {
            let before = rows.len();
            add_rows(index, text, &mut rows)?;
            rows_of_each.push(rows.len() - before);
            // All rows get the length of the longest, so one that is too long for that ends the work early.
            let length = rows.last().map_or(0, |row| row.as_ref().ids.len());
            self.check_size(rows.len().max(texts.len()), length.max(1))?;
        }
        Ok((rows, rows_of_each))
    }

    /// The counts of these rows, and matrices with room for them.
    pub(crate) fn matrices_of(&self, rows: &[Row], rows_of_each: &[usize]) -> Result<Encoded, TextError> {
        let length = self.padded_length(rows)?;
        let size = self.check_size(rows.len(), length)?;
        let mut rest = rows;
        let each = rows_of_each.iter().map(|&count| {
            let (own, others) = rest.split_at(count);
            rest = others;
            facts(own)
        });
        let each_text: Vec<TextFacts> = each.collect();
        let all = each_text.iter().copied().reduce(TextFacts::and).unwrap_or_default();
        Ok(Encoded {
            rows: rows.len(),
            length,
            tokens: all.tokens,
            windowed: all.windows,
            truncated: all.truncated,
            each_text,
            input_ids: Vec::with_capacity(size),
            attention_mask: Vec::with_capacity(size),
            token_type_ids: Vec::with_capacity(size),
            ..Encoded::default()
        })
    }

    /// How much of the padding of a row is on its left, and on its right.
    pub(crate) fn sides_of_padding(&self, padding: usize) -> (usize, usize) {
        match self.padding_side {
            Side::Left => (padding, 0),
            Side::Right => (0, padding),
        }
    }

    /// The number of tokens, padding included.
    pub(crate) fn check_size(&self, rows: usize, length: usize) -> Result<usize, TextError> {
        let size = rows.checked_mul(length).filter(|&size| size <= MAX_PADDED_TOKENS);
        size.ok_or(TextError::TooManyTokens { rows, length })
    }

    /// The text of `ids`, joined as by the model's own tokenizer; unknown ids are skipped.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        self.encoder.core.decode(ids, skip_special_tokens)
    }

    /// The text that `ids` add to the text of the first `sent` of them, which earlier calls returned. All returned
    /// pieces together are the text of all ids. Text that further ids may still change, such as half a character, is
    /// held back until the `last` call.
    ///
    /// ```
    /// # use std::path::Path;
    /// # use trireme_text::{RequestOptions, TextTokenizer, TokenizeOptions};
    /// let tokenizer = TextTokenizer::load(Path::new("tests/golden/wordpiece"), TokenizeOptions::default())?;
    /// let encoded = tokenizer.encode(&["the harbour"], None, &RequestOptions::default())?;
    /// let ids: Vec<u32> = encoded.input_ids.iter().map(|&id| id as u32).collect();
    /// let (mut text, mut sent) = (String::new(), 0);
    /// for count in 1..=ids.len() {
    ///     text += &tokenizer.decode_next(&ids[..count], sent, count == ids.len(), true)?;
    ///     sent = count;
    /// }
    /// assert_eq!(text, "the harbour");
    /// # Ok::<(), trireme_text::TextError>(())
    /// ```
    pub fn decode_next(
        &self,
        ids: &[u32],
        sent: usize,
        last: bool,
        skip_special_tokens: bool,
    ) -> Result<String, TextError> {
        let mut text = if last {
            self.encoder.core.decode(ids, skip_special_tokens)?
        } else {
            self.encoder.core.decode_beginning(ids, skip_special_tokens)?
        };
        let sent = sent.min(ids.len());
        let before = self.encoder.core.decode_beginning(&ids[..sent], skip_special_tokens)?;
        if !text.starts_with(&before) {
            return Err(TextError::NotIncremental { sent, total: ids.len() });
        }
        text.drain(..before.len());
        Ok(text)
    }

    /// The prefix and special tokens around the texts of a request.
    pub(crate) fn around<'a>(&'a self, request: &RequestOptions<'a>) -> Result<Around<'a>, TextError> {
        let ours = |own: &'a Option<String>| own.as_deref();
        let longest = self.sides.max_length(role(request), self.max_length);
        let around = Around::new(&self.options, request, longest, self.truncation_side)?;
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
        let Some(translation) = translation else { return Ok(around) };

        let of_files = |language: &Option<String>| language.as_ref().and_then(|l| translation.languages.id(l));
        let source = source.or_else(|| of_files(&translation.source));
        let target = target.or_else(|| of_files(&translation.target));
        // The template in tokenizer.json is for one language. For a tokenizer without languages that is enough.
        let is_ours = matches!(self.encoder.core, Core::Slow(_)) || !translation.languages.0.is_empty();
        let template =
            is_ours.then(|| translation.family.template(translation.eos, source, target, translation.legacy));
        Ok(Around { template, forced_bos: target.filter(|_| begins_output), ..around })
    }

    /// The length to which rows are padded.
    pub(crate) fn padded_length(&self, rows: &[Row]) -> Result<usize, TextError> {
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
            Padding::To(length) => {
                if let Some(index) = rows.iter().position(|r| r.ids.len() > length.get()) {
                    let (actual, length) = (rows[index].ids.len(), length.get());
                    return Err(TextError::LongerThanPadding { index, actual, length });
                }
                length.get()
            }
            Padding::Longest => longest,
        };
        let multiple = self.options.pad_to_multiple_of.map_or(1, NonZeroUsize::get);
        length.checked_next_multiple_of(multiple).ok_or(TextError::TooManyTokens { rows: rows.len(), length })
    }
}

/// The counts of the rows of one text.
fn facts(rows: &[Row]) -> TextFacts {
    TextFacts {
        tokens: rows.iter().map(|row| (row.ids.len() - row.expansion) as u64).sum(),
        truncated: rows.iter().filter(|row| row.truncated).count() as u64,
        windows: if rows.len() > 1 { rows.len() as u64 } else { 0 },
    }
}

/// Options that a chat template does not go with.
fn chat_faults(options: &TokenizeOptions, core: &Core) -> Vec<String> {
    let faults = [
        (matches!(core, Core::Slow(_)), "'message_format' needs a tokenizer.json"),
        (options.query_expansion.is_some(), "'message_format' and 'query_expansion' are both given, expected one"),
        (options.max_characters.is_some(), "'message_format' and 'max_characters' are both given, expected one"),
        (
            matches!(options.truncation, Truncation::OnlyFirst | Truncation::OnlySecond),
            "'truncation' has to be 'true' or 'false' beside 'message_format'",
        ),
    ];
    faults.into_iter().filter(|(is_fault, _)| *is_fault).map(|(_, fault)| fault.to_owned()).collect()
}
