//! Tries as double arrays in the form of Darts-clone, which SentencePiece files contain and `yada` builds.
//!
//! The search is implemented here, because `yada`'s panics at a NUL character of the text and trusts the array. An
//! array from a damaged file must not cause reads elsewhere.

use yada::builder::DoubleArrayBuilder;

/// Keys, each with a number.
#[derive(Clone, Debug)]
pub(super) struct Trie(Vec<u32>);

/// The prefixes of a text that are keys, shortest first.
pub(super) struct Prefixes<'a> {
    units: &'a [u32],
    text: &'a [u8],
    at: usize,
    length: usize,
}

// === impl Trie ===

impl Trie {
    /// The trie of `keys`; empty without keys. The error describes the fault in the keys.
    pub(super) fn build<'a>(keys: impl Iterator<Item = (&'a str, u32)>) -> Result<Trie, String> {
        let mut keys: Vec<(&[u8], u32)> = keys.map(|(key, value)| (key.as_bytes(), value)).collect();
        keys.sort_unstable_by_key(|&(key, _)| key);
        if keys.is_empty() {
            return Ok(Trie(Vec::new()));
        }
        let bytes = DoubleArrayBuilder::build(&keys).map_err(|error| format!("its pieces make no trie: {error}"))?;
        Ok(Trie::from_bytes(&bytes))
    }

    /// The trie in `bytes`: little-endian units.
    pub(super) fn from_bytes(bytes: &[u8]) -> Trie {
        let units = bytes.as_chunks().0.iter().map(|&unit| u32::from_le_bytes(unit));
        Trie(units.collect())
    }

    /// The keys at the beginning of `text`: their values and lengths.
    pub(super) fn prefixes<'a>(&'a self, text: &'a [u8]) -> Prefixes<'a> {
        Prefixes { units: &self.0, text, at: 0, length: 0 }
    }
}

/// The position of a unit's children, relative to the unit.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

// === impl Prefixes ===

impl Iterator for Prefixes<'_> {
    type Item = (u32, usize);

    fn next(&mut self) -> Option<(u32, usize)> {
        loop {
            // No key contains a NUL. In the array, a NUL would lead to a value or to nothing.
            let &byte = self.text.get(self.length).filter(|&&byte| byte != 0)?;
            let unit = *self.units.get(self.at)?;
            self.at ^= offset(unit) ^ usize::from(byte);
            self.length += 1;
            let unit = *self.units.get(self.at)?;
            // The highest bit marks a unit as a value, not a label.
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                self.text = &[];
                return None;
            }
            if unit & (1 << 8) != 0 {
                let value = *self.units.get(self.at ^ offset(unit))?;
                return Some((value & !(1 << 31), self.length));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_the_keys_that_are_prefixes(
            keys in proptest::collection::btree_set("[ab▁\u{1F600}]{1,4}", 0..40), text in "[ab▁\u{1F600}\0]{0,8}"
        ) {
            let keys: BTreeSet<String> = keys;
            let trie = Trie::build(keys.iter().zip(0..).map(|(key, value)| (key.as_str(), value))).unwrap();
            let found: Vec<_> = trie.prefixes(text.as_bytes()).collect();
            let mut expected: Vec<_> = keys.iter().zip(0..).filter(|(key, _)| text.starts_with(key.as_str()))
                .map(|(key, value)| (value, key.len())).collect();
            expected.sort_by_key(|&(_, length)| length);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn damaged_units_end_the_search(bytes: Vec<u8>, text: Vec<u8>) {
            prop_assert!(Trie::from_bytes(&bytes).prefixes(&text).count() <= text.len());
        }
    }
}
