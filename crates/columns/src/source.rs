//! Bytes of a file, wherever it lies.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use bytes::Bytes;

/// The bytes that a [`Reader`] asks its source for at once.
const PIECE: u64 = 1 << 20;

/// A file whose bytes can be read in any order. Its content does not change meanwhile.
pub trait Source: Send + Sync {
    /// Bytes of the file.
    fn size(&self) -> u64;

    /// `length` bytes from byte `from` on, all of which are within the file.
    fn read(&self, from: u64, length: usize) -> io::Result<Bytes>;
}

/// Reads a source from a byte on to its end.
pub struct Reader {
    source: Arc<dyn Source>,
    at: u64,
    piece: Bytes,
}

// === impl Source ===

impl Source for Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, from: u64, length: usize) -> io::Result<Bytes> {
        let from = from as usize;
        let end = from.checked_add(length).filter(|end| *end <= self.len());
        end.map(|end| self.slice(from..end)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

// === impl Reader ===

impl Reader {
    /// Begins at byte `at`.
    pub fn new(source: Arc<dyn Source>, at: u64) -> Reader {
        Reader { source, at, piece: Bytes::new() }
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let left = self.source.size().saturating_sub(self.at);
        if self.piece.is_empty() && left > 0 {
            self.piece = self.source.read(self.at, left.min(PIECE) as usize)?;
            self.at += self.piece.len() as u64;
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, amount: usize) {
        let _ = self.piece.split_to(amount.min(self.piece.len()));
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gives_every_byte_once() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let source: Arc<dyn Source> = Arc::new(Bytes::from(bytes.clone()));
        let mut found = Vec::new();
        Reader::new(source.clone(), 7).read_to_end(&mut found).unwrap();
        assert!(found == bytes[7..]);
        let lines = Reader::new(source, 0).split(200).count();
        assert_eq!(lines, bytes.split(|byte| *byte == 200).count());
    }

    #[test]
    fn bytes_behind_the_end_are_an_error() {
        let source = Bytes::from_static(b"abc");
        assert_eq!(source.read(1, 2).unwrap(), "bc");
        assert!(source.read(1, 3).is_err() && source.read(9, 1).is_err());
    }
}
