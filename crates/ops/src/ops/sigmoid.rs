//! `sigmoid`: each score to a probability of its own.

use ndarray::ArrayD;

use super::op::{InPlace, Op, OpEntry, Resources, no_argument};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "sigmoid",
    usage: "sigmoid",
    doc: "each score to a probability of its own",
    inputs: &[],
    embeds: false,
    reduces: false,
    build,
};

/// Makes the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(InPlace(sigmoid)))
}

fn sigmoid(array: &mut ArrayD<f32>) {
    array.mapv_inplace(|score| 1.0 / (1.0 + (-score).exp()));
}

#[cfg(test)]
mod tests {
    use ndarray::arr1;

    use super::*;

    #[test]
    fn scores_become_probabilities() {
        let mut scores = arr1(&[0.0, 3.0f32.ln(), -3.0f32.ln(), 1e30, -1e30, f32::NAN]).into_dyn();
        sigmoid(&mut scores);
        for (probability, expected) in scores.iter().zip([0.5, 0.75, 0.25, 1.0, 0.0]) {
            assert!((probability - expected).abs() < 1e-6);
        }
        assert!(scores[5].is_nan());
    }
}
