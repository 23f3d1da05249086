//! Why a file of columns cannot be read or written.

use crate::Format;

/// Why a file of columns cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum ColumnsError {
    /// The bytes are not those of the format, or use a part of it that is not supported.
    #[error("it cannot be read as {}: {why}", format.name())]
    Unreadable { format: Format, why: String },
    /// The format cannot hold these rows.
    #[error("it cannot be written as {}: {why}", format.name())]
    Unwritable { format: Format, why: String },
    /// There is no such column.
    #[error("there is no column '{column}', only {found}")]
    Missing { column: String, found: String },
    /// A column that is to hold texts or ids holds something else.
    #[error("column '{column}' is of type {found}, expected {expected}")]
    Type { column: String, found: String, expected: &'static str },
    /// A column that is written is there already.
    #[error("there is a column '{column}' already, which the output would have twice: rename it")]
    Taken { column: &'static str },
    /// The program was built without these formats.
    #[error("this program was built without {}: build it with the feature `columns`", format.name())]
    NotBuilt { format: Format },
}
