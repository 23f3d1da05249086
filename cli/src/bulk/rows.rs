//! Rows of a file, as they are read and written.

use serde_json::Value;
use trireme_columns::Batch;

/// The text of a row, or the reason why the row has no text.
pub type Text = Result<String, String>;

/// The vector of a row, or the reason why the row has no vector.
pub type Outcome = Result<Vec<f32>, String>;

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
}
