//! `top_k:K`: the K highest scores of the last axis, best first, of equal ones the first; all of them, where the axis is shorter.
//!
//! The last op of a chain. The content of an output of the model depends on its name:
//! - `scores`: the scores, FP16, FP32 or FP64;
//! - `indices`: the class indices, INT64 or INT32;
//! - `labels`: the labels, BYTES; empty for a class without one;
//! - any other, BYTES: `score:index:label` as in Triton's classification, the score with six decimals, and
//!   `score:index` for a class without label.
//!
//! Labels come from the label file of an output, or from parameter `labels`.

use ndarray::{ArrayD, Axis, Zip};
use trireme_inference::InferError;

use super::op::{Op, OpEntry, Resources, compare_scores, number_argument};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "top_k",
    usage: "top_k:K",
    doc: "the K highest scores of the last axis with their labels; last in a chain",
    inputs: &[],
    embeds: false,
    reduces: true,
    build,
};

struct TopK(usize);

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    Ok(Box::new(TopK(number_argument(argument)?)))
}

// === impl TopK ===

impl Op for TopK {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let mut dims = input.expect(Form::Floats, 1..=usize::MAX)?.dims.to_vec();
        let k = i64::try_from(self.0).unwrap_or(i64::MAX);
        if let Some(classes) = dims.last_mut() {
            // If the number of classes is variable, so is the number of results.
            *classes = if *classes < 0 { -1 } else { k.min(*classes) };
        }
        Ok(Signature::new(Form::Ranked, dims))
    }

    fn apply<'a>(&self, value: Value<'a>, _: &Side<'_>) -> Result<Value<'a>, InferError> {
        let array = value.into_floats()?;
        let last = Axis(array.ndim() - 1);
        let mut dims = array.shape().to_vec();
        dims[last.0] = self.0.min(array.len_of(last));
        let mut scores = ArrayD::zeros(dims.clone());
        let mut indices = ArrayD::zeros(dims);
        let mut order: Vec<usize> = Vec::with_capacity(array.len_of(last));
        Zip::from(array.lanes(last)).and(scores.lanes_mut(last)).and(indices.lanes_mut(last)).for_each(
            |all, mut scores, mut indices| {
                order.clear();
                order.extend(0..all.len());
                let best_first = |&a: &usize, &b: &usize| compare_scores(all[b], all[a]).then(a.cmp(&b));
                if scores.len() < order.len() {
                    order.select_nth_unstable_by(scores.len(), best_first);
                    order.truncate(scores.len());
                }
                order.sort_unstable_by(best_first);
                for (place, &index) in order.iter().enumerate() {
                    scores[place] = all[index];
                    indices[place] = index as i64;
                }
            },
        );
        Ok(Value::Ranked { scores, indices })
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{CowArray, arr2};

    use super::*;

    fn top_k(k: usize, array: ArrayD<f32>) -> (ArrayD<f32>, ArrayD<i64>) {
        match TopK(k).apply(Value::Floats(CowArray::from(array)), &Side::default()).unwrap() {
            Value::Ranked { scores, indices } => (scores, indices),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_best_come_first_and_ties_in_order() {
        let (scores, indices) = top_k(2, arr2(&[[0.1, 0.7, 0.2], [0.5, 0.5, 0.5]]).into_dyn());
        assert_eq!(scores, arr2(&[[0.7, 0.2], [0.5, 0.5]]).into_dyn());
        assert_eq!(indices, arr2(&[[1, 2], [0, 1]]).into_dyn());
    }

    #[test]
    fn fewer_classes_than_k_give_all_of_them() {
        let (scores, indices) = top_k(usize::MAX, arr2(&[[0.1, 0.7]]).into_dyn());
        assert_eq!((scores, indices), (arr2(&[[0.7, 0.1]]).into_dyn(), arr2(&[[1, 0]]).into_dyn()));
        assert_eq!(top_k(3, ArrayD::zeros(vec![2, 0])).0.shape(), [2, 0]);
    }

    #[test]
    fn nan_is_ranked_not_lost() {
        let (scores, indices) = top_k(2, arr2(&[[1.0, f32::NAN, f32::INFINITY, -f32::NAN]]).into_dyn());
        assert!(scores.iter().all(|s| s.is_nan()));
        assert_eq!(indices, arr2(&[[1, 3]]).into_dyn());
    }

    #[test]
    fn an_open_number_of_classes_stays_open() {
        let dims = |dims: [i64; 2]| TopK(3).signature(&Signature::new(Form::Floats, dims)).unwrap().dims;
        assert_eq!((dims([-1, -1])[1], dims([-1, 2])[1], dims([-1, 5])[1]), (-1, 2, 3));
    }
}
