//! Changes to an id's score before one is chosen: transformers' logits processors, in its order.
//!
//! Pure functions over one row: `ids` are the sequence so far, `scores` one number for each id of the vocabulary
//! (logits, or log-probabilities in beam search). A forbidden id has the score -∞.

use std::collections::BTreeSet;

use super::settings::Settings;

const NEVER: f32 = f32::NEG_INFINITY;

/// Applies every processor in `settings`.
pub fn process(settings: &Settings, ids: &[i64], scores: &mut [f32]) {
    let length = ids.len();
    if settings.repetition_penalty != 1.0 {
        penalize_repetition(settings.repetition_penalty, ids, scores);
    }
    if settings.no_repeat_ngram_size > 0 {
        forbid_repeated_ngrams(settings.no_repeat_ngram_size, ids, scores);
    }
    forbid_words(&settings.bad_words_ids, &settings.eos_token_id, ids, scores);
    if length < settings.min_length || length - 1 < settings.min_new_tokens {
        forbid(&settings.eos_token_id, scores);
    }
    if let Some(id) = settings.forced_bos_token_id.filter(|_| length == 1) {
        force(&[id], scores);
    }
    if length + 1 == settings.longest() && !settings.forced_eos_token_id.is_empty() {
        force(&settings.forced_eos_token_id, scores);
    }
    forbid(&settings.suppress_tokens, scores);
    // The text begins after a forced id.
    if length == 1 + usize::from(settings.forced_bos_token_id.is_some()) {
        forbid(&settings.begin_suppress_tokens, scores);
    }
}

/// Converts scores to log-probabilities.
pub fn log_softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(NEVER, f32::max);
    if largest == NEVER {
        return;
    }
    let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
    let sum = sum.ln();
    scores.iter_mut().for_each(|score| *score = *score - largest - sum);
}

fn forbid(ids: &[i64], scores: &mut [f32]) {
    for &id in ids {
        if let Some(score) = scores.get_mut(id as usize) {
            *score = NEVER;
        }
    }
}

fn force(ids: &[i64], scores: &mut [f32]) {
    scores.fill(NEVER);
    for &id in ids {
        if let Some(score) = scores.get_mut(id as usize) {
            *score = 0.0;
        }
    }
}

fn penalize_repetition(penalty: f32, ids: &[i64], scores: &mut [f32]) {
    for id in ids.iter().collect::<BTreeSet<_>>() {
        if let Some(score) = scores.get_mut(*id as usize) {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
    }
}

fn forbid_repeated_ngrams(size: usize, ids: &[i64], scores: &mut [f32]) {
    if ids.len() + 1 < size {
        return;
    }
    let begun = &ids[ids.len() + 1 - size..];
    for ngram in ids.windows(size).filter(|ngram| ngram[..size - 1] == *begun) {
        forbid(&ngram[size - 1..], scores);
    }
}

/// As in transformers, an end id alone is not forbidden, and a word as long as the sequence is not looked for.
fn forbid_words(words: &[Vec<i64>], ends: &[i64], ids: &[i64], scores: &mut [f32]) {
    for word in words {
        let Some((last, before)) = word.split_last() else { continue };
        let alone = before.is_empty() && !ends.contains(last);
        let completed = !before.is_empty() && word.len() <= ids.len() && ids.ends_with(before);
        if alone || completed {
            forbid(&[*last], scores);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The forbidden ids after `ids`, in a vocabulary of 10.
    fn forbidden(settings: &Settings, ids: &[i64]) -> Vec<usize> {
        let mut scores = vec![0.5; 10];
        process(settings, ids, &mut scores);
        scores.iter().enumerate().filter(|(_, score)| **score == NEVER).map(|(id, _)| id).collect()
    }

    fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings { eos_token_id: vec![2], ..Settings::default() };
        change(&mut settings);
        settings
    }

    #[test]
    fn ngrams_do_not_repeat() {
        let two = settings(|s| s.no_repeat_ngram_size = 2);
        assert_eq!(forbidden(&two, &[0, 4, 5, 4]), [5]);
        assert_eq!(forbidden(&two, &[0, 4, 5, 4, 6, 4]), [5, 6]);
        assert!(forbidden(&two, &[4]).is_empty());
        assert_eq!(forbidden(&settings(|s| s.no_repeat_ngram_size = 1), &[3, 4]), [3, 4]);
        assert!(forbidden(&settings(|s| s.no_repeat_ngram_size = 5), &[3, 4]).is_empty());
    }

    #[test]
    fn words_are_forbidden_where_they_would_be_completed() {
        let words = settings(|s| s.bad_words_ids = vec![vec![7], vec![2], vec![4, 5], vec![4, 5, 6]]);
        assert_eq!(forbidden(&words, &[0, 3]), [7]);
        assert_eq!(forbidden(&words, &[0, 4]), [5, 7]);
        assert_eq!(forbidden(&words, &[0, 4, 5]), [6, 7]);
        assert_eq!(forbidden(&words, &[4]), [7], "a word longer than the sequence is not looked for");
    }

    #[test]
    fn lengths_and_forced_ids() {
        assert_eq!(forbidden(&settings(|s| s.min_length = 4), &[0, 1, 1]), [2]);
        assert!(forbidden(&settings(|s| s.min_length = 4), &[0, 1, 1, 1]).is_empty());
        assert_eq!(forbidden(&settings(|s| s.min_new_tokens = 2), &[0, 1]), [2]);
        assert!(forbidden(&settings(|s| s.min_new_tokens = 2), &[0, 1, 1]).is_empty());
        let forced = settings(|s| {
            s.forced_bos_token_id = Some(6);
            s.forced_eos_token_id = vec![2];
            s.begin_suppress_tokens = vec![8];
            s.max_length = 5;
        });
        assert_eq!(forbidden(&forced, &[0]), [0, 1, 2, 3, 4, 5, 7, 8, 9]);
        assert_eq!(forbidden(&forced, &[0, 6]), [8]);
        assert_eq!(forbidden(&forced, &[0, 6, 1, 1]), [0, 1, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn repetition_is_penalized_once_for_each_id() {
        let mut scores = vec![1.0, -1.0, 3.0];
        process(&settings(|s| s.repetition_penalty = 2.0), &[0, 0, 1], &mut scores);
        assert_eq!(scores, [0.5, -2.0, 3.0]);
    }

    #[test]
    fn probabilities_add_up() {
        let mut scores = vec![1.0, 2.0, NEVER, 4.0];
        log_softmax(&mut scores);
        assert!((scores.iter().map(|score| score.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(scores[2], NEVER);
        let mut none = vec![NEVER; 2];
        log_softmax(&mut none);
        assert_eq!(none, [NEVER; 2]);
    }
}
