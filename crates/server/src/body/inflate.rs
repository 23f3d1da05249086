//! Inflates `gzip` and `deflate` (a zlib stream), as [`work`] on the inflated bytes: the first ones are inflated where they are, and a large body
//! waits for its slot among the large ones once it is known to be large.
//!
//! Invariant: the inflated bytes are counted in the budget as they come, and are no more than their limit.

use std::io::{Error, Read};

use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use trireme_inference::Buffer;
use trireme_inference::QUEUE_FULL;

use super::work;
use crate::budget::{BytesPermit, NoRoom};

/// The beginning of every gzip stream.
const GZIP_MAGIC: &[u8] = &[0x1F, 0x8B];
/// Bytes that are inflated at a time.
const STEP: usize = 64 << 10;
/// Most bytes of a piece for a reader.
const PIECE: usize = 256 << 10;

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
    /// It is large, and too many large bodies wait.
    #[error("too many large requests wait to be decompressed: {QUEUE_FULL}")]
    Crowded,
    /// The system has no memory for it.
    #[error("no memory to decompress it: {0}")]
    NoMemory(Error),
}

/// Inflated bytes, piece by piece.
#[derive(Debug)]
pub struct Pieces {
    stream: Stream,
    left: usize,
}

/// A coded body, as far as it is inflated.
#[derive(Debug)]
enum Stream {
    Gzip(MultiGzDecoder<Reader<Bytes>>),
    Zlib(Zlib),
}

/// Not flate2's reader, which takes a stream that was cut short for a whole one.
#[derive(Debug)]
struct Zlib {
    coded: Bytes,
    state: Decompress,
    is_whole: bool,
}

/// The inflated bytes of `coded`, `limit` at most, counted in `permit`. The first bytes show which coding it is.
pub async fn inflate(coded: Bytes, limit: usize, permit: &BytesPermit) -> Result<Bytes, InflateError> {
    let mut made = Buffer::expecting(None);
    let size = read(coded, limit, permit, |piece| made.put(piece).map_err(InflateError::NoMemory)).await?;
    work::convert(size, || made.freeze()).await.map_err(InflateError::NoMemory)
}

/// The number of the inflated bytes of `coded`, `limit` at most and counted in `permit`, and the bytes as their reader asks for them: they are
/// inflated again, so that they are in memory once, where the reader puts them.
pub async fn inflate_in_pieces(
    coded: Bytes,
    limit: usize,
    permit: &BytesPermit,
) -> Result<(usize, Pieces), InflateError> {
    let size = read(coded.clone(), limit, permit, |_| Ok(())).await?;
    Ok((size, Pieces { stream: Stream::new(coded), left: size }))
}

/// Inflates a body and gives each piece to `sink`, counted in `permit`. Returns the number of the bytes.
async fn read(
    coded: Bytes,
    limit: usize,
    permit: &BytesPermit,
    mut sink: impl FnMut(&[u8]) -> Result<(), InflateError>,
) -> Result<usize, InflateError> {
    // A body has at least as many bytes as its coded form, or takes as long to inflate.
    let least = coded.len();
    let (mut stream, mut step, mut size) = (Stream::new(coded), vec![0; STEP], 0);
    let mut read_to = |most: usize| {
        while size < most {
            let piece = match stream.read(&mut step)? {
                0 => return Ok(true),
                length => &step[..length],
            };
            let allowed = piece.len().min(limit - size);
            permit.take(allowed as u64)?;
            size += allowed;
            if allowed < piece.len() {
                return Err(InflateError::TooLarge(limit));
            }
            sink(piece)?;
        }
        Ok(false)
    };
    let mut is_whole = Ok(false);
    // Until it is known to be large, a body takes its turn for each piece: large ones that begin hold up no small one for long.
    let pieces = (1..=work::LARGE / PIECE).map(|number| number * PIECE);
    for most in std::iter::once(work::LONG).chain(pieces).chain([usize::MAX]) {
        if least >= most {
            continue;
        }
        let slot = match most {
            work::LONG => 0,
            usize::MAX => usize::MAX,
            _ => PIECE,
        };
        if slot > work::LARGE && work::is_crowded() {
            is_whole = Err(InflateError::Crowded);
            break;
        }
        is_whole = work::convert(slot, || read_to(most)).await;
        if !matches!(is_whole, Ok(false)) {
            break;
        }
    }
    if is_whole.is_err() {
        permit.give_back(size as u64);
    }
    is_whole.map(|_| size)
}

fn malformed(reason: impl std::fmt::Display) -> InflateError {
    InflateError::Malformed(reason.to_string())
}

// === impl Pieces ===

impl Pieces {
    /// The next piece; `None` behind the last one. A slot is taken for each of them, so no reader keeps one.
    pub async fn next(&mut self) -> Option<Result<Bytes, InflateError>> {
        let mut piece = vec![0; self.left.min(PIECE)];
        if piece.is_empty() {
            return None;
        }
        self.left -= piece.len();
        let filled = work::convert(piece.len(), || {
            let mut rest = &mut piece[..];
            while !rest.is_empty() {
                match self.stream.read(rest)? {
                    0 => return Err(malformed("it ends too early")),
                    length => rest = &mut rest[length..],
                }
            }
            Ok(())
        });
        Some(filled.await.map(|()| piece.into()))
    }
}

// === impl Stream ===

impl Stream {
    /// The first bytes show which coding it is.
    fn new(coded: Bytes) -> Stream {
        match coded.starts_with(GZIP_MAGIC) {
            true => Stream::Gzip(MultiGzDecoder::new(coded.reader())),
            false => Stream::Zlib(Zlib { coded, state: Decompress::new(true), is_whole: false }),
        }
    }

    /// Writes the next bytes, and returns how many; 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, InflateError> {
        match self {
            Stream::Gzip(gzip) => gzip.read(into).map_err(malformed),
            Stream::Zlib(zlib) => zlib.read(into),
        }
    }
}

impl Zlib {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, InflateError> {
        while !self.is_whole {
            let before = (self.state.total_in(), self.state.total_out());
            let rest = &self.coded[before.0 as usize..];
            let status = self.state.decompress(rest, into, FlushDecompress::None).map_err(malformed)?;
            let now = (self.state.total_in(), self.state.total_out());
            match status {
                Status::StreamEnd if now.0 as usize == self.coded.len() => self.is_whole = true,
                Status::StreamEnd => return Err(malformed("more data follows the end of the stream")),
                _ if now == before => return Err(malformed("it ends too early")),
                _ => {}
            }
            if now.1 > before.1 {
                return Ok((now.1 - before.1) as usize);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use trireme_tasks::TaskSet;

    use super::work::testing::{LARGE_TEST, fill_large, waiting};
    use super::*;
    use crate::budget::Budget;

    async fn inflated(coded: &[u8], limit: usize, permit: &BytesPermit) -> Result<Bytes, InflateError> {
        inflate(Bytes::copy_from_slice(coded), limit, permit).await
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
    #[tokio::test]
    async fn a_bomb_is_refused_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        let pieces = [&zeros[..]; 64];
        let budget = Budget::new(4000);
        for bomb in [zlib(&pieces), gzip(&pieces)] {
            let bomb = inflated(&bomb, 1000, &budget.permit()).await;
            assert!(matches!(bomb, Err(InflateError::TooLarge(1000))), "{bomb:?}");
        }
    }

    /// The hold grows with the inflated bytes, not to the largest size that a body might have.
    #[tokio::test]
    async fn room_is_taken_as_it_is_needed() {
        let text: Vec<u8> =
            (0..400_000u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 20).to_le_bytes()).collect();
        for coded in [zlib(&[&text]), gzip(&[&text])] {
            assert!(coded.len() > 200_000, "{}", coded.len());
            let budget = Budget::new(4 << 20);
            let (one, two) = (budget.permit(), budget.permit());
            assert_eq!(inflated(&coded, 64 << 20, &one).await.unwrap(), text);
            assert_eq!(budget.used(), text.len() as u64, "no more than it is");
            assert_eq!(inflated(&coded, 64 << 20, &two).await.unwrap(), text, "there is room for another one");
            let refused = budget.permit();
            let none = inflated(&coded, 64 << 20, &refused).await;
            assert!(matches!(none, Err(InflateError::NoRoom(_))), "{:?}", none.map(|made| made.len()));
            assert_eq!(budget.used(), 2 * text.len() as u64, "a refused body holds nothing");
        }
    }

    #[tokio::test]
    async fn broken_streams_are_refused() {
        let budget = Budget::new(1 << 20);
        let text: &[u8] = b"some text, some text, some text";
        let (zlib, gzip) = (zlib(&[text]), gzip(&[text]));
        let is_read = async |coded: &[u8]| inflated(coded, 100, &budget.permit()).await.is_ok_and(|made| made == text);
        assert!(
            is_read(&zlib).await && is_read(&gzip).await && is_read(&[&gzip[..], &self::gzip(&[b""])].concat()).await
        );
        for cut in 0..zlib.len() {
            assert!(inflated(&zlib[..cut], 100, &budget.permit()).await.is_err(), "zlib cut at {cut}");
        }
        for cut in 0..gzip.len() {
            assert!(inflated(&gzip[..cut], 100, &budget.permit()).await.is_err(), "gzip cut at {cut}");
        }
        assert!(!is_read(&[&zlib[..], b"x"].concat()).await && !is_read(b"this is no stream").await);
    }

    #[tokio::test]
    async fn pieces_are_the_whole() {
        let text: Vec<u8> = (0..=250u8).cycle().take(2 * PIECE + 7).collect();
        for coded in [zlib(&[&text]), gzip(&[&text[..PIECE], &text[PIECE..]])] {
            let budget = Budget::new(1 << 20);
            let permit = budget.permit();
            let (size, mut pieces) = inflate_in_pieces(coded.into(), 1 << 20, &permit).await.unwrap();
            assert_eq!((size as u64, text.len()), (budget.used(), size));
            let mut made = Vec::new();
            while let Some(piece) = pieces.next().await {
                made.extend_from_slice(&piece.unwrap());
            }
            assert_eq!(made, text);
        }
    }

    /// A few threads for blocking work, and hundreds of large bodies whose turn has not come: they take none of the threads.
    #[test]
    fn large_bodies_wait_without_a_thread_and_small_ones_pass_them() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).max_blocking_threads(4).enable_all().build().unwrap();
        let run = async {
            let _test = LARGE_TEST.lock().await;
            let all = fill_large().await;
            let (budget, tasks) = (Budget::new(1 << 30), TaskSet::new());
            let large = Bytes::from(gzip(&[&vec![0; work::LARGE + STEP]]));
            let crowded = Arc::new(AtomicUsize::new(0));
            for _ in 0..200 {
                let (large, permit, crowded) = (large.clone(), budget.permit(), crowded.clone());
                tasks.spawn("large", async move {
                    match inflate(large, 64 << 20, &permit).await {
                        Ok(_) => {}
                        Err(InflateError::Crowded) => drop(crowded.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => panic!("{error}"),
                    }
                });
            }
            let refused = || crowded.load(Ordering::Relaxed);
            while waiting() + refused() < 200 {
                tokio::task::yield_now().await;
            }
            assert!(waiting() >= 100 && refused() > 0, "{} wait, {} are refused", waiting(), refused());
            let small = gzip(&[&[7; 1 << 20]]);
            assert_eq!(inflated(&small, 1 << 20, &budget.permit()).await.unwrap().len(), 1 << 20);
            drop(all);
            tasks.join().await;
        };
        let run = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), run).await });
        // Threads that wait for ever are left.
        runtime.shutdown_background();
        run.expect("nothing waits for a thread");
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_more_keeps_no_slot() {
        let _test = LARGE_TEST.lock().await;
        let large = Bytes::from(gzip(&[&vec![0; work::LARGE + PIECE]]));
        let permit = Budget::new(1 << 30).permit();
        let (_, mut unread) = inflate_in_pieces(large, 64 << 20, &permit).await.unwrap();
        assert!(unread.next().await.unwrap().is_ok());
        let free = tokio::time::timeout(Duration::from_secs(10), fill_large()).await;
        assert!(free.is_ok(), "a slot is taken");
    }
}
