//! Windows of words: each span has one window that has all its words.

use proptest::prelude::*;

use super::*;

fn room(words: usize, tokens: usize, overlap: usize, width: usize) -> Room {
    Room { form: SpanForm::Gliner, words, tokens, overlap, width }
}

#[test]
fn a_text_that_fits_has_one_window() {
    let tokens = vec![vec![1]; 5];
    assert_eq!(slices(&tokens, room(5, 5, 1, 3)), [Slice { words: 0..5, owns_from: 0 }]);
    let two = slices(&tokens, room(4, 9, 0, 2));
    assert_eq!(two, [Slice { words: 0..4, owns_from: 0 }, Slice { words: 3..5, owns_from: 3 }]);
}

proptest! {
    #[test]
    fn windows_own_all_words_once_and_hold_their_spans(
        lengths in proptest::collection::vec(1..9usize, 1..80), words in 1..20usize, tokens in 1..40usize, overlap in 0..20usize, width in 1..6usize
    ) {
        let room = room(words, tokens, overlap.min(tokens / 2), width);
        let all: Vec<Vec<u32>> = lengths.iter().map(|&length| vec![7; length]).collect();
        let found = slices(&all, room);
        prop_assert_eq!(found[0].owns_from, 0);
        prop_assert_eq!(found[found.len() - 1].words.end, all.len());
        for (at, slice) in found.iter().enumerate() {
            let owns_to = found.get(at + 1).map_or(all.len(), |next| next.owns_from);
            prop_assert!(slice.words.start <= slice.owns_from && slice.owns_from < owns_to && owns_to <= slice.words.end, "{:?}", found);
            let used: usize = lengths[slice.words.clone()].iter().sum();
            prop_assert!(slice.words.len() <= words && (used <= tokens || slice.words.len() == 1));
            // Where words are no longer than a row and rows have room for two spans, no span is cut.
            if at + 1 < found.len() && tokens >= 9 * 4 * width && words >= 4 * width {
                prop_assert!(owns_to + width - 1 <= slice.words.end, "{:?}", found);
            }
        }
    }
}
