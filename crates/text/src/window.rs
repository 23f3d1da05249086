//! The part of a text that a row holds.

use std::ops::Range;

/// The part of a text that a window holds, in characters of the whole text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// The number of its text among those of the request.
    pub(crate) text: usize,
    /// The characters of its tokens.
    pub(crate) characters: Range<usize>,
    /// The characters that it owns.
    pub(crate) core: Range<usize>,
}

// === impl Window ===

impl Window {
    /// Of a text that has one row.
    pub(crate) fn whole(index: usize, text: &str) -> Window {
        let characters = 0..text.chars().count();
        Window { text: index, core: characters.clone(), characters }
    }
}
