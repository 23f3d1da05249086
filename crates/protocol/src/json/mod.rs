//! JSON as Triton reads and writes it, which is rapidjson's dialect: `NaN`, `Inf`, `Infinity` and their negatives are
//! numbers, of duplicate keys the first wins, strings are bytes that need not be UTF-8, a NUL ends the document, and every
//! fault has rapidjson's words and offset.
//!
//! Reading is in two parts. [`parse`] checks the whole text once, iteratively, and keeps nothing. What it returns is a
//! [`Value`] that borrows the text; arrays and objects are spans of it, walked again when somebody asks, so that a large
//! `data` array goes from text to tensor bytes with no tree in between, and memory stays proportional to what is used.
//!
//! Not here: pretty printing, comments, serde.

mod error;
mod scan;
mod value;
mod write;

pub use error::{JsonError, SyntaxFault};
pub use value::{Array, MAX_NESTING, Number, Object, Value, parse};
pub use write::Writer;
