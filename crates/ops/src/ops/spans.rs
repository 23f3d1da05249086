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

use ndarray::{Array1, ArrayView3, Axis, Ix4};
use serde::Serialize;
use trireme_inference::{InferError, ParameterValue, Parameters};
use trireme_text::{SpanLabels, texts_of};

use super::op::{Op, OpEntry, Resources, compare_scores};
use super::windows::{Owned, owned_of};
use crate::inputs::{Side, integers};
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "spans",
    usage: "spans",
    doc: "entities of the labels of a request, as JSON: [rows, words, widths, labels] to [rows]; last in a chain. `spans:by_label`: entities of different labels may overlap",
    inputs: &["word_offsets", "windows", "TEXT"],
    embeds: false,
    reduces: true,
    build,
};

/// The threshold that the library has by default.
const THRESHOLD: f32 = 0.5;

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

/// A row of a text.
struct Row<'a> {
    /// For each first word, each width and each label.
    logits: ArrayView3<'a, f32>,
    /// The characters of its words, in the order of the text.
    words: Vec<(usize, usize)>,
    /// The part of the text whose entities it has.
    owned: &'a Owned,
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
    let inputs = resources.inputs;
    let needed = [("'word_offsets'", &inputs.word_offsets), ("the texts (TYPE_STRING)", &inputs.texts)];
    let missing: Vec<&str> = needed.iter().filter(|(_, found)| found.is_none()).map(|(name, _)| *name).collect();
    match missing.is_empty() {
        true => Ok(Box::new(Spans { threshold: threshold.transpose()?.unwrap_or(THRESHOLD), by_label })),
        false => Err(format!("needs inputs that the model does not declare: {}", missing.join(", "))),
    }
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
        let offsets = integers(side.word_offsets, "word_offsets", &[rows, words, 2])?;
        let missing = || InferError::invalid_arg("the input of texts is missing");
        let texts = texts_of(side.texts.ok_or_else(missing)?)?;
        let windows = owned_of(side.windows, rows, texts.len())?;
        let answer = |(text, windows): (&&str, &Vec<Owned>)| {
            let rows = windows.iter().map(|window| {
                let of = 2 * window.row * words..2 * (window.row + 1) * words;
                Row { logits: logits.index_axis(Axis(0), window.row), words: characters(&offsets[of]), owned: window }
            });
            entities(text, &rows.collect::<Vec<_>>(), &options)
        };
        let answers: Vec<String> = texts.iter().zip(&windows).map(answer).collect::<Result<_, _>>()?;
        Ok(Value::Texts(Array1::from(answers).into_dyn()))
    }
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

/// The entities of a text that has these rows.
fn entities(text: &str, rows: &[Row<'_>], options: &Options) -> Result<String, InferError> {
    // Windows share words: a word is known by its characters.
    let words: BTreeMap<usize, usize> = rows.iter().flat_map(|row| row.words.iter().copied()).collect();
    let words: Vec<(usize, usize)> = words.into_iter().collect();
    let places: HashMap<usize, usize> = words.iter().enumerate().map(|(place, word)| (word.0, place)).collect();
    let mut found = Vec::new();
    for Row { logits, words: own, owned } in rows {
        for (first, (start, _)) in own.iter().enumerate().filter(|(_, word)| owned.characters.contains(&word.0)) {
            let place = places[start];
            for (width, (last, _)) in own[first..].iter().enumerate().take(logits.dim().1) {
                for (label, &threshold) in options.thresholds.iter().enumerate() {
                    let score = 1.0 / (1.0 + (-logits[[first, width, label]]).exp());
                    if score > threshold {
                        found.push(Span { first: place, last: places[last], label, score });
                    }
                }
            }
        }
    }
    let names = options.labels.names();
    let bytes: Vec<usize> = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
    let entity = |span: Span| {
        let (start, end) = (words[span.first].0, words[span.last].1);
        let at = |character: usize| bytes.get(character).copied().unwrap_or(text.len());
        Entity { entity_group: &names[span.label], score: span.score, word: &text[at(start)..at(end)], start, end }
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
        let threshold = match find("threshold") {
            None => usual.threshold,
            Some(value) => {
                let number = match *value {
                    ParameterValue::Double(number) => Some(number as f32),
                    _ => value.as_u64().map(|number| number as f32),
                };
                let number = number.filter(|number| (0.0..=1.0).contains(number));
                number.ok_or_else(|| wrong("threshold", value, "a number from 0 to 1"))?
            }
        };
        if let Some(ParameterValue::Bool(true)) = find("token_scores") {
            return Err(InferError::unsupported("this model scores spans of words, not tokens: ask for entities"));
        }
        let labels = find("labels").and_then(ParameterValue::as_str);
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
