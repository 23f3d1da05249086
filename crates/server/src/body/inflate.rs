//! Inflates `gzip` and `deflate` (a zlib stream) on a blocking thread.
//!
//! Each stream is inflated twice: once to learn its size, then into memory of that size. A small body that expands to a large
//! one is refused before it takes memory, and no memory is lost to a buffer that grows.
//!
//! Invariant: the inflated bytes are counted in the budget before they are allocated, and are no more than their limit.

use std::io::{Error, Read};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use tokio::sync::{SemaphorePermit, mpsc};
use trireme_inference::Buffer;

use super::large;
use crate::budget::{BytesPermit, NoRoom};

/// The beginning of every gzip stream.
const GZIP_MAGIC: &[u8] = &[0x1F, 0x8B];
/// Bytes that are inflated at a time.
const STEP: usize = 64 << 10;

/// The reason why a body was not inflated.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// It expands to more bytes than allowed.
    #[error("it expands to more than {0} bytes")]
    TooLarge(usize),
    /// It is no stream of this coding.
    #[error("{0}")]
    Malformed(String),
    /// The budget has no room for it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The system has no memory for it.
    #[error("no memory to decompress it: {0}")]
    NoMemory(Error),
    /// The thread ended before.
    #[error("decompression did not finish: {0}")]
    Unfinished(#[from] tokio::task::JoinError),
}

/// Inflated bytes, piece by piece.
pub type Pieces = mpsc::Receiver<Result<Bytes, InflateError>>;

/// Pieces that wait for their reader.
const AHEAD: usize = 4;

/// Takes the inflated bytes, piece by piece.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), InflateError>;

/// The inflated bytes of `coded`, `limit` at most, counted in `hold`. The first bytes show which coding it is.
pub async fn inflate(coded: Bytes, limit: usize, permit: &BytesPermit) -> Result<Bytes, InflateError> {
    let permit = permit.clone();
    let made = tokio::task::spawn_blocking(move || make(limit, &permit, |sink| inflate_into(&coded, sink)));
    made.await?
}

/// The number of the inflated bytes of `coded`, `limit` at most and counted in `hold`, and the bytes as they are inflated. So they are in
/// memory once, where the reader puts them.
pub async fn inflate_in_pieces(
    coded: Bytes,
    limit: usize,
    permit: &BytesPermit,
) -> Result<(usize, Pieces), InflateError> {
    let (permit, measured) = (permit.clone(), coded.clone());
    let size =
        tokio::task::spawn_blocking(move || measure(limit, &permit, |sink| inflate_into(&measured, sink))).await??;
    let (send, pieces) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let _permit = (size > large::LARGE).then(large::enter);
        let inflated = inflate_into(&coded, &mut |piece| {
            // An error says that nobody reads on.
            send.blocking_send(Ok(Bytes::copy_from_slice(piece))).map_err(malformed)
        });
        if let Err(error) = inflated {
            let _ = send.blocking_send(Err(error));
        }
    });
    Ok((size, pieces))
}

/// The first bytes show which coding it is.
fn inflate_into(coded: &[u8], sink: Sink<'_>) -> Result<(), InflateError> {
    match coded.starts_with(GZIP_MAGIC) {
        true => gzip_into(coded, sink),
        false => zlib_into(coded, sink),
    }
}

fn gzip_into(coded: &[u8], sink: Sink<'_>) -> Result<(), InflateError> {
    let (mut decoder, mut step) = (MultiGzDecoder::new(coded), vec![0; STEP]);
    loop {
        match decoder.read(&mut step).map_err(malformed)? {
            0 => return Ok(()),
            length => sink(&step[..length])?,
        }
    }
}

/// Does not use flate2's reader, which takes a stream that was cut short for a whole one.
fn zlib_into(coded: &[u8], sink: Sink<'_>) -> Result<(), InflateError> {
    let (mut inflate, mut step) = (Decompress::new(true), vec![0; STEP]);
    loop {
        let before = (inflate.total_in(), inflate.total_out());
        let rest = &coded[inflate.total_in() as usize..];
        let status = inflate.decompress(rest, &mut step, FlushDecompress::None).map_err(malformed)?;
        sink(&step[..(inflate.total_out() - before.1) as usize])?;
        match status {
            Status::StreamEnd if inflate.total_in() as usize == coded.len() => return Ok(()),
            Status::StreamEnd => return Err(malformed("more data follows the end of the stream")),
            _ if (inflate.total_in(), inflate.total_out()) == before => return Err(malformed("it ends too early")),
            _ => {}
        }
    }
}

/// Joins the pieces that `inflate` gives its sink.
fn make(
    limit: usize,
    permit: &BytesPermit,
    inflate: impl Fn(Sink<'_>) -> Result<(), InflateError>,
) -> Result<Bytes, InflateError> {
    let mut slot = None;
    let size = measure_with(limit, permit, &inflate, &mut slot)?;
    let mut made = Buffer::with_capacity(size).map_err(InflateError::NoMemory)?;
    inflate(&mut |piece| made.put(piece).map_err(InflateError::NoMemory))?;
    made.freeze().map_err(InflateError::NoMemory)
}

/// Counts the bytes that `inflate` gives its sink, and takes room for them.
fn measure(
    limit: usize,
    permit: &BytesPermit,
    inflate: impl Fn(Sink<'_>) -> Result<(), InflateError>,
) -> Result<usize, InflateError> {
    measure_with(limit, permit, &inflate, &mut None)
}

fn measure_with(
    limit: usize,
    permit: &BytesPermit,
    inflate: &impl Fn(Sink<'_>) -> Result<(), InflateError>,
    slot: &mut Option<SemaphorePermit<'static>>,
) -> Result<usize, InflateError> {
    let mut size = 0usize;
    inflate(&mut |piece| {
        size += piece.len();
        if size > large::LARGE && slot.is_none() {
            *slot = large::enter();
        }
        permit.ask(size.min(limit) as u64)?;
        if size > limit { Err(InflateError::TooLarge(limit)) } else { Ok(()) }
    })?;
    permit.take(size as u64)?;
    Ok(size)
}

fn malformed(reason: impl std::fmt::Display) -> InflateError {
    InflateError::Malformed(reason.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;
    use crate::budget::Budget;

    fn inflate_gzip(coded: &[u8], limit: usize, permit: &BytesPermit) -> Result<Bytes, InflateError> {
        make(limit, permit, |sink| gzip_into(coded, sink))
    }

    fn inflate_zlib(coded: &[u8], limit: usize, permit: &BytesPermit) -> Result<Bytes, InflateError> {
        make(limit, permit, |sink| zlib_into(coded, sink))
    }

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

    /// 64 MiB of zeros in 64 kB are refused without holding more than the limit.
    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        let pieces = [&zeros[..]; 64];
        let budget = Budget::new(4000);
        for bomb in
            [inflate_zlib(&zlib(&pieces), 1000, &budget.permit()), inflate_gzip(&gzip(&pieces), 1000, &budget.permit())]
        {
            assert!(matches!(bomb, Err(InflateError::TooLarge(1000))), "{bomb:?}");
        }
    }

    /// The hold grows with the inflated bytes, not to the largest size that a body might have.
    #[test]
    fn room_is_taken_as_it_is_needed() {
        let text: Vec<u8> =
            (0..400_000u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 20).to_le_bytes()).collect();
        for (coded, decode) in [
            (zlib(&[&text]), inflate_zlib as fn(&[u8], usize, &BytesPermit) -> Result<Bytes, InflateError>),
            (gzip(&[&text]), inflate_gzip),
        ] {
            assert!(coded.len() > 200_000, "{}", coded.len());
            let budget = Budget::new(4 << 20);
            let (one, two) = (budget.permit(), budget.permit());
            assert_eq!(decode(&coded, 64 << 20, &one).unwrap(), text);
            assert_eq!(budget.used(), text.len() as u64, "no more than it is");
            assert_eq!(decode(&coded, 64 << 20, &two).unwrap(), text, "there is room for another one");
            let none = decode(&coded, 64 << 20, &budget.permit());
            assert!(matches!(none, Err(InflateError::NoRoom(_))), "{:?}", none.map(|made| made.len()));
        }
    }

    #[test]
    fn broken_streams_are_refused() {
        let budget = Budget::new(1 << 20);
        let text: &[u8] = b"some text, some text, some text";
        let (zlib, gzip) = (zlib(&[text]), gzip(&[text]));
        let zlib_of = |coded: &[u8]| inflate_zlib(coded, 100, &budget.permit());
        let gzip_of = |coded: &[u8]| inflate_gzip(coded, 100, &budget.permit());
        assert!(zlib_of(&zlib).is_ok_and(|made| made == text) && gzip_of(&gzip).is_ok_and(|made| made == text));
        for cut in 0..zlib.len() {
            assert!(zlib_of(&zlib[..cut]).is_err(), "zlib cut at {cut}");
        }
        // An empty body is an empty sequence of gzip members.
        for cut in 1..gzip.len() {
            assert!(gzip_of(&gzip[..cut]).is_err(), "gzip cut at {cut}");
        }
        assert!(zlib_of(&[&zlib[..], b"x"].concat()).is_err());
        assert!(zlib_of(b"this is no stream").is_err());
    }
}
