//! Memory for the bytes of a request.
//!
//! A large buffer is a mapping of its own. The system gets it back when the last slice of it is dropped, whereas an allocator keeps
//! much of the memory that is freed. So a process has about as much memory as its requests have bytes.
//!
//! Invariant: pieces are copied when they come. Many small pieces take no more memory than their bytes.

use std::io;

use bytes::Bytes;
use memmap2::MmapMut;

/// Buffers of at least so many bytes are mappings.
const LARGE: usize = 1 << 20;

/// The size of the mappings of a buffer that outgrows its capacity, in bytes.
const STEP: usize = 4 << 20;

/// Bytes that come piece by piece.
#[derive(Debug)]
pub struct Buffer {
    /// Mappings without room, the first bytes first.
    full: Vec<Mapped>,
    last: Last,
    /// The size of the first mapping, in bytes.
    first: usize,
}

#[derive(Debug)]
enum Last {
    Small(Vec<u8>),
    Large(Mapped),
}

#[derive(Debug)]
struct Mapped {
    map: MmapMut,
    length: usize,
}

// === impl Buffer ===

impl Buffer {
    /// An empty buffer for so many bytes, if somebody says so. Memory is taken as bytes come.
    pub fn expecting(bytes: Option<u64>) -> Buffer {
        let first = bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes >= LARGE);
        Buffer { full: Vec::new(), last: Last::Small(Vec::new()), first: first.unwrap_or(STEP) }
    }

    /// An empty buffer with room for so many bytes. Errors if the system refuses it.
    pub fn with_capacity(bytes: usize) -> io::Result<Buffer> {
        let last = match bytes < LARGE {
            true => Last::Small(Vec::with_capacity(bytes)),
            false => Last::Large(Mapped::new(bytes)?),
        };
        Ok(Buffer { full: Vec::new(), last, first: STEP })
    }

    /// So many bytes, which `fill` writes. Errors if the system refuses memory for them, or with the error of `fill`.
    pub fn filled(bytes: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Bytes> {
        if bytes < LARGE {
            let mut small = vec![0; bytes];
            fill(&mut small)?;
            return Ok(small.into());
        }
        let mut large = Mapped::new(bytes)?;
        // All of it is written now, and large pages cost fewer faults. A system without them takes small ones.
        #[cfg(target_os = "linux")]
        let _ = large.map.advise(memmap2::Advice::HugePage);
        fill(&mut large.map)?;
        large.length = bytes;
        Ok(Bytes::from_owner(large))
    }

    /// Adds bytes. Errors if the system refuses memory for them.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.last {
            Last::Small(small) if small.len() + bytes.len() < LARGE => {
                small.extend_from_slice(bytes);
                Ok(())
            }
            _ => self.put_large(bytes),
        }
    }

    fn put_large(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut large = match std::mem::replace(&mut self.last, Last::Small(Vec::new())) {
            Last::Large(large) => large,
            Last::Small(small) => {
                let mut large = Mapped::new(self.first.max(small.len()))?;
                large.put(&small);
                large
            }
        };
        let mut rest = &bytes[large.put(bytes)..];
        while !rest.is_empty() {
            self.full.push(std::mem::replace(&mut large, Mapped::new(STEP)?));
            rest = &rest[large.put(rest)..];
        }
        self.last = Last::Large(large);
        Ok(())
    }

    /// The bytes. Errors if they have to be joined and the system refuses memory for that.
    pub fn freeze(self) -> io::Result<Bytes> {
        let last = match self.last {
            Last::Small(small) => return Ok(small.into()),
            Last::Large(large) if self.full.is_empty() => return Ok(Bytes::from_owner(large)),
            Last::Large(large) => large,
        };
        let length = self.full.iter().map(|part| part.length).sum::<usize>() + last.length;
        let mut whole = Mapped::new(length)?;
        // Each part is given back before the next one is copied.
        for part in self.full.into_iter().chain([last]) {
            whole.put(part.as_ref());
        }
        Ok(Bytes::from_owner(whole))
    }
}

// === impl Mapped ===

impl Mapped {
    fn new(bytes: usize) -> io::Result<Mapped> {
        Ok(Mapped { map: MmapMut::map_anon(bytes)?, length: 0 })
    }

    /// Copies as many bytes as there is room for, and returns their number.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.map[self.length..];
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.length += count;
        count
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(capacity: usize, pieces: &[&[u8]]) -> Bytes {
        let buffers = [Buffer::with_capacity(capacity).unwrap(), Buffer::expecting(Some(capacity as u64))];
        let [bytes, same] = buffers.map(|mut buffer| {
            pieces.iter().for_each(|piece| buffer.put(piece).unwrap());
            buffer.freeze().unwrap()
        });
        assert!(bytes == same, "{} and {} bytes", bytes.len(), same.len());
        bytes
    }

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let bytes: Vec<u8> = (0..=250u8).cycle().take(2 * STEP + 12_345).collect();
        for length in [0, 1, LARGE - 1, LARGE, LARGE + 1, STEP, STEP + 1, 2 * STEP, bytes.len()] {
            let bytes = &bytes[..length];
            for capacity in [0, 1, length, length + 1, LARGE, 2 * length] {
                assert_eq!(filled(capacity, &[bytes]), bytes, "{length} in one piece, room for {capacity}");
                let pieces: Vec<&[u8]> = bytes.chunks(99_991).collect();
                assert_eq!(filled(capacity, &pieces), bytes, "{length} in many pieces, room for {capacity}");
            }
        }
    }

    #[test]
    fn filled_buffers_have_what_was_written() {
        for length in [0, 1, LARGE - 1, LARGE, LARGE + 1] {
            let bytes = Buffer::filled(length, |bytes| {
                bytes.fill(3);
                Ok(())
            });
            assert_eq!(bytes.unwrap(), vec![3; length]);
        }
        assert!(Buffer::filled(LARGE, |_| Err(io::ErrorKind::UnexpectedEof.into())).is_err());
    }

    #[test]
    fn slices_keep_a_large_buffer() {
        let bytes = filled(3 * LARGE, &[&vec![7; 3 * LARGE]]);
        let slice = bytes.slice(LARGE..LARGE + 5);
        drop(bytes);
        assert_eq!(slice, [7; 5][..]);
    }
}
