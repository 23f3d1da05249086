//! `sparse`, `sparse:K`: the components of each row that are not 0, `[rows, width]` to `[rows, n]`, where n is the count of the fullest row
//! of the request. With K only the K largest of each row are kept.
//!
//! The last op of a chain. The outputs of the model are `sparse_indices`, INT64 or INT32, ascending and filled up with -1, and
//! `sparse_values`, filled up with 0.

use ndarray::{Array2, ArrayViewMut1, Axis, Ix2};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources, compare_scores, number_argument};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "sparse",
    usage: "sparse[:K]",
    doc: "the components that are not 0 and their indices; last in a chain",
    inputs: &[],
    embeds: false,
    reduces: true,
    build,
};

/// The filler for the indices of rows with fewer components.
const NO_INDEX: i64 = -1;

/// The most components of a row, where there is a limit.
struct Sparse(Option<usize>);

/// Builds the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    Ok(Box::new(Sparse(argument.map(|_| number_argument(argument)).transpose()?)))
}

// === impl Sparse ===

impl Op for Sparse {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 2..=2)?.dims;
        Ok(Signature::new(Form::Sparse, [dims[0], -1]))
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let rows = value.into_floats()?.into_dimensionality::<Ix2>();
        let mut rows = rows.map_err(|_| InferError::internal("sparse takes numbers of rank 2"))?;
        if let Some(most) = self.0 {
            // The rows are copied here if they are borrowed.
            let mut own = rows.into_owned();
            own.outer_iter_mut().for_each(|mut row| keep_largest(&mut row, most));
            rows = own.into();
        }
        let count = |row: ndarray::ArrayView1<'_, f32>| row.iter().filter(|value| **value != 0.0).count();
        let width = rows.outer_iter().map(count).max().unwrap_or(0);
        let mut indices = Array2::from_elem((rows.len_of(Axis(0)), width), NO_INDEX);
        let mut values = Array2::zeros(indices.dim());
        for (row, components) in rows.outer_iter().enumerate() {
            let present = components.iter().enumerate().filter(|(_, value)| **value != 0.0);
            for (place, (index, &value)) in present.enumerate() {
                indices[[row, place]] = index as i64;
                values[[row, place]] = value;
            }
        }
        Ok(Value::Sparse { indices: indices.into_dyn(), values: values.into_dyn() })
    }
}

/// Sets all but the `most` largest components to 0.
fn keep_largest(row: &mut ArrayViewMut1<'_, f32>, most: usize) {
    let mut order: Vec<usize> = (0..row.len()).filter(|&at| row[at] != 0.0).collect();
    if order.len() > most {
        order.sort_by(|&a, &b| compare_scores(row[b], row[a]));
        order[most..].iter().for_each(|&at| row[at] = 0.0);
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, arr2};

    use super::*;

    fn sparse(array: ArrayD<f32>) -> (ArrayD<i64>, ArrayD<f32>) {
        match Sparse(None).apply(Value::Floats(array.into()), &Side::default()).unwrap() {
            Value::Sparse { indices, values } => (indices, values),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_largest_ones_stay() {
        let rows = arr2(&[[0.0, 2.0, 0.5, 1.5], [3.0, 0.0, 0.0, 0.0]]).into_dyn();
        let Value::Sparse { indices, values } =
            Sparse(Some(2)).apply(Value::Floats(rows.into()), &Side::default()).unwrap()
        else {
            panic!("no sparse rows")
        };
        assert_eq!(indices, arr2(&[[1, 3], [0, -1]]).into_dyn());
        assert_eq!(values, arr2(&[[2.0, 1.5], [3.0, 0.0]]).into_dyn());
    }

    #[test]
    fn what_is_not_zero_stays_and_shorter_rows_are_filled_up() {
        let (indices, values) = sparse(arr2(&[[0.0, 2.0, 0.0, 1.5], [0.0, 0.0, f32::NAN, -0.0]]).into_dyn());
        assert_eq!(indices, arr2(&[[1, 3], [2, -1]]).into_dyn());
        assert_eq!((values[[0, 0]], values[[0, 1]], values[[1, 1]]), (2.0, 1.5, 0.0));
        assert!(values[[1, 0]].is_nan());
    }

    #[test]
    fn rows_of_zeros_are_empty() {
        assert_eq!(sparse(ArrayD::zeros(vec![2, 3])).0.shape(), [2, 0]);
        assert_eq!(sparse(ArrayD::zeros(vec![0, 3])).0.shape(), [0, 0]);
    }
}
