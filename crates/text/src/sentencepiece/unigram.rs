//! The unigram model: of all ways to split a text into pieces, it chooses the one with the highest sum of scores.

use super::vocabulary::{Kind, Vocabulary};

/// How much lower the score of a character without a piece is than that of the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The best split of the text up to one position.
#[derive(Clone, Copy)]
struct Best {
    /// Its last piece.
    id: u32,
    score: f32,
    /// The start of that piece; `usize::MAX` if no piece ends at the position.
    start: usize,
}

/// The pieces of the normalized `text`: for each its end and its id. Ties and rounding are those of SentencePiece: sums
/// are f32 and compared before they are rounded, and of equal splits the first one stays.
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
