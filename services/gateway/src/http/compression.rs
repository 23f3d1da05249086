//! Content codings of infer bodies: `gzip`, and `deflate`, which is a zlib stream. `Inference-Header-Content-Length` always
//! counts the JSON as it is without its coding.
//!
//! Invariant: decoding never holds more than the size limit, whatever the body claims or expands to.

use std::io::{self, Read, Write};

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::{Compression, Decompress, FlushDecompress, Status};
use trireme_inference::InferError;

use crate::budget::Hold;

/// How a body is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// As it is.
    Identity,
    /// `gzip`
    Gzip,
    /// `deflate`: a zlib stream.
    Deflate,
}

/// What every gzip stream begins with.
const GZIP_MAGIC: &[u8] = &[0x1F, 0x8B];
/// How many bytes a byte in these codings can stand for.
const MAX_EXPANSION: usize = 1032;
/// How much a decoder's buffer grows at a time, at least.
const STEP: usize = 64 << 10;

// === impl Coding ===

impl Coding {
    /// All that can be decoded and produced, for the `Accept-Encoding` that goes with a refusal.
    pub const SUPPORTED: &str = "gzip, deflate";

    /// The coding of a request's body; `None` when it is none of ours.
    pub fn of_request(headers: &HeaderMap) -> Option<Coding> {
        match headers.get(CONTENT_ENCODING) {
            None => Some(Coding::Identity),
            Some(value) if value.is_empty() => Some(Coding::Identity),
            Some(value) => Coding::named(value.to_str().ok()?.trim()),
        }
    }

    /// The coding that a response's body shall have: what `Accept-Encoding` weighs highest, the first of equals. Without
    /// the header, and where it names nothing of ours, bodies stay as they are.
    pub fn of_response(headers: &HeaderMap) -> Coding {
        let mut best = (Coding::Identity, 0.0);
        let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        for entry in values.flat_map(|value| value.split(',')) {
            let (name, parameters) = entry.split_once(';').unwrap_or((entry, ""));
            let weight = match parameters.trim().strip_prefix("q=") {
                Some(weight) => weight.trim().parse().unwrap_or(0.0),
                None => 1.0,
            };
            if let Some(coding) = Coding::named(name.trim())
                && weight > best.1
            {
                best = (coding, weight);
            }
        }
        best.0
    }

    /// The name in `Content-Encoding`; `None` for [`Coding::Identity`].
    pub fn name(self) -> Option<&'static str> {
        match self {
            Coding::Identity => None,
            Coding::Gzip => Some("gzip"),
            Coding::Deflate => Some("deflate"),
        }
    }

    fn named(name: &str) -> Option<Coding> {
        let all = [("identity", Coding::Identity), ("gzip", Coding::Gzip), ("deflate", Coding::Deflate)];
        all.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, coding)| coding)
    }

    /// The body without its coding, `limit` bytes at most, counted in `hold`. Which of the two codings it is shows in the
    /// body itself.
    pub async fn decode(self, body: Bytes, limit: usize, hold: &Hold) -> Result<Bytes, InferError> {
        if self == Coding::Identity {
            return Ok(body);
        }
        let most = limit.min(body.len().saturating_mul(MAX_EXPANSION));
        hold.take(most as u64)?;
        let decoded = off_the_reactor(move || match body.starts_with(GZIP_MAGIC) {
            true => decode_gzip(&body, limit),
            false => decode_zlib(&body, limit),
        })
        .await??;
        hold.give_back(most.saturating_sub(decoded.len()) as u64);
        Ok(Bytes::from(decoded))
    }

    /// `pieces`, one after the other, in this coding.
    pub async fn encode(self, pieces: Vec<Bytes>) -> Result<Bytes, InferError> {
        let encoded = off_the_reactor(move || match self {
            Coding::Identity => Ok(pieces.concat()),
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                pieces.iter().try_for_each(|piece| encoder.write_all(piece)).and_then(|()| encoder.finish())
            }
            Coding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
                pieces.iter().try_for_each(|piece| encoder.write_all(piece)).and_then(|()| encoder.finish())
            }
        });
        let encoded = encoded.await?;
        encoded
            .map(Bytes::from)
            .map_err(|error| InferError::internal(format!("response could not be compressed: {error}")))
    }
}

/// Runs what takes more than the moment that async code may take.
async fn off_the_reactor<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, InferError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| InferError::internal(format!("compression did not finish: {error}")))
}

fn decode_gzip(body: &[u8], limit: usize) -> Result<Vec<u8>, InferError> {
    let mut decoded = Vec::new();
    MultiGzDecoder::new(body).take(limit as u64 + 1).read_to_end(&mut decoded).map_err(malformed)?;
    match decoded.len() > limit {
        true => Err(too_large(limit)),
        false => Ok(decoded),
    }
}

/// Not with flate2's reader, which takes a stream that was cut short for a whole one.
fn decode_zlib(body: &[u8], limit: usize) -> Result<Vec<u8>, InferError> {
    let mut inflate = Decompress::new(true);
    let mut decoded = Vec::new();
    loop {
        if decoded.len() > limit {
            return Err(too_large(limit));
        }
        decoded.reserve(decoded.len().clamp(STEP, limit.max(STEP)));
        let before = (inflate.total_in(), inflate.total_out());
        let rest = &body[inflate.total_in() as usize..];
        let status = inflate.decompress_vec(rest, &mut decoded, FlushDecompress::None).map_err(io::Error::from);
        match status.map_err(malformed)? {
            Status::StreamEnd if inflate.total_in() as usize == body.len() => break,
            Status::StreamEnd => return Err(malformed("more data follows the end of the stream")),
            _ if (inflate.total_in(), inflate.total_out()) == before => return Err(malformed("it ends too early")),
            _ => {}
        }
    }
    match decoded.len() > limit {
        true => Err(too_large(limit)),
        false => Ok(decoded),
    }
}

fn malformed(reason: impl std::fmt::Display) -> InferError {
    InferError::invalid_arg(format!("request body could not be decompressed: {reason}"))
}

fn too_large(limit: usize) -> InferError {
    InferError::invalid_arg(format!(
        "Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use --http-max-input-size to increase \
         the limit."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(value: &'static str) -> Coding {
        Coding::of_response(&HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]))
    }

    #[test]
    fn the_heaviest_accepted_coding_is_chosen() {
        let table = [
            ("gzip", Coding::Gzip),
            ("deflate, gzip", Coding::Deflate),
            ("gzip;q=0.5, deflate;q=0.7", Coding::Deflate),
            ("gzip;q=0.5,identity", Coding::Identity),
            ("gzip; q=0.5, br", Coding::Gzip),
            ("gzip;q=0", Coding::Identity),
            ("gzip;q=x, deflate;q=", Coding::Identity),
            ("br, *", Coding::Identity),
            ("GZIP", Coding::Gzip),
            (" , ;q=1", Coding::Identity),
        ];
        for (header, coding) in table {
            assert_eq!(accepted(header), coding, "{header}");
        }
        assert_eq!(Coding::of_response(&HeaderMap::new()), Coding::Identity);
    }

    #[tokio::test]
    async fn codings_round_trip() {
        let pieces = vec![Bytes::from_static(b"{\"json\":1}"), Bytes::from(vec![7; 300_000])];
        let hold = crate::budget::Budget::new(1 << 22).hold();
        for coding in [Coding::Gzip, Coding::Deflate] {
            let coded = coding.encode(pieces.clone()).await.unwrap();
            assert!(coded.len() < 10_000, "{coding:?} made {} bytes", coded.len());
            assert_eq!(coding.decode(coded.clone(), 300_010, &hold).await.unwrap(), pieces.concat());
            let error = coding.decode(coded, 300_009, &hold).await.unwrap_err();
            assert!(error.message.contains("maximum allowed value of 300009 bytes"), "{error}");
        }
    }

    /// 64 MiB of zeros in 64 kB: refused without holding more than the limit.
    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        let zeros = vec![0; 1 << 20];
        (0..64).for_each(|_| encoder.write_all(&zeros).unwrap());
        assert!(decode_zlib(&encoder.finish().unwrap(), 1000).unwrap_err().message.contains("exceeds the maximum"));
    }

    #[test]
    fn broken_streams_are_refused() {
        let zlib = {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(b"some text, some text, some text").unwrap();
            encoder.finish().unwrap()
        };
        let gzip = {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(b"some text, some text, some text").unwrap();
            encoder.finish().unwrap()
        };
        assert!(decode_zlib(&zlib, 100).is_ok() && decode_gzip(&gzip, 100).is_ok());
        for cut in 0..zlib.len() {
            assert!(decode_zlib(&zlib[..cut], 100).is_err(), "zlib cut at {cut}");
        }
        // Nothing at all is an empty sequence of gzip members.
        for cut in 1..gzip.len() {
            assert!(decode_gzip(&gzip[..cut], 100).is_err(), "gzip cut at {cut}");
        }
        assert!(decode_zlib(&[&zlib[..], b"x"].concat(), 100).is_err());
        assert!(decode_zlib(b"this is no stream", 100).is_err());
    }
}
