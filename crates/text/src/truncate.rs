//! How many tokens of each text a row keeps: the arithmetic of truncation, the same as in `tokenizers`.
//!
//! It runs here, before special tokens are added, because `tokenizers` also keeps every piece that it cuts off, and for
//! a pair of long texts all combinations of those pieces.

use crate::Truncation;

/// How many tokens of a first text of `first` tokens and a second of `second` stay, in a row with room for `room`
/// tokens besides the special ones. The error says why the texts cannot be cut in this way.
pub(crate) fn kept_tokens(
    first: usize,
    second: Option<usize>,
    room: usize,
    truncation: Truncation,
) -> Result<(usize, usize), String> {
    let other = second.unwrap_or(0);
    let excess = (first + other).saturating_sub(room);
    if excess == 0 {
        return Ok((first, other));
    }
    if room == 0 && truncation != Truncation::Off {
        return Ok((0, 0));
    }
    let cut = |length: usize, which: &str| {
        length.checked_sub(excess).filter(|&kept| kept > 0).ok_or_else(|| {
            format!("its {which} text has {length} tokens and {excess} too many are to be cut from it alone")
        })
    };
    match (truncation, second) {
        (Truncation::Off, _) => Ok((first, other)),
        (Truncation::LongestFirst, None) => Ok((room, 0)),
        (Truncation::LongestFirst, Some(_)) => {
            let shorter = first.min(other);
            // The shorter text stays whole while the longer one, cut to the rest, is still at least as long.
            let (short, long) = match room.checked_sub(shorter) {
                Some(rest) if rest >= shorter => (shorter, rest),
                _ => (room / 2, room - room / 2),
            };
            Ok(if first > other { (long, short) } else { (short, long) })
        }
        (Truncation::OnlyFirst, _) => Ok((cut(first, "first")?, other)),
        (Truncation::OnlySecond, Some(_)) => Ok((first, cut(other, "second")?)),
        (Truncation::OnlySecond, None) => {
            Err("it is too long and 'truncation' is 'only_second', but there is no second text".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{Encoding, TruncationParams, TruncationStrategy, truncate_encodings};

    use super::*;

    fn encoding(length: usize) -> Encoding {
        let ids = vec![1; length];
        let words = vec![None; length];
        let tokens = vec![String::new(); length];
        let offsets = vec![(0, 0); length];
        Encoding::new(ids.clone(), ids.clone(), tokens, words, offsets, ids.clone(), ids, vec![], Default::default())
    }

    /// The numbers that `tokenizers` keeps.
    fn reference(
        first: usize,
        second: Option<usize>,
        room: usize,
        strategy: TruncationStrategy,
    ) -> Option<(usize, usize)> {
        let params = TruncationParams { max_length: room, strategy, ..TruncationParams::default() };
        let (first, second) = truncate_encodings(encoding(first), second.map(encoding), &params).ok()?;
        Some((first.len(), second.map_or(0, |e| e.len())))
    }

    proptest! {
        #[test]
        fn keeps_what_tokenizers_keeps(first in 0usize..20, second in proptest::option::of(0usize..20), room in 1usize..30) {
            for (ours, theirs) in [
                (Truncation::LongestFirst, TruncationStrategy::LongestFirst),
                (Truncation::OnlyFirst, TruncationStrategy::OnlyFirst),
                (Truncation::OnlySecond, TruncationStrategy::OnlySecond),
            ] {
                let kept = kept_tokens(first, second, room, ours).ok();
                prop_assert_eq!(kept, reference(first, second, room, theirs), "{:?}", ours);
            }
        }
    }

    #[test]
    fn a_row_without_room_keeps_nothing() {
        assert_eq!(kept_tokens(5, None, 0, Truncation::LongestFirst), Ok((0, 0)));
        assert_eq!(kept_tokens(5, Some(3), 0, Truncation::LongestFirst), Ok((0, 0)));
        assert_eq!(kept_tokens(5, Some(3), 0, Truncation::OnlyFirst), Ok((0, 0)));
    }

    #[test]
    fn off_keeps_everything() {
        assert_eq!(kept_tokens(50, Some(9), 3, Truncation::Off), Ok((50, 9)));
    }
}
