//! The body of a request: how long it may pause, how it is inflated, and how many threads work on bodies at a time.

mod inflate;
mod read_timeout;
pub mod work;

pub use inflate::{InflateError, Pieces, inflate, inflate_in_pieces};
pub use read_timeout::{Overdue, ReadTimeout, size};
