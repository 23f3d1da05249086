//! Files of columns: Parquet, and Arrow's IPC file format (Feather 2). Rows in, the same rows beside their vectors out.
//!
//! A file is read by ranges of its bytes from any [`Source`], batch by batch, so memory holds a batch and not the file. Columns with
//! dictionaries are read as plain ones. A file of a few bytes may claim gigabytes: the bounds in `limits.rs` hold before memory is taken.
//!
//! Without the feature `formats` the same functions refuse every file, and no library for columns is linked.
//!
//! Not here: where files lie, who computes vectors.

mod error;
mod format;
mod source;

#[cfg(feature = "formats")]
mod arrow;
#[cfg(feature = "formats")]
mod batch;
#[cfg(feature = "formats")]
mod chunks;
#[cfg(feature = "formats")]
mod limits;
#[cfg(feature = "formats")]
mod pages;
#[cfg(feature = "formats")]
mod parquet;
#[cfg(feature = "formats")]
mod rows;
#[cfg(feature = "formats")]
mod table;
#[cfg(test)]
#[cfg(feature = "formats")]
mod tests;
#[cfg(feature = "formats")]
mod thrift;
#[cfg(not(feature = "formats"))]
mod without;
#[cfg(feature = "formats")]
mod writer;

#[cfg(feature = "formats")]
pub use batch::{Batch, Layout};
pub use error::ColumnsError;
pub use format::Format;
pub use source::{Reader, Source};
#[cfg(feature = "formats")]
pub use table::{Batches, Table};
#[cfg(not(feature = "formats"))]
pub use without::{Batch, Batches, Layout, Table, Writer};
#[cfg(feature = "formats")]
pub use writer::Writer;

/// The vector of a row, or the reason why the row has no vector.
pub type Outcome = Result<Vec<f32>, String>;

/// The columns of an output with a row for each window of a text, whole numbers (INT64): the number of the text's row in the input from 1, the
/// number of the window in the text from 0, the first character of the text that the vector stands for, and the one after the last. The last
/// three are null in rows without a vector.
pub const WINDOW: [&str; 4] = ["row", "window", "start", "end"];

/// A row of such an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// The row of the batch whose other columns it has.
    pub place: usize,
    /// The number of the text's row in the input, from 1.
    pub row: u64,
    /// The number of the window, its first character and the one after the last; `None` in a row without a vector.
    pub window: Option<(u64, u64, u64)>,
}

/// The column of vectors: `FixedSizeList<Float32>`, null in rows without a vector.
pub const EMBEDDING: &str = "embedding";

/// The column that says why a row has no vector: a text, null in rows with a vector.
pub const ERROR: &str = "error";

/// The key of a file's metadata that says which space its vectors are of; that of its schema in Arrow.
pub const SPACE: &str = "trireme-space";

/// The column of answers that are no vectors: a text of JSON, null in rows without an answer.
pub const RESPONSE: &str = "response";
