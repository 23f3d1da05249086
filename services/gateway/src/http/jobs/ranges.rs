//! `Range` (RFC 9110): a part of a file. Several ranges at once, and other units, are answered with the whole file, as the RFC allows.

use axum::http::HeaderMap;
use axum::http::header::{IF_RANGE, RANGE};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use trireme_server::http::body::text;

/// The bytes that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// All of them.
    All,
    /// Those from the first number up to before the second one.
    Part(u64, u64),
    /// None that the file has.
    None,
}

/// The bytes that a request asks for, of a file of so many.
pub fn asked(headers: &HeaderMap, bytes: u64) -> Range {
    // Files have no versions that a client could name.
    match text(headers, RANGE.as_str()).filter(|_| !headers.contains_key(IF_RANGE)) {
        Some(range) => parse(range, bytes).unwrap_or(Range::All),
        None => Range::All,
    }
}

fn parse(range: &str, bytes: u64) -> Option<Range> {
    let (from, to) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    let (from, end) = match (from.trim(), to.trim()) {
        ("", last) => (bytes.saturating_sub(last.parse().ok()?), bytes),
        (from, "") => (from.parse().ok()?, bytes),
        (from, to) => (from.parse().ok()?, to.parse::<u64>().ok()?.saturating_add(1)),
    };
    match from < end.min(bytes) {
        true => Some(Range::Part(from, end.min(bytes))),
        // A last byte before the first one is no range.
        false if end <= from && from < bytes && !range.contains("=-") => None,
        false => Some(Range::None),
    }
}

/// The first `length` bytes of a stream.
pub fn first<E>(
    stream: impl Stream<Item = Result<Bytes, E>> + Unpin,
    length: u64,
) -> impl Stream<Item = Result<Bytes, E>> {
    futures_util::stream::try_unfold((stream, length), |(mut stream, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(mut bytes) = stream.try_next().await? else { return Ok(None) };
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - bytes.len() as u64;
        Ok(Some((bytes, (stream, left))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_the_rfc_says() {
        let of = |range: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, axum::http::HeaderValue::from_static(range));
            asked(&headers, 100)
        };
        assert_eq!(of("bytes=0-9"), Range::Part(0, 10));
        assert_eq!(of("bytes=90-"), Range::Part(90, 100));
        assert_eq!(of("bytes=-5"), Range::Part(95, 100));
        assert_eq!(of("bytes=-500"), Range::Part(0, 100));
        assert_eq!(of("bytes=99-1000"), Range::Part(99, 100));
        for none in ["bytes=100-", "bytes=100-200", "bytes=-0"] {
            assert_eq!(of(none), Range::None, "{none}");
        }
        for all in ["bytes=5-4", "lines=0-9", "bytes=0-1,5-6", "bytes=a-b", "bytes=", "bytes"] {
            assert_eq!(of(all), Range::All, "{all}");
        }
        assert_eq!(asked(&HeaderMap::new(), 100), Range::All);
    }
}
