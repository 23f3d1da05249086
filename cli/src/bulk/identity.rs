//! Which bytes a file has, wherever it lies and whenever it was written: their number and a digest.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use ring::digest::{Context as Digest, SHA256};
use trireme_columns::Source;

/// Bytes that are read at a time, and those of either end of a file that is not read whole.
const PIECE: u64 = 1 << 20;

/// The bytes of a file. Its text is their number, a word for the digest, and the digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    bytes: u64,
    /// Whether the digest is that of all bytes, or of the first and the last [`PIECE`].
    is_whole: bool,
    digest: String,
}

/// The identity of bytes that come one after the other.
pub struct Hasher {
    bytes: u64,
    digest: Digest,
}

// === impl Identity ===

impl Identity {
    /// By all bytes.
    pub fn of(source: &dyn Source) -> anyhow::Result<Identity> {
        let mut hasher = Hasher::new();
        for from in (0..source.size()).step_by(PIECE as usize) {
            hasher.add(&source.read(from, PIECE.min(source.size() - from) as usize).context("cannot read a file")?);
        }
        Ok(hasher.finish())
    }

    /// By the ends: a large file elsewhere is not fetched twice.
    pub fn of_ends(source: &dyn Source) -> anyhow::Result<Identity> {
        let (size, piece) = (source.size(), PIECE.min(source.size()));
        let mut hasher = Hasher::new();
        for from in [0, size - piece] {
            hasher.add(&source.read(from, piece as usize).context("cannot read a file")?);
        }
        Ok(Identity { bytes: size, is_whole: false, ..hasher.finish() })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_whole { "sha256" } else { "sha256 of the ends" };
        write!(f, "{} bytes, {what} {}", self.bytes, self.digest)
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Identity, ()> {
        let (bytes, rest) = text.split_once(" bytes, ").ok_or(())?;
        let (what, digest) = rest.rsplit_once(' ').ok_or(())?;
        let is_whole = what == "sha256";
        Ok(Identity { bytes: bytes.parse().map_err(drop)?, is_whole, digest: digest.to_owned() })
    }
}

// === impl Hasher ===

impl Hasher {
    pub fn new() -> Hasher {
        Hasher { bytes: 0, digest: Digest::new(&SHA256) }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.digest.update(bytes);
    }

    pub fn finish(self) -> Identity {
        let digest = self.digest.finish();
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Identity { bytes: self.bytes, is_whole: true, digest: digits }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_text_of_an_identity_is_read_as_the_same() {
        let source = Arc::new(Bytes::from(vec![7; 3 << 20]));
        for identity in [Identity::of(source.as_ref()).unwrap(), Identity::of_ends(source.as_ref()).unwrap()] {
            assert_eq!(identity.to_string().parse::<Identity>(), Ok(identity.clone()));
            assert_eq!(identity.bytes, 3 << 20);
        }
        let mut hasher = Hasher::new();
        source.chunks(1000).for_each(|chunk| hasher.add(chunk));
        assert_eq!(hasher.finish(), Identity::of(source.as_ref()).unwrap());
        assert_ne!(Identity::of(source.as_ref()).unwrap(), Identity::of_ends(source.as_ref()).unwrap());
    }
}
