//! The output of a tokenizer: rows of tokens, and facts about them.

use trireme_inference::TextFacts;

use crate::row::Row;
use crate::window::Window;

/// Rows of tokens, all of one length: row-major `[rows, length]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Number of texts, or of pairs of texts.
    pub rows: usize,
    /// Tokens in each row, padding included.
    pub length: usize,
    /// Tokens of all rows, with special tokens, without padding and without the tokens that fill queries up.
    pub tokens: u64,
    /// Rows that were too long and lost tokens.
    pub truncated: u64,
    /// Rows of those texts that have several.
    pub windowed: u64,
    /// By text, or pair of texts: the counts of its rows.
    pub each_text: Vec<TextFacts>,
    /// Token ids.
    pub input_ids: Vec<i64>,
    /// 1 for a token, 0 for padding.
    pub attention_mask: Vec<i64>,
    /// Which text of a pair a token belongs to, as set by the tokenizer's post-processor.
    pub token_type_ids: Vec<i64>,
    /// The position of each token in its row, from `first_position`; one less, or 0, for padding. Empty unless asked for, as are those below.
    pub position_ids: Vec<i64>,
    /// The first character of its text that a token stands for, and the one after the last, `[rows, length, 2]`: counted
    /// without the prefix, 0 and 0 for special tokens and padding.
    pub offsets: Vec<i64>,
    /// 1 for special tokens and padding, 0 for tokens of a text.
    pub special_tokens_mask: Vec<i64>,
    /// The attention mask with 0 for the tokens before the text: those of the prefix, and the special tokens before them
    /// where there is a prefix.
    pub pooling_mask: Vec<i64>,
    /// 1 for tokens whose vectors are compared with those of other texts: the attention mask, with 1 for the tokens that fill a query
    /// up, and 0 for those of the skip list.
    pub scoring_mask: Vec<i64>,
    /// By row, its part of a text, `[rows, 6]`: the number of the text; the row's characters, and the characters that it owns, each as the first
    /// and the one after the last; and how many tokens it has. Empty unless asked for.
    pub windows: Vec<i64>,
    /// The words and spans of rows; empty unless asked for.
    pub spans: SpanTensors,
    /// The token with which the output has to begin to be in the target language. `None` if no target language was
    /// given, or if the model gets it in another way.
    pub forced_bos_token_id: Option<i64>,
    /// By row, its tokens as a JSON array of objects with `id`, `text`, `special`, `start` and `stop`.
    pub token_lists: Vec<String>,
    /// By row, the text of its tokens.
    pub decoded: Vec<String>,
}

/// The words of rows, and the spans of words that a model scores: all spans of 1 to `widths` words, by their first word and then by their width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanTensors {
    /// Most words of a row.
    pub words: usize,
    /// Most words of a span.
    pub widths: usize,
    /// The number of the word, from 1, that begins with each token, `[rows, length]`; 0 for all other tokens.
    pub words_mask: Vec<i64>,
    /// By row, how many words it has, `[rows, 1]`.
    pub text_lengths: Vec<i64>,
    /// The first and the last word of each span, `[rows, words * widths, 2]`.
    pub span_idx: Vec<i64>,
    /// Whether the row has all words of the span, `[rows, words * widths]`.
    pub span_mask: Vec<bool>,
    /// The first character of each word in its text and the one after its last, `[rows, words, 2]`; 0 and 0 where there is no word.
    pub word_offsets: Vec<i64>,
}

/// Further outputs of [`TextTokenizer::encode_with`], beside ids and masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like the fields of `Encoded`")]
pub struct Extras {
    pub position_ids: bool,
    pub offsets: bool,
    pub special_tokens_mask: bool,
    pub pooling_mask: bool,
    pub scoring_mask: bool,
    pub windows: bool,
    pub spans: bool,
    pub token_lists: bool,
    pub decoded: bool,
}

// === impl Encoded ===

impl Encoded {
    /// Appends the further outputs that were asked for.
    pub(crate) fn extend(
        &mut self,
        row: &Row,
        (left, right): (usize, usize),
        prompt_tokens: usize,
        extras: Extras,
        first: i64,
    ) {
        if extras.windows {
            let Window { text, characters, core } = &row.window;
            let tokens = row.ids.len() - row.expansion;
            let numbers = [*text, characters.start, characters.end, core.start, core.end, tokens];
            self.windows.extend(numbers.map(|number| number as i64));
        }
        if extras.position_ids {
            let positions = (first..).zip(&row.ids).map(|(position, _)| position);
            extend_padded(&mut self.position_ids, positions, left, right, (first - 1).max(0));
        }
        if extras.offsets {
            let offsets = row.offsets.iter().flat_map(|&(begin, end)| [begin as i64, end as i64]);
            extend_padded(&mut self.offsets, offsets, 2 * left, 2 * right, 0);
        }
        if extras.special_tokens_mask {
            let special = row.special.iter().map(|&special| i64::from(special));
            extend_padded(&mut self.special_tokens_mask, special, left, right, 1);
        }
        if extras.pooling_mask {
            let mask = (0..row.ids.len()).map(|position| i64::from(position >= prompt_tokens));
            extend_padded(&mut self.pooling_mask, mask, left, right, 0);
        }
    }
}

/// Appends `row`, with `left` times `padding` before it and `right` times after it.
pub(crate) fn extend_padded(
    matrix: &mut Vec<i64>,
    row: impl Iterator<Item = i64>,
    left: usize,
    right: usize,
    padding: i64,
) {
    matrix.extend(std::iter::repeat_n(padding, left));
    matrix.extend(row);
    matrix.extend(std::iter::repeat_n(padding, right));
}
