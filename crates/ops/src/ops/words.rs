//! The words of texts: the input `word_offsets` `[rows, words, 2]` of a tokenizer, with the texts and `windows` beside it, and the parameter
//! `threshold` of requests for spans of words.

use std::ops::Range;

use trireme_inference::{InferError, ParameterValue, Parameters};
use trireme_text::{Records, texts_of};

use super::windows::owned_of;
use crate::inputs::{Side, SideInputs, integers};

/// The inputs besides the data that ops of spans of words take.
pub(super) const INPUTS: &[&str] = &["word_offsets", "windows", "TEXT"];

/// The threshold that the libraries have by default.
pub(super) const THRESHOLD: f32 = 0.5;

/// A text and its rows.
pub(super) struct WordedText<'t> {
    text: &'t str,
    /// By character, the byte where it begins; and the end of the text.
    bytes: Vec<usize>,
    pub(super) rows: Vec<WordRow>,
}

/// The words of a row.
pub(super) struct WordRow {
    /// Its place among all rows.
    pub(super) row: usize,
    /// By word, its characters in the text, in the order of the text.
    pub(super) words: Vec<(usize, usize)>,
    /// The part of the text whose words are this row's own.
    pub(super) owned: Range<usize>,
}

/// Refuses a model that does not declare the inputs which tell words.
pub(super) fn check(inputs: &SideInputs) -> Result<(), String> {
    let needed = [("'word_offsets'", &inputs.word_offsets), ("the texts (TYPE_STRING)", &inputs.texts)];
    let missing: Vec<&str> = needed.iter().filter(|(_, found)| found.is_none()).map(|(name, _)| *name).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("needs inputs that the model does not declare: {}", missing.join(", "))),
    }
}

/// The texts of a request whose tensor has so many rows and words a row, `before` of which come before those of the text.
pub(super) fn texts<'t>(
    side: &Side<'t>,
    (rows, words): (usize, usize),
    before: usize,
) -> Result<Vec<WordedText<'t>>, InferError> {
    let offsets = integers(side.word_offsets, "word_offsets", &[rows, words, 2])?;
    let missing = || InferError::invalid_arg("the input of texts is missing");
    let texts = texts_of(side.texts.ok_or_else(missing)?)?;
    let windows = owned_of(side.windows, rows, texts.len())?;
    let row = |window: super::windows::Owned| {
        let of = 2 * (window.row * words + before.min(words))..2 * (window.row + 1) * words;
        WordRow { row: window.row, words: characters(&offsets[of]), owned: window.characters }
    };
    let text = |(text, windows): (&'t str, Vec<_>)| WordedText {
        text,
        bytes: text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect(),
        rows: windows.into_iter().map(row).collect(),
    };
    Ok(texts.into_iter().zip(windows).map(text).collect())
}

/// The characters of the words of a row: the pairs before the first one that ends at 0, or whose characters do not follow those before.
fn characters(offsets: &[i64]) -> Vec<(usize, usize)> {
    let mut before = 0;
    let pair = |pair: &[i64]| {
        let (start, end) = (usize::try_from(pair[0]).ok()?, usize::try_from(pair[1]).ok()?);
        let follows = start >= before && start <= end && end > 0;
        before = end;
        follows.then_some((start, end))
    };
    offsets.chunks_exact(2).map_while(pair).collect()
}

/// The text that a request's parameter is, where it is one.
pub(super) fn text_parameter<'p>(parameters: Option<&'p Parameters>, name: &str) -> Option<&'p str> {
    parameters?.get(name).and_then(ParameterValue::as_str)
}

/// The structures and relations of a request.
pub(super) fn records(parameters: Option<&Parameters>) -> Result<Records, InferError> {
    let text = |name| text_parameter(parameters, name);
    Ok(Records::parse(text("structures"), text("relations"))?)
}

/// The parameter `threshold` of a request.
pub(super) fn threshold(parameters: Option<&Parameters>, usual: f32) -> Result<f32, InferError> {
    let Some(value) = parameters.and_then(|parameters| parameters.get("threshold")) else { return Ok(usual) };
    let number = match *value {
        ParameterValue::Double(number) => Some(number as f32),
        _ => value.as_u64().map(|number| number as f32),
    };
    number.filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| {
        InferError::invalid_arg(format!("parameter 'threshold' is {value}, expected a number from 0 to 1"))
    })
}

/// The probability of a logit.
pub(super) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

// === impl WordedText ===

impl<'t> WordedText<'t> {
    /// The part of the text with these characters.
    pub(super) fn part(&self, start: usize, end: usize) -> &'t str {
        let at = |character: usize| self.bytes.get(character).copied().unwrap_or(self.text.len());
        &self.text[at(start)..at(end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_characters_ends_a_span_and_begins_none() {
        // The full stop that GLiNER2 puts behind a text.
        assert_eq!(characters(&[0, 3, 4, 7, 7, 7, 0, 0]), [(0, 3), (4, 7), (7, 7)]);
        assert_eq!(characters(&[0, 0, 0, 0]), []);
    }

    #[test]
    fn words_that_are_not_in_the_order_of_the_text_are_left_out() {
        assert_eq!(characters(&[0, 2, 3, 5, 0, 0]), [(0, 2), (3, 5)]);
        assert_eq!(characters(&[5, 6, 1, 2]), [(5, 6)]);
        assert_eq!(characters(&[0, 4, 3, 5]), [(0, 4)]);
        assert_eq!(characters(&[-1, 4, 3, 5]), []);
    }
}
