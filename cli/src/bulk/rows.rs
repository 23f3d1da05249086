//! Rows of a file, as they are read and written.

use std::fmt;
use std::ops::{AddAssign, Range};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_columns::{Batch, WindowRow};

/// The text of a row, or the reason why the row has no text.
pub type Text = Result<String, String>;

/// The vectors of a row, or the reason why it has no vector. With `--chunk` there is one for each window, in the order of the text.
pub type Outcome = Result<Vec<Embedding>, String>;

/// A vector, and the characters of the text that it stands for; `None` for the whole text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    pub characters: Option<Range<u64>>,
    pub vector: Vec<f32>,
}

/// A row of the output: its place, with `--chunk` its window, and the vector or the reason why it has no vector.
pub struct OutputRow<'a> {
    pub of: WindowRow,
    pub outcome: Result<&'a [f32], &'a str>,
}

/// The id of a row: a JSON value as it is written in the input. A number keeps all its digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(String);

/// Counts of texts that have vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Their tokens, as far as the model counts them.
    pub tokens: u64,
    /// Texts that had more tokens than the model takes, and were cut.
    pub cut: u64,
}

/// The work that was done up to a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Rows without a vector.
    pub errors: u64,
    pub facts: Facts,
    /// The time that all runs have taken.
    pub took: Duration,
}

/// Rows that follow one another in the input. Their texts are answered together.
pub struct Window {
    /// The text of each row.
    pub texts: Vec<Text>,
    /// The other columns of the output.
    pub rest: Rest,
}

/// The parts of rows that are not their texts.
pub enum Rest {
    /// The id of each row.
    Ids(Vec<Id>),
    /// All columns; together the batches have as many rows as the window.
    Batches(Vec<Batch>),
    /// Rows of an output that is there already, by their numbers from 1.
    Numbers(Vec<u64>),
}

/// The rows of the output for these rows of the input, of which `before` is the number of the one before the first.
pub fn output_rows(outcomes: &[Outcome], before: u64) -> impl Iterator<Item = OutputRow<'_>> {
    let rows = outcomes.iter().enumerate();
    rows.flat_map(move |(place, outcome)| rows_of_text(place, before + 1 + place as u64, outcome))
}

/// The rows of the output for a text, in this place among others and this row of the input.
pub fn rows_of_text(place: usize, row: u64, outcome: &Outcome) -> Vec<OutputRow<'_>> {
    match outcome {
        Err(why) => vec![OutputRow { of: WindowRow { place, row, window: None }, outcome: Err(why) }],
        Ok(vectors) => (0..)
            .zip(vectors)
            .map(|(number, Embedding { characters, vector })| {
                let window = characters.as_ref().map(|characters| (number, characters.start, characters.end));
                OutputRow { of: WindowRow { place, row, window }, outcome: Ok(vector.as_slice()) }
            })
            .collect(),
    }
}

// === impl Embedding ===

impl Embedding {
    /// The vector of a whole text.
    #[cfg(test)]
    pub fn of_text(vector: Vec<f32>) -> Embedding {
        Embedding { characters: None, vector }
    }
}

// === impl Id ===

impl Id {
    /// The id that is written as this JSON.
    pub fn written(json: &str) -> Id {
        Id(json.to_owned())
    }

    /// The id for a column of texts; `None` for null.
    pub fn text(&self) -> Option<String> {
        match serde_json::from_str(&self.0) {
            Ok(Value::Null) => None,
            Ok(Value::String(text)) => Some(text),
            _ => Some(self.0.clone()),
        }
    }
}

impl From<Value> for Id {
    fn from(value: Value) -> Id {
        Id(value.to_string())
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Id {
        Id(number.to_string())
    }
}

/// As JSON.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Facts ===

impl AddAssign for Facts {
    fn add_assign(&mut self, other: Facts) {
        self.tokens += other.tokens;
        self.cut += other.cut;
    }
}

// === impl Totals ===

impl Totals {
    /// As a checkpoint has them.
    pub fn to_json(self) -> Value {
        let Totals { errors, facts: Facts { tokens, cut }, took } = self;
        json!({"errors": errors, "tokens": tokens, "cut": cut, "seconds": took.as_secs_f64()})
    }

    /// The counts of a checkpoint; a count that it lacks is 0.
    pub fn from_json(found: &Value) -> Totals {
        let count = |name: &str| found[name].as_u64().unwrap_or_default();
        let took = Duration::try_from_secs_f64(found["seconds"].as_f64().unwrap_or_default()).unwrap_or_default();
        Totals { errors: count("errors"), facts: Facts { tokens: count("tokens"), cut: count("cut") }, took }
    }
}
