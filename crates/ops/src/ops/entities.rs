//! `entities:STRATEGY`: named entities of a text, from the logits of its tokens `[rows, length, labels]` to one JSON array for
//! each row, as transformers' `TokenClassificationPipeline` gives. A request may choose the strategy by its parameter
//! `aggregation_strategy`.
//!
//! The last op of a chain. It takes these inputs of the model besides the data: `input_ids`, `offsets` (characters of the
//! text), `special_tokens_mask` and the texts (TYPE_STRING). The tokenizer is that of the version directory
//! (`tokenizer.json`); classes are named by the labels, those called `O` left out. The scores are the probabilities of the
//! softmax, which is taken here.
//!
//! With the request's parameter `token_scores` a row is the list of its tokens, special ones among them and padding not, each a list of the
//! scores of all classes: probabilities, or logits with `raw_scores`.
//!
//! With a further input `windows`, rows are windows of texts ([`super::windows`]), and offsets count characters of the whole text. The tokens that
//! the windows of a text own are put together before entities are made of them, so an entity is found once, wherever windows meet.
//!
//! With `none` an object is `entity`, `score`, `index`, `word`, `start`, `end`; with all others `entity_group`, `score`,
//! `word`, `start`, `end`. `start` and `end` count characters of the text.

use std::ops::Range;

use ndarray::{Array1, ArrayView2, Axis, Ix3};
use serde::Serialize;
use trireme_inference::InferError;
use trireme_text::{Extras, Padding, TextTokenizer, TokenizeOptions, texts_of};

use super::op::{Op, OpEntry, Resources, compare_scores};
use super::windows::{Owned, owned_of};
use crate::inputs::{Side, integers};
use crate::options::Aggregation;
use crate::{Form, Labels, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "entities",
    usage: "entities:none|simple|first|average|max",
    doc: "named entities of texts, as JSON: [rows, length, labels] to [rows]; last in a chain",
    inputs: &["input_ids", "offsets", "special_tokens_mask", "windows", "TEXT"],
    embeds: false,
    reduces: false,
    build,
};

/// The class of tokens outside entities.
const OUTSIDE: &str = "O";

struct Entities {
    aggregation: Aggregation,
    tokenizer: TextTokenizer,
    /// Whether the vocabulary marks tokens that continue a word.
    marks_words: bool,
    unknown_id: Option<u32>,
    padding_id: Option<u32>,
    labels: Labels,
    /// Whether rows are windows of texts.
    folds: bool,
}

/// The tokens of a row.
struct Row<'a> {
    logits: ArrayView2<'a, f32>,
    ids: &'a [i64],
    offsets: &'a [i64],
    special: &'a [i64],
    /// The characters of the text whose tokens are taken from this row.
    owned: Range<usize>,
}

/// A token that stands for text.
struct Token {
    /// Its position in the row.
    index: usize,
    word: String,
    scores: Array1<f32>,
    start: usize,
    end: usize,
    /// Whether it continues the word of the token before it.
    continues: bool,
}

/// A token or a word with its class.
struct Classified {
    label: String,
    score: f32,
    /// The position of a token.
    index: Option<usize>,
    word: String,
    start: usize,
    end: usize,
}

/// An entity in the answer.
#[derive(Serialize)]
struct Entity {
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_group: Option<String>,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    word: String,
    start: usize,
    end: usize,
}

/// A text, by characters.
struct Characters<'a> {
    text: &'a str,
    /// The byte at which each begins, and the end.
    begins: Vec<usize>,
}

/// Makes the op; loads the tokenizer.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let expected = Aggregation::EXPECTED;
    let argument = argument.ok_or_else(|| format!("argument is missing, expected {expected}"))?;
    let aggregation = Aggregation::named(argument);
    let aggregation = aggregation.ok_or_else(|| format!("argument is '{argument}', expected {expected}"))?;
    let inputs = resources.inputs;
    let needed = [
        ("'input_ids'", &inputs.input_ids),
        ("'offsets'", &inputs.offsets),
        ("'special_tokens_mask'", &inputs.special_tokens_mask),
        ("the texts (TYPE_STRING)", &inputs.texts),
    ];
    let missing: Vec<&str> = needed.iter().filter(|(_, found)| found.is_none()).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        return Err(format!("needs inputs that the model does not declare: {}", missing.join(", ")));
    }
    if resources.labels.is_empty() {
        return Err("needs the names of classes: give parameter 'labels'".to_owned());
    }
    // Nothing is encoded here, so the tokenizer need not have a padding token.
    let options = TokenizeOptions { padding: Padding::None, ..TokenizeOptions::default() };
    let tokenizer = TextTokenizer::load(resources.version_path, options).map_err(|error| error.to_string())?;
    tokenizer.check(Extras { offsets: true, ..Extras::default() }).map_err(|error| error.to_string())?;
    Ok(Box::new(Entities {
        aggregation,
        marks_words: tokenizer.marks_continued_words(),
        unknown_id: tokenizer.unknown_id(),
        padding_id: tokenizer.padding_id(),
        tokenizer,
        labels: resources.labels.clone(),
        folds: inputs.windows.is_some(),
    }))
}

// === impl Entities ===

impl Op for Entities {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 3..=3)?.dims;
        let labels = self.labels.len();
        if dims[2] >= 0 && dims[2] != labels as i64 {
            return Err(format!("has {labels} labels, got {input}"));
        }
        Ok(Signature::new(Form::Texts, [if self.folds { -1 } else { dims[0] }]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let logits = value.into_floats()?.into_dimensionality::<Ix3>();
        let logits = logits.map_err(|_| InferError::internal("entities takes numbers of rank 3"))?;
        let (rows, length, classes) = logits.dim();
        if classes != self.labels.len() {
            let labels = self.labels.len();
            return Err(InferError::invalid_arg(format!("entities has {labels} labels, got {classes} classes")));
        }
        let ids = integers(side.input_ids, "input_ids", &[rows, length])?;
        let offsets = integers(side.offsets, "offsets", &[rows, length, 2])?;
        let special = integers(side.special_tokens_mask, "special_tokens_mask", &[rows, length])?;
        let missing = || InferError::invalid_arg("the input of texts is missing");
        let texts = texts_of(side.texts.ok_or_else(missing)?)?;
        let windows = owned_of(side.windows, rows, texts.len())?;
        let aggregation = side.options.aggregation_strategy.unwrap_or(self.aggregation);
        let row = |Owned { row, characters, .. }: &Owned| {
            let of = row * length..(row + 1) * length;
            Row {
                logits: logits.index_axis(Axis(0), *row),
                ids: &ids[of.clone()],
                offsets: &offsets[2 * of.start..2 * of.end],
                special: &special[of],
                owned: characters.clone(),
            }
        };
        let answer = |(text, windows): (&&str, &Vec<Owned>)| {
            let rows: Vec<Row<'_>> = windows.iter().map(row).collect();
            if side.options.token_scores {
                let scores = self.token_scores(&rows, side.options.raw_scores)?;
                return serde_json::to_string(&scores).map_err(|error| InferError::internal(error.to_string()));
            }
            let text = Characters::of(text);
            let mut tokens = Vec::<Token>::new();
            for row in &rows {
                let mut own = self.tokens(&text, row)?;
                // Positions are those in a row of the whole text.
                if let (Some(last), Some(first)) = (tokens.last(), own.first().map(|first| first.index)) {
                    own.iter_mut().for_each(|token| token.index = token.index - first + last.index + 1);
                }
                tokens.append(&mut own);
            }
            let entities = self.entities(tokens, aggregation)?;
            serde_json::to_string(&entities).map_err(|error| InferError::internal(error.to_string()))
        };
        let answers: Vec<String> = texts.iter().zip(&windows).map(answer).collect::<Result<_, _>>()?;
        Ok(Value::Texts(Array1::from(answers).into_dyn()))
    }
}

impl Entities {
    /// The tokens of a text that a row owns, without special tokens.
    fn tokens(&self, text: &Characters<'_>, row: &Row<'_>) -> Result<Vec<Token>, InferError> {
        let Row { logits, ids, offsets, special, owned } = row;
        let mut tokens = Vec::new();
        for (index, logits) in logits.outer_iter().enumerate().filter(|(index, _)| special[*index] == 0) {
            let (start, end) = (offset(offsets[2 * index])?, offset(offsets[2 * index + 1])?);
            if !owned.contains(&start) {
                continue;
            }
            let id = u32::try_from(ids[index]).ok();
            let word = id.and_then(|id| self.tokenizer.token(id)).ok_or_else(|| {
                let id = ids[index];
                InferError::invalid_arg(format!("tensor 'input_ids' holds {id}, which is no token of the tokenizer"))
            })?;
            let covered = text.slice(start, end);
            // A token that is shorter or longer than its text has the mark of one that continues a word; without such
            // marks a word ends at a space.
            let continues = match self.marks_words {
                true => word.chars().count() != covered.chars().count(),
                false => start > 0 && !text.slice(start - 1, start + 1).contains(' '),
            };
            let is_unknown = id.is_some() && id == self.unknown_id;
            tokens.push(Token {
                index,
                word: if is_unknown { covered.to_owned() } else { word },
                scores: softmax(logits),
                start,
                end,
                continues: continues && !is_unknown,
            });
        }
        Ok(tokens)
    }

    /// The scores of all classes for the tokens of a text that its rows own, with the special tokens before and behind it.
    fn token_scores(&self, rows: &[Row<'_>], raw: bool) -> Result<Vec<Vec<f32>>, InferError> {
        let mut scores = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let kept = self.without_padding(row.ids, row.special);
            let first = kept.clone().find(|&token| row.special[token] == 0).unwrap_or(kept.end);
            let last = kept.clone().rfind(|&token| row.special[token] == 0).unwrap_or(kept.end);
            for token in kept {
                let is_taken = match token {
                    _ if token < first => at == 0,
                    _ if token > last => at + 1 == rows.len(),
                    _ => row.owned.contains(&offset(row.offsets[2 * token])?),
                };
                if is_taken {
                    let logits = row.logits.index_axis(Axis(0), token);
                    scores.push(if raw { logits.to_vec() } else { softmax(logits).to_vec() });
                }
            }
        }
        Ok(scores)
    }

    /// The places of a row's tokens: padding is before or behind them.
    fn without_padding(&self, ids: &[i64], special: &[i64]) -> Range<usize> {
        let is_token = |at: &usize| special[*at] == 0 || self.padding_id.map(i64::from) != Some(ids[*at]);
        let first = (0..ids.len()).find(is_token).unwrap_or(ids.len());
        first..(first..ids.len()).rfind(is_token).map_or(first, |last| last + 1)
    }

    fn entities(&self, tokens: Vec<Token>, aggregation: Aggregation) -> Result<Vec<Entity>, InferError> {
        let classified: Vec<Classified> = match aggregation {
            Aggregation::None | Aggregation::Simple => tokens.into_iter().map(|token| self.classify(token)).collect(),
            _ => {
                let words = tokens.chunk_by(|_, next| next.continues);
                words.map(|word| self.word(word, aggregation)).collect::<Result<_, _>>()?
            }
        };
        if aggregation == Aggregation::None {
            let inside = classified.into_iter().filter(|token| token.label != OUTSIDE);
            return Ok(inside.map(Classified::alone).collect());
        }
        let groups = classified.chunk_by(|one, next| {
            let (begins, tag) = tag(&next.label);
            !begins && tag == self::tag(&one.label).1
        });
        let entities = groups.map(|group| self.group(group)).collect::<Result<Vec<_>, _>>()?;
        Ok(entities.into_iter().filter(|entity| entity.entity_group.as_deref() != Some(OUTSIDE)).collect())
    }

    fn classify(&self, token: Token) -> Classified {
        let (class, score) = best(&token.scores);
        let Token { index, word, start, end, .. } = token;
        Classified { label: self.label(class), score, index: Some(index), word, start, end }
    }

    /// Joins the tokens of one word.
    fn word(&self, tokens: &[Token], aggregation: Aggregation) -> Result<Classified, InferError> {
        let (class, score) = match aggregation {
            Aggregation::Average => best(&average(tokens)),
            Aggregation::Max => tokens.iter().map(|token| best(&token.scores)).reduce(better).unwrap_or((0, 0.0)),
            _ => best(&tokens[0].scores),
        };
        let words = tokens.iter().map(|token| token.word.clone()).collect();
        Ok(Classified {
            label: self.label(class),
            score,
            index: None,
            word: self.tokenizer.join_tokens(words)?,
            start: tokens[0].start,
            end: tokens[tokens.len() - 1].end,
        })
    }

    /// Joins neighbours of one class to an entity.
    fn group(&self, group: &[Classified]) -> Result<Entity, InferError> {
        let label = &group[0].label;
        let scores: Vec<f32> = group.iter().map(|token| token.score).filter(|score| !score.is_nan()).collect();
        Ok(Entity {
            entity: None,
            entity_group: Some(label.split_once('-').map_or(label.as_str(), |(_, tag)| tag).to_owned()),
            score: scores.iter().sum::<f32>() / scores.len() as f32,
            index: None,
            word: self.tokenizer.join_tokens(group.iter().map(|token| token.word.clone()).collect())?,
            start: group[0].start,
            end: group[group.len() - 1].end,
        })
    }

    fn label(&self, class: usize) -> String {
        self.labels.get(class as i64).to_owned()
    }
}

// === impl Classified ===

impl Classified {
    fn alone(self) -> Entity {
        let Classified { label, score, index, word, start, end } = self;
        Entity { entity: Some(label), entity_group: None, score, index, word, start, end }
    }
}

// === impl Characters ===

impl<'a> Characters<'a> {
    fn of(text: &'a str) -> Characters<'a> {
        let begins = text.char_indices().map(|(begin, _)| begin).chain([text.len()]).collect();
        Characters { text, begins }
    }

    /// The characters from `start` to `end`, as far as there are any.
    fn slice(&self, start: usize, end: usize) -> &'a str {
        let byte = |character: usize| self.begins.get(character).copied().unwrap_or(self.text.len());
        self.text.get(byte(start)..byte(end)).unwrap_or_default()
    }
}

/// Whether a label begins an entity, and the class that it means: `B-PER` and `I-PER` are both of PER.
fn tag(label: &str) -> (bool, &str) {
    match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
        (Some(tag), _) => (true, tag),
        (_, Some(tag)) => (false, tag),
        _ => (false, label),
    }
}

/// The candidate with the higher score; of equal ones the first.
fn better(first: (usize, f32), next: (usize, f32)) -> (usize, f32) {
    if compare_scores(next.1, first.1).is_gt() { next } else { first }
}

/// The class with the highest score; of equal ones the first.
fn best(scores: &Array1<f32>) -> (usize, f32) {
    scores.iter().copied().enumerate().reduce(better).unwrap_or((0, 0.0))
}

fn average(tokens: &[Token]) -> Array1<f32> {
    let sum = tokens.iter().fold(Array1::zeros(tokens[0].scores.len()), |sum: Array1<f32>, token| sum + &token.scores);
    sum / tokens.len() as f32
}

fn softmax(logits: ndarray::ArrayView1<'_, f32>) -> Array1<f32> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials = logits.mapv(|logit| (logit - highest).exp());
    let sum = exponentials.sum();
    exponentials / sum
}

fn offset(value: i64) -> Result<usize, InferError> {
    usize::try_from(value).map_err(|_| {
        InferError::invalid_arg(format!("tensor 'offsets' holds {value}, expected positions of characters from 0"))
    })
}

#[cfg(test)]
mod tests;
