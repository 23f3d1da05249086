//! `argmax`: the index of the highest score of the last axis; of equal ones the first.

use ndarray::{ArrayD, Axis};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources, compare_scores, no_argument};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "argmax",
    usage: "argmax",
    doc: "the index of the highest score of the last axis",
    inputs: &[],
    embeds: false,
    reduces: true,
    build,
};

struct ArgMax;

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(ArgMax))
}

// === impl ArgMax ===

impl Op for ArgMax {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 1..=usize::MAX)?.dims;
        Ok(Signature::new(Form::Ints, &dims[..dims.len() - 1]))
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let array = value.into_floats()?;
        let last = Axis(array.ndim() - 1);
        if array.len_of(last) == 0 {
            return Err(InferError::invalid_arg("argmax got scores of 0 classes, expected at least 1"));
        }
        let indices: ArrayD<i64> = array.map_axis(last, |scores| {
            let indices = 0..scores.len();
            let highest =
                indices.reduce(|best, i| if compare_scores(scores[i], scores[best]).is_gt() { i } else { best });
            highest.unwrap_or(0) as i64
        });
        Ok(Value::Ints(indices.into()))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, CowArray, arr1, arr2, arr3};

    use super::*;

    fn argmax(array: ArrayD<f32>) -> Result<ArrayD<i64>, InferError> {
        Ok(ArgMax.apply(Value::Floats(CowArray::from(array)), &Side::default())?.into_ints()?.into_owned())
    }

    #[test]
    fn the_first_highest_wins() {
        let scores = arr2(&[[1.0, 3.0, 2.0], [-1.0, -1.0, -2.0], [-0.0, 0.0, f32::NEG_INFINITY]]);
        assert_eq!(argmax(scores.into_dyn()).unwrap(), arr1(&[1, 0, 0]).into_dyn());
        assert_eq!(argmax(arr3(&[[[0.0, 1.0], [1.0, 0.0]]]).into_dyn()).unwrap(), arr2(&[[1, 0]]).into_dyn());
    }

    #[test]
    fn nan_is_the_highest() {
        assert_eq!(argmax(arr2(&[[1.0, f32::NAN, f32::INFINITY]]).into_dyn()).unwrap(), arr1(&[1]).into_dyn());
    }

    #[test]
    fn no_classes_are_an_error() {
        assert!(argmax(ArrayD::zeros(vec![2, 0])).unwrap_err().message.contains("0 classes"));
    }
}
