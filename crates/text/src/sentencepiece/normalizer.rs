//! SentencePiece's normalization of texts: a table of replacements, then spaces.

use super::proto::NormalizerSpec;
use super::trie::Trie;

/// What stands for a space in pieces.
pub(crate) const SPACE: &str = "\u{2581}";

/// A normalizer, as a model file describes it.
#[derive(Debug)]
pub(super) struct Normalizer {
    /// What is replaced: the longest match wins. The value is where in `replacements` the new text begins.
    rules: Trie,
    /// The new texts, each ended by a NUL.
    replacements: Vec<u8>,
    /// A space goes before each text, or after it when `space_after`.
    pub(super) add_space: bool,
    space_after: bool,
    /// Spaces at both ends are dropped, and all but one of those that follow each other.
    remove_extra_spaces: bool,
    /// Spaces become [`SPACE`].
    escape_spaces: bool,
}

// === impl Normalizer ===

impl Normalizer {
    pub(super) fn new(spec: &NormalizerSpec, space_after: bool) -> Result<Normalizer, String> {
        let (rules, replacements) = match spec.precompiled_charsmap() {
            [] => (Trie::from_bytes(&[]), Vec::new()),
            map => {
                let (size, rest) = map.split_first_chunk().ok_or("its normalization table has no size")?;
                let size = u32::from_le_bytes(*size) as usize;
                let parts = rest.split_at_checked(size);
                let (rules, replacements) = parts.ok_or("its normalization table is cut off")?;
                (Trie::from_bytes(rules), replacements.to_vec())
            }
        };
        Ok(Normalizer {
            rules,
            replacements,
            add_space: spec.add_dummy_prefix(),
            space_after,
            remove_extra_spaces: spec.remove_extra_whitespaces(),
            escape_spaces: spec.escape_whitespaces(),
        })
    }

    /// The normalized text. `user_defined` are pieces that pass unchanged.
    pub(super) fn normalize(&self, text: &str, user_defined: &Trie) -> String {
        let mut rest = text;
        if self.remove_extra_spaces {
            while let (part, length @ 1..) = self.prefix(rest, user_defined)
                && *part == *b" "
            {
                rest = &rest[length..];
            }
        }
        if rest.is_empty() {
            return String::new();
        }
        let space = if self.escape_spaces { SPACE.as_bytes() } else { b" " };
        let mut normalized = Vec::with_capacity(rest.len() * 3 / 2 + space.len());
        if self.add_space && !self.space_after {
            normalized.extend_from_slice(space);
        }
        let mut after_space = self.remove_extra_spaces;
        while let (part, length @ 1..) = self.prefix(rest, user_defined) {
            let mut part = part;
            while let (true, [b' ', others @ ..]) = (after_space, part) {
                part = others;
            }
            for &byte in part {
                match byte {
                    b' ' => normalized.extend_from_slice(space),
                    byte => normalized.push(byte),
                }
            }
            if let Some(&last) = part.last() {
                after_space = last == b' ';
            }
            after_space &= self.remove_extra_spaces;
            rest = &rest[length..];
        }
        while self.remove_extra_spaces && normalized.ends_with(space) {
            normalized.truncate(normalized.len() - space.len());
        }
        if self.add_space && self.space_after {
            normalized.extend_from_slice(space);
        }
        // Only a damaged table gives anything but UTF-8.
        String::from_utf8(normalized).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// What the beginning of `text` becomes, and the length of that beginning: 0 only for the empty text.
    fn prefix<'a>(&'a self, text: &'a str, user_defined: &Trie) -> (&'a [u8], usize) {
        let bytes = text.as_bytes();
        if let Some((_, length)) = user_defined.prefixes(bytes).last() {
            return (&bytes[..length], length);
        }
        let rule = self.rules.prefixes(bytes).last().filter(|&(_, length)| text.is_char_boundary(length));
        match rule {
            Some((at, length)) => {
                let new = self.replacements.get(at as usize..).unwrap_or_default();
                let end = new.iter().position(|&byte| byte == 0).unwrap_or(new.len());
                (&new[..end], length)
            }
            None => {
                let length = text.chars().next().map_or(0, char::len_utf8);
                (&bytes[..length], length)
            }
        }
    }
}
