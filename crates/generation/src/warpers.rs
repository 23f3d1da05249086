//! Restrictions of a distribution before an id is drawn: temperature, top-k, top-p and min-p, as in transformers.

use super::settings::Settings;

const NEVER: f32 = f32::NEG_INFINITY;

/// Restricts `scores`; at least `keep` ids stay.
pub fn warp(settings: &Settings, keep: usize, scores: &mut [f32]) {
    if settings.temperature != 1.0 {
        scores.iter_mut().for_each(|score| *score /= settings.temperature);
    }
    if settings.top_k > 0 && settings.top_k.max(keep) < scores.len() {
        let mut sorted = scores.to_vec();
        let (_, least, _) = sorted.select_nth_unstable_by(settings.top_k.max(keep) - 1, |a, b| b.total_cmp(a));
        let least = *least;
        scores.iter_mut().filter(|score| **score < least).for_each(|score| *score = NEVER);
    }
    if settings.top_p < 1.0 {
        keep_most_likely(settings.top_p, keep, scores);
    }
    if let Some(min_p) = settings.min_p {
        let probabilities = softmax(scores);
        let least = min_p * probabilities.iter().copied().fold(0.0, f32::max);
        let order = ascending(scores);
        for &index in &order[..order.len().saturating_sub(keep)] {
            if probabilities[index] < least {
                scores[index] = NEVER;
            }
        }
    }
}

/// Converts scores to probabilities.
pub fn softmax(scores: &[f32]) -> Vec<f32> {
    let largest = scores.iter().copied().fold(NEVER, f32::max);
    if largest == NEVER {
        return vec![0.0; scores.len()];
    }
    let mut weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

/// Drops the least likely ids whose probabilities together are at most 1 - `top_p`.
fn keep_most_likely(top_p: f32, keep: usize, scores: &mut [f32]) {
    let probabilities = softmax(scores);
    let order = ascending(scores);
    let mut sum = 0.0;
    for &index in &order[..order.len().saturating_sub(keep)] {
        sum += probabilities[index];
        if sum > 1.0 - top_p {
            break;
        }
        scores[index] = NEVER;
    }
}

/// Ids that are not forbidden, least likely first.
fn ascending(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|&id| scores[id] > NEVER).collect();
    order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    order
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::options;

    #[derive(Deserialize)]
    struct Case {
        settings: serde_json::Map<String, serde_json::Value>,
        keep: usize,
        scores: Vec<f32>,
        probabilities: Vec<f32>,
    }

    #[test]
    fn distributions_are_those_of_transformers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/generation/warpers.json");
        let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(cases.len() > 20);
        for mut case in cases {
            let mut settings = Settings { top_k: 0, ..Settings::default() };
            options::apply_file(&mut settings, &case.settings).unwrap();
            warp(&settings, case.keep, &mut case.scores);
            for (found, expected) in softmax(&case.scores).iter().zip(&case.probabilities) {
                assert!((found - expected).abs() < 2e-6, "{:?} {}: {found} {expected}", case.settings, case.keep);
            }
        }
    }
}
