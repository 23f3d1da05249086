//! The body of a request: how long it may pause, how it is inflated, and how many large ones are worked on at a time.

mod inflate;
pub mod large;
mod read_timeout;

pub use inflate::{InflateError, Pieces, inflate, inflate_in_pieces};
pub use read_timeout::{Overdue, ReadTimeout, size};
