//! Rows of a file, as they are read and written.

use std::ops::AddAssign;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_columns::Batch;
pub use trireme_columns::Outcome;

/// The text of a row, or the reason why the row has no text.
pub type Text = Result<String, String>;

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
    Ids(Vec<Value>),
    /// All columns; together the batches have as many rows as the window.
    Batches(Vec<Batch>),
    /// Rows of an output that is there already, by their numbers from 1.
    Numbers(Vec<u64>),
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
