//! `distinct`, `distinct:K`: a weight for each token of a text, `[rows, length, 1]`, to the weights of the text's different tokens, in
//! the form of `sparse`: an index is a token id.
//!
//! This is how sentence-transformers' `SparseStaticEmbedding` makes sparse vectors, whose weights belong to the vocabulary: a token that
//! comes several times counts once, weights below 0 and special tokens in texts stay, and a weight of 0 is none. With K only the K
//! weights of each row that are the furthest from 0 stay.

use std::collections::BTreeMap;

use ndarray::Ix3;
use trireme_inference::InferError;

use super::lexical::{check_tokens, rows_of_ids, sparse_signature, tokens_of};
use super::op::{Op, OpEntry, Resources, compare_scores, number_argument};
use crate::inputs::Side;
use crate::{Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "distinct",
    usage: "distinct[:K]",
    doc: "the weight of each different token, as in sparse: [rows, length, 1]; last in a chain",
    inputs: &["input_ids"],
    embeds: false,
    reduces: false,
    build,
};

/// The most weights of a row, where there is a limit.
#[derive(Debug)]
struct Distinct(Option<usize>);

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let most = argument.map(|_| number_argument(argument)).transpose()?;
    check_tokens(resources)?;
    Ok(Box::new(Distinct(most)))
}

// === impl Distinct ===

impl Op for Distinct {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        sparse_signature(input)
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let weights = value.into_floats()?.into_dimensionality::<Ix3>();
        let weights = weights.map_err(|_| InferError::internal("distinct takes numbers of rank 3"))?;
        let (mask, ids) = tokens_of(side, &weights)?;
        let mut rows = vec![BTreeMap::new(); weights.dim().0];
        for ((row, token, _), &weight) in weights.indexed_iter() {
            let place = [row, token];
            if mask[place] != 0 && weight != 0.0 {
                rows[row].insert(ids[place], weight);
            }
        }
        if let Some(most) = self.0 {
            rows.iter_mut().for_each(|row| keep(row, most));
        }
        Ok(rows_of_ids(&rows))
    }
}

/// Leaves the `most` weights that are the furthest from 0.
fn keep(row: &mut BTreeMap<i64, f32>, most: usize) {
    if row.len() > most {
        let mut order: Vec<_> = row.iter().map(|(&id, &weight)| (id, weight.abs())).collect();
        order.sort_by(|a, b| compare_scores(b.1, a.1));
        for (id, _) in &order[most..] {
            row.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, arr2, array};
    use trireme_inference::Tensor;

    use super::*;
    use crate::SideInputs;

    fn applied(argument: Option<&str>) -> (ArrayD<i64>, ArrayD<f32>) {
        let some = |name: &str| Some(name.to_owned());
        let inputs =
            SideInputs { attention: some("attention_mask"), input_ids: some("input_ids"), ..SideInputs::default() };
        let op = build(argument, &Resources { inputs: &inputs, ..Resources::default() }).unwrap();
        let tensor = |name, values: [i64; 8]| Tensor::from_values(name, [2, 4], values.to_vec()).unwrap();
        // The second row is padded.
        let (mask, ids) =
            (tensor("attention_mask", [1, 1, 1, 1, 1, 0, 0, 0]), tensor("input_ids", [7, 5, 7, 2, 9, 1, 1, 1]));
        let side = Side { mask: Some(&mask), input_ids: Some(&ids), ..Side::default() };
        let weights = array![[[0.5], [-0.75], [0.5], [0.0]], [[2.0], [3.0], [3.0], [3.0]]];
        match op.apply(Value::Floats(weights.into_dyn().into()), &side).unwrap() {
            Value::Sparse { indices, values } => (indices, values),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_different_token_has_its_weight_once() {
        let expected = (arr2(&[[5i64, 7], [9, -1]]).into_dyn(), arr2(&[[-0.75, 0.5], [2.0, 0.0]]).into_dyn());
        assert_eq!(applied(None), expected);
        let expected = (arr2(&[[5i64], [9]]).into_dyn(), arr2(&[[-0.75f32], [2.0]]).into_dyn());
        assert_eq!(applied(Some("1")), expected, "the furthest from 0");
    }

    #[test]
    fn what_it_needs_is_named() {
        assert!(build(None, &Resources::default()).err().unwrap().starts_with("needs the token ids"));
        let inputs = SideInputs { input_ids: Some("input_ids".to_owned()), ..SideInputs::default() };
        let resources = Resources { inputs: &inputs, ..Resources::default() };
        assert!(build(None, &resources).err().unwrap().starts_with("needs the attention mask"));
    }
}
