//! Spaces whose answers were measured to be alike.

use serde::{Deserialize, Serialize};

use crate::Name;

/// Most bytes of a space.
const LONGEST_SPACE: usize = 1024;

/// Two spaces whose answers were measured to be alike: an answer of `space` counts as one of `to`, too. Nothing follows for a third space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Equivalence {
    /// The space of the answers, as `trireme-space` tells it.
    pub space: Name,
    /// The other space, likewise.
    pub to: Name,
}

/// The spaces that answers of this one count as, too.
pub fn equivalent_to(known: &[Equivalence], space: &str) -> Vec<Name> {
    known.iter().filter(|known| known.space == space).map(|known| known.to.clone()).collect()
}

/// Whether a text has the form of a space: parts of letters and digits with dots between them, 1024 bytes at most.
pub fn is_space(text: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    text.len() <= LONGEST_SPACE && text.split('.').all(is_part)
}
