//! Shapes: of tensors, where every dimension is known, and of schemas, where -1 means any size.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};
use smallvec::SmallVec;

/// The most elements a tensor may have; Triton's limit too.
pub const MAX_ELEMENTS: u64 = i64::MAX as u64;

/// Limit for the product of the other dimensions of a shape without elements. A shape such as `[1000000000, 0]` costs
/// its sender nothing, but costs every reader that loops over its rows.
pub const MAX_EMPTY_SIZE: u64 = 1 << 24;

/// Dimensions, outermost first. In a schema -1 means "any size"; a [`crate::Tensor`] never holds a negative one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(#[serde(deserialize_with = "read_dimensions")] SmallVec<[i64; 4]>);

fn read_dimensions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SmallVec<[i64; 4]>, D::Error> {
    crate::read_list(deserializer, "dimensions")
}

// === impl Shape ===

impl Shape {
    /// The product of the dimensions (1 for a scalar). `None` if a dimension is negative or the product exceeds
    /// [`MAX_ELEMENTS`].
    pub fn element_count(&self) -> Option<u64> {
        if self.0.iter().any(|&d| d < 0) {
            return None;
        }
        // A zero anywhere makes the product zero, however large the others are.
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1u64, |product, &d| product.checked_mul(d as u64)).filter(|&count| count <= MAX_ELEMENTS)
    }

    /// Whether there are no elements, but the product of the other dimensions exceeds [`MAX_EMPTY_SIZE`].
    pub fn is_vast_and_empty(&self) -> bool {
        let size = self.0.iter().filter(|&&d| d > 0).try_fold(1u64, |product, &d| product.checked_mul(d as u64));
        self.0.contains(&0) && size.is_none_or(|size| size > MAX_EMPTY_SIZE)
    }

    /// Whether `concrete` fits this schema: the same rank, and every dimension equal or -1 here.
    pub fn accepts(&self, concrete: &[i64]) -> bool {
        self.0.len() == concrete.len() && self.0.iter().zip(concrete).all(|(&want, &have)| want == -1 || want == have)
    }

    /// This shape with one more, outermost, dimension.
    pub fn prepend(&self, dimension: i64) -> Shape {
        let mut dims = SmallVec::with_capacity(self.0.len() + 1);
        dims.push(dimension);
        dims.extend_from_slice(&self.0);
        Shape(dims)
    }
}

impl Deref for Shape {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.0
    }
}

impl From<Vec<i64>> for Shape {
    fn from(dims: Vec<i64>) -> Self {
        Shape(dims.into())
    }
}

impl From<&[i64]> for Shape {
    fn from(dims: &[i64]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl<const N: usize> From<[i64; N]> for Shape {
    fn from(dims: [i64; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

/// Triton's form: `[-1,16]`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dimension) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dimension}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_count_handles_zero_negative_and_overflow() {
        assert_eq!(Shape::from([]).element_count(), Some(1));
        assert_eq!(Shape::from([2, 3]).element_count(), Some(6));
        assert_eq!(Shape::from([i64::MAX, 0, i64::MAX]).element_count(), Some(0));
        assert_eq!(Shape::from([-1, 3]).element_count(), None);
        assert_eq!(Shape::from([i64::MAX, 2]).element_count(), None);
        assert_eq!(Shape::from([1 << 32, 1 << 32]).element_count(), None);
    }

    #[test]
    fn accepts_wildcards_of_equal_rank() {
        let schema = Shape::from([-1, 16]);
        assert!(schema.accepts(&[3, 16]));
        assert!(!schema.accepts(&[3, 15]));
        assert!(!schema.accepts(&[16]));
        assert_eq!(schema.to_string(), "[-1,16]");
    }
}
