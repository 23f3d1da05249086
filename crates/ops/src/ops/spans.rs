//! `spans`, `spans:THRESHOLD` or `spans:by_label`: the entities of a text whose labels the request names, from the logits of spans of words
//! `[rows, words, widths, labels]` to one JSON array for each text, as the libraries `gliner` and, with `by_label`, `gliner2` find them.
//!
//! The last op of a chain. It takes these inputs of the model besides the data: `word_offsets` (the characters of words), `windows` (rows are windows of texts,
//! [`super::windows`]) and the texts (TYPE_STRING).
//!
//! A span counts where the sigmoid of its logit is above the threshold: that of the label in parameter `labels`, else parameter `threshold`, else the op's argument, 0.5
//! by default. Of spans that overlap the one with the higher score stays; `flat_ner: false` lets spans lie within others, and
//! `multi_label: true` lets a span have several labels. With `by_label` only spans of one label exclude each other. A span belongs to the window that owns its first word, so an entity is found once, wherever windows meet.
//!
//! An object is `entity_group`, `score`, `word`, `start`, `end`; `start` and `end` count characters of the text.

use std::collections::{BTreeMap, HashMap};

use ndarray::{Array1, ArrayView4, Ix4};
use serde::Serialize;
use trireme_inference::{InferError, ParameterValue, Parameters};
use trireme_text::SpanLabels;

use super::op::{Op, OpEntry, Resources, compare_scores};
use super::words::{self, THRESHOLD, WordedText};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "spans",
    usage: "spans",
    doc: "entities of the labels of a request, as JSON: [rows, words, widths, labels] to [rows]; last in a chain. `spans:by_label`: entities of different labels may overlap",
    inputs: words::INPUTS,
    embeds: false,
    reduces: true,
    build,
};

/// The argument with which spans of different labels do not exclude each other.
const BY_LABEL: &str = "by_label";

struct Spans {
    threshold: f32,
    by_label: bool,
}

/// The options of a request for its spans.
struct Options {
    labels: SpanLabels,
    /// By label.
    thresholds: Vec<f32>,
    flat: bool,
    multi_label: bool,
    by_label: bool,
}

/// A span of words with a label, by the places of its words in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    first: usize,
    last: usize,
    label: usize,
    score: f32,
}

/// An entity in the answer.
#[derive(Serialize)]
struct Entity<'a> {
    entity_group: &'a str,
    score: f32,
    word: &'a str,
    start: usize,
    end: usize,
}

fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let number = |argument: &str| argument.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    let by_label = argument == Some(BY_LABEL);
    let threshold = argument.filter(|_| !by_label).map(|argument| {
        number(argument)
            .ok_or_else(|| format!("argument is '{argument}', expected a threshold from 0 to 1, or {BY_LABEL}"))
    });
    words::check(resources.inputs)?;
    Ok(Box::new(Spans { threshold: threshold.transpose()?.unwrap_or(THRESHOLD), by_label }))
}

// === impl Spans ===

impl Op for Spans {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Floats, 4..=4)?;
        Ok(Signature::new(Form::Texts, [-1]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let logits = value.into_floats()?.into_dimensionality::<Ix4>();
        let logits = logits.map_err(|_| InferError::internal("spans takes numbers of rank 4"))?;
        let (rows, words, _, classes) = logits.dim();
        let options = Options::of(side.parameters, self)?;
        if classes != options.thresholds.len() {
            let labels = options.thresholds.len();
            return Err(InferError::invalid_arg(format!(
                "spans has {labels} labels of the request, got {classes} classes"
            )));
        }
        let before = words::records(side.parameters)?.words_of_choices().len();
        let texts = words::texts(side, (rows, words), before)?;
        let answer = |text: &WordedText<'_>| entities(text, logits.view(), before, &options);
        let answers: Vec<String> = texts.iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Value::Texts(Array1::from(answers).into_dyn()))
    }
}

/// The entities of a text, from the logits of spans by row, first word, width and label. So many words of a row come before those of the text.
fn entities(
    text: &WordedText<'_>,
    logits: ArrayView4<'_, f32>,
    before: usize,
    options: &Options,
) -> Result<String, InferError> {
    // Windows share words: a word is known by its characters.
    let words: BTreeMap<usize, usize> = text.rows.iter().flat_map(|row| row.words.iter().copied()).collect();
    let words: Vec<(usize, usize)> = words.into_iter().collect();
    let places: HashMap<usize, usize> = words.iter().enumerate().map(|(place, word)| (word.0, place)).collect();
    let mut found = Vec::new();
    for row in &text.rows {
        for (first, (start, _)) in row.words.iter().enumerate().filter(|(_, word)| row.owned.contains(&word.0)) {
            let place = places[start];
            for (width, (last, _)) in row.words[first..].iter().enumerate().take(logits.dim().2) {
                for (label, &threshold) in options.thresholds.iter().enumerate() {
                    let score = words::sigmoid(logits[[row.row, before + first, width, label]]);
                    if score > threshold {
                        found.push(Span { first: place, last: places[last], label, score });
                    }
                }
            }
        }
    }
    let names = options.labels.names();
    let entity = |span: Span| {
        let (start, end) = (words[span.first].0, words[span.last].1);
        Entity { entity_group: &names[span.label], score: span.score, word: text.part(start, end), start, end }
    };
    // A full stop that was put behind the text has no characters. Its span takes part in the choice, and is no entity.
    let entities = options.best(found).into_iter().map(entity).filter(|entity| entity.start < entity.end);
    let entities: Vec<Entity<'_>> = entities.collect();
    serde_json::to_string(&entities).map_err(|error| InferError::internal(error.to_string()))
}

// === impl Options ===

impl Options {
    fn of(parameters: Option<&Parameters>, usual: &Spans) -> Result<Options, InferError> {
        let find = |name: &str| parameters.and_then(|parameters| parameters.get(name));
        let wrong = |name: &str, value: &ParameterValue, expected: &str| {
            InferError::invalid_arg(format!("parameter '{name}' is {value}, expected {expected}"))
        };
        let flag = |name: &str, usual: bool| match find(name) {
            None => Ok(usual),
            Some(ParameterValue::Bool(flag)) => Ok(*flag),
            Some(other) => Err(wrong(name, other, "true or false")),
        };
        let threshold = words::threshold(parameters, usual.threshold)?;
        if let Some(ParameterValue::Bool(true)) = find("token_scores") {
            return Err(InferError::unsupported("this model scores spans of words, not tokens: ask for entities"));
        }
        let labels = words::text_parameter(parameters, "labels");
        let labels = SpanLabels::parse(labels.ok_or(trireme_text::TextError::NoLabels)?)?;
        let thresholds = (0..labels.names().len()).map(|label| labels.threshold(label).unwrap_or(threshold)).collect();
        let (flat, multi_label) = (flag("flat_ner", true)?, flag("multi_label", false)?);
        Ok(Options { labels, thresholds, flat, multi_label, by_label: usual.by_label })
    }

    /// The spans that stay, by their first word; of equal first words the one with the higher score comes first.
    fn best(&self, spans: Vec<Span>) -> Vec<Span> {
        if !self.by_label {
            return self.best_of_rivals(spans);
        }
        let of_label = |label| spans.iter().copied().filter(|span| span.label == label).collect();
        let each = (0..self.thresholds.len()).flat_map(|label| self.best_of_rivals(of_label(label)));
        let mut best: Vec<Span> = each.collect();
        best.sort_by(|one, other| one.first.cmp(&other.first).then(compare_scores(other.score, one.score)));
        best
    }

    /// The spans that stay, of spans that exclude each other.
    fn best_of_rivals(&self, mut spans: Vec<Span>) -> Vec<Span> {
        spans.sort_by(|one, other| compare_scores(other.score, one.score));
        let widest = spans.iter().map(|span| span.last - span.first).max().unwrap_or(0);
        // By the first word, the last words of the spans that stay.
        let mut taken = BTreeMap::<usize, Vec<usize>>::new();
        spans.retain(|span| {
            // Others begin before its end, and no further before it than the widest is long.
            let near = taken.range(span.first.saturating_sub(widest)..=span.last);
            let meets = near.flat_map(|(&first, ends)| ends.iter().map(move |&last| (first, last)));
            let stays = !meets.into_iter().any(|other| self.excludes(span, other));
            if stays {
                let ends = taken.entry(span.first).or_default();
                if !ends.contains(&span.last) {
                    ends.push(span.last);
                }
            }
            stays
        });
        spans.sort_by_key(|span| span.first);
        spans
    }

    /// Whether a span that stays leaves no place for this one.
    fn excludes(&self, span: &Span, (first, last): (usize, usize)) -> bool {
        if (span.first, span.last) == (first, last) {
            return !self.multi_label;
        }
        let meets = span.first <= last && first <= span.last;
        let within = (span.first <= first && last <= span.last) || (first <= span.first && span.last <= last);
        meets && (self.flat || !within)
    }
}

#[cfg(test)]
mod tests;
