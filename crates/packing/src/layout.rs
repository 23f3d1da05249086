//! The dimensions that tokens take in a tensor.

use crate::shapes::Facts;

/// The sizes `(batch, length)` for which shapes are computed: primes, which no other dimension is likely to be.
pub const SIZES: [(i64, i64); 2] = [(3, 11), (5, 23)];

/// The dimensions of a tensor that is per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, length, …]`.
    Rows,
    /// `[batch × length, …]`.
    Flat,
}

// === impl Layout ===

impl Layout {
    /// How many dimensions the tokens take.
    pub fn lead(self) -> usize {
        match self {
            Layout::Rows => 2,
            Layout::Flat => 1,
        }
    }

    /// The layout of the tensor of this name by the facts for both sizes; `None` if it is not per token.
    pub fn of(facts: &[Facts<'_>; 2], name: &str) -> Option<Layout> {
        let shapes = [facts[0].get(name)?, facts[1].get(name)?].map(|fact| &fact.shape[..]);
        // The further dimensions behind those of the tokens have to be the same for both sizes.
        let fits = |lead: fn((i64, i64)) -> Vec<i64>| {
            let [one, other] = [0, 1].map(|at| shapes[at].strip_prefix(&lead(SIZES[at])[..]));
            one.is_some() && one == other
        };
        if fits(|(batch, length)| vec![batch, length]) {
            return Some(Layout::Rows);
        }
        fits(|(batch, length)| vec![batch * length]).then_some(Layout::Flat)
    }
}
