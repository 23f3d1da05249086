//! A model's answers for texts, from any source, and the likeness of two answers.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use trireme_model_repository::Task;

use crate::style::harmless;

/// Characters that are shown from where two texts differ.
const SHOWN: usize = 40;

/// A model's answer for one text.
#[derive(Clone, Debug, PartialEq)]
pub enum TextResult {
    /// An embedding.
    Vector(Vec<f64>),
    /// Components by index.
    Sparse(BTreeMap<i64, f64>),
    /// A vector for each token.
    Tokens(Vec<Vec<f64>>),
    /// Scores.
    Scores(Vec<f64>),
    /// Entities, or the values of fields of records, as JSON objects.
    Entities(Vec<Value>),
    /// A text that the model generated.
    Text(String),
}

/// The entities of two answers beside each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entities {
    /// Entities of either answer that the other one has, too.
    equal: usize,
    /// Entities of both answers.
    all: usize,
    /// How far apart the scores of equal ones are at most.
    pub difference: f64,
}

/// The outputs of one request, by name.
pub type Outputs = BTreeMap<String, Output>;

/// An output tensor.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Vec<Value>,
}

/// The operations whose results can be compared.
const COMPARED: [Task; 9] = [
    Task::Embed,
    Task::Sparse,
    Task::MultiVector,
    Task::Rerank,
    Task::Classify,
    Task::ZeroShot,
    Task::TokenClassify,
    Task::Extract,
    Task::Generate,
];

/// The task of this name, if answers of it can be compared.
pub fn task_of(name: &str) -> anyhow::Result<Task> {
    let known = || COMPARED.iter().map(|task| task.name()).collect::<Vec<_>>().join(", ");
    compared(name).with_context(|| format!("--task: found '{name}', expected one of {}", known()))
}

fn compared(name: &str) -> Option<Task> {
    Task::named(name).filter(|task| COMPARED.contains(task))
}

/// The name of the likeness of two answers of an operation, for the report.
pub fn measure(task: Task) -> &'static str {
    match task {
        Task::MultiVector => "cosine of a token",
        Task::Rerank | Task::Classify | Task::ZeroShot => "1 - difference of scores",
        Task::TokenClassify => "share of equal entities, or 1 - difference of their scores,",
        Task::Extract => "share of equal values, or 1 - difference of their scores,",
        Task::Generate => "1 where texts are equal",
        Task::Embed | Task::Sparse | Task::Tokenize | Task::Decode => "cosine",
    }
}

/// The operations of a model: those that its configuration names, or those that its outputs show.
pub fn tasks_of(config: &Value) -> anyhow::Result<Vec<Task>> {
    if let Some(named) = config["parameters"]["task"]["string_value"].as_str() {
        // A model of NLI is compared as a classifier.
        let reads_labels = config["parameters"]["zero_shot"]["string_value"] == "schema";
        let is_read = |task: &Task| *task != Task::ZeroShot || reads_labels;
        let tasks: Vec<Task> = named.split(',').filter_map(|name| compared(name.trim())).filter(is_read).collect();
        ensure!(!tasks.is_empty(), "the model's task is '{named}', which cannot be verified");
        return Ok(tasks);
    }
    let declared = || config["output"].as_array().into_iter().flatten();
    let outputs: Vec<&str> = declared().filter_map(|output| output["name"].as_str()).collect();
    let texts = config["input"].as_array().map_or(0, Vec::len);
    let found = |name: &&str| {
        let is_first = |task: &Task| task.outputs().first().is_some_and(|(output, ..)| output == name);
        match Task::ALL.into_iter().find(is_first)? {
            Task::Rerank if texts < 2 => Some(Task::Classify),
            task => Some(task),
        }
    };
    let tasks: Vec<Task> = outputs.iter().filter_map(found).collect();
    match (tasks.is_empty(), outputs.len()) {
        (false, _) => Ok(tasks),
        (true, 1) if declared().all(|output| output["data_type"] == "TYPE_STRING") => Ok(vec![Task::Generate]),
        (true, 1) => Ok(vec![Task::Embed]),
        _ => bail!("the model's outputs {outputs:?} do not tell what it does: say it by --task"),
    }
}

/// The answers in the outputs of a request of `rows` rows.
pub fn read(task: Task, outputs: &Outputs, rows: usize) -> anyhow::Result<Vec<TextResult>> {
    let get = |name: &str| {
        let only = outputs.values().next().filter(|_| outputs.len() == 1);
        outputs.get(name).or(only).with_context(|| format!("the answer has no output '{name}'"))
    };
    match task {
        Task::Embed => {
            Ok(get("sentence_embedding")?.rows(rows)?.into_iter().map(|row| TextResult::Vector(numbers(row))).collect())
        }
        Task::Rerank | Task::Classify => {
            Ok(get("scores")?.rows(rows)?.into_iter().map(|row| TextResult::Scores(numbers(row))).collect())
        }
        Task::Sparse => {
            let (indices, values) = (get("sparse_indices")?.rows(rows)?, get("sparse_values")?.rows(rows)?);
            Ok(indices.into_iter().zip(values).map(|(indices, values)| sparse(indices, values)).collect())
        }
        Task::MultiVector => {
            let tokens = get("token_embeddings")?;
            let width = tokens.shape.last().copied().unwrap_or(0).max(1);
            let masks = get("token_mask")?.rows(rows)?;
            let kept = |(row, mask): (&[Value], &[Value])| {
                let kept = row.chunks(width).zip(mask).filter(|(_, mask)| mask.as_i64() != Some(0));
                TextResult::Tokens(kept.map(|(token, _)| numbers(token)).collect())
            };
            Ok(tokens.rows(rows)?.into_iter().zip(masks).map(kept).collect())
        }
        Task::TokenClassify => {
            let entities = |row: &[Value]| {
                let text = row.first().and_then(Value::as_str).context("output 'entities' holds no texts")?;
                Ok(TextResult::Entities(serde_json::from_str(text).context("output 'entities' holds no JSON array")?))
            };
            get("entities")?.rows(rows)?.into_iter().map(entities).collect()
        }
        Task::Extract => {
            let records = |row: &[Value]| {
                let text = row
                    .first()
                    .and_then(Value::as_str)
                    .context("output 'records' holds no texts, expected a JSON object for each row")?;
                let records = serde_json::from_str(text)
                    .context("output 'records' holds other texts, expected a JSON object for each row")?;
                Ok(TextResult::Entities(values_of(&records)))
            };
            get("records")?.rows(rows)?.into_iter().map(records).collect()
        }
        Task::Generate => {
            let text = |row: &[Value]| match row {
                [Value::String(text)] => Ok(TextResult::Text(text.clone())),
                _ => bail!("output 'generated_text' has {} texts in a row, expected one", row.len()),
            };
            get("generated_text")?.rows(rows)?.into_iter().map(text).collect()
        }
        Task::ZeroShot => {
            let row = |row: &[Value]| {
                let text = row
                    .first()
                    .and_then(Value::as_str)
                    .context("output 'classes' holds no texts, expected a JSON object for each row")?;
                let said: Map<String, Value> = serde_json::from_str(text)
                    .context("output 'classes' holds other texts, expected a JSON object for each row")?;
                let labels = said.values().flat_map(|labels| labels.as_array().into_iter().flatten());
                Ok(TextResult::Scores(labels.filter_map(|label| label["score"].as_f64()).collect()))
            };
            get("classes")?.rows(rows)?.into_iter().map(row).collect()
        }
        Task::Tokenize | Task::Decode => bail!("texts of task '{task}' cannot be compared"),
    }
}

/// The answer in a line of a file of vectors, or of the reference.
pub fn expected(task: Task, line: &Value) -> anyhow::Result<TextResult> {
    let list = |key: &str| line[key].as_array().with_context(|| format!("there is no list '{key}'"));
    Ok(match task {
        Task::Embed => TextResult::Vector(numbers(list("embedding")?)),
        Task::Rerank | Task::Classify => TextResult::Scores(numbers(list("scores")?)),
        Task::Sparse => {
            let part = |name: &str| {
                line["sparse"][name].as_array().with_context(|| format!("there is no list 'sparse' with '{name}'"))
            };
            sparse(part("indices")?, part("values")?)
        }
        Task::MultiVector => {
            let tokens = list("token_embeddings")?.iter();
            let token = |token: &Value| token.as_array().map(|token| numbers(token));
            let tokens: Option<Vec<_>> = tokens.map(token).collect();
            TextResult::Tokens(tokens.context("'token_embeddings' is no list of lists")?)
        }
        Task::TokenClassify => TextResult::Entities(list("entities")?.clone()),
        Task::Extract => {
            ensure!(
                line["records"].is_object(),
                "a line has no 'records', expected an object of structures and relations"
            );
            TextResult::Entities(values_of(&line["records"]))
        }
        Task::Generate => {
            TextResult::Text(line["generated_text"].as_str().context("there is no text 'generated_text'")?.to_owned())
        }
        Task::ZeroShot => TextResult::Scores(numbers(list("class_scores")?)),
        Task::Tokenize | Task::Decode => bail!("texts of task '{task}' cannot be compared"),
    })
}

/// The values of all fields of the records of a text, each with the place of its field.
fn values_of(records: &Value) -> Vec<Value> {
    let mut values = Vec::new();
    for (name, records) in records.as_object().into_iter().flatten().flat_map(|(_, kinds)| kinds.as_object()).flatten()
    {
        for (number, record) in records.as_array().into_iter().flatten().enumerate() {
            for (field, value) in record.as_object().into_iter().flatten() {
                let given = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                for mut value in given.iter().filter(|value| value.is_object()).cloned() {
                    value["field"] = format!("{name}[{number}].{field}").into();
                    values.push(value);
                }
            }
        }
    }
    values
}

// === impl Output ===

impl Output {
    /// The elements of each row.
    fn rows(&self, rows: usize) -> anyhow::Result<Vec<&[Value]>> {
        let found = self.shape.first().copied().unwrap_or(0);
        ensure!(found == rows, "an output has {found} rows for {rows} texts");
        let width = self.data.len() / rows.max(1);
        Ok((0..rows).map(|row| &self.data[row * width..(row + 1) * width]).collect())
    }
}

fn numbers(values: &[Value]) -> Vec<f64> {
    values.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
}

fn sparse(indices: &[Value], values: &[Value]) -> TextResult {
    let pairs = indices.iter().filter_map(Value::as_i64).zip(numbers(values));
    TextResult::Sparse(pairs.filter(|(index, _)| *index >= 0).collect())
}

// === impl TextResult ===

impl TextResult {
    /// How alike two answers are: 1 where they are the same.
    pub fn likeness(&self, other: &TextResult) -> f64 {
        match (self, other) {
            (TextResult::Vector(a), TextResult::Vector(b)) => cosine(a, b),
            (TextResult::Tokens(a), TextResult::Tokens(b)) if a.len() == b.len() => {
                a.iter().zip(b).map(|(a, b)| cosine(a, b)).fold(1.0, lower)
            }
            (TextResult::Sparse(a), TextResult::Sparse(b)) => {
                let indices: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
                let dense = |map: &BTreeMap<i64, f64>| -> Vec<f64> {
                    indices.iter().map(|index| map.get(index).copied().unwrap_or(0.0)).collect()
                };
                cosine(&dense(a), &dense(b))
            }
            (TextResult::Scores(a), TextResult::Scores(b)) if a.len() == b.len() => {
                let largest = b.iter().fold(1.0f64, |largest, score| largest.max(score.abs()));
                a.iter().zip(b).map(|(a, b)| 1.0 - (a - b).abs() / largest).fold(1.0, lower)
            }
            (TextResult::Entities(..), TextResult::Entities(..)) => {
                self.entities(other).map_or(0.0, |found| lower(found.share(), 1.0 - found.difference))
            }
            (TextResult::Text(a), TextResult::Text(b)) => f64::from(u8::from(a == b)),
            _ => 0.0,
        }
    }

    /// The entities of two answers beside each other; `None` for answers of another kind.
    pub fn entities(&self, other: &TextResult) -> Option<Entities> {
        match (self, other) {
            (TextResult::Entities(a), TextResult::Entities(b)) => Some(Entities::of(a, b)),
            _ => None,
        }
    }

    /// Where a generated text parts from the expected one, in words; `None` where they are equal, and for answers of another kind.
    pub fn parting(&self, expected: &TextResult) -> Option<String> {
        let (TextResult::Text(found), TextResult::Text(expected)) = (self, expected) else { return None };
        if found == expected {
            return None;
        }
        let same = found.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
        let rest = |text: &str| {
            let rest: String = text.chars().skip(same).take(SHOWN).collect();
            if rest.is_empty() { "its end".to_owned() } else { format!("'{}'", harmless(&rest)) }
        };
        Some(format!("character {}: found {}, expected {}", same + 1, rest(found), rest(expected)))
    }
}

// === impl Entities ===

impl Entities {
    /// Counts the entities that have the same label at the same place in both lists.
    fn of(a: &[Value], b: &[Value]) -> Entities {
        let mut found = Entities { equal: 0, all: a.len() + b.len(), difference: 0.0 };
        let mut left: Vec<&Value> = b.iter().collect();
        for entity in a {
            let Some(at) = left.iter().position(|other| is_same(entity, other)) else { continue };
            // Several may have one place, as bytes of a character do: the order says which is which.
            let other = left.remove(at);
            let score = |entity: &Value| entity["score"].as_f64().unwrap_or(f64::NAN);
            found.equal += 2;
            found.difference = higher(found.difference, (score(entity) - score(other)).abs());
        }
        found
    }

    /// Both together.
    pub fn and(self, other: Entities) -> Entities {
        Entities {
            equal: self.equal + other.equal,
            all: self.all + other.all,
            difference: higher(self.difference, other.difference),
        }
    }

    /// The share of the entities of both answers that the other one has, too: 1 where there are none.
    pub fn share(&self) -> f64 {
        if self.all == 0 { 1.0 } else { self.equal as f64 / self.all as f64 }
    }
}

/// The lower one; NaN is lower than any number.
pub fn lower(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

/// The cosine of two vectors, or the ratio of their lengths where that is less, because a vector that is not normalized points
/// the same way. 1 for two vectors of zeros; 0 for different numbers of components.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return 0.0;
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (aa, bb) = (dot(a, a), dot(b, b));
    if aa == 0.0 && bb == 0.0 {
        return 1.0;
    }
    if aa == 0.0 || bb == 0.0 {
        return 0.0;
    }
    let (long, short) = (aa.max(bb).sqrt(), aa.min(bb).sqrt());
    lower(dot(a, b) / (long * short), short / long)
}

/// Whether two entities are the same except for their scores.
fn is_same(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| key == "score" || a == b))
}

/// The higher one; NaN is higher than any number.
pub fn higher(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn likeness_is_one_for_the_same_and_less_for_others() {
        let vector = |values: &[f64]| TextResult::Vector(values.to_vec());
        assert_eq!(vector(&[3.0, 4.0]).likeness(&vector(&[3.0, 4.0])), 1.0);
        assert_eq!(vector(&[3.0, 4.0]).likeness(&vector(&[6.0, 8.0])), 0.5, "half as long");
        assert_eq!(vector(&[1.0, 0.0]).likeness(&vector(&[0.0, 1.0])), 0.0);
        assert_eq!(vector(&[0.0, 0.0]).likeness(&vector(&[0.0, 0.0])), 1.0);
        assert_eq!(vector(&[1.0]).likeness(&vector(&[1.0, 1.0])), 0.0);
        assert!(vector(&[f64::NAN]).likeness(&vector(&[1.0])).is_nan());
        let scores = |values: &[f64]| TextResult::Scores(values.to_vec());
        assert_eq!(scores(&[0.25, 0.5]).likeness(&scores(&[0.25, 0.75])), 0.75);
        assert_eq!(scores(&[8.0]).likeness(&scores(&[10.0])), 0.8);
        let tokens = |values: &[&[f64]]| TextResult::Tokens(values.iter().map(|token| token.to_vec()).collect());
        assert_eq!(tokens(&[&[1.0, 0.0], &[0.0, 2.0]]).likeness(&tokens(&[&[1.0, 0.0], &[1.0, 0.0]])), 0.0);
        assert_eq!(tokens(&[&[1.0]]).likeness(&tokens(&[])), 0.0);
        let sparse = |pairs: &[(i64, f64)]| TextResult::Sparse(pairs.iter().copied().collect());
        assert_eq!(sparse(&[(3, 1.0)]).likeness(&sparse(&[(3, 1.0)])), 1.0);
        assert_eq!(sparse(&[(3, 1.0)]).likeness(&sparse(&[(4, 1.0)])), 0.0);
    }

    #[test]
    fn entities_are_alike_by_the_share_of_equal_ones_and_their_scores() {
        let entities = |all: &[(f64, i64)]| {
            let one = |(score, start): &(f64, i64)| json!({"entity": "LOC", "score": score, "start": start});
            TextResult::Entities(all.iter().map(one).collect())
        };
        let likeness = |a: &[(f64, i64)], b: &[(f64, i64)]| entities(a).likeness(&entities(b));
        assert_eq!(likeness(&[], &[]), 1.0);
        assert_eq!(likeness(&[(0.5, 1)], &[(0.75, 1)]), 0.75, "a score");
        assert_eq!(likeness(&[(0.5, 1)], &[(0.5, 2)]), 0.0, "a place");
        assert_eq!(likeness(&[(0.5, 1), (0.5, 9)], &[(0.5, 1)]), 2.0 / 3.0, "one more");
        assert!(likeness(&[(f64::NAN, 1)], &[(0.5, 1)]).is_nan());
        let of_one_place = [(0.5, 0), (0.9, 5), (0.5, 5)];
        assert_eq!(likeness(&of_one_place, &of_one_place), 1.0);
        let both = entities(&[(0.5, 1)]).entities(&entities(&[(0.25, 1)])).unwrap();
        let both = both.and(entities(&[(0.5, 1)]).entities(&entities(&[])).unwrap());
        assert_eq!((both.share(), both.difference), (2.0 / 3.0, 0.25));
    }

    #[test]
    fn texts_part_at_a_character() {
        let text = |text: &str| TextResult::Text(text.to_owned());
        assert_eq!(text("abc").parting(&text("abc")), None);
        let parting = text("naïve").parting(&text("naïf")).unwrap();
        assert_eq!(parting, "character 4: found 've', expected 'f'");
        assert_eq!(text("a").parting(&text("ab")).unwrap(), "character 2: found its end, expected 'b'");
        assert_eq!(text("a").parting(&TextResult::Vector(vec![])), None);
    }

    #[test]
    fn tasks_are_named_or_told_by_outputs() {
        let named = json!({"parameters": {"task": {"string_value": "embed, sparse"}}});
        assert_eq!(tasks_of(&named).unwrap(), [Task::Embed, Task::Sparse]);
        let outputs = |names: &[&str], inputs: usize| {
            let list = |names: Vec<&str>| names.into_iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
            tasks_of(&json!({"input": list(vec!["t"; inputs]), "output": list(names.to_vec())}))
        };
        assert_eq!(outputs(&["token_embeddings", "token_mask"], 1).unwrap(), [Task::MultiVector]);
        assert_eq!(outputs(&["scores"], 1).unwrap(), [Task::Classify]);
        assert_eq!(outputs(&["scores"], 2).unwrap(), [Task::Rerank]);
        assert_eq!(outputs(&["whatever"], 1).unwrap(), [Task::Embed]);
        let texts = json!({"output": [{"name": "translation", "data_type": "TYPE_STRING"}]});
        assert_eq!(tasks_of(&texts).unwrap(), [Task::Generate]);
        assert!(outputs(&["a", "b"], 1).unwrap_err().to_string().contains("--task"));
    }
}
