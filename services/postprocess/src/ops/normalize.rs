//! `normalize`: divides by the Euclidean length of the last axis.

use ndarray::Axis;
use trireme_inference::InferError;

use super::{Op, Resources, Side, no_argument};
use crate::{Form, Signature, Value};

/// The smallest length that is divided by, as PyTorch's `normalize` has it: zeros stay zeros.
const SMALLEST_LENGTH: f32 = 1e-12;

struct Normalize;

/// Makes the op.
pub fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(Normalize))
}

// === impl Normalize ===

impl Op for Normalize {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Floats, 1..=usize::MAX).cloned()
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let mut array = value.into_floats()?.into_owned();
        let last = Axis(array.ndim() - 1);
        for mut vector in array.lanes_mut(last) {
            let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
            // Not f32::max, which would hide a NaN.
            let length = if length < SMALLEST_LENGTH { SMALLEST_LENGTH } else { length };
            vector /= length;
        }
        Ok(Value::Floats(array.into()))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, CowArray, arr2, arr3};

    use super::*;

    fn normalize(array: ArrayD<f32>) -> ArrayD<f32> {
        Normalize
            .apply(Value::Floats(CowArray::from(array)), &Side::default())
            .unwrap()
            .into_floats()
            .unwrap()
            .into_owned()
    }

    #[test]
    fn vectors_get_length_one_and_zeros_stay() {
        let normalized = normalize(arr2(&[[3.0, -4.0], [0.0, 0.0]]).into_dyn());
        assert_eq!(normalized, arr2(&[[0.6, -0.8], [0.0, 0.0]]).into_dyn());
        let normalized = normalize(arr3(&[[[2.0], [-5.0]]]).into_dyn());
        assert_eq!(normalized, arr3(&[[[1.0], [-1.0]]]).into_dyn());
    }

    #[test]
    fn nan_stays_in_its_row() {
        let normalized = normalize(arr2(&[[f32::NAN, 1.0], [0.0, 2.0]]).into_dyn());
        assert!(normalized[[0, 0]].is_nan() && normalized[[0, 1]].is_nan());
        assert_eq!(normalized[[1, 1]], 1.0);
    }
}
