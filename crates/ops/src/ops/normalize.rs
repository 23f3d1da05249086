//! `normalize`: divides by the Euclidean length of the last axis.

use ndarray::{ArrayD, ArrayViewMut1, Axis};

use super::op::{InPlace, Op, OpEntry, Resources, no_argument};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "normalize",
    usage: "normalize",
    doc: "divides by the Euclidean length of the last axis",
    inputs: &[],
    embeds: true,
    reduces: false,
    build,
};

/// The smallest length that is divided by, as in PyTorch's `normalize`: zeros stay zeros.
const SMALLEST_LENGTH: f32 = 1e-12;

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(InPlace(normalize)))
}

fn normalize(array: &mut ArrayD<f32>) {
    let last = Axis(array.ndim() - 1);
    array.lanes_mut(last).into_iter().for_each(normalize_vector);
}

/// Divides a vector by its length.
pub(super) fn normalize_vector(mut vector: ArrayViewMut1<'_, f32>) {
    let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
    // Not f32::max, which would hide a NaN.
    let length = if length < SMALLEST_LENGTH { SMALLEST_LENGTH } else { length };
    vector /= length;
}

#[cfg(test)]
mod tests {
    use ndarray::{arr2, arr3};

    use super::*;

    fn normalized(mut array: ArrayD<f32>) -> ArrayD<f32> {
        normalize(&mut array);
        array
    }

    #[test]
    fn vectors_get_length_one_and_zeros_stay() {
        let vectors = normalized(arr2(&[[3.0, -4.0], [0.0, 0.0]]).into_dyn());
        assert_eq!(vectors, arr2(&[[0.6, -0.8], [0.0, 0.0]]).into_dyn());
        let vectors = normalized(arr3(&[[[2.0], [-5.0]]]).into_dyn());
        assert_eq!(vectors, arr3(&[[[1.0], [-1.0]]]).into_dyn());
    }

    #[test]
    fn nan_stays_in_its_row() {
        let vectors = normalized(arr2(&[[f32::NAN, 1.0], [0.0, 2.0]]).into_dyn());
        assert!(vectors[[0, 0]].is_nan() && vectors[[0, 1]].is_nan());
        assert_eq!(vectors[[1, 1]], 1.0);
    }
}
