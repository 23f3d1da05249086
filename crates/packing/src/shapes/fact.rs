//! Facts about a tensor.

/// The facts about a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its shape.
    pub shape: Vec<i64>,
    /// Its elements, where they are few and known.
    pub values: Option<Values>,
}

/// The elements of an integer or boolean tensor, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// The elements.
    pub elements: Vec<i64>,
    /// Whether the tensor's datatype is INT64.
    pub is_int64: bool,
}

/// The most elements of a tensor: a graph that asks for more is damaged, or not an encoder.
const MOST_ELEMENTS: i64 = 1 << 48;

/// The number of elements of a shape, or the largest number.
pub fn count(shape: &[i64]) -> i64 {
    shape.iter().fold(1, |count: i64, &dim| count.saturating_mul(dim))
}

/// Whether a tensor can have this shape.
pub fn is_possible(shape: &[i64]) -> bool {
    shape.iter().all(|&dim| (0..=MOST_ELEMENTS).contains(&dim)) && count(shape) <= MOST_ELEMENTS
}
