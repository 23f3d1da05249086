//! `slice:D`: the first D of the last axis, for Matryoshka embeddings.

use ndarray::{Axis, Slice};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources, number_argument};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "slice",
    usage: "slice:D",
    doc: "the first D of the last axis (Matryoshka embeddings)",
    inputs: &[],
    embeds: true,
    reduces: true,
    build,
};

struct First(usize);

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    Ok(Box::new(First(number_argument(argument)?)))
}

// === impl First ===

impl Op for First {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let mut dims = input.expect(Form::Floats, 1..=usize::MAX)?.dims.to_vec();
        let wanted = i64::try_from(self.0).unwrap_or(i64::MAX);
        if let Some(width) = dims.last_mut() {
            if *width >= 0 && *width < wanted {
                return Err(format!("takes the first {wanted} of the last axis, got {input}"));
            }
            *width = wanted;
        }
        Ok(Signature::new(Form::Floats, dims))
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        first(value, self.0, |width| format!("slice takes the first {} of the last axis, got {width}", self.0))
    }
}

/// The first `count` components on the last axis of `value`; where the axis is shorter, `fault` makes the error text from its
/// length.
pub(crate) fn first<'a>(
    value: Value<'a>,
    count: usize,
    fault: impl FnOnce(usize) -> String,
) -> Result<Value<'a>, InferError> {
    let array = value.into_floats()?;
    let last = Axis(array.ndim() - 1);
    let width = array.len_of(last);
    if width < count {
        return Err(InferError::invalid_arg(fault(width)));
    }
    Ok(Value::Floats(array.slice_axis(last, Slice::from(..count)).to_owned().into()))
}

#[cfg(test)]
mod tests {
    use ndarray::{CowArray, arr2};

    use super::*;

    #[test]
    fn the_first_of_each_row_stay() {
        let value = || Value::Floats(CowArray::from(arr2(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).into_dyn()));
        let sliced = First(2).apply(value(), &Side::default()).unwrap().into_floats().unwrap();
        assert_eq!(sliced, arr2(&[[1.0, 2.0], [4.0, 5.0]]).into_dyn());
        let error = First(4).apply(value(), &Side::default()).unwrap_err();
        assert_eq!(error.message, "slice takes the first 4 of the last axis, got 3");
    }
}
