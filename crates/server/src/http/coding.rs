//! Content codings of infer bodies: `gzip`, and `deflate`, which is a zlib stream. `Inference-Header-Content-Length` always
//! counts the JSON as it is without its coding.
//!
//! This is not tower-http's compression, which knows no budget for the bytes, and inflates a body before its size is known. Not here:
//! decoding itself (`inflate`).

use std::io::Write;

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use trireme_inference::{Cause, InferError};

use crate::body::{InflateError, inflate, work};
use crate::budget::BytesPermit;

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

// === impl Coding ===

impl Coding {
    /// The supported codings, for the `Accept-Encoding` of a refusal.
    pub const SUPPORTED: &str = "gzip, deflate";

    /// The coding of a request's body; `None` for an unsupported one.
    pub fn of_request(headers: &HeaderMap) -> Option<Coding> {
        match headers.get(CONTENT_ENCODING) {
            None => Some(Coding::Identity),
            Some(value) if value.is_empty() => Some(Coding::Identity),
            Some(value) => Coding::named(value.to_str().ok()?.trim()),
        }
    }

    /// The coding for a response's body: the supported one with the highest weight in `Accept-Encoding`, the first of equals.
    /// Without the header, or without a supported coding, bodies stay as they are.
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
    pub async fn decode(self, body: Bytes, limit: usize, permit: &BytesPermit) -> Result<Bytes, InferError> {
        if self == Coding::Identity {
            return Ok(body);
        }
        let coded = body.len() as u64;
        let inflated = inflate(body, limit, permit).await;
        permit.give_back(coded);
        inflated.map_err(|error| match error {
            InflateError::TooLarge(limit) => InferError::invalid_arg(format!(
                // Triton's words.
                "Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use --http-max-input-size to increase the limit."
            ))
            .because(Cause::TooLarge),
            InflateError::Malformed(reason) => {
                InferError::invalid_arg(format!("request body could not be decompressed: {reason}"))
            }
            InflateError::NoRoom(refusal) => refusal.into(),
            InflateError::Crowded => InferError::unavailable(error.to_string()).because(Cause::QueueFull),
            InflateError::NoMemory(_) => InferError::unavailable(error.to_string()),
        })
    }

    /// `pieces`, one after the other, in this coding.
    pub async fn encode(self, pieces: Vec<Bytes>) -> Result<Bytes, InferError> {
        let size = pieces.iter().map(Bytes::len).sum();
        let encoded = work::convert(size, || match self {
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
        let failed = |error| InferError::internal(format!("response could not be compressed: {error}"));
        encoded.await.map(Bytes::from).map_err(failed)
    }
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
        let permit = crate::budget::Budget::new(1 << 22).permit();
        for coding in [Coding::Gzip, Coding::Deflate] {
            let coded = coding.encode(pieces.clone()).await.unwrap();
            assert!(coded.len() < 10_000, "{coding:?} made {} bytes", coded.len());
            assert_eq!(coding.decode(coded.clone(), 300_010, &permit).await.unwrap(), pieces.concat());
            let error = coding.decode(coded, 300_009, &permit).await.unwrap_err();
            assert!(error.message.contains("maximum allowed value of 300009 bytes"), "{error}");
        }
    }
}
