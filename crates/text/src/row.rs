//! One row: the tokens of a text or a pair, cut to the longest row, without padding.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::ops::Range;

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, TruncationDirection};

use crate::around::Around;
use crate::chat::{Chat, Place, kept};
use crate::core::Core;
use crate::part::part;
use crate::truncate::kept_tokens;
use crate::window::Window;
use crate::{Side, TextError, Truncation};

/// Makes rows of texts.
#[derive(Debug)]
pub(crate) struct RowEncoder {
    /// Without truncation, padding and post-processor, which follow in this crate.
    pub(crate) core: Core,
    pub(crate) post_processor: Option<PostProcessorWrapper>,
    /// The chat template, which makes one text of messages; `None`: texts are tokenized as they come.
    pub(crate) chat: Option<Chat>,
    /// The chat template for conversations, where `chat` is not there; the error says why there is none.
    pub(crate) conversations: Result<Chat, String>,
    /// Most characters of a text that are tokenized; `None` is no limit.
    pub(crate) max_characters: Option<NonZeroUsize>,
}

/// The tokens of one text or pair.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) ids: Vec<u32>,
    pub(crate) type_ids: Vec<u32>,
    /// Whether the row was too long and lost tokens.
    pub(crate) truncated: bool,
    /// 1 for tokens that stand for no text; empty for tokenizers that do not say.
    pub(crate) special: Vec<u32>,
    /// The characters of its text that each token stands for, the prefix not counted; empty where they were not asked for.
    pub(crate) offsets: Vec<(usize, usize)>,
    /// Which text of a pair each token is of; `None` for special tokens and those of a prefix. Empty like `offsets`.
    pub(crate) sequences: Vec<Option<usize>>,
    /// How many tokens at the end fill a query up.
    pub(crate) expansion: usize,
    /// Whether the model attends to them.
    pub(crate) attends: bool,
    /// The part of its text that the row holds; only rows of windows have it.
    pub(crate) window: Window,
}

// === impl Row ===

impl AsRef<Row> for Row {
    fn as_ref(&self) -> &Row {
        self
    }
}

// === impl RowEncoder ===

impl RowEncoder {
    /// One row without padding.
    pub(crate) fn encode_row(
        &self,
        index: usize,
        text: &str,
        pair: Option<&str>,
        around: &Around<'_>,
    ) -> Result<Row, TextError> {
        if around.token_ids || around.messages {
            return match pair {
                None if around.token_ids => self.row_of_ids(index, text, around),
                None => self.row_of_messages(index, text, around),
                Some(_) => Err(TextError::Parameter {
                    parameter: if around.token_ids { "token_ids" } else { "messages" },
                    found: "true".to_owned(),
                    expected: "pairs to come as texts",
                }),
            };
        }
        let part = self.needed(index, text, around.most[0], around)?;
        let pair_part = pair.map(|pair| self.needed(index, pair, around.most[1], around)).transpose()?;
        let is_part = part.len() < text.len() || pair_part.map(str::len) < pair.map(str::len);
        let row = self.encode_texts(index, part, pair_part, around);
        let mut row = row.map_err(|error| if is_part { error.of_part() } else { error })?;
        row.truncated |= is_part;
        Ok(row)
    }

    /// The part of a text, of which at most `most` tokens stay, that its row is made of.
    fn needed<'t>(
        &self,
        index: usize,
        text: &'t str,
        most: Option<NonZeroUsize>,
        around: &Around<'_>,
    ) -> Result<&'t str, TextError> {
        let Some((tokens, side)) = around.limit(most) else { return Ok(text) };
        let part = part(&self.core, text, tokens, side);
        part.map_err(|error| TextError::Encode { index, reason: error.to_string() })
    }

    /// The row of a text or a pair, which are not much longer than the row.
    fn encode_texts(
        &self,
        index: usize,
        text: &str,
        pair: Option<&str>,
        around: &Around<'_>,
    ) -> Result<Row, TextError> {
        let (whole, whole_pair) = (text, pair);
        let text = self.at_most(index, text, around.most[0])?;
        let pair = pair.map(|pair| self.at_most(index, pair, around.most[1])).transpose()?;
        let is_cut = text.len() < whole.len() || pair.as_ref().map(|pair| pair.len()) < whole_pair.map(str::len);
        let (text, pair) = (text.as_ref(), pair.as_deref());
        if let Some(chat) = &self.chat {
            let texts: Vec<&str> = [text].into_iter().chain(pair).collect();
            let mut row = self.encode_messages(chat, index, &texts, around)?;
            row.truncated |= is_cut;
            return Ok(row);
        }
        let text = match around.prefix.as_ref() {
            "" => Cow::Borrowed(text),
            prefix => Cow::Owned(format!("{prefix}{text}")),
        };
        let kept = self.beginning(index, &text, around)?;
        let mut row = self.encode_text(index, kept, pair, around)?;
        row.truncated |= is_cut || kept.len() < text.len();
        Ok(row)
    }

    /// The beginning of a text that has at most so many tokens.
    pub(crate) fn at_most<'t>(
        &self,
        index: usize,
        text: &'t str,
        most: Option<NonZeroUsize>,
    ) -> Result<Cow<'t, str>, TextError> {
        let Some(most) = most.map(NonZeroUsize::get) else { return Ok(Cow::Borrowed(text)) };
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        match &self.core {
            Core::Json(tokenizer) => {
                let encoding = tokenizer.encode(text, false).map_err(failed)?;
                let end = encoding.get_offsets().get(most).map_or(text.len(), |&(begin, _)| begin.min(text.len()));
                let end = (0..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
                Ok(Cow::Borrowed(&text[..end]))
            }
            Core::Slow(tokenizer) => {
                let ids = tokenizer.encode(text);
                match ids.get(..most).filter(|_| ids.len() > most) {
                    Some(kept) => Ok(Cow::Owned(tokenizer.decode(kept, false, true))),
                    None => Ok(Cow::Borrowed(text)),
                }
            }
        }
    }

    /// The characters of `text` that are tokenized.
    fn beginning<'t>(&self, index: usize, text: &'t str, around: &Around<'_>) -> Result<&'t str, TextError> {
        let most = self.max_characters.map(NonZeroUsize::get);
        let end = most.and_then(|most| Some((most, text.char_indices().nth(most)?.0)));
        match end {
            None => Ok(text),
            Some((max_characters, _)) if around.refuses_long => {
                Err(TextError::TooManyCharacters { index, length: text.chars().count(), max_characters })
            }
            Some((_, end)) => Ok(&text[..end]),
        }
    }

    /// The row of a JSON array of token ids. Nothing is put around them.
    fn row_of_ids(&self, index: usize, ids: &str, around: &Around<'_>) -> Result<Row, TextError> {
        let read = serde_json::from_str(ids);
        let mut ids: Vec<u32> = read.map_err(|error| TextError::NoIds { index, reason: error.to_string() })?;
        if let Some(&id) = ids.iter().find(|&&id| self.core.id_to_token(id).is_none()) {
            return Err(TextError::UnknownId { index, id });
        }
        let kept = self.kept(index, ids.len(), None, around)?;
        let truncated = kept.is_some_and(|(kept, _)| kept < ids.len());
        if let Some((kept, _)) = kept {
            truncate_ids(&mut ids, kept, around.truncation_side);
        }
        let special = self.special_mask(&ids);
        let offsets = if around.offsets { vec![(0, 0); ids.len()] } else { Vec::new() };
        Ok(Row { type_ids: vec![0; ids.len()], special, offsets, ids, truncated, ..Row::default() })
    }

    /// The row of a conversation, which the chat template makes a text of.
    fn row_of_messages(&self, index: usize, conversation: &str, around: &Around<'_>) -> Result<Row, TextError> {
        let failed = |reason: String| TextError::Conversation { index, reason };
        let chat = self.chat.as_ref().map_or_else(|| self.conversations.as_ref(), Ok);
        let chat = chat.map_err(|reason| failed(reason.clone()))?;
        let text = chat.converse(conversation, around.instruction).map_err(failed)?;
        let part = self.needed(index, &text, None, around)?;
        self.encode_text(index, part, None, around)
    }

    /// The row of one text or a pair, without padding.
    fn encode_messages(
        &self,
        chat: &Chat,
        index: usize,
        texts: &[&str],
        around: &Around<'_>,
    ) -> Result<Row, TextError> {
        chat.check(texts.len() == 2)?;
        let refused = |reason: String| TextError::Template { index, reason };
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let rendered = chat.render(around.asked(), texts).map_err(refused)?;
        let Core::Json(tokenizer) = &self.core else { return Err(refused("it needs a tokenizer.json".to_owned())) };
        let mut encoding = match around.offsets {
            true => tokenizer.encode_char_offsets(rendered.as_str(), false).map_err(failed)?,
            false => tokenizer.encode_fast(rendered.as_str(), false).map_err(failed)?,
        };
        let length = encoding.len();
        let longest = around.max_length.filter(|&longest| length > longest);
        if let Some(max_length) = longest.filter(|_| around.refuses_long) {
            return Err(TextError::TooLong { index, length, or_more: false, max_length });
        }
        let longest = longest.filter(|_| around.truncation != Truncation::Off);
        if longest.is_none() && !around.offsets {
            return Ok(Row {
                type_ids: vec![0; length],
                special: self.special_mask(encoding.get_ids()),
                ids: encoding.get_ids().to_vec(),
                ..Row::default()
            });
        }
        let places = chat.places(around.asked(), texts, &rendered);
        let mut suffix = Vec::new();
        let mut stays: Vec<usize> = (0..length).collect();
        if let Some(longest) = longest {
            if !around.offsets {
                encoding = tokenizer.encode_char_offsets(rendered.as_str(), false).map_err(failed)?;
            }
            if around.truncation_side == Side::Right {
                suffix = chat.suffix(&self.core, around.asked(), texts.len()).map_err(refused)?;
            }
            let contents: Vec<_> = places.iter().map(|place| place.characters.clone()).collect();
            stays = kept(encoding.get_offsets(), &contents, suffix.len(), longest, around.truncation_side).ok_or_else(|| {
                TextError::Truncation {
                    index,
                    reason: format!("the chat template's own tokens, the prompt among them, are more than the longest row, {longest}"),
                }
            })?;
        }
        Ok(self.part(&encoding, &stays, suffix, &places, around.offsets, longest.is_some()))
    }

    /// The row of some tokens and a suffix.
    fn part(
        &self,
        encoding: &Encoding,
        stays: &[usize],
        suffix: Vec<u32>,
        places: &[Place],
        with_offsets: bool,
        truncated: bool,
    ) -> Row {
        let mut row = Row { truncated, ..Row::default() };
        for &at in stays {
            row.ids.push(encoding.get_ids()[at]);
            let (begin, end) = encoding.get_offsets()[at];
            if with_offsets {
                let of = places.iter().find(|place| {
                    let Range { start, end: stop } = place.characters;
                    start <= begin && end <= stop && begin < end
                });
                let shift = |at: usize, place: &Place| at - place.characters.start + place.skipped;
                row.sequences.push(of.map(|place| place.text));
                row.offsets.push(of.map_or((0, 0), |place| (shift(begin, place), shift(end, place))));
            }
        }
        if with_offsets {
            row.sequences.resize(stays.len() + suffix.len(), None);
            row.offsets.resize(stays.len() + suffix.len(), (0, 0));
        }
        row.ids.extend(suffix);
        row.type_ids = vec![0; row.ids.len()];
        row.special = self.special_mask(&row.ids);
        row
    }

    /// 1 for the ids of special tokens.
    fn special_mask(&self, ids: &[u32]) -> Vec<u32> {
        ids.iter().map(|&id| u32::from(self.core.is_special(id))).collect()
    }

    fn encode_text(&self, index: usize, text: &str, pair: Option<&str>, around: &Around<'_>) -> Result<Row, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let (Core::Json(tokenizer), None) = (&self.core, &around.template) else {
            return self.encode_with_template(index, text, pair, around);
        };
        let encode = |text: &str| match around.offsets {
            true => tokenizer.encode_char_offsets(text, false),
            false => tokenizer.encode_fast(text, false),
        };
        let mut first = encode(text).map_err(failed)?;
        let mut second = pair.map(encode).transpose().map_err(failed)?;
        let mut truncated = false;
        if let Some(kept) = self.kept(index, first.len(), second.as_ref().map(Encoding::len), around)? {
            truncated = kept.0 < first.len() || second.as_ref().is_some_and(|second| kept.1 < second.len());
            truncate(&mut first, kept.0, around.truncation_side);
            if let Some(second) = &mut second {
                truncate(second, kept.1, around.truncation_side);
            }
        }
        let encoding = self.joined(first, second, around.add_special_tokens).map_err(failed)?;
        Ok(Row {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
            truncated,
            special: encoding.get_special_tokens_mask().to_vec(),
            offsets: if around.offsets { text_offsets(&encoding, &around.prefix) } else { Vec::new() },
            sequences: if around.offsets { text_sequences(&encoding, &around.prefix) } else { Vec::new() },
            ..Row::default()
        })
    }

    /// The tokens of a text or a pair with those around them.
    pub(crate) fn joined(
        &self,
        mut first: Encoding,
        second: Option<Encoding>,
        add_special_tokens: bool,
    ) -> Result<Encoding, tokenizers::Error> {
        if let Some(processor) = &self.post_processor {
            return processor.process(first, second, add_special_tokens);
        }
        first.set_sequence_id(0);
        if let Some(mut second) = second {
            second.set_sequence_id(1);
            second.set_type_ids(vec![1; second.len()]);
            first.merge_with(second, false);
        }
        Ok(first)
    }

    fn encode_with_template(
        &self,
        index: usize,
        text: &str,
        pair: Option<&str>,
        around: &Around<'_>,
    ) -> Result<Row, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let mut first = self.core.ids(text).map_err(failed)?;
        let mut second = pair.map(|p| self.core.ids(p)).transpose().map_err(failed)?;
        let mut truncated = false;
        if let Some(kept) = self.kept(index, first.len(), second.as_ref().map(Vec::len), around)? {
            truncated = kept.0 < first.len() || second.as_ref().is_some_and(|second| kept.1 < second.len());
            truncate_ids(&mut first, kept.0, around.truncation_side);
            if let Some(second) = &mut second {
                truncate_ids(second, kept.1, around.truncation_side);
            }
        }
        let template = around.template.clone().filter(|_| around.add_special_tokens).unwrap_or_default();
        let ids = template.row(&first, second.as_deref());
        Ok(Row { type_ids: vec![0; ids.len()], ids, truncated, ..Row::default() })
    }

    /// How many tokens at the beginning of each row are those before the text: the prefix and the special tokens before it,
    /// as sentence-transformers counts them.
    pub(crate) fn prompt_tokens(&self, around: &Around<'_>) -> Result<usize, TextError> {
        // The library counts no prompt that a template has put in.
        if around.prefix.is_empty() || self.chat.is_some() || around.messages {
            return Ok(0);
        }
        let uncut = Around { max_length: None, offsets: false, ..around.clone() };
        let row = self.encode_row(0, "", None, &uncut)?;
        let ends_specially = match &around.template {
            Some(template) => around.add_special_tokens && template.ends_row(),
            None => row.special.last() == Some(&1),
        };
        Ok(row.ids.len() - usize::from(ends_specially))
    }

    /// How many tokens of each text a row keeps; `None`: all.
    fn kept(
        &self,
        index: usize,
        first: usize,
        second: Option<usize>,
        around: &Around<'_>,
    ) -> Result<Option<(usize, usize)>, TextError> {
        let Some(max_length) = around.max_length else { return Ok(None) };
        let special_tokens = self.special_tokens(around, second.is_some());
        let length = first + second.unwrap_or(0) + special_tokens;
        if around.refuses_long && length > max_length {
            return Err(TextError::TooLong { index, length, or_more: false, max_length });
        }
        if around.truncation == Truncation::Off {
            return Ok(None);
        }
        let truncated = |reason| TextError::Truncation { index, reason };
        let room = max_length.checked_sub(special_tokens).ok_or_else(|| {
            truncated(format!("the {special_tokens} special tokens of a row exceed its longest length, {max_length}"))
        })?;
        kept_tokens(first, second, room, around.truncation).map(Some).map_err(truncated)
    }

    /// Number of tokens that a row without a text has.
    pub(crate) fn frame_tokens(&self, around: &Around<'_>) -> usize {
        match &self.chat {
            Some(chat) => chat.frame_tokens(&self.core, around.asked()),
            None => self.special_tokens(around, false),
        }
    }

    /// Number of special tokens that a row gets.
    pub(crate) fn special_tokens(&self, around: &Around<'_>, pair: bool) -> usize {
        match (&around.template, &self.post_processor) {
            _ if !around.add_special_tokens => 0,
            (Some(template), _) => template.len(pair),
            (None, processor) => processor.as_ref().map_or(0, |p| p.added_tokens(pair)),
        }
    }
}

/// Cuts `encoding` to `length` tokens and drops the pieces cut off.
fn truncate(encoding: &mut Encoding, length: usize, side: Side) {
    let direction = match side {
        Side::Left => TruncationDirection::Left,
        Side::Right => TruncationDirection::Right,
    };
    encoding.truncate(length, 0, direction);
    encoding.take_overflowing();
}

fn truncate_ids(ids: &mut Vec<u32>, length: usize, side: Side) {
    match side {
        Side::Left => drop(ids.drain(..ids.len() - length)),
        Side::Right => ids.truncate(length),
    }
}

/// Which text of a pair tokens are of, those of the prefix left out.
fn text_sequences(encoding: &Encoding, prefix: &str) -> Vec<Option<usize>> {
    let shift = prefix.chars().count();
    let offsets = encoding.get_offsets().iter().zip(encoding.get_sequence_ids());
    offsets.map(|(&(begin, _), sequence)| sequence.filter(|&sequence| sequence != 0 || begin >= shift)).collect()
}

/// The characters that tokens stand for, those of first texts without the prefix before them.
fn text_offsets(encoding: &Encoding, prefix: &str) -> Vec<(usize, usize)> {
    let shift = prefix.chars().count();
    let sequences = encoding.get_sequence_ids();
    let offsets = encoding.get_offsets().iter().zip(sequences);
    let shifted = |(&(begin, end), sequence): (&(usize, usize), Option<usize>)| match sequence {
        Some(0) => (begin.saturating_sub(shift), end.saturating_sub(shift)),
        _ => (begin, end),
    };
    offsets.map(shifted).collect()
}
