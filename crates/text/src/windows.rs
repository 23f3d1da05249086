//! Windows: several rows of one text that is longer than a row may be.
//!
//! The text is tokenized once; each window has some of its tokens, between the special tokens of a row. Neighbouring windows may share tokens,
//! and each window owns a core range of characters. The core ranges of a text lie side by side and are together the whole text.

use std::ops::Range;

use tokenizers::{Encoding, PostProcessor};
use unicode_segmentation::UnicodeSegmentation;

use crate::around::Around;
use crate::core::Core;
use crate::part::part;
use crate::row::{Row, RowEncoder};
use crate::window::Window;
use crate::{Side, TextError};

/// Most windows of a text.
pub const MOST_WINDOWS: usize = 128;

/// How good a place before a token is for a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Border {
    /// Within a code point, of which several tokens stand for a part each.
    Within,
    /// Within a character as people see it: a letter with its marks, an emoji of several code points.
    CodePoint,
    Character,
    Word,
    Sentence,
}

/// The tokens of a window, and the first of them that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    tokens: Range<usize>,
    owns_from: usize,
}

// === impl RowEncoder ===

impl RowEncoder {
    /// The rows of a text: one where it is no longer than a row may be, else as many windows as it needs. Texts that come as token ids or
    /// conversations, and tokenizers that do not tell the characters of tokens, have one row.
    pub(crate) fn encode_windows(
        &self,
        index: usize,
        text: &str,
        overlap: Option<usize>,
        around: &Around<'_>,
    ) -> Result<Vec<Row>, TextError> {
        let one = || {
            let row = self.encode_row(index, text, None, around)?;
            Ok(vec![Row { window: Window::whole(index, text), ..row }])
        };
        let (Core::Json(tokenizer), None, None) = (&self.core, &around.template, &self.chat) else { return one() };
        let Some(max_length) = around.max_length.filter(|_| !around.token_ids && !around.messages) else {
            return one();
        };
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let whole = text.len();
        let text = self.at_most(index, text, around.most[0])?;
        let prefixed = format!("{}{text}", around.prefix);
        let prefix = around.prefix.chars().count();
        let kept = part(&self.core, &prefixed, MOST_WINDOWS.saturating_mul(max_length), Side::Right).map_err(failed)?;
        let encoding = tokenizer.encode_char_offsets(kept, false).map_err(failed)?;
        // Post-processors move offsets by the first token of a row, which is not that of the text here.
        let trimmed = self.process(encoding.clone(), false).map_err(failed)?;
        let before = encoding.get_offsets().iter().take_while(|offset| offset.1 <= prefix && prefix > 0).count();
        let tokens = encoding.len() - before;
        let around_text = self.special_tokens(around, false) + before;
        let room =
            max_length.checked_sub(around_text).filter(|&room| room > 0).ok_or_else(|| TextError::Truncation {
                index,
                reason: format!("the {around_text} tokens around a text leave no room in a row of {max_length}"),
            })?;
        let most_shared = room / 2;
        let overlap = match overlap {
            Some(overlap) if overlap > most_shared => return Err(TextError::Overlap { overlap, most: most_shared }),
            given => given.unwrap_or(room / 4),
        };
        let slices = match tokens <= room {
            true => vec![Slice { tokens: 0..tokens, owns_from: 0 }],
            false => slices(&borders(kept, &trimmed.get_offsets()[before..], prefix), room, overlap),
        };
        if slices.len() > MOST_WINDOWS || kept.len() < prefixed.len() {
            let (windows, or_more) = (slices.len().max(MOST_WINDOWS + 1), kept.len() < prefixed.len());
            return Err(TextError::TooManyWindows { index, windows, or_more, room, most: MOST_WINDOWS });
        }
        let offsets: Vec<(usize, usize)> = trimmed
            .get_offsets()
            .iter()
            .map(|&(begin, end)| (begin.saturating_sub(prefix), end.saturating_sub(prefix)))
            .collect();
        let characters = text.chars().count();
        let first = |token: usize| match token {
            0 => 0,
            token => offsets.get(before + token).map_or(characters, |offset| offset.0),
        };
        let mut rows = Vec::with_capacity(slices.len());
        for (at, slice) in slices.iter().enumerate() {
            let taken: Vec<usize> = (0..before).chain(slice.tokens.clone().map(|token| before + token)).collect();
            let row = self.process(of_tokens(&encoding, &taken), around.add_special_tokens).map_err(failed)?;
            let mut places = taken.iter().copied();
            let sequences: Vec<Option<usize>> = match &self.post_processor {
                Some(_) => row.get_sequence_ids(),
                None => vec![Some(0); row.len()],
            };
            let tokens: Vec<Option<usize>> =
                sequences.iter().map(|sequence| sequence.and_then(|_| places.next())).collect();
            let is_of_text = |token: &Option<usize>| token.filter(|&token| token >= before);
            rows.push(Row {
                ids: row.get_ids().to_vec(),
                type_ids: row.get_type_ids().to_vec(),
                special: row.get_special_tokens_mask().to_vec(),
                offsets: tokens.iter().map(|token| token.map_or((0, 0), |token| offsets[token])).collect(),
                sequences: tokens.iter().map(|token| is_of_text(token).map(|_| 0)).collect(),
                window: Window {
                    text: index,
                    characters: first(slice.tokens.start)
                        ..slice.tokens.end.checked_sub(1).map_or(0, |last| offsets[before + last].1),
                    core: first(slice.owns_from)..slices.get(at + 1).map_or(characters, |next| first(next.owns_from)),
                },
                // One row of each text that was cut counts.
                truncated: at == 0 && text.len() < whole,
                ..Row::default()
            });
        }
        Ok(rows)
    }

    /// A row of tokens with those around them.
    fn process(&self, encoding: Encoding, add_special_tokens: bool) -> Result<Encoding, tokenizers::Error> {
        match &self.post_processor {
            Some(processor) => processor.process(encoding, None, add_special_tokens),
            None => Ok(encoding),
        }
    }
}

/// Some tokens of a text.
fn of_tokens(whole: &Encoding, tokens: &[usize]) -> Encoding {
    let numbers = |all: &[u32]| tokens.iter().map(|&token| all[token]).collect::<Vec<u32>>();
    let mut part = Encoding::new(
        numbers(whole.get_ids()),
        numbers(whole.get_type_ids()),
        tokens.iter().map(|&token| whole.get_tokens()[token].clone()).collect(),
        tokens.iter().map(|&token| whole.get_word_ids()[token]).collect(),
        tokens.iter().map(|&token| whole.get_offsets()[token]).collect(),
        numbers(whole.get_special_tokens_mask()),
        numbers(whole.get_attention_mask()),
        Vec::new(),
        Default::default(),
    );
    part.set_sequence_id(0);
    part
}

/// The border before each token, of which `offsets` are the characters in `text`; `text` begins with a prefix of so many characters.
fn borders(text: &str, offsets: &[(usize, usize)], prefix: usize) -> Vec<Border> {
    let mut kinds = vec![Border::Within; offsets.len()];
    let starts = |bytes: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
        // Bytes to characters: both ascend.
        let mut characters = text.char_indices().map(|(byte, _)| byte).enumerate().peekable();
        bytes
            .map(|byte| {
                while characters.next_if(|&(_, at)| at < byte).is_some() {}
                characters.peek().map_or(0, |&(character, _)| character)
            })
            .collect()
    };
    let kinds_of = [
        (Border::Character, starts(&mut text.grapheme_indices(true).map(|(byte, _)| byte))),
        (Border::Word, starts(&mut text.split_word_bound_indices().map(|(byte, _)| byte))),
        (Border::Sentence, starts(&mut text.split_sentence_bound_indices().map(|(byte, _)| byte))),
    ];
    for (kind, starts) in kinds_of {
        let mut starts = starts.into_iter().peekable();
        let (mut begin_before, mut end_before) = (None, prefix);
        for (token, &(begin, end)) in offsets.iter().enumerate() {
            while starts.next_if(|&start| start < end_before).is_some() {}
            if end_before <= begin && begin_before.is_none_or(|before| before < begin) {
                let is_start = starts.peek().is_some_and(|&start| start <= begin);
                kinds[token] = kinds[token].max(if is_start { kind } else { Border::CodePoint });
            }
            begin_before = Some(begin);
            end_before = end_before.max(end);
        }
    }
    kinds
}

/// The windows of a text whose tokens have these borders before them: at most `room` tokens each, of which about `overlap` are those of the
/// window before. Windows end before a sentence, else before a word, in their second half; what two windows share is divided about in its middle.
fn slices(borders: &[Border], room: usize, overlap: usize) -> Vec<Slice> {
    let tokens = borders.len();
    let mut slices = Vec::<Slice>::new();
    let (mut start, mut owns_from, mut end_before) = (0, 0, 0);
    loop {
        let end = match tokens - start <= room {
            true => tokens,
            // The last of the best places.
            false => best(borders, (start + room - room / 2).max(end_before + 1)..start + room + 1, |place| place),
        };
        slices.push(Slice { tokens: start..end, owns_from });
        if end == tokens {
            return slices;
        }
        // The first place of what is shared that is before a word, else before a character.
        let shared = end.saturating_sub(overlap).max(start + 1)..end;
        let before = |border: Border| shared.clone().find(|&place| borders[place] >= border);
        let next = before(Border::Word).or_else(|| before(Border::CodePoint)).unwrap_or(end);
        let middle = usize::midpoint(next, end);
        owns_from = best(borders, next.max(owns_from + 1)..end + 1, |place| usize::MAX - place.abs_diff(middle));
        (start, end_before) = (next, end);
    }
}

/// The place with the best border, of equal ones that with the highest worth.
fn best(borders: &[Border], places: Range<usize>, worth: impl Fn(usize) -> usize) -> usize {
    let last = places.end - 1;
    places.max_by_key(|&place| (borders[place], worth(place))).unwrap_or(last)
}

#[cfg(test)]
mod tests;
