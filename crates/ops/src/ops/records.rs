//! `records`: the structures and relations of a text that the request asks for, from the logits of spans of words for each field of each record
//! `[rows, records, words, widths, fields]` to one JSON object for each text, as the library `gliner2` finds them.
//!
//! The last op of a chain. It takes these inputs of the model besides the data: `word_offsets` (the characters of words), `windows` (rows are windows
//! of texts, [`super::windows`]) and the texts (TYPE_STRING). The request's parameters `structures` and `relations` name the kinds of records; the fields are
//! in the order of these, with `head` and `tail` for each relation.
//!
//! A span counts where the sigmoid of its logit reaches the threshold: that of its field or relation, else parameter `threshold`, 0.5 by default. Of spans
//! of a field that overlap the one with the higher score stays. A field of `dtype` `list` has all of them, the best first, one of `str` and one of a
//! relation has the best. The scores of choices are those of their words, which come before those of the text. A structure without any value is
//! left out, and a relation without one of its two spans. Records of several windows of a text follow each other, each once.
//!
//! An object has `structures` and `relations`, as far as the request asks for them: by name, the array of records. A value of a field is an object of `word`,
//! `score`, `start` and `end`, which count characters of the text, or of `label` and `score` for a choice.

use std::collections::HashMap;

use indexmap::IndexMap;
use ndarray::{Array1, ArrayView4, Axis, Ix5};
use serde::Serialize;
use trireme_inference::InferError;
use trireme_text::{ROLES, Records as Asked};

use super::op::{Op, OpEntry, Resources, compare_scores, no_argument};
use super::words::{self, THRESHOLD, WordRow, WordedText};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "records",
    usage: "records",
    doc: "structures and relations that a request names, as JSON: [rows, records, words, widths, fields] to [rows]; last in a chain",
    inputs: words::INPUTS,
    embeds: false,
    reduces: true,
    build,
};

/// The logit of a span that is too long, and of each span of a record behind the last one. Other logits are higher.
const NONE: f32 = -1e4;

struct Records;

/// A structure or a relation.
struct Kind<'a> {
    name: &'a str,
    slots: Vec<Slot<'a>>,
    /// Whether a record has a value in each field.
    is_full: bool,
}

/// A field of a record.
struct Slot<'a> {
    name: &'a str,
    /// Its place among all fields.
    at: usize,
    threshold: f32,
    is_list: bool,
    /// The choices, each with the place of its word among those before the text.
    choices: Option<Vec<(&'a str, usize)>>,
}

/// A record in the answer: by field, its value.
type Record<'a> = IndexMap<&'a str, Filled<'a>>;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Filled<'a> {
    One(Option<Found<'a>>),
    Several(Vec<Found<'a>>),
}

/// A span of the text, or a choice. Two spans of the same characters are equal, whatever their scores are, and so are two choices of one label.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Found<'a> {
    Span { word: &'a str, score: f32, start: usize, end: usize },
    Choice { label: &'a str, score: f32 },
}

/// A row with the logits of its spans.
struct Scored<'r, 'a> {
    text: &'r WordedText<'a>,
    row: &'r WordRow,
    /// By record, first word, width and field.
    logits: ArrayView4<'r, f32>,
    /// How many words come before those of the text.
    before: usize,
}

/// The records of a text.
#[derive(Default, Serialize)]
struct Answer<'a> {
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    structures: IndexMap<&'a str, Vec<Record<'a>>>,
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    relations: IndexMap<&'a str, Vec<Record<'a>>>,
}

fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    words::check(resources.inputs)?;
    Ok(Box::new(Records))
}

// === impl Records ===

impl Op for Records {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Floats, 5..=5)?;
        Ok(Signature::new(Form::Texts, [-1]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let logits = value.into_floats()?.into_dimensionality::<Ix5>();
        let logits = logits.map_err(|_| InferError::internal("records takes numbers of rank 5"))?;
        let asked = words::records(side.parameters)?;
        if asked.is_empty() {
            return Err(InferError::invalid_arg(
                "parameters 'structures' and 'relations' are missing, one of which names what to find",
            ));
        }
        let (rows, _, words, _, fields) = logits.dim();
        if fields != asked.fields() {
            let asked = asked.fields();
            return Err(InferError::invalid_arg(format!("records has {asked} fields of the request, got {fields}")));
        }
        let before = asked.words_of_choices();
        if rows > 0 && words <= before.len() {
            let choices = before.len();
            return Err(InferError::invalid_arg(format!(
                "records has {choices} words of choices, got {words} words in all"
            )));
        }
        let threshold = words::threshold(side.parameters, THRESHOLD)?;
        let (structures, relations) = kinds(&asked, &before, threshold);
        let texts = words::texts(side, (rows, words), before.len())?;
        let answer = |text: &WordedText<'_>| {
            let rows = text.rows.iter().map(|row| Scored {
                text,
                row,
                logits: logits.index_axis(Axis(0), row.row),
                before: before.len(),
            });
            let rows: Vec<_> = rows.collect();
            let answer = Answer { structures: all_of(&structures, &rows), relations: all_of(&relations, &rows) };
            serde_json::to_string(&answer).map_err(|error| InferError::internal(error.to_string()))
        };
        let answers: Vec<String> = texts.iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Value::Texts(Array1::from(answers).into_dyn()))
    }
}

/// The structures and the relations, with the places of their fields and choices.
fn kinds<'a>(asked: &'a Asked, before: &[String], threshold: f32) -> (Vec<Kind<'a>>, Vec<Kind<'a>>) {
    // The library finds a choice by its text: choices that two fields share have one place, the first.
    let mut places = HashMap::new();
    for (at, word) in before.iter().enumerate() {
        places.entry(word.to_lowercase()).or_insert(at);
    }
    let choice = |choice: &'a String| Some((choice.as_str(), *places.get(&choice.to_lowercase())?));
    let mut at = 0..;
    let structures = asked.structures().iter().map(|structure| {
        let slots = structure.fields().iter().zip(&mut at).map(|(field, at)| Slot {
            name: field.name(),
            at,
            threshold: field.threshold().unwrap_or(threshold),
            is_list: field.is_list(),
            choices: field.choices().map(|choices| choices.iter().filter_map(choice).collect()),
        });
        Kind { name: structure.name(), slots: slots.collect(), is_full: false }
    });
    let structures = structures.collect();
    let relations = asked.relations().iter().map(|relation| {
        let threshold = relation.threshold().unwrap_or(threshold);
        let slot = |(name, at)| Slot { name, at, threshold, is_list: false, choices: None };
        Kind { name: relation.name(), slots: ROLES.into_iter().zip(&mut at).map(slot).collect(), is_full: true }
    });
    (structures, relations.collect())
}

/// By kind, the records of a text that has these rows.
fn all_of<'a>(kinds: &[Kind<'a>], rows: &[Scored<'_, 'a>]) -> IndexMap<&'a str, Vec<Record<'a>>> {
    kinds.iter().map(|kind| (kind.name, kind.records_of(rows))).collect()
}

// === impl Kind ===

impl<'a> Kind<'a> {
    /// The records of a text that has these rows. Records of several windows follow each other, equal ones once.
    fn records_of(&self, rows: &[Scored<'_, 'a>]) -> Vec<Record<'a>> {
        let mut found = Vec::<Record<'a>>::new();
        for row in rows {
            for record in (0..row.logits.dim().0).filter_map(|number| self.record(number, row)) {
                match found.iter_mut().find(|other| rows.len() > 1 && **other == record) {
                    Some(other) if best(other) < best(&record) => *other = record,
                    Some(_) => {}
                    None => found.push(record),
                }
            }
        }
        found
    }

    /// The record of a row with this number, where it is there and has a value.
    fn record(&self, number: usize, row: &Scored<'_, 'a>) -> Option<Record<'a>> {
        // Each row has a word, which is a span.
        let first = row.logits.get([number, 0, 0, self.slots.first()?.at])?;
        if *first <= NONE {
            return None;
        }
        let values: Record<'a> = self.slots.iter().map(|slot| (slot.name, slot.value(number, row))).collect();
        let has_value =
            |value: &Filled<'_>| !matches!(value, Filled::One(None)) && *value != Filled::Several(Vec::new());
        let counts = match self.is_full {
            true => values.values().all(has_value),
            false => values.values().any(has_value),
        };
        counts.then_some(values)
    }
}

// === impl Slot ===

impl<'a> Slot<'a> {
    /// The value of the field in a record of a row.
    fn value(&self, number: usize, row: &Scored<'_, 'a>) -> Filled<'a> {
        match &self.choices {
            Some(choices) => self.chosen(choices, number, row),
            None => self.found(number, row),
        }
    }

    /// The choices that count, in the order of the request.
    fn chosen(&self, choices: &[(&'a str, usize)], number: usize, row: &Scored<'_, 'a>) -> Filled<'a> {
        let score = |word| words::sigmoid(row.logits[[number, word, 0, self.at]]);
        let scored = choices.iter().map(|&(label, word)| Found::Choice { label, score: score(word) });
        let counts = |choice: &Found<'_>| choice.score() >= self.threshold;
        if self.is_list {
            let mut chosen = Vec::new();
            for choice in scored.filter(counts) {
                if !chosen.contains(&choice) {
                    chosen.push(choice);
                }
            }
            return Filled::Several(chosen);
        }
        // Of equal ones the first.
        let best = scored.reduce(|best, other| if other.score() > best.score() { other } else { best });
        Filled::One(best.filter(counts))
    }

    /// The spans of the text that count, the best first.
    fn found(&self, number: usize, row: &Scored<'_, 'a>) -> Filled<'a> {
        let (text, words) = (row.text, &row.row.words);
        let mut spans = Vec::new();
        for first in 0..words.len() {
            for last in first..words.len().min(first + row.logits.dim().2) {
                let logit = row.logits[[number, row.before + first, last - first, self.at]];
                let score = words::sigmoid(logit);
                if logit > NONE && score >= self.threshold {
                    spans.push((first, last, score));
                }
            }
        }
        spans.sort_by(|one, other| compare_scores(other.2, one.2));
        let mut is_taken = vec![false; words.len()];
        spans.retain(|&(first, last, _)| {
            let is_free = is_taken[first..=last].iter().all(|taken| !taken);
            is_taken[first..=last].iter_mut().for_each(|taken| *taken |= is_free);
            is_free
        });
        if !self.is_list {
            spans.truncate(1);
        }
        let found = spans.into_iter().map(|(first, last, score)| {
            let (start, end) = (words[first].0, words[last].1);
            Found::Span { word: text.part(start, end), score, start, end }
        });
        // The full stop that was put behind the text takes part in the choice, and is no value.
        let mut found = found.filter(|found| !matches!(found, Found::Span { start, end, .. } if start == end));
        match self.is_list {
            true => Filled::Several(found.collect()),
            false => Filled::One(found.next()),
        }
    }
}

// === impl Found ===

impl Found<'_> {
    fn score(&self) -> f32 {
        match self {
            Found::Span { score, .. } | Found::Choice { score, .. } => *score,
        }
    }
}

impl PartialEq for Found<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Found::Span { start, end, .. }, Found::Span { start: begin, end: stop, .. }) => {
                (start, end) == (begin, stop)
            }
            (Found::Choice { label, .. }, Found::Choice { label: other, .. }) => label == other,
            _ => false,
        }
    }
}

/// The highest score of a record.
fn best(record: &Record<'_>) -> f32 {
    let found = record.values().flat_map(|value| match value {
        Filled::One(found) => found.as_slice(),
        Filled::Several(found) => found.as_slice(),
    });
    found.map(Found::score).fold(0.0, f32::max)
}

#[cfg(test)]
mod tests;
