//! SentencePiece's normalization of texts: a table of replacements, then spaces.

use super::proto::NormalizerSpec;
use super::trie::Trie;

/// Stands for a space in pieces.
pub(crate) const SPACE: &str = "\u{2581}";

/// A normalizer, as described in a model file.
#[derive(Debug)]
pub(super) struct Normalizer {
    /// The texts to replace; the longest match is used. The value is the offset of the new text in `replacements`.
    rules: Trie,
    /// The new texts, each with a NUL at its end.
    replacements: Vec<u8>,
    /// Whether a space is added before each text, or after it if `space_after`.
    pub(super) add_space: bool,
    space_after: bool,
    /// Whether spaces at both ends are removed, and all but one of several in a row.
    remove_extra_spaces: bool,
    /// Whether spaces become [`SPACE`].
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

    /// The normalized text. `user_defined` are pieces that stay unchanged.
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
        // Only a damaged table gives invalid UTF-8.
        String::from_utf8(normalized).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The replacement of the beginning of `text`, and the length of that beginning. It is 0 only for an empty text.
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
