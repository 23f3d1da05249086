//! Which tokens of a rendered template stay where a row is too long.

use std::ops::Range;

use crate::Side;

/// The numbers of the tokens that stay, in order; `None` where that leaves too many. `places` are the characters that each token stands
/// for, and `contents` those of the texts, in order. Behind the tokens come `suffix` further ones: the end of the frame around the texts,
/// which is cut off on the right side and written back.
///
/// The right side is that of sentence-transformers: the last text is cut, and the frame's end stays. Where a pair's first text alone is
/// too long, the library cuts the frame between the two as well. Its scores are those of such rows, so this code makes the same rows.
/// On the left side texts are cut and nothing else.
pub(crate) fn kept(
    places: &[(usize, usize)],
    contents: &[Range<usize>],
    suffix: usize,
    longest: usize,
    side: Side,
) -> Option<Vec<usize>> {
    match side {
        Side::Right => Some((0..longest.checked_sub(suffix)?).collect()),
        Side::Left => {
            let more = places.len().checked_sub(longest)?;
            let is_content = |&at: &usize| {
                let (begin, end) = places[at];
                // Where texts are not found, all tokens count as theirs.
                contents.is_empty() || contents.iter().any(|content| content.start <= begin && end <= content.end)
            };
            let gone: Vec<usize> = (0..places.len()).filter(is_content).take(more).collect();
            (gone.len() == more).then(|| (0..places.len()).filter(|at| gone.binary_search(at).is_err()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of one character each; the frame is 2, 3 and 2 characters, the texts have 4 each.
    fn places() -> Vec<(usize, usize)> {
        (0..15).map(|at| (at, at + 1)).collect()
    }

    const CONTENTS: [Range<usize>; 2] = [2..6, 9..13];

    #[test]
    fn on_the_right_the_end_of_the_frame_is_written_back() {
        let right = |longest| kept(&places(), &CONTENTS, 2, longest, Side::Right);
        assert_eq!(right(14).unwrap(), (0..12).collect::<Vec<_>>());
        assert_eq!(right(2).unwrap(), Vec::<usize>::new());
        assert_eq!(right(1), None);
    }

    #[test]
    fn on_the_left_the_first_text_loses_its_beginning_and_the_frame_nothing() {
        let left = |longest| kept(&places(), &CONTENTS, 2, longest, Side::Left);
        assert_eq!(left(13).unwrap(), [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(left(8).unwrap(), [0, 1, 6, 7, 8, 12, 13, 14]);
        assert_eq!(left(7).unwrap(), [0, 1, 6, 7, 8, 13, 14]);
        assert_eq!(left(6), None);
        assert_eq!(kept(&places(), &[], 0, 5, Side::Left).unwrap(), [10, 11, 12, 13, 14], "texts that are not found");
    }
}
