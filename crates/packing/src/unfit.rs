//! The reason why a graph cannot be packed.

use std::fmt;

/// Why a graph cannot be packed: a few words for people, which begin with the graph as "it".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit(pub(crate) String);

// === impl Unfit ===

impl fmt::Display for Unfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}
