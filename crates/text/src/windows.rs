//! Windows: several rows of one text that is longer than a row may be.
//!
//! The text is tokenized once; each window has some of its tokens, between the special tokens of a row. Neighbouring windows may share tokens,
//! and each window owns a core range of characters. The core ranges of a text lie side by side and are together the whole text.

use std::num::NonZeroUsize;
use std::ops::Range;

use tokenizers::{Encoding, Tokenizer};
use trireme_inference::MOST_WINDOWS;
use unicode_segmentation::UnicodeSegmentation;

use crate::around::Around;
use crate::core::Core;
use crate::part::part;
use crate::row::{Row, RowEncoder};
use crate::window::Window;
use crate::{Side, TextError, WindowsOf};

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

/// How a text that is longer than a row may be becomes windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutting {
    /// Tokens that two neighbours share, at most; `None`: a quarter of a window.
    pub(crate) overlap: Option<usize>,
    /// The text of a pair that has windows.
    pub(crate) of: WindowsOf,
    /// Windows behind which a text is cut; `None`: a text of too many windows is an error.
    pub(crate) most: Option<NonZeroUsize>,
}

/// A text that rows are made of: its tokens without special ones, those of its prefix among them.
struct Tokens {
    /// The tokenized text: the prefix and the text, or the beginning of both where they are longer than all windows.
    kept: String,
    /// Whether the rest of the text is missing there.
    is_part: bool,
    encoding: Encoding,
    /// By token, its characters in the tokenized text.
    trimmed: Vec<(usize, usize)>,
    /// Tokens and characters of the prefix.
    before: usize,
    prefix: usize,
    /// Characters of the text.
    characters: usize,
}

// === impl RowEncoder ===

impl RowEncoder {
    /// The rows of a text or a pair: one where it is no longer than a row may be, else as many windows as it needs. Of a pair one text has windows, and
    /// the other is whole in each row. Texts that come as token ids or conversations, and tokenizers that do not tell the characters of tokens, have one row.
    pub(crate) fn encode_windows(
        &self,
        index: usize,
        text: &str,
        pair: Option<&str>,
        cutting: Cutting,
        around: &Around<'_>,
    ) -> Result<Vec<Row>, TextError> {
        let one = || {
            let row = self.encode_row(index, text, pair, around)?;
            Ok(vec![Row { window: Window::whole(index, text), ..row }])
        };
        let (Core::Json(tokenizer), None, None) = (&self.core, &around.template, &self.chat) else { return one() };
        let Some(max_length) = around.max_length.filter(|_| !around.token_ids && !around.messages) else {
            return one();
        };
        let most = MOST_WINDOWS.saturating_mul(max_length);
        let tokens = |text, wanted, prefix| {
            let text = self.at_most(index, text, wanted)?;
            let tokens = self.tokens(tokenizer, &text, prefix, most);
            tokens.map_err(|error| TextError::Encode { index, reason: error.to_string() })
        };
        let first = tokens(text, around.most[0], &around.prefix)?;
        let second = pair.map(|pair| tokens(pair, around.most[1], "")).transpose()?;
        let characters = |text: &str, of: &Tokens| of.characters < text.chars().count();
        let is_cut =
            characters(text, &first) || pair.zip(second.as_ref()).is_some_and(|(pair, of)| characters(pair, of));
        let (long, other, side) = match second {
            None => (first, None, 0),
            Some(second) if cutting.of == WindowsOf::Longer && first.len() > second.len() => (first, Some(second), 0),
            Some(second) => (second, Some(first), 1),
        };
        let special = self.special_tokens(around, other.is_some());
        let whole = other.as_ref().map_or(0, Tokens::len);
        let around_text = special + long.before + whole;
        let room = max_length.checked_sub(around_text).filter(|&room| room > 0);
        let room = room.ok_or_else(|| TextError::Truncation {
            index,
            reason: match &other {
                None => format!("the {around_text} tokens around a text leave no room in a row of {max_length}"),
                Some(_) => format!(
                    "the text of the pair that is whole in each window has {whole} tokens, which leave no room for the other in a row of {max_length}"
                ),
            },
        })?;
        let most_shared = room / 2;
        let overlap = match cutting.overlap {
            Some(overlap) if overlap > most_shared => return Err(TextError::Overlap { overlap, most: most_shared }),
            given => given.unwrap_or(room / 4),
        };
        let mut slices = long.slices(room, overlap);
        let mut is_cut = is_cut;
        if let Some(most) = cutting.most.map(|most| most.get().min(MOST_WINDOWS)) {
            is_cut |= slices.len() > most || long.is_part;
            slices.truncate(most);
        } else if slices.len() > MOST_WINDOWS || long.is_part {
            let windows = slices.len().max(MOST_WINDOWS + 1);
            let (or_more, words) = (long.is_part, None);
            return Err(TextError::TooManyWindows { index, windows, or_more, words, room, most: MOST_WINDOWS });
        }
        let mut rows = Vec::with_capacity(slices.len());
        for (at, slice) in slices.iter().enumerate() {
            let next = slices.get(at + 1);
            let row = self.window((&long, slice), other.as_ref(), side, around.add_special_tokens);
            let row = row.map_err(|error| TextError::Encode { index, reason: error.to_string() })?;
            rows.push(Row {
                window: Window {
                    text: index,
                    characters: long.first(slice.tokens.start)..long.last(slice.tokens.end),
                    core: long.first(slice.owns_from)..next.map_or(long.characters, |next| long.first(next.owns_from)),
                },
                // One row of each text that was cut counts.
                truncated: at == 0 && is_cut,
                ..row
            });
        }
        Ok(rows)
    }

    /// The tokens of a text behind a prefix; a little more than `most` of a text that has many more.
    fn tokens(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        prefix: &str,
        most: usize,
    ) -> Result<Tokens, tokenizers::Error> {
        let prefixed = format!("{prefix}{text}");
        let prefix = prefix.chars().count();
        let kept = part(&self.core, &prefixed, most, Side::Right)?;
        let encoding = tokenizer.encode_char_offsets(kept, false)?;
        // Post-processors move offsets by the first token of a row, which is not that of the text here.
        let trimmed = self.joined(encoding.clone(), None, false)?.get_offsets().to_vec();
        Ok(Tokens {
            is_part: kept.len() < prefixed.len(),
            kept: kept.to_owned(),
            before: encoding.get_offsets().iter().take_while(|offset| offset.1 <= prefix && prefix > 0).count(),
            characters: text.chars().count(),
            encoding,
            trimmed,
            prefix,
        })
    }

    /// The row of a window of `long`, which is the text of a pair with the number `side`.
    fn window(
        &self,
        (long, slice): (&Tokens, &Slice),
        other: Option<&Tokens>,
        side: usize,
        add_special_tokens: bool,
    ) -> Result<Row, tokenizers::Error> {
        let taken: Vec<usize> = (0..long.before).chain(slice.tokens.clone().map(|token| long.before + token)).collect();
        let part = of_tokens(&long.encoding, &taken);
        let whole = other.map(|other| other.encoding.clone());
        let row = match whole {
            Some(whole) if side == 1 => self.joined(whole, Some(part), add_special_tokens)?,
            whole => self.joined(part, whole, add_special_tokens)?,
        };
        let (mut places, mut others) = (taken.into_iter(), 0..);
        let token = |sequence: Option<usize>| match (sequence?, other) {
            (sequence, _) if sequence == side => Some((long, places.next()?, sequence)),
            (sequence, other) => Some((other?, others.next()?, sequence)),
        };
        let tokens: Vec<Option<(&Tokens, usize, usize)>> = row.get_sequence_ids().into_iter().map(token).collect();
        Ok(Row {
            ids: row.get_ids().to_vec(),
            type_ids: row.get_type_ids().to_vec(),
            special: row.get_special_tokens_mask().to_vec(),
            offsets: tokens.iter().map(|token| token.map_or((0, 0), |(of, token, _)| of.offset(token))).collect(),
            sequences: tokens
                .iter()
                .map(|token| token.and_then(|(of, at, side)| (at >= of.before).then_some(side)))
                .collect(),
            ..Row::default()
        })
    }
}

// === impl Tokens ===

impl Tokens {
    fn len(&self) -> usize {
        self.encoding.len()
    }

    /// The characters of the text that a token stands for.
    fn offset(&self, token: usize) -> (usize, usize) {
        let (begin, end) = self.trimmed[token];
        (begin.saturating_sub(self.prefix), end.saturating_sub(self.prefix))
    }

    /// The first character of a token of the text; the text begins with the first one.
    fn first(&self, token: usize) -> usize {
        match self.before + token {
            _ if token == 0 => 0,
            at if at < self.len() => self.offset(at).0,
            _ => self.characters,
        }
    }

    /// The character behind the token before this one.
    fn last(&self, token: usize) -> usize {
        token.checked_sub(1).map_or(0, |last| self.offset(self.before + last).1)
    }

    /// The windows of the text.
    fn slices(&self, room: usize, overlap: usize) -> Vec<Slice> {
        let tokens = self.len() - self.before;
        match tokens <= room {
            true => vec![Slice { tokens: 0..tokens, owns_from: 0 }],
            false => slices(&borders(&self.kept, &self.trimmed[self.before..], self.prefix), room, overlap),
        }
    }
}

/// Some tokens of a text.
fn of_tokens(whole: &Encoding, tokens: &[usize]) -> Encoding {
    let numbers = |all: &[u32]| tokens.iter().map(|&token| all[token]).collect::<Vec<u32>>();
    // Without a sequence: the row says which text of a pair it is.
    Encoding::new(
        numbers(whole.get_ids()),
        numbers(whole.get_type_ids()),
        tokens.iter().map(|&token| whole.get_tokens()[token].clone()).collect(),
        tokens.iter().map(|&token| whole.get_word_ids()[token]).collect(),
        tokens.iter().map(|&token| whole.get_offsets()[token]).collect(),
        numbers(whole.get_special_tokens_mask()),
        numbers(whole.get_attention_mask()),
        Vec::new(),
        Default::default(),
    )
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
        // The first place of the shared part that is before a word, else before a character.
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
