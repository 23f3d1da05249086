//! `softmax`: scores to probabilities that sum to 1 over the last axis.

use ndarray::{ArrayD, Axis};

use super::op::{InPlace, Op, OpEntry, Resources, no_argument};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "softmax",
    usage: "softmax",
    doc: "scores to probabilities that sum to 1 over the last axis",
    inputs: &[],
    embeds: false,
    reduces: false,
    build,
};

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(InPlace(softmax)))
}

fn softmax(array: &mut ArrayD<f32>) {
    let last = Axis(array.ndim() - 1);
    for mut scores in array.lanes_mut(last) {
        // The highest score becomes 0, so that no exponential overflows; the quotient is the same.
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.mapv_inplace(|score| (score - highest).exp());
        let sum = scores.sum();
        scores /= sum;
    }
}

#[cfg(test)]
mod tests {
    use ndarray::arr2;

    use super::*;

    fn softmaxed(mut array: ArrayD<f32>) -> ArrayD<f32> {
        softmax(&mut array);
        array
    }

    #[test]
    fn probabilities_sum_to_one() {
        let probabilities = softmaxed(arr2(&[[0.0, 3.0f32.ln()], [5.0, 5.0]]).into_dyn());
        let expected = arr2(&[[0.25, 0.75], [0.5, 0.5]]).into_dyn();
        assert!((probabilities - expected).iter().all(|difference: &f32| difference.abs() < 1e-6));
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let probabilities = softmaxed(arr2(&[[1e30, 1e30, -1e30], [1000.0, f32::NEG_INFINITY, 0.0]]).into_dyn());
        assert_eq!(probabilities, arr2(&[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).into_dyn());
    }

    #[test]
    fn nan_stays_in_its_row() {
        let probabilities = softmaxed(arr2(&[[f32::NAN, 1.0], [0.0, 0.0]]).into_dyn());
        assert!(probabilities[[0, 0]].is_nan() && probabilities[[0, 1]].is_nan());
        assert_eq!(probabilities[[1, 0]], 0.5);
    }
}
