//! Comparison of floats. Models on other hardware, in other precisions or batch sizes differ in the last digits.

/// Asserts that the numbers are equal within `tolerance`: `|actual - expected| <= tolerance * max(1, |expected|)`. So
/// it is absolute for small numbers and relative for large ones. NaN is never close.
///
/// # Panics
/// When the lengths differ or a pair is further apart; the text names the worst pair.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expected.len(), "as many numbers as expected");
    let off = |a: f32, e: f32| match a == e {
        true => 0.0, // also equal infinities, whose difference is NaN
        false => f64::from(a - e).abs() / f64::from(e.abs().max(1.0)),
    };
    let worst =
        actual.iter().zip(expected).map(|(&a, &e)| off(a, e)).enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    if let Some((index, off)) = worst {
        // Written so that NaN fails.
        let close = off <= f64::from(tolerance);
        assert!(
            close,
            "number {index} is {}, expected {} within {tolerance} (off by {off:e}, the worst of {})",
            actual[index],
            expected[index],
            actual.len()
        );
    }
}

/// Cosine of the angle between two vectors, from -1 to 1, as a measure of how similar two embeddings are. Summed in
/// double precision.
///
/// # Panics
/// When the lengths differ, or one vector has no direction: it is empty, all zero, or contains a number that is not
/// finite.
#[track_caller]
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "vectors of one length");
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    assert!(norms.is_finite() && norms > 0.0, "both vectors have a direction, got norms that multiply to {norms}");
    dot(a, b) / norms
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn close_is_absolute_below_one_and_relative_above() {
        assert_close(&[0.0, 1000.0, f32::INFINITY], &[0.0009, 1000.9, f32::INFINITY], 0.001);
        assert!(catch_unwind(|| assert_close(&[0.0], &[0.002], 0.001)).is_err());
        assert!(catch_unwind(|| assert_close(&[1000.0], &[1002.0], 0.001)).is_err());
        assert!(catch_unwind(|| assert_close(&[1.0], &[1.0, 2.0], 1.0)).is_err());
    }

    #[test]
    fn nothing_is_close_to_nan() {
        assert!(catch_unwind(|| assert_close(&[f32::NAN, 1.0], &[1.0, 1.0], 1e9)).is_err());
        assert!(catch_unwind(|| assert_close(&[-f32::NAN, 1.0], &[f32::NAN, 1.0], 1e9)).is_err());
    }

    #[test]
    fn cosine_measures_the_angle() {
        assert_eq!(cosine(&[3.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[1.0, -1.0], &[-1.0, 1.0]), -1.0);
        assert!(catch_unwind(|| cosine(&[0.0], &[1.0])).is_err());
        assert!(catch_unwind(|| cosine(&[f32::NAN], &[1.0])).is_err());
    }
}
