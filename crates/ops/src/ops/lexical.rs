//! `lexical`, `lexical:ID+ID…`: a weight for each token of a text, `[rows, length, 1]`, to the weights of the text's different
//! tokens, in the form of `sparse`: an index is a token id. A token that comes several times has the highest of its weights.
//!
//! This is how BGE-M3 makes sparse vectors of its hidden states, behind a linear layer with ReLU: weights that are not above 0
//! are left out, as are padding, the tokens of `special_tokens_mask` where the model has that input, and the ids of the argument
//! (`lexical:0+1+2+3`).

use std::collections::{BTreeMap, BTreeSet};

use ndarray::{Array2, CowArray, Ix2, Ix3};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources};
use super::pool::read_mask;
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "lexical",
    usage: "lexical[:ID+ID…]",
    doc: "the highest weight of each different token, as in sparse: [rows, length, 1]; last in a chain",
    inputs: &["input_ids", "special_tokens_mask", "pooling_mask"],
    embeds: false,
    reduces: false,
    build,
};

/// The filler for the indices of rows with fewer tokens.
const NO_INDEX: i64 = -1;

/// A number for each token of each row.
type Tokens<'a> = CowArray<'a, i64, Ix2>;

#[derive(Debug)]
struct Lexical {
    /// The ids that no row has.
    without: BTreeSet<i64>,
}

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let ids = argument.into_iter().flat_map(|argument| argument.split('+'));
    let without = ids.map(|id| id.trim().parse().ok().filter(|id| *id >= 0)).collect::<Option<_>>();
    let without = without.ok_or_else(|| {
        let argument = argument.unwrap_or_default();
        format!("argument is '{argument}', expected token ids to leave out, joined by '+' (0+1+2)")
    })?;
    check_tokens(resources)?;
    Ok(Box::new(Lexical { without }))
}

// === impl Lexical ===

impl Op for Lexical {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        sparse_signature(input)
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let weights = value.into_floats()?.into_dimensionality::<Ix3>();
        let weights = weights.map_err(|_| InferError::internal("lexical takes numbers of rank 3"))?;
        let (mask, ids) = tokens_of(side, &weights)?;
        let special = side.special_tokens_mask.map(|special| read_mask(special, &weights)).transpose()?;
        let mut rows = vec![BTreeMap::new(); weights.dim().0];
        for ((row, token, _), &weight) in weights.indexed_iter() {
            let place = [row, token];
            let is_special = special.as_ref().is_some_and(|special| special[place] != 0);
            let id = ids[place];
            if mask[place] == 0 || is_special || self.without.contains(&id) {
                continue;
            }
            // A weight that is no number shows.
            if weight > 0.0 || weight.is_nan() {
                let heaviest = rows[row].entry(id).or_insert(weight);
                *heaviest = if weight.is_nan() { weight } else { heaviest.max(weight) };
            }
        }
        Ok(rows_of_ids(&rows))
    }
}

/// Whether the model declares the token ids and their mask. The error says which input is missing.
pub(super) fn check_tokens(resources: &Resources<'_>) -> Result<(), String> {
    let missing = match (&resources.inputs.input_ids, resources.inputs.has_mask()) {
        (Some(_), true) => return Ok(()),
        (None, _) => "the token ids: declare an input 'input_ids'",
        (_, false) => "the attention mask: declare an input 'attention_mask'",
    };
    Err(format!("needs {missing} of TYPE_INT64 or TYPE_INT32"))
}

/// The signature of weights by token id, from a weight for each token.
pub(super) fn sparse_signature(input: &Signature) -> Result<Signature, String> {
    let dims = &input.expect(Form::Floats, 3..=3)?.dims;
    match dims[2] {
        1 => Ok(Signature::new(Form::Sparse, [dims[0], -1])),
        _ => Err(format!("takes one weight for each token, floating point numbers of shape [-1,-1,1], got {input}")),
    }
}

/// The attention mask, and the ids of the tokens that `weights` belong to; an id below 0 is an error where the mask counts it.
pub(super) fn tokens_of<'a>(
    side: &Side<'a>,
    weights: &CowArray<'_, f32, Ix3>,
) -> Result<(Tokens<'a>, Tokens<'a>), InferError> {
    let missing = |what: &str| InferError::invalid_arg(format!("{what} is missing"));
    let mask = read_mask(side.mask.ok_or_else(|| missing("the attention mask"))?, weights)?;
    let ids = read_mask(side.input_ids.ok_or_else(|| missing("tensor 'input_ids'"))?, weights)?;
    match ids.iter().zip(&mask).find(|(id, counts)| **id < 0 && **counts != 0) {
        Some((id, _)) => Err(InferError::invalid_arg(format!("tensor 'input_ids' holds {id}, which is no token"))),
        None => Ok((mask, ids)),
    }
}

/// Rows of weights by token id as two arrays: the ids, filled up with -1, and their weights, filled up with 0.
pub(super) fn rows_of_ids<'a>(rows: &[BTreeMap<i64, f32>]) -> Value<'a> {
    let width = rows.iter().map(BTreeMap::len).max().unwrap_or(0);
    let mut indices = Array2::from_elem((rows.len(), width), NO_INDEX);
    let mut values = Array2::zeros(indices.dim());
    for (row, tokens) in rows.iter().enumerate() {
        for (place, (&id, &weight)) in tokens.iter().enumerate() {
            indices[[row, place]] = id;
            values[[row, place]] = weight;
        }
    }
    Value::Sparse { indices: indices.into_dyn(), values: values.into_dyn() }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, arr2, array};
    use trireme_inference::Tensor;

    use super::*;
    use crate::SideInputs;

    fn op(argument: Option<&str>) -> Result<Box<dyn Op>, String> {
        let some = |name: &str| Some(name.to_owned());
        let inputs =
            SideInputs { attention: some("attention_mask"), input_ids: some("input_ids"), ..SideInputs::default() };
        build(argument, &Resources { inputs: &inputs, ..Resources::default() })
    }

    fn applied(argument: Option<&str>, special: Option<[i64; 10]>) -> (ArrayD<i64>, ArrayD<f32>) {
        let tensor = |name, values: [i64; 10]| Tensor::from_values(name, [2, 5], values.to_vec()).unwrap();
        // The second row is padded.
        let mask = tensor("attention_mask", [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
        let ids = tensor("input_ids", [0, 7, 5, 7, 2, 0, 9, 2, 1, 1]);
        let special = special.map(|special| tensor("special_tokens_mask", special));
        let side =
            Side { mask: Some(&mask), input_ids: Some(&ids), special_tokens_mask: special.as_ref(), ..Side::default() };
        let weights = array![[[9.0], [0.5], [0.25], [0.75], [8.0]], [[7.0], [0.0], [6.0], [5.0], [4.0]]];
        match op(argument).unwrap().apply(Value::Floats(weights.into_dyn().into()), &side).unwrap() {
            Value::Sparse { indices, values } => (indices, values),
            other => panic!("{other:?}"),
        }
    }

    /// The expected values are those of the rule by which FlagEmbedding makes BGE-M3's weights, worked out by hand; its unused ids are 0 to 3.
    #[test]
    fn each_token_has_the_highest_of_its_weights() {
        let expected = (arr2(&[[5i64, 7], [-1, -1]]).into_dyn(), arr2(&[[0.25, 0.75], [0.0, 0.0]]).into_dyn());
        assert_eq!(applied(Some("0+1+2+3"), None), expected);
        assert_eq!(applied(None, Some([1, 0, 0, 0, 1, 1, 0, 1, 1, 1])), expected);
        let all = applied(None, None);
        assert_eq!(all.0, arr2(&[[0i64, 2, 5, 7], [0, 2, -1, -1]]).into_dyn());
        assert_eq!(all.1, arr2(&[[9.0, 8.0, 0.25, 0.75], [7.0, 6.0, 0.0, 0.0]]).into_dyn());
    }

    #[test]
    fn what_it_needs_is_named() {
        assert!(op(Some("0+x")).err().unwrap().contains("'0+x', expected token ids to leave out"));
        assert!(build(None, &Resources::default()).err().unwrap().starts_with("needs the token ids"));
        let wide = Signature::new(Form::Floats, [-1, -1, 8]);
        assert!(op(None).unwrap().signature(&wide).unwrap_err().starts_with("takes one weight for each token"));
    }
}
