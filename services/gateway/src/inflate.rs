//! What `gzip` and `deflate` (a zlib stream) stand for, made on a thread that may take its time.
//!
//! Invariant: what is made is counted before there is room for it, and never holds more than its limit, whatever the bytes
//! claim or expand to.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use crate::budget::{Hold, NoRoom};

/// What every gzip stream begins with.
const GZIP_MAGIC: &[u8] = &[0x1F, 0x8B];
/// The least by which it grows where hardly any is left: requests about the server have so much.
const LAST_STEP: usize = 4 << 10;

/// How much room for what is made grows at a time, if possible.
const STEP: usize = 64 << 10;

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    #[error("it expands to more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Malformed(String),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("decompression did not finish: {0}")]
    Unfinished(#[from] tokio::task::JoinError),
}

/// What is made, in room that is counted.
struct Made<'a> {
    bytes: Vec<u8>,
    limit: usize,
    hold: &'a Hold,
}

/// The bytes that `coded` stands for, `limit` at most, counted in `hold`. Which of the two codings it is shows in itself.
pub async fn inflate(coded: Bytes, limit: usize, hold: &Hold) -> Result<Bytes, InflateError> {
    let hold = hold.clone();
    let made = tokio::task::spawn_blocking(move || match coded.starts_with(GZIP_MAGIC) {
        true => inflate_gzip(&coded, limit, &hold),
        false => inflate_zlib(&coded, limit, &hold),
    });
    made.await?.map(Bytes::from)
}

fn inflate_gzip(coded: &[u8], limit: usize, hold: &Hold) -> Result<Vec<u8>, InflateError> {
    let mut decoder = MultiGzDecoder::new(coded);
    let mut made = Made { bytes: Vec::new(), limit, hold };
    loop {
        made.grow()?;
        // Never more than there is room for.
        let room = (made.bytes.capacity() - made.bytes.len()) as u64;
        if decoder.by_ref().take(room).read_to_end(&mut made.bytes).map_err(malformed)? == 0 {
            return made.done();
        }
    }
}

/// Not with flate2's reader, which takes a stream that was cut short for a whole one.
fn inflate_zlib(coded: &[u8], limit: usize, hold: &Hold) -> Result<Vec<u8>, InflateError> {
    let mut inflate = Decompress::new(true);
    let mut made = Made { bytes: Vec::new(), limit, hold };
    loop {
        made.grow()?;
        let before = (inflate.total_in(), inflate.total_out());
        let rest = &coded[inflate.total_in() as usize..];
        let status = inflate.decompress_vec(rest, &mut made.bytes, FlushDecompress::None).map_err(io::Error::from);
        match status.map_err(malformed)? {
            Status::StreamEnd if inflate.total_in() as usize == coded.len() => return made.done(),
            Status::StreamEnd => return Err(malformed("more data follows the end of the stream")),
            _ if (inflate.total_in(), inflate.total_out()) == before => return Err(malformed("it ends too early")),
            _ => {}
        }
    }
}

fn malformed(reason: impl std::fmt::Display) -> InflateError {
    InflateError::Malformed(reason.to_string())
}

// === impl Made ===

impl Made<'_> {
    /// Makes room for more where there is none, twice as much each time if possible; a byte more than the limit shows that it is passed.
    fn grow(&mut self) -> Result<(), InflateError> {
        let (length, room) = (self.bytes.len(), self.bytes.capacity());
        if length > self.limit {
            return Err(InflateError::TooLarge(self.limit));
        }
        if length == room {
            // Where there is no room for as much as that, less may do.
            let most = (self.limit - length).saturating_add(1);
            let mut steps = [room.max(STEP), STEP, LAST_STEP].map(|more| more.min(most)).into_iter();
            let more = steps.find(|&more| self.hold.take(more as u64).is_ok()).ok_or(NoRoom)?;
            self.bytes.reserve_exact(more);
        }
        Ok(())
    }

    fn done(mut self) -> Result<Vec<u8>, InflateError> {
        if self.bytes.len() > self.limit {
            return Err(InflateError::TooLarge(self.limit));
        }
        let unused = self.bytes.capacity() - self.bytes.len();
        self.bytes.shrink_to_fit();
        self.hold.give_back(unused as u64);
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;
    use crate::budget::Budget;

    fn zlib(pieces: &[&[u8]]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        pieces.iter().for_each(|piece| encoder.write_all(piece).unwrap());
        encoder.finish().unwrap()
    }

    fn gzip(pieces: &[&[u8]]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        pieces.iter().for_each(|piece| encoder.write_all(piece).unwrap());
        encoder.finish().unwrap()
    }

    /// 64 MiB of zeros in 64 kB: refused without holding more than the limit.
    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        let pieces = [&zeros[..]; 64];
        let budget = Budget::new(4000);
        for bomb in
            [inflate_zlib(&zlib(&pieces), 1000, &budget.hold()), inflate_gzip(&gzip(&pieces), 1000, &budget.hold())]
        {
            assert!(matches!(bomb, Err(InflateError::TooLarge(1000))), "{bomb:?}");
        }
    }

    /// What a body might expand to is not asked for, only what it does.
    #[test]
    fn room_is_taken_as_it_is_needed() {
        let text: Vec<u8> =
            (0..400_000u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 20).to_le_bytes()).collect();
        for (coded, decode) in [
            (zlib(&[&text]), inflate_zlib as fn(&[u8], usize, &Hold) -> Result<Vec<u8>, InflateError>),
            (gzip(&[&text]), inflate_gzip),
        ] {
            assert!(coded.len() > 200_000, "{}", coded.len());
            let budget = Budget::new(4 << 20);
            let (one, two) = (budget.hold(), budget.hold());
            assert_eq!(decode(&coded, 64 << 20, &one).unwrap(), text);
            assert_eq!(budget.used(), text.len() as u64, "no more than it is");
            assert_eq!(decode(&coded, 64 << 20, &two).unwrap(), text, "there is room for another one");
            let none = decode(&coded, 64 << 20, &budget.hold());
            assert!(matches!(none, Err(InflateError::NoRoom(_))), "{:?}", none.map(|made| made.len()));
        }
    }

    #[test]
    fn broken_streams_are_refused() {
        let budget = Budget::new(1 << 20);
        let text: &[u8] = b"some text, some text, some text";
        let (zlib, gzip) = (zlib(&[text]), gzip(&[text]));
        let zlib_of = |coded: &[u8]| inflate_zlib(coded, 100, &budget.hold());
        let gzip_of = |coded: &[u8]| inflate_gzip(coded, 100, &budget.hold());
        assert!(zlib_of(&zlib).is_ok_and(|made| made == text) && gzip_of(&gzip).is_ok_and(|made| made == text));
        for cut in 0..zlib.len() {
            assert!(zlib_of(&zlib[..cut]).is_err(), "zlib cut at {cut}");
        }
        // Nothing at all is an empty sequence of gzip members.
        for cut in 1..gzip.len() {
            assert!(gzip_of(&gzip[..cut]).is_err(), "gzip cut at {cut}");
        }
        assert!(zlib_of(&[&zlib[..], b"x"].concat()).is_err());
        assert!(zlib_of(b"this is no stream").is_err());
    }
}
