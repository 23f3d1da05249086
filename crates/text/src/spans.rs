//! Rows of span models (GLiNER, GLiNER2): the labels of a request stand before each text, and the model scores spans of the text's words for
//! each label.
//!
//! A row is the special tokens of the tokenizer around `label token, label, label token, label, …, separator, word, word, …`; rows of GLiNER2 have
//! a schema around the labels, and one for each structure, relation and task of classes ([`SpanForm`]). The choices of fields are words before those of the text. Rows of classes alone have no words whose spans are scored. Each label and each word is tokenized alone. A text of more words or tokens than a row may have becomes windows of whole words. Each window owns some of
//! its words; a span belongs to the window that owns its first word, and that window has all words of it.

use std::borrow::Cow;
use std::ops::Range;

use tokenizers::{Encoding, Tokenizer};
use trireme_inference::MOST_WINDOWS;

use crate::around::Around;
use crate::core::Core;
use crate::encoded::{Encoded, Extras, SpanTensors, extend_padded};
use crate::part::part;
use crate::row::Row;
use crate::span_prompt::SpanForm;
use crate::window::Window;
use crate::{RequestOptions, Side, TextError, TextTokenizer};

use self::before::{Asked, Before};
use self::words::{Word, words};

mod before;
mod classifications;
mod labels;
mod records;
mod words;

pub use self::classifications::{Classification, Classifications};
pub use self::labels::{MOST_LABELS, SpanLabels};
pub use self::records::{Field, ROLES, Records, Relation, Structure};

/// Most scores of spans that a request may ask for: as many as a message may hold.
const MOST_SCORES: usize = trireme_inference::MAX_MESSAGE_BYTES / size_of::<f32>();

/// A word of more bytes is cut before it is tokenized: the model looks at its first token.
const LONGEST_WORD: usize = 4 << 10;

/// The only word of a text without words: graphs take no row without words.
const NO_WORD: &str = ".";

/// The words of a text and their tokens.
struct Text<'t> {
    words: Vec<Word<'t>>,
    /// By word, its tokens.
    tokens: Vec<Vec<u32>>,
    /// Whether the text has more words.
    has_more: bool,
}

/// The words of a window, and the first of them that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    words: Range<usize>,
    owns_from: usize,
}

/// A row, and the first tokens and the characters of its words. Words of choices have no characters.
struct SpanRow {
    row: Row,
    words_mask: Vec<i64>,
    characters: Vec<Range<usize>>,
}

/// The room of rows.
#[derive(Clone, Copy, Debug)]
struct Room {
    form: SpanForm,
    words: usize,
    tokens: usize,
    /// Most tokens that neighbours share.
    overlap: usize,
    width: usize,
}

// === impl TextTokenizer ===

impl TextTokenizer {
    /// The faults of the option `spans` for the tokenizer's files.
    pub(crate) fn span_faults(&self) -> Vec<String> {
        let Some(prompt) = &self.options.spans else { return Vec::new() };
        let Core::Json(_) = &self.encoder.core else { return vec!["'spans' needs a tokenizer.json".to_owned()] };
        let unknown = |token: &&str| self.encoder.core.token_to_id(token).is_none();
        let tokens = [prompt.label_token.as_str(), &prompt.separator]
            .into_iter()
            .chain(prompt.form.schema_tokens().iter().copied());
        tokens.filter(unknown).map(|token| format!("'spans': the vocabulary has no token '{token}'")).collect()
    }

    /// Rows of texts behind the labels of the request, with their words and spans.
    pub(crate) fn encode_spans(
        &self,
        texts: &[&str],
        pairs: Option<&[&str]>,
        request: &RequestOptions<'_>,
        extras: Extras,
    ) -> Result<Encoded, TextError> {
        let (Some(prompt), Core::Json(tokenizer)) = (&self.options.spans, &self.encoder.core) else {
            return Err(TextError::NoOffsets { output: "words_mask", kind: "has no parameter 'spans'" });
        };
        if pairs.is_some() {
            let reason = "labels go with single texts, and the request has pairs".to_owned();
            return Err(TextError::Labels { parameter: labels::PARAMETER, reason });
        }
        let asked = Asked::of(request, prompt.form)?;
        let around = self.around(request)?;
        let before = self.before(tokenizer, prompt, &asked)?;
        let special = self.encoder.special_tokens(&around, false);
        let longest = around.max_length.unwrap_or(usize::MAX);
        let taken = before.len() + special;
        let room = longest.checked_sub(taken).filter(|&room| room > 0).ok_or_else(|| {
            asked.fault(format!(
                "{taken} tokens of labels leave no room for words in a row of {longest}: send fewer or shorter labels"
            ))
        })?;
        let most_shared = room / 2;
        if let Some(overlap) = request.overlap.filter(|&overlap| overlap > most_shared) {
            return Err(TextError::Overlap { overlap, most: most_shared });
        }
        let room = Room {
            form: prompt.form,
            words: prompt.max_words.get(),
            tokens: room,
            overlap: request.overlap.unwrap_or(room.min(prompt.max_words.get()) / 4),
            width: prompt.max_width.get(),
        };
        let windows = self.is_in_windows(request).then_some(request);
        let (mut rows, rows_of_each) = self.rows_of(texts, |index, text, rows| {
            rows.extend(self.span_rows((index, text), tokenizer, &before, &around, room, windows)?);
            Ok(())
        })?;
        let scores = asked.scores();
        if scores == 0 {
            rows.iter_mut().for_each(SpanRow::without_words);
        }
        self.span_tensors(rows, scores, room.width, &rows_of_each, extras)
    }

    /// The rows of a text: windows where the request that allows them is there, else one.
    fn span_rows(
        &self,
        (index, text): (usize, &str),
        tokenizer: &Tokenizer,
        before: &Before,
        around: &Around<'_>,
        room: Room,
        windows: Option<&RequestOptions<'_>>,
    ) -> Result<Vec<SpanRow>, TextError> {
        let failed = |error: tokenizers::Error| TextError::Encode { index, reason: error.to_string() };
        let most = if windows.is_some() { MOST_WINDOWS.saturating_mul(room.words) } else { room.words };
        let found = self.text_of(tokenizer, text, room, most).map_err(failed)?;
        let mut slices = slices(&found.tokens, room);
        let mut is_cut = found.has_more || found.tokens.iter().any(|word| word.len() > room.tokens);
        let most = match windows {
            None => Some(1),
            Some(request) => request.max_windows.map(|most| most.get().min(MOST_WINDOWS)),
        };
        if let Some(most) = most {
            is_cut |= slices.len() > most;
            slices.truncate(most);
        } else if slices.len() > MOST_WINDOWS || found.has_more {
            let windows = slices.len().max(MOST_WINDOWS + 1);
            let (or_more, words, room) = (found.has_more, Some(room.words), room.tokens);
            return Err(TextError::TooManyWindows { index, windows, or_more, words, room, most: MOST_WINDOWS });
        }
        if is_cut && around.refuses_long {
            let length = before.len() + found.tokens.iter().map(Vec::len).sum::<usize>();
            let max_length = around.max_length.unwrap_or(usize::MAX);
            return Err(TextError::TooLong { index, length, or_more: found.has_more, max_length });
        }
        let characters = text.chars().count();
        let begin = |word: usize| match word {
            0 => 0,
            word => found.words.get(word).map_or(characters, |word| word.characters.start),
        };
        let mut rows = Vec::with_capacity(slices.len());
        for (at, slice) in slices.iter().enumerate() {
            let next = slices.get(at + 1).map_or(characters, |next| begin(next.owns_from));
            let mut row = self.span_row(before, &found, slice, room.tokens, around).map_err(failed)?;
            let own = &found.words[slice.words.clone()];
            let held =
                own.first().map_or(0, |first| first.characters.start)..own.last().map_or(0, |last| last.characters.end);
            row.row.window = Window { text: index, characters: held, core: begin(slice.owns_from)..next };
            row.row.truncated = at == 0 && is_cut;
            rows.push(row);
        }
        Ok(rows)
    }

    /// The words of a text that have tokens, at most so many.
    fn text_of<'t>(
        &self,
        tokenizer: &Tokenizer,
        text: &'t str,
        room: Room,
        most: usize,
    ) -> Result<Text<'t>, tokenizers::Error> {
        let (words, has_more) = words(text, room.form, most);
        let shortened = |word| shortened(&self.encoder.core, word, room.tokens);
        let given: Vec<&str> = words.iter().map(|word| &*word.text).map(shortened).collect::<Result<_, _>>()?;
        let encoding = tokenizer.encode(given, false)?;
        let mut tokens = vec![Vec::new(); words.len()];
        for (&id, word) in encoding.get_ids().iter().zip(encoding.get_word_ids()) {
            if let Some(own) = word.and_then(|word| tokens.get_mut(word as usize)) {
                own.push(id);
            }
        }
        let (mut words, mut tokens): (Vec<_>, Vec<_>) =
            words.into_iter().zip(tokens).filter(|(_, tokens)| !tokens.is_empty()).unzip();
        if words.is_empty() {
            words.push(Word { text: Cow::Borrowed(NO_WORD), characters: 0..0 });
            tokens.push(tokenizer.encode(vec![NO_WORD], false)?.get_ids().to_vec());
        }
        Ok(Text { words, tokens, has_more })
    }

    /// The row of a window.
    fn span_row(
        &self,
        before: &Before,
        text: &Text<'_>,
        slice: &Slice,
        room: usize,
        around: &Around<'_>,
    ) -> Result<SpanRow, tokenizers::Error> {
        let mut ids = before.labels.clone();
        let mut first = vec![0; ids.len()];
        let own = text.tokens[slice.words.clone()].iter().map(|word| &word[..word.len().min(room)]);
        for (number, word) in (1..).zip(before.choices.iter().map(Vec::as_slice).chain(own)) {
            first.extend((0..word.len()).map(|at| if at == 0 { number } else { 0 }));
            ids.extend_from_slice(word);
        }
        let (count, tokens) = (ids.len(), ids.iter().map(|&id| self.encoder.core.id_to_token(id).unwrap_or_default()));
        let (tokens, zeros) = (tokens.collect(), vec![0; count]);
        let (words, offsets, ones) = (vec![None; count], vec![(0, 0); count], vec![1; count]);
        // Without a sequence: the row says which tokens are those of the text.
        let text_of_row =
            Encoding::new(ids, zeros.clone(), tokens, words, offsets, zeros, ones, Vec::new(), Default::default());
        let row = self.encoder.joined(text_of_row, None, around.add_special_tokens)?;
        let words_mask = match row.len() == first.len() {
            true => first,
            // The tokens around have no sequence.
            false => {
                let mut first = first.into_iter();
                let of_token = |sequence: Option<usize>| sequence.and_then(|_| first.next()).unwrap_or(0);
                row.get_sequence_ids().into_iter().map(of_token).collect()
            }
        };
        Ok(SpanRow {
            words_mask,
            characters: std::iter::repeat_n(0..0, before.choices.len())
                .chain(text.words[slice.words.clone()].iter().map(|word| word.characters.clone()))
                .collect(),
            row: Row {
                ids: row.get_ids().to_vec(),
                type_ids: row.get_type_ids().to_vec(),
                special: row.get_special_tokens_mask().to_vec(),
                offsets: vec![(0, 0); row.len()],
                ..Row::default()
            },
        })
    }

    /// The tensors of rows, filled up to the longest.
    fn span_tensors(
        &self,
        rows: Vec<SpanRow>,
        scores: usize,
        widths: usize,
        rows_of_each: &[usize],
        extras: Extras,
    ) -> Result<Encoded, TextError> {
        let words = rows.iter().map(|row| row.characters.len()).max().unwrap_or(0);
        let scores = widths.saturating_mul(scores);
        if rows.len().saturating_mul(words).saturating_mul(scores) > MOST_SCORES {
            return Err(TextError::TooManySpans { rows: rows.len(), words, scores, most: MOST_SCORES });
        }
        let mut spans = SpanTensors { words, widths, ..SpanTensors::default() };
        rows.iter().for_each(|row| spans.add(&row.characters));
        let (rows, masks): (Vec<Row>, Vec<Vec<i64>>) = rows.into_iter().map(|row| (row.row, row.words_mask)).unzip();
        let mut encoded = self.matrices_of(&rows, rows_of_each)?;
        for (row, words_mask) in rows.into_iter().zip(masks) {
            let (left, right) = self.sides_of_padding(encoded.length - row.ids.len());
            encoded.extend(&row, (left, right), 0, extras, i64::from(self.options.first_position));
            extend_padded(&mut encoded.attention_mask, row.ids.iter().map(|_| 1), left, right, 0);
            extend_padded(&mut encoded.input_ids, row.ids.iter().map(|&id| i64::from(id)), left, right, self.pad_id);
            let type_ids = row.type_ids.iter().map(|&id| i64::from(id) * i64::from(self.options.token_types));
            extend_padded(&mut encoded.token_type_ids, type_ids, left, right, self.pad_type_id);
            extend_padded(&mut spans.words_mask, words_mask.into_iter(), left, right, 0);
        }
        encoded.spans = spans;
        Ok(encoded)
    }
}

// === impl SpanRow ===

impl SpanRow {
    /// No span of it is scored.
    fn without_words(&mut self) {
        self.words_mask.fill(0);
        self.characters.clear();
    }
}

impl AsRef<Row> for SpanRow {
    fn as_ref(&self) -> &Row {
        &self.row
    }
}

// === impl SpanTensors ===

impl SpanTensors {
    /// Appends the spans of a row whose words have these characters.
    fn add(&mut self, characters: &[Range<usize>]) {
        let count = characters.len();
        self.text_lengths.push(count as i64);
        for first in 0..self.words {
            for width in 0..self.widths {
                let (is_word, last) = (first < count, first + width);
                self.span_idx.extend(if is_word { [first as i64, last as i64] } else { [0, 0] });
                self.span_mask.push(is_word && last < count);
            }
        }
        let offsets = characters.iter().flat_map(|word| [word.start as i64, word.end as i64]);
        self.word_offsets.extend(offsets.chain(std::iter::repeat_n(0, 2 * (self.words - count))));
    }
}

/// The part of a word whose tokens a row has room for.
fn shortened<'w>(core: &Core, word: &'w str, room: usize) -> Result<&'w str, tokenizers::Error> {
    match word.len() > LONGEST_WORD {
        true => part(core, word, room, Side::Right),
        false => Ok(word),
    }
}

/// The windows of a text whose words have these tokens. The words that two neighbours share are owned by the first of them up to about their middle, and
/// so far only that it has all words of each span that begins with a word of its own.
fn slices(tokens: &[Vec<u32>], room: Room) -> Vec<Slice> {
    let mut slices = Vec::<Slice>::new();
    let (mut start, mut owns_from) = (0, 0);
    loop {
        let mut used = 0;
        let fits = |word: &&Vec<u32>| {
            used += word.len();
            used <= room.tokens
        };
        let count = tokens[start..].iter().take(room.words).take_while(fits).count();
        let end = start + count.max(1);
        slices.push(Slice { words: start..end, owns_from });
        if end >= tokens.len() {
            return slices;
        }
        let mut shared = 0;
        let within = |word: &&Vec<u32>| {
            shared += word.len();
            shared <= room.overlap
        };
        let shares = tokens[start..end].iter().rev().take_while(within).count();
        let whole = end.saturating_sub(room.width - 1);
        let border = usize::midpoint(end - shares, end).min(whole).max(owns_from + 1);
        start = (end - shares).min(border).max(start + 1);
        // A window holds a word that no window before it holds.
        let mut held: usize = tokens[start..=end].iter().map(Vec::len).sum();
        while start < end && (held > room.tokens || end - start >= room.words) {
            held -= tokens[start].len();
            start += 1;
        }
        owns_from = border.max(start);
    }
}

#[cfg(test)]
mod tests;
