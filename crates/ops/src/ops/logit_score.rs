//! `logit_score:TRUE-FALSE`: the logit of one token less that of another at a text's last token, as sentence-transformers' LogitScore
//! makes scores of a causal language model.

use ndarray::{Array2, ArrayViewD, Axis, CowArray, Ix3};
use trireme_inference::{InferError, Tensor};

use super::op::{Op, OpEntry, Resources};
use super::pool::read_mask;
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "logit_score",
    usage: "logit_score:TRUE[-FALSE]",
    doc: "the logit of token TRUE, less that of token FALSE, at the last token: [rows, length, vocabulary] to [rows, 1]",
    inputs: &[],
    embeds: false,
    reduces: true,
    build,
};

/// The ids of the tokens.
struct LogitScore {
    positive: usize,
    negative: Option<usize>,
}

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    const EXPECTED: &str = "expected one or two token ids, as in logit_score:9693-2152";
    let argument = argument.ok_or_else(|| format!("argument is missing, {EXPECTED}"))?;
    let id = |text: &str| text.trim().parse().map_err(|_| format!("argument is '{argument}', {EXPECTED}"));
    let (positive, negative) = match argument.split_once('-') {
        Some((positive, negative)) => (id(positive)?, Some(id(negative)?)),
        None => (id(argument)?, None),
    };
    if resources.inputs.attention.is_none() {
        return Err(
            "needs the attention mask: declare an input 'attention_mask' of TYPE_INT64 or TYPE_INT32".to_owned()
        );
    }
    Ok(Box::new(LogitScore { positive, negative }))
}

// === impl LogitScore ===

impl LogitScore {
    /// An error where a vocabulary of this size lacks one of the tokens.
    fn check(&self, width: usize) -> Result<(), String> {
        match [Some(self.positive), self.negative].into_iter().flatten().find(|&id| id >= width) {
            Some(id) => Err(format!("reads the logit of token {id}, but there are {width} logits")),
            None => Ok(()),
        }
    }
}

impl Op for LogitScore {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 3..=3)?.dims;
        if let Ok(width) = usize::try_from(dims[2]) {
            self.check(width)?;
        }
        Ok(Signature::new(Form::Floats, [dims[0], 1]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let logits = value.into_floats()?.into_dimensionality::<Ix3>();
        let logits = logits.map_err(|_| InferError::internal("logit_score takes numbers of rank 3"))?;
        let (rows, length, width) = logits.dim();
        self.check(width).map_err(|fault| InferError::invalid_arg(format!("logit_score {fault}")))?;
        let mask = match side.attention {
            Some(mask) if length == 1 => check_last(mask).map(|()| None)?,
            Some(mask) => Some(read_mask(mask, &logits)?),
            None => None,
        };
        let mut scores = Array2::zeros((rows, 1));
        for (row, logits) in logits.outer_iter().enumerate() {
            let last = match &mask {
                Some(mask) => mask.row(row).iter().rposition(|&token| token != 0),
                None => length.checked_sub(1),
            };
            if let Some(last) = last {
                let at = logits.index_axis(Axis(0), last);
                scores[[row, 0]] = at[self.positive] - self.negative.map_or(0.0, |id| at[id]);
            }
        }
        Ok(Value::Floats(CowArray::from(scores.into_dyn())))
    }
}

/// A graph may give the logits of the last position alone, which has to be a token then.
fn check_last(mask: &Tensor) -> Result<(), InferError> {
    let Value::Ints(values) = Value::from_tensor(mask)? else { return Ok(()) };
    let ends_padded = |row: ArrayViewD<'_, i64>| row.iter().last() == Some(&0);
    match values.outer_iter().position(ends_padded) {
        None => Ok(()),
        Some(row) => Err(InferError::invalid_arg(format!(
            "tensor '{}' ends row {row} with padding, but the graph gives the logits of the last position alone: expected rows that are \
             filled up on the left, by the tokenizer's and the model's parameter 'padding_side'",
            mask.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, array};

    use super::*;
    use crate::inputs::SideInputs;

    fn op(argument: &str) -> Result<Box<dyn Op>, String> {
        let inputs = SideInputs { attention: Some("attention_mask".to_owned()), ..SideInputs::default() };
        build(Some(argument), &Resources { inputs: &inputs, ..Resources::default() })
    }

    fn scores(argument: &str, logits: Array3<f32>, mask: [i64; 6]) -> Vec<f32> {
        let mask = Tensor::from_values("attention_mask", [2, 3], mask.to_vec()).unwrap();
        let side = Side { attention: Some(&mask), ..Side::default() };
        let value = Value::Floats(CowArray::from(logits.into_dyn()));
        op(argument).unwrap().apply(value, &side).unwrap().into_floats().unwrap().iter().copied().collect()
    }

    /// Two rows of three positions; the first filled up on the right, the second on the left.
    fn logits() -> Array3<f32> {
        array![[[9.0, 9.0], [1.0, 4.0], [7.0, 7.5]], [[7.0, 7.5], [9.0, 9.0], [-2.0, 0.5]]]
    }

    const MASK: [i64; 6] = [1, 1, 0, 0, 1, 1];

    #[test]
    fn the_last_token_counts_on_whichever_side_a_row_is_filled_up() {
        assert_eq!(scores("1-0", logits(), MASK), [3.0, 2.5]);
        assert_eq!(scores("0-1", logits(), MASK), [-3.0, -2.5]);
        assert_eq!(scores("1", logits(), MASK), [4.0, 0.5]);
    }

    #[test]
    fn a_graph_may_give_the_last_position_alone() {
        assert_eq!(scores("1-0", array![[[1.0, 4.0]], [[2.0, 2.5]]], [0, 1, 1, 1, 1, 1]), [3.0, 0.5]);
    }

    #[test]
    fn padding_at_the_last_position_is_no_score() {
        let mask = Tensor::from_values("attention_mask", [2, 2], vec![1i64, 1, 1, 0]).unwrap();
        let side = Side { attention: Some(&mask), ..Side::default() };
        let value = Value::Floats(CowArray::from(array![[[1.0, 4.0]], [[2.0, 2.5]]].into_dyn()));
        let error = op("1-0").unwrap().apply(value, &side).err().unwrap();
        assert!(error.message.starts_with("tensor 'attention_mask' ends row 1 with padding"), "{error}");
    }

    #[test]
    fn tokens_that_are_none_are_named() {
        assert!(op("yes").err().unwrap().starts_with("argument is 'yes', expected one or two token ids"));
        let signature = |width| op("5-0").unwrap().signature(&Signature::new(Form::Floats, [-1, -1, width]));
        assert_eq!(signature(5).unwrap_err(), "reads the logit of token 5, but there are 5 logits");
        assert_eq!(signature(-1).unwrap(), Signature::new(Form::Floats, [-1, 1]));
        let none = build(Some("1"), &Resources::default()).err().unwrap();
        assert!(none.starts_with("needs the attention mask"));
    }
}
