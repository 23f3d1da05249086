//! API keys and their owners.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::owners::is_owner_name;

/// Fewest characters of a key that takes long to guess.
const SHORTEST: usize = 16;

/// Text that must not be shown.
#[derive(Clone)]
pub struct Secret(String);

/// A key and its owner.
#[derive(Clone, Debug)]
pub struct OwnedKey {
    pub(super) owner: Arc<str>,
    pub(super) key: Secret,
}

/// SHA-256 of a key's text. A process and a file need no more of a key to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyDigest([u8; 32]);

// === impl OwnedKey ===

impl FromStr for OwnedKey {
    type Err = String;

    /// Reads `NAME=KEY`, or `KEY`, whose owner is then a digest of it. A key in base64 may end with `=`.
    fn from_str(text: &str) -> Result<Self, String> {
        let named =
            text.trim().split_once('=').filter(|(name, key)| is_owner_name(name) && !key.trim_matches('=').is_empty());
        if let Some((name, key)) = named {
            return Ok(OwnedKey { owner: name.into(), key: key.parse()? });
        }
        let key: Secret = text.parse()?;
        // No name begins like this.
        let owner = format!("key:{}", HEXLOWER.encode(&key.digest().0[..16]));
        Ok(OwnedKey { owner: owner.into(), key })
    }
}

// === impl KeyDigest ===

impl KeyDigest {
    /// The digest of this key.
    pub fn of(key: impl AsRef<[u8]>) -> KeyDigest {
        let digest = ring::digest::digest(&ring::digest::SHA256, key.as_ref());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        KeyDigest(bytes)
    }

    /// Whether `other` is the same, in a time that tells nothing about where they differ.
    pub(super) fn is(&self, other: &KeyDigest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl From<KeyDigest> for String {
    fn from(digest: KeyDigest) -> String {
        HEXLOWER.encode(&digest.0)
    }
}

impl TryFrom<String> for KeyDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<KeyDigest, &'static str> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(KeyDigest).ok_or("expected the SHA-256 of a key, 64 hexadecimal digits")
    }
}

// === impl Secret ===

impl Secret {
    /// Its digest as a key.
    pub(super) fn digest(&self) -> KeyDigest {
        KeyDigest::of(&self.0)
    }

    /// Whether it has few characters.
    pub(super) fn is_short(&self) -> bool {
        self.0.chars().count() < SHORTEST
    }

    /// The text.
    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether `given` is this, in a time that depends on lengths alone.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Err("it is empty".to_owned()),
            text => Ok(Secret(text.to_owned())),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_few_characters_are_short() {
        let is_short = |key: &str| key.parse::<Secret>().unwrap().is_short();
        assert!(is_short("fifteen letters") && !is_short("sixteen letters."));
    }

    #[test]
    fn keys_have_owners() {
        let owned = |text: &str| -> OwnedKey { text.parse().unwrap() };
        let named = owned("team-a=s3=cret");
        assert_eq!((named.owner.as_ref(), named.key.0.as_str()), ("team-a", "s3=cret"));
        for text in ["c2VjcmV0", "c2VjcmV0cw==", "=x", "a b=c"] {
            let (one, other) = (owned(text), owned(&format!("{text}x")));
            assert!(one.owner.starts_with("key:") && one.owner != other.owner && one.key.0 == text, "{text}");
        }
    }
}
