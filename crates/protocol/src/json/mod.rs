//! JSON as Triton reads and writes it, which is rapidjson's dialect. `NaN`, `Inf`, `Infinity` and their negatives are
//! numbers. Of duplicate keys the first one counts. Strings are bytes that need not be UTF-8. A NUL ends the document.
//! Every fault has rapidjson's text and offset.
//!
//! Reading has two parts. [`parse`] checks the whole text once, iteratively, and stores nothing. It returns a [`Value`]
//! that borrows the text. Arrays and objects are spans of the text that are scanned again at each access. So a large
//! `data` array becomes tensor bytes without a tree in between, and memory stays proportional to the values in use.
//!
//! Not here: pretty printing, comments, serde.

mod error;
mod scan;
mod value;
mod write;

pub use error::{JsonError, MAX_NESTING, SyntaxFault};
pub use value::{Array, Number, Object, Value, parse};
pub use write::Writer;
