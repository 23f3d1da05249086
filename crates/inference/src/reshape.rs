//! `reshape` of config.pbtxt: a tensor under one shape at the side that gives it and under another at the side that takes it.

use serde::{Deserialize, Serialize};

use crate::Shape;

/// Two shapes of the same elements. Neither has the batch dimension: one in front of a tensor's shape stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshape {
    /// As the giving side has it, -1 for any size.
    pub from: Shape,
    /// As the taking side has it; its -1s stand for those of `from`, in their order.
    pub to: Shape,
}

// === impl Reshape ===

impl Reshape {
    /// The new shape for `shape`, which is `from` with or without a batch dimension. Any other shape stays as it is: the
    /// receiving model refuses it.
    pub fn apply(&self, shape: &Shape) -> Shape {
        let batch = shape.len().saturating_sub(self.from.len());
        let (batch, dims) = shape.split_at(batch.min(1));
        if !self.from.accepts(dims) {
            return shape.clone();
        }
        let mut variable = self.from.iter().zip(dims).filter(|(from, _)| **from == -1).map(|(_, &size)| size);
        let dims = self.to.iter().map(|&to| if to == -1 { variable.next().unwrap_or(1) } else { to });
        batch.iter().copied().chain(dims).collect::<Vec<_>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply<const N: usize, const M: usize, const K: usize>(
        from: [i64; N],
        to: [i64; M],
        shape: [i64; K],
    ) -> Vec<i64> {
        Reshape { from: from.into(), to: to.into() }.apply(&shape.into()).to_vec()
    }

    #[test]
    fn dimensions_come_from_the_target_and_open_ones_from_the_tensor() {
        assert_eq!(apply([1], [], [4, 1]), [4]);
        assert_eq!(apply([1], [], [1]), [0i64; 0]);
        assert_eq!(apply([], [1], [4]), [4, 1]);
        assert_eq!(apply([], [1], []), [1]);
        assert_eq!(apply([4, 4], [16], [2, 4, 4]), [2, 16]);
        assert_eq!(apply([4, 4], [16], [4, 4]), [16]);
        assert_eq!(apply([-1, 1, -1], [-1, -1], [2, 3, 1, 5]), [2, 3, 5]);
    }

    #[test]
    fn what_does_not_fit_is_left_alone() {
        assert_eq!(apply([4, 4], [16], [2, 4, 5]), [2, 4, 5]);
        assert_eq!(apply([4, 4], [16], [1, 2, 4, 4]), [1, 2, 4, 4]);
        assert_eq!(apply([4], [2, 2], []), [0i64; 0]);
    }
}
