//! `mask`: zeros in place of the vectors of tokens whose mask is 0, padding for instance: for one vector per token
//! (ColBERT). The mask is `scoring_mask` or `pooling_mask` where the model has such an input, else the attention mask. An output
//! `token_mask` of the model gets it.

use ndarray::{CowArray, Ix3};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources, no_argument};
use super::pool::read_mask;
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "mask",
    usage: "mask",
    doc: "zeros in place of the vectors of padding: [rows, length, width]",
    inputs: &["pooling_mask", "scoring_mask"],
    embeds: true,
    reduces: false,
    build,
};

struct Mask;

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    match resources.inputs.has_mask() {
        true => Ok(Box::new(Mask)),
        false => {
            Err("needs the attention mask: declare an input 'attention_mask' of TYPE_INT64 or TYPE_INT32".to_owned())
        }
    }
}

// === impl Mask ===

impl Op for Mask {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Floats, 3..=3).cloned()
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let tokens = value.into_floats()?.into_dimensionality::<Ix3>();
        let tokens = tokens.map_err(|_| InferError::internal("mask takes numbers of rank 3"))?;
        let Some(mask) = side.mask else { return Err(InferError::invalid_arg("the attention mask is missing")) };
        let mask = read_mask(mask, &tokens)?;
        let mut tokens = tokens.into_owned();
        for (mut row, mask) in tokens.outer_iter_mut().zip(mask.outer_iter()) {
            row.outer_iter_mut().zip(mask).filter(|(_, mask)| **mask == 0).for_each(|(mut vector, _)| vector.fill(0.0));
        }
        Ok(Value::Floats(CowArray::from(tokens.into_dyn())))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;
    use trireme_inference::Tensor;

    use super::*;

    #[test]
    fn tokens_without_a_mask_become_zeros() {
        let mask = Tensor::from_values("attention_mask", [1, 3], vec![1i32, 0, 1]).unwrap();
        let side = Side { mask: Some(&mask), ..Side::default() };
        let tokens = array![[[1.0, 2.0], [f32::NAN, 4.0], [5.0, 6.0]]].into_dyn();
        let masked = Mask.apply(Value::Floats(tokens.into()), &side).unwrap().into_floats().unwrap();
        assert_eq!(masked, array![[[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]].into_dyn());
        let error = build(None, &Resources::default()).err().unwrap();
        assert!(error.starts_with("needs the attention mask"), "{error}");
    }
}
