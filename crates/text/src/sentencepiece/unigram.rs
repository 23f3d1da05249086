//! The unigram model: of all ways to cut a text into pieces, the one with the highest sum of scores.

use super::vocabulary::{Kind, Vocabulary};

/// How much worse than the worst piece a character is that no piece covers.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The best cut of the text up to some place.
#[derive(Clone, Copy)]
struct Best {
    /// The last piece of it.
    id: u32,
    score: f32,
    /// Where that piece begins; `usize::MAX` where nothing ends.
    start: usize,
}

/// The pieces of the normalized `text`: where each ends, and its id. Ties and rounding are SentencePiece's: sums are kept
/// in f32 and compared before they are rounded, and the cut found first stays.
pub(super) fn encode(text: &str, vocabulary: &Vocabulary) -> Vec<(usize, u32)> {
    let unknown_score = vocabulary.min_score - UNKNOWN_PENALTY;
    let mut best = vec![Best { id: 0, score: 0.0, start: usize::MAX }; text.len() + 1];
    for (start, character) in text.char_indices() {
        let score_here = best[start].score;
        let mut covered = false;
        for (id, length) in vocabulary.pieces.prefixes(&text.as_bytes()[start..]) {
            let piece = &vocabulary.scored[id as usize];
            let score = match piece.kind {
                Kind::Unused => continue,
                Kind::UserDefined => f64::from(length as f32 * vocabulary.max_score) - 0.1,
                _ => f64::from(piece.score),
            };
            let score = score + f64::from(score_here);
            let target = &mut best[start + length];
            if target.start == usize::MAX || score > f64::from(target.score) {
                *target = Best { id, score: score as f32, start };
            }
            covered |= length == character.len_utf8();
        }
        if !covered {
            let score = unknown_score + score_here;
            let target = &mut best[start + character.len_utf8()];
            if target.start == usize::MAX || score > target.score {
                *target = Best { id: vocabulary.unknown, score, start };
            }
        }
    }
    let mut pieces = Vec::new();
    let mut end = text.len();
    while end > 0 {
        let last = best[end];
        pieces.push((end, last.id));
        end = last.start;
    }
    pieces.reverse();
    pieces
}
