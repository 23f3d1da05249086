//! `reshape` of config.pbtxt: the shape that clients see and the one that the model takes, where they differ.

use trireme_inference::Shape;

/// A tensor whose shape is another one at the model than at the client, batch dimension aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// As the giving side has it, -1 for any size.
    pub from: Shape,
    /// As the taking side has it; its -1s stand for those of `from`, in their order.
    pub to: Shape,
    /// Whether a batch dimension precedes both.
    pub batches: bool,
}

// === impl Reshape ===

impl Reshape {
    /// What `shape`, which fits `from`, becomes. Where it does not fit, `shape` as it is: the taking side will complain.
    pub fn apply(&self, shape: &Shape) -> Shape {
        let (batch, dims) = shape.split_at(usize::from(self.batches && !shape.is_empty()));
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
        batches: bool,
        shape: [i64; K],
    ) -> Vec<i64> {
        Reshape { from: from.into(), to: to.into(), batches }.apply(&shape.into()).to_vec()
    }

    #[test]
    fn dimensions_come_from_the_target_and_open_ones_from_the_tensor() {
        assert_eq!(apply([1], [], true, [4, 1]), [4]);
        assert_eq!(apply([1], [], false, [1]), [0i64; 0]);
        assert_eq!(apply([4, 4], [16], true, [2, 4, 4]), [2, 16]);
        assert_eq!(apply([-1, 1, -1], [-1, -1], true, [2, 3, 1, 5]), [2, 3, 5]);
    }

    #[test]
    fn what_does_not_fit_is_left_alone() {
        assert_eq!(apply([4, 4], [16], true, [2, 4, 5]), [2, 4, 5]);
        assert_eq!(apply([4], [2, 2], true, []), [0i64; 0]);
    }
}
