//! `sigmoid`: each score to a probability of its own.

use trireme_inference::InferError;

use super::{Op, Resources, Side, no_argument};
use crate::{Form, Signature, Value};

struct Sigmoid;

/// Makes the op.
pub fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(Sigmoid))
}

// === impl Sigmoid ===

impl Op for Sigmoid {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Floats, 1..=usize::MAX).cloned()
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let mut array = value.into_floats()?.into_owned();
        array.mapv_inplace(|score| 1.0 / (1.0 + (-score).exp()));
        Ok(Value::Floats(array.into()))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{CowArray, arr1};

    use super::*;

    #[test]
    fn scores_become_probabilities() {
        let scores = arr1(&[0.0, 3.0f32.ln(), -3.0f32.ln(), 1e30, -1e30, f32::NAN]).into_dyn();
        let probabilities =
            Sigmoid.apply(Value::Floats(CowArray::from(scores)), &Side::default()).unwrap().into_floats().unwrap();
        for (probability, expected) in probabilities.iter().zip([0.5, 0.75, 0.25, 1.0, 0.0]) {
            assert!((probability - expected).abs() < 1e-6);
        }
        assert!(probabilities[5].is_nan());
    }
}
