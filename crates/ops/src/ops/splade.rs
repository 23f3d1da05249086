//! `splade`, `splade:KIND…`: a weight for each token of the vocabulary, from the logits of a masked language model
//! `[rows, length, vocabulary]` to `[rows, vocabulary]`.
//!
//! The weight is log(1 + max(0, logit)), the highest of all positions; `splade:log1p_relu` takes the logarithm of 1 and
//! that once more. With `sum` (`splade:sum`, `splade:log1p_relu+sum`) it is the sum of all positions. These are the activations
//! and strategies of sentence-transformers' `SpladePooling`.

use ndarray::{Array1, Array2, Axis, CowArray, Ix3};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources};
use super::pool::read_mask;
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "splade",
    usage: "splade[:relu|log1p_relu]",
    doc: "a weight for each token of the vocabulary: [rows, length, vocabulary] to [rows, vocabulary]",
    inputs: &[],
    embeds: false,
    reduces: true,
    build,
};

#[derive(Clone, Copy, Debug, Default)]
struct Splade {
    /// The logarithm is taken twice.
    twice: bool,
    /// The sum of positions instead of the highest.
    sums: bool,
}

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let mut splade = Splade::default();
    for word in argument.unwrap_or("relu").split('+').map(str::trim) {
        match word {
            "relu" => splade.twice = false,
            "log1p_relu" => splade.twice = true,
            "max" => splade.sums = false,
            "sum" => splade.sums = true,
            _ => {
                let argument = argument.unwrap_or_default();
                return Err(format!(
                    "argument is '{argument}', expected 'relu' or 'log1p_relu', with '+max' or '+sum' after it"
                ));
            }
        }
    }
    match resources.inputs.has_mask() {
        true => Ok(Box::new(splade)),
        false => {
            Err("needs the attention mask: declare an input 'attention_mask' of TYPE_INT64 or TYPE_INT32".to_owned())
        }
    }
}

// === impl Splade ===

impl Op for Splade {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 3..=3)?.dims;
        Ok(Signature::new(Form::Floats, [dims[0], dims[2]]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let logits = value.into_floats()?.into_dimensionality::<Ix3>();
        let logits = logits.map_err(|_| InferError::internal("splade takes numbers of rank 3"))?;
        let Some(mask) = side.mask else { return Err(InferError::invalid_arg("the attention mask is missing")) };
        let mask = read_mask(mask, &logits)?;
        let vocabulary = logits.len_of(Axis(2));
        let mut weights = Array2::zeros((logits.len_of(Axis(0)), vocabulary));
        for ((mut weights, logits), mask) in weights.outer_iter_mut().zip(logits.outer_iter()).zip(mask.outer_iter()) {
            let mut row = Array1::<f32>::zeros(vocabulary);
            for (logits, _) in logits.outer_iter().zip(mask).filter(|(_, mask)| **mask != 0) {
                row.zip_mut_with(&logits, |weight, &logit| match self.sums {
                    true => *weight += self.weight(logit),
                    false if logit > *weight || logit.is_nan() => *weight = logit,
                    false => {}
                });
            }
            // The logarithm grows with the logit, so that the highest position stays the highest.
            if !self.sums {
                row.mapv_inplace(|logit| self.weight(logit));
            }
            weights.assign(&row);
        }
        Ok(Value::Floats(CowArray::from(weights.into_dyn())))
    }
}

impl Splade {
    fn weight(self, logit: f32) -> f32 {
        let weight = if logit < 0.0 { 0.0 } else { logit }.ln_1p();
        if self.twice { weight.ln_1p() } else { weight }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;
    use trireme_inference::Tensor;

    use super::*;
    use crate::inputs::SideInputs;

    fn splade(argument: Option<&str>) -> Vec<f32> {
        let inputs = SideInputs { attention: Some("m".to_owned()), ..SideInputs::default() };
        let op = build(argument, &Resources { inputs: &inputs, ..Resources::default() }).unwrap();
        let mask = Tensor::from_values("m", [1, 3], vec![1i64, 1, 0]).unwrap();
        let logits = array![[[1.0, -1.0], [3.0, -2.0], [9.0, 9.0]]].into_dyn();
        let side = Side { mask: Some(&mask), ..Side::default() };
        op.apply(Value::Floats(logits.into()), &side).unwrap().into_floats().unwrap().iter().copied().collect()
    }

    #[test]
    fn weights_are_the_logarithms_of_the_highest_logits() {
        assert_eq!(splade(None), [4.0f32.ln(), 0.0]);
        assert_eq!(splade(Some("relu")), splade(None));
        assert_eq!(splade(Some("log1p_relu")), [4.0f32.ln().ln_1p(), 0.0]);
        assert_eq!(splade(Some("relu+sum")), [2.0f32.ln() + 4.0f32.ln(), 0.0]);
    }

    #[test]
    fn other_arguments_and_a_missing_mask_are_refused() {
        let error = build(Some("gelu"), &Resources::default()).err().unwrap();
        assert!(error.starts_with("argument is 'gelu', expected 'relu' or 'log1p_relu'"), "{error}");
        assert!(build(None, &Resources::default()).err().unwrap().starts_with("needs the attention mask"));
    }
}
