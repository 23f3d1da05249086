//! `tanh`: each score to a number between -1 and 1.

use ndarray::ArrayD;

use super::op::{InPlace, Op, OpEntry, Resources, no_argument};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "tanh",
    usage: "tanh",
    doc: "each score to a number between -1 and 1, its hyperbolic tangent",
    inputs: &[],
    embeds: false,
    reduces: false,
    build,
};

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(InPlace(tanh)))
}

fn tanh(array: &mut ArrayD<f32>) {
    array.mapv_inplace(f32::tanh);
}

#[cfg(test)]
mod tests {
    use ndarray::arr1;

    use super::*;

    #[test]
    fn scores_become_numbers_between_minus_one_and_one() {
        let mut scores = arr1(&[0.0, 0.5f32.atanh(), -1e30, 1e30, f32::NAN]).into_dyn();
        tanh(&mut scores);
        for (score, expected) in scores.iter().zip([0.0, 0.5, -1.0, 1.0]) {
            assert!((score - expected).abs() < 1e-6);
        }
        assert!(scores[4].is_nan());
    }
}
