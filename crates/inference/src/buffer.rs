//! Memory for the bytes of a request.
//!
//! A large buffer is a mapping of its own. The system gets it back when the last slice of it is dropped, whereas an allocator keeps
//! much of the memory that is freed. So a process has about as much memory as its requests have bytes.
//!
//! Mappings of [`Buffer::filled`], which clients do not decide on, are kept for the next calls, [`SPARE_BYTES`] of them. The system clears
//! memory that it hands out, which may take longer than all else that is done with the bytes of a tensor (16 MiB: 17 ms on a virtual
//! machine, where copying them takes 1.4 ms).
//!
//! Invariants: pieces are copied when they come, so many small pieces take no more memory than their bytes. Only bytes that have been
//! written since a mapping was taken can be read.

use std::io;

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;

/// Buffers of at least so many bytes are mappings.
const LARGE: usize = 1 << 20;

/// The size of the mappings of a buffer that outgrows its capacity, in bytes.
const STEP: usize = 4 << 20;

/// Mappings of at most so many bytes together are kept for the next calls of [`Buffer::filled`].
const SPARE_BYTES: usize = 64 << 20;

/// The mappings that are kept. The last one that was given back is at the end.
static SPARE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());

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
    /// `None` only while it is dropped.
    map: Option<MmapMut>,
    /// The bytes that have been written.
    length: usize,
    /// Whether the mapping is kept when nobody uses it any more.
    is_kept: bool,
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

    /// So many bytes, all of which `fill` writes. Errors if the system refuses memory for them, or with the error of `fill`.
    ///
    /// `fill` must not return `Ok` before it has written every byte: a byte that it leaves out may be one of another request.
    pub fn filled(bytes: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Bytes> {
        if bytes < LARGE {
            let mut small = vec![0; bytes];
            fill(&mut small)?;
            return Ok(small.into());
        }
        let mut large = Mapped::spare(bytes)?;
        fill(&mut large.room()[..bytes])?;
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
        Ok(Mapped { map: Some(MmapMut::map_anon(bytes)?), length: 0, is_kept: false })
    }

    /// Room for at least so many bytes: a mapping that was kept, if one is large enough and at most an eighth of it stays empty.
    fn spare(bytes: usize) -> io::Result<Mapped> {
        let mut spare = SPARE.lock();
        let fits = |map: &MmapMut| map.len() >= bytes && map.len() - map.len() / 8 <= bytes;
        let found = spare.iter().rposition(fits).map(|index| spare.remove(index));
        drop(spare);
        let map = match found {
            Some(map) => map,
            None => {
                let map = MmapMut::map_anon(bytes)?;
                // All of it is written now, and large pages cost fewer faults. A system without them takes small ones.
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage);
                map
            }
        };
        Ok(Mapped { map: Some(map), length: 0, is_kept: true })
    }

    /// The bytes that have not been written.
    fn room(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().map_or(&mut [], |map| &mut map[self.length..])
    }

    /// Copies as many bytes as there is room for, and returns their number.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let room = self.room();
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.length += count;
        count
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.map.as_deref().map_or(&[], |map| &map[..self.length])
    }
}

impl Drop for Mapped {
    /// Keeps the mapping for the next call of [`Buffer::filled`], in place of the oldest ones.
    fn drop(&mut self) {
        let is_kept = self.is_kept;
        let Some(map) = self.map.take().filter(|map| is_kept && map.len() <= SPARE_BYTES) else { return };
        let mut spare = SPARE.lock();
        spare.push(map);
        let mut kept = 0;
        let first = spare.iter().rposition(|map| {
            kept += map.len();
            kept > SPARE_BYTES
        });
        let old: Vec<MmapMut> = spare.drain(..first.map_or(0, |index| index + 1)).collect();
        // The system takes them back while the others can be used.
        drop(spare);
        drop(old);
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

    fn made(bytes: usize, value: u8) -> Bytes {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(value);
            Ok(())
        };
        Buffer::filled(bytes, fill).unwrap()
    }

    #[test]
    fn spare_mappings_have_a_bound_and_are_as_long_as_asked_for() {
        let many: Vec<Bytes> = (0..20).map(|_| made(5 << 20, 1)).collect();
        drop(many);
        drop(made(SPARE_BYTES + 1, 2));
        drop(filled(6 << 20, &[&[0; 8]]));
        let kept: Vec<usize> = SPARE.lock().iter().map(|map| map.len()).collect();
        assert!(kept.contains(&(5 << 20)) && !kept.contains(&(6 << 20)), "{kept:?}");
        assert!(kept.iter().sum::<usize>() <= SPARE_BYTES, "{kept:?}");
        assert_eq!(made((5 << 20) - 9, 3), vec![3; (5 << 20) - 9]);
    }

    #[test]
    fn slices_keep_a_large_buffer() {
        let bytes = filled(3 * LARGE, &[&vec![7; 3 * LARGE]]);
        let slice = bytes.slice(LARGE..LARGE + 5);
        drop(bytes);
        assert_eq!(slice, [7; 5][..]);
    }
}
