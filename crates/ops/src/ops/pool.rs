//! `pool:KIND`, `pool:KIND+KIND…`: one vector from the vectors of all tokens; several kinds are concatenated.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, CowArray, Ix2, Ix3, s};
use trireme_inference::{InferError, Shape, Tensor};

use super::op::{Op, OpEntry, Resources};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "pool",
    usage: "pool:mean|cls|max|last|weighted_mean|mean_sqrt_len[+…]",
    doc: "one vector from those of all tokens: [rows, length, width] to [rows, width]",
    inputs: &["pooling_mask"],
    embeds: true,
    reduces: true,
    build,
};

/// The lower limit for the number of tokens that a sum is divided by, as in sentence-transformers.
const SMALLEST_COUNT: f32 = 1e-9;

/// The kinds by name.
const KINDS: [(&str, Pool); 6] = [
    ("mean", Pool::Mean),
    ("cls", Pool::Cls),
    ("max", Pool::Max),
    ("last", Pool::Last),
    ("weighted_mean", Pool::WeightedMean),
    ("mean_sqrt_len", Pool::MeanSqrtLen),
];

/// The way in which tokens make the vector. Padding, where the mask is 0, takes no part on either side; a row without
/// tokens gives zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    /// The mean of all tokens.
    Mean,
    /// The first token. Without a mask: the first position.
    Cls,
    /// The highest value of each component; NaN when one token has it.
    Max,
    /// The last token.
    Last,
    /// The mean where each token counts by its position from 1, as in SGPT. Positions begin where the attention mask does.
    WeightedMean,
    /// The sum over the square root of the number of tokens.
    MeanSqrtLen,
}

/// Kinds whose vectors follow one another.
struct Pools(Vec<Pool>);

/// Makes the op.
fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    let expected = || {
        let known = KINDS.map(|(name, _)| format!("'{name}'")).join(", ");
        format!("expected one of {known}, or several joined by '+'")
    };
    let argument = argument.ok_or_else(|| format!("argument is missing, {}", expected()))?;
    let kind = |name: &str| KINDS.iter().find(|(known, _)| *known == name.trim()).map(|(_, pool)| *pool);
    let pools: Option<Vec<Pool>> = argument.split('+').map(kind).collect();
    let pools = pools.ok_or_else(|| format!("argument is '{argument}', {}", expected()))?;
    if pools.iter().any(|&pool| pool != Pool::Cls) && !resources.inputs.has_mask() {
        return Err(
            "needs the attention mask: declare an input 'attention_mask' of TYPE_INT64 or TYPE_INT32".to_owned()
        );
    }
    if pools.contains(&Pool::WeightedMean) && resources.inputs.attention.is_none() {
        return Err(
            "needs the attention mask beside 'pooling_mask': declare an input 'attention_mask' of TYPE_INT64 or \
                    TYPE_INT32, which says where texts begin"
                .to_owned(),
        );
    }
    Ok(Box::new(Pools(pools)))
}

// === impl Pools ===

impl Op for Pools {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        let dims = &input.expect(Form::Floats, 3..=3)?.dims;
        let width = if dims[2] < 0 { -1 } else { dims[2].saturating_mul(self.0.len() as i64) };
        Ok(Signature::new(Form::Floats, [dims[0], width]))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let hidden = value.into_floats()?.into_dimensionality::<Ix3>();
        let hidden = hidden.map_err(|_| InferError::internal("pool takes numbers of rank 3"))?;
        let mask = side.mask.map(|mask| read_mask(mask, &hidden)).transpose()?;
        let attention = side.attention.map(|mask| read_mask(mask, &hidden)).transpose()?;
        let width = hidden.len_of(Axis(2));
        let mut pooled = Array2::zeros((hidden.len_of(Axis(0)), width * self.0.len()));
        for (row, mut vector) in pooled.outer_iter_mut().enumerate() {
            let mask = mask.as_ref().map(|mask| mask.index_axis(Axis(0), row));
            let begin = attention.as_ref().and_then(|mask| mask.row(row).iter().position(|&token| token != 0));
            for (index, pool) in self.0.iter().enumerate() {
                let part = pool.pool(hidden.index_axis(Axis(0), row), mask, begin.unwrap_or(0));
                vector.slice_mut(s![index * width..(index + 1) * width]).assign(&part);
            }
        }
        Ok(Value::Floats(CowArray::from(pooled.into_dyn())))
    }
}

// === impl Pool ===

impl Pool {
    /// The vector of one text from its hidden states `[length, width]` and mask `[length]`; the text begins at position
    /// `begin`.
    fn pool(self, hidden: ArrayView2<'_, f32>, mask: Option<ArrayView1<'_, i64>>, begin: usize) -> Array1<f32> {
        let (length, width) = hidden.dim();
        let is_token = |&position: &usize| mask.as_ref().is_none_or(|mask| mask[position] != 0);
        let mut tokens = (0..length).filter(is_token).map(|position| hidden.row(position));
        let zeros = || Array1::zeros(width);
        match self {
            Pool::Cls => tokens.next().map_or_else(zeros, |token| token.to_owned()),
            Pool::Last => tokens.next_back().map_or_else(zeros, |token| token.to_owned()),
            Pool::Mean | Pool::MeanSqrtLen => {
                let (sum, count) = tokens.fold((zeros(), 0.0f32), |(sum, count), token| (sum + token, count + 1.0));
                let count = count.max(SMALLEST_COUNT);
                sum / if self == Pool::Mean { count } else { count.sqrt() }
            }
            Pool::WeightedMean => {
                let (mut sum, mut weights) = (zeros(), 0.0f32);
                for position in (0..length).filter(is_token) {
                    let weight = (position + 1).saturating_sub(begin) as f32;
                    sum.scaled_add(weight, &hidden.row(position));
                    weights += weight;
                }
                sum / weights.max(SMALLEST_COUNT)
            }
            Pool::Max => {
                let Some(first) = tokens.next() else { return zeros() };
                tokens.fold(first.to_owned(), |mut highest, token| {
                    highest.zip_mut_with(&token, |high, &value| {
                        if value > *high || value.is_nan() {
                            *high = value;
                        }
                    });
                    highest
                })
            }
        }
    }
}

/// The mask as integers `[rows, length]`, checked against the shape of the hidden states.
pub(crate) fn read_mask<'a>(
    mask: &'a Tensor,
    hidden: &CowArray<'_, f32, Ix3>,
) -> Result<CowArray<'a, i64, Ix2>, InferError> {
    let (rows, length, _) = hidden.dim();
    let values = match Value::from_tensor(mask)? {
        Value::Ints(values) if values.shape() == [rows, length] => values.into_dimensionality::<Ix2>().ok(),
        _ => None,
    };
    values.ok_or_else(|| {
        InferError::invalid_arg(format!(
            "tensor '{}' is {} of shape {}, expected INT64 or INT32 of shape {} to mask hidden states of shape {}",
            mask.name(),
            mask.datatype(),
            mask.shape(),
            Shape::from([rows as i64, length as i64]),
            Shape::from(hidden.shape().iter().map(|&d| d as i64).collect::<Vec<_>>()),
        ))
    })
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, array};
    use proptest::prelude::*;

    use super::*;
    use crate::inputs::SideInputs;

    fn pool(pool: Pool, hidden: Array3<f32>, mask: Option<Vec<i64>>) -> Result<Array2<f32>, InferError> {
        let (rows, length, _) = hidden.dim();
        let mask = mask.map(|mask| Tensor::from_values("attention_mask", [rows as i64, length as i64], mask).unwrap());
        let side = Side { mask: mask.as_ref(), attention: mask.as_ref(), ..Side::default() };
        let pooled = Pools(vec![pool]).apply(Value::Floats(CowArray::from(hidden.into_dyn())), &side)?;
        Ok(pooled.into_floats()?.into_dimensionality::<Ix2>().unwrap().into_owned())
    }

    /// Two rows of three tokens of two components; the first row padded right, the second left.
    fn hidden() -> Array3<f32> {
        array![[[1.0, -2.0], [3.0, -4.0], [99.0, 99.0]], [[99.0, 99.0], [5.0, 6.0], [-7.0, 8.0]]]
    }

    const MASK: [i64; 6] = [1, 1, 0, 0, 1, 1];

    #[test]
    fn each_kind_ignores_padding_on_both_sides() {
        let pooled = |kind| pool(kind, hidden(), Some(MASK.to_vec())).unwrap();
        assert_eq!(pooled(Pool::Mean), array![[2.0, -3.0], [-1.0, 7.0]]);
        assert_eq!(pooled(Pool::Cls), array![[1.0, -2.0], [5.0, 6.0]]);
        assert_eq!(pooled(Pool::Max), array![[3.0, -2.0], [5.0, 8.0]]);
        assert_eq!(pooled(Pool::Last), array![[3.0, -4.0], [-7.0, 8.0]]);
        assert_eq!(pooled(Pool::WeightedMean), array![[7.0 / 3.0, -10.0 / 3.0], [-3.0, 22.0 / 3.0]]);
        let root = 2.0f32.sqrt();
        assert_eq!(pooled(Pool::MeanSqrtLen), array![[4.0 / root, -6.0 / root], [-2.0 / root, 14.0 / root]]);
    }

    #[test]
    fn cls_without_mask_is_the_first_position() {
        assert_eq!(pool(Pool::Cls, hidden(), None).unwrap(), array![[1.0, -2.0], [99.0, 99.0]]);
    }

    #[test]
    fn rows_without_tokens_give_zeros() {
        for (_, kind) in KINDS {
            assert_eq!(pool(kind, hidden(), Some(vec![0; 6])).unwrap(), Array2::<f32>::zeros((2, 2)));
            assert_eq!(pool(kind, Array3::zeros((1, 0, 2)), Some(vec![])).unwrap(), Array2::<f32>::zeros((1, 2)));
        }
    }

    #[test]
    fn nan_in_a_token_shows_and_in_padding_does_not() {
        let mut hidden = hidden();
        hidden[[0, 1, 0]] = f32::NAN;
        hidden[[1, 0, 0]] = f32::NAN;
        for kind in [Pool::Mean, Pool::Max] {
            let pooled = pool(kind, hidden.clone(), Some(MASK.to_vec())).unwrap();
            assert!(pooled[[0, 0]].is_nan() && pooled.iter().filter(|v| v.is_nan()).count() == 1, "{kind:?}");
        }
    }

    #[test]
    fn a_mask_of_another_shape_is_refused() {
        let mask = Tensor::from_values("attention_mask", [2, 2], vec![1i64; 4]).unwrap();
        let error = Pools(vec![Pool::Mean])
            .apply(Value::Floats(CowArray::from(hidden().into_dyn())), &Side { mask: Some(&mask), ..Side::default() })
            .unwrap_err();
        assert_eq!(
            error.message,
            "tensor 'attention_mask' is INT64 of shape [2,2], expected INT64 or INT32 of shape [2,3] to mask hidden \
             states of shape [2,3,2]"
        );
    }

    #[test]
    fn all_but_cls_need_a_mask() {
        let with = |inputs: SideInputs| {
            move |kind| build(Some(kind), &Resources { inputs: &inputs, ..Resources::default() }).err()
        };
        let none = with(SideInputs::default());
        assert!(none("cls").is_none());
        for kind in ["mean", "max", "last", "weighted_mean", "mean_sqrt_len", "cls+mean"] {
            assert!(none(kind).unwrap().starts_with("needs the attention mask: declare"));
        }
        let pooling = with(SideInputs { pooling: Some("pooling_mask".to_owned()), ..SideInputs::default() });
        assert!(pooling("mean").is_none());
        assert!(pooling("weighted_mean").unwrap().starts_with("needs the attention mask beside 'pooling_mask'"));
    }

    #[test]
    fn several_kinds_follow_one_another() {
        let inputs = SideInputs { attention: Some("m".to_owned()), ..SideInputs::default() };
        let op = build(Some("cls+last + mean"), &Resources { inputs: &inputs, ..Resources::default() }).unwrap();
        let mask = Tensor::from_values("m", [2, 3], MASK.to_vec()).unwrap();
        let side = Side { mask: Some(&mask), attention: Some(&mask), ..Side::default() };
        let pooled =
            op.apply(Value::Floats(CowArray::from(hidden().into_dyn())), &side).unwrap().into_floats().unwrap();
        let expected = array![[1.0, -2.0, 3.0, -4.0, 2.0, -3.0], [5.0, 6.0, -7.0, 8.0, -1.0, 7.0]];
        assert_eq!(pooled, expected.into_dyn());
        let signature = |width| op.signature(&Signature::new(Form::Floats, [-1, -1, width])).unwrap().dims[1];
        assert_eq!((signature(2), signature(-1)), (6, -1));
    }

    #[test]
    fn a_prompt_that_is_left_out_still_counts_as_positions() {
        let attention = Tensor::from_values("attention_mask", [1, 4], vec![0i64, 1, 1, 1]).unwrap();
        let pooling = Tensor::from_values("pooling_mask", [1, 4], vec![0i64, 0, 1, 1]).unwrap();
        let side = Side { mask: Some(&pooling), attention: Some(&attention), ..Side::default() };
        let hidden = array![[[9.0], [9.0], [10.0], [20.0]]].into_dyn();
        let pooled = Pools(vec![Pool::WeightedMean]).apply(Value::Floats(CowArray::from(hidden)), &side).unwrap();
        assert_eq!(pooled.into_floats().unwrap(), array![[16.0f32]].into_dyn());
    }

    /// The plain computation, element by element.
    fn naive(kind: Pool, hidden: &Array3<f32>, mask: &[i64]) -> Array2<f32> {
        let (rows, length, width) = hidden.dim();
        Array2::from_shape_fn((rows, width), |(row, component)| {
            let kept: Vec<f32> =
                (0..length).filter(|p| mask[row * length + p] != 0).map(|p| hidden[[row, p, component]]).collect();
            match kind {
                Pool::Mean => kept.iter().sum::<f32>() / (kept.len() as f32).max(1e-9),
                Pool::Cls => kept.first().copied().unwrap_or(0.0),
                Pool::Last => kept.last().copied().unwrap_or(0.0),
                Pool::Max => kept.into_iter().reduce(f32::max).unwrap_or(0.0),
                Pool::MeanSqrtLen => kept.iter().sum::<f32>() / (kept.len() as f32).max(1e-9).sqrt(),
                Pool::WeightedMean => {
                    let begin = (0..length).find(|p| mask[row * length + p] != 0).unwrap_or(0);
                    let weights = (0..length).map(|p| mask[row * length + p] as f32 * (p + 1 - begin.min(p)) as f32);
                    let sum: f32 = weights.clone().zip(hidden.slice(s![row, .., component])).map(|(w, v)| w * v).sum();
                    sum / weights.sum::<f32>().max(1e-9)
                }
            }
        })
    }

    fn states() -> impl Strategy<Value = (Array3<f32>, Vec<i64>)> {
        (0usize..4, 0usize..6, 0usize..5).prop_flat_map(|(rows, length, width)| {
            let values = prop::collection::vec(-10.0f32..10.0, rows * length * width);
            let hidden = values.prop_map(move |v| Array3::from_shape_vec((rows, length, width), v).unwrap());
            (hidden, prop::collection::vec(0i64..2, rows * length))
        })
    }

    proptest! {
        #[test]
        fn pools_like_a_naive_loop((hidden, mask) in states()) {
            for (_, kind) in KINDS {
                let expected = naive(kind, &hidden, &mask);
                let pooled = pool(kind, hidden.clone(), Some(mask.clone())).unwrap();
                prop_assert_eq!(pooled.dim(), expected.dim());
                for (&ours, &theirs) in pooled.iter().zip(&expected) {
                    prop_assert!((ours - theirs).abs() <= 1e-5, "{:?}: {} and {}", kind, ours, theirs);
                }
            }
        }
    }
}
