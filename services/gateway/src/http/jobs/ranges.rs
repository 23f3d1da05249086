//! `Range` (RFC 9110): a part of a file. Several ranges at once, and other units, are answered with the whole file, as the RFC allows.

use axum::http::header::{IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderValue, Method};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};

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

/// The bytes that a request asks for, of a file of so many. `etag` is the file's version: a client that has begun with another one gets all of
/// this one.
pub fn asked(method: &Method, headers: &HeaderMap, bytes: u64, etag: &HeaderValue) -> Range {
    let is_of_other = headers.get_all(IF_RANGE).iter().any(|version| version != etag);
    let mut ranges = headers.get_all(RANGE).iter();
    match (ranges.next(), ranges.next()) {
        (Some(range), None) if *method == Method::GET && !is_of_other => {
            range.to_str().ok().and_then(|range| parse(range, bytes)).unwrap_or(Range::All)
        }
        _ => Range::All,
    }
}

/// The one range of a header; `None` for a header that is not valid, or has several.
fn parse(header: &str, bytes: u64) -> Option<Range> {
    let (unit, ranges) = header.split_once('=')?;
    // Lists may have empty elements.
    let mut ranges = ranges.split(',').map(str::trim_ascii).filter(|range| !range.is_empty());
    let (range, None) = (ranges.next()?, ranges.next()) else { return None };
    let (from, to) = range.split_once('-').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    let (from, end) = match (number(from), number(to)) {
        // An empty file has no part that could be named.
        (None, Some(last)) if from.is_empty() && last > 0 && bytes == 0 => return None,
        (None, Some(last)) if from.is_empty() => (bytes.saturating_sub(last), bytes),
        (Some(from), None) if to.is_empty() => (from, bytes),
        (Some(from), Some(to)) if from <= to => (from, to.saturating_add(1).min(bytes)),
        _ => return None,
    };
    Some(if from < end { Range::Part(from, end) } else { Range::None })
}

/// A number of digits. A number that is too large for any file is the largest.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
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
    use proptest::prelude::*;

    use super::*;

    const ETAG: HeaderValue = HeaderValue::from_static("\"v1\"");

    fn of(bytes: u64, headers: &[(axum::http::HeaderName, &str)]) -> Range {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, text)| _ = map.append(name, value(text)));
        asked(&Method::GET, &map, bytes, &ETAG)
    }

    #[test]
    fn a_range_is_read_as_the_rfc_says() {
        let of = |range: &str| of(100, &[(RANGE, range)]);
        for range in ["bytes=0-9", "Bytes=0-9", "bytes=,0-9 ,", "bytes= 0-9"] {
            assert_eq!(of(range), Range::Part(0, 10), "{range}");
        }
        assert_eq!(of("bytes=90-"), Range::Part(90, 100));
        assert_eq!(of("bytes=-5"), Range::Part(95, 100));
        assert_eq!(of("bytes=-500"), Range::Part(0, 100));
        for last in ["bytes=99-1000", "bytes=99-99999999999999999999999999"] {
            assert_eq!(of(last), Range::Part(99, 100), "{last}");
        }
        for none in ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999999999-"] {
            assert_eq!(of(none), Range::None, "{none}");
        }
        let invalid =
            ["bytes=5-4", "bytes=200-100", "bytes=a-b", "bytes=+0-9", "bytes=0 - 9", "bytes=-", "bytes=", "bytes"];
        for all in invalid.into_iter().chain(["lines=0-9", "bytes=0-1,5-6"]) {
            assert_eq!(of(all), Range::All, "{all}");
        }
    }

    #[test]
    fn other_requests_get_the_whole_file() {
        assert_eq!(of(100, &[]), Range::All);
        assert_eq!(of(100, &[(RANGE, "bytes=0-9"), (RANGE, "bytes=20-29")]), Range::All);
        assert_eq!(of(100, &[(RANGE, "bytes=0-9"), (IF_RANGE, "\"v1\"")]), Range::Part(0, 10));
        for other in ["\"v2\"", "W/\"v1\"", "Sat, 28 Nov 2026 06:00:00 GMT"] {
            assert_eq!(of(100, &[(RANGE, "bytes=0-9"), (IF_RANGE, other)]), Range::All, "{other}");
            assert_eq!(of(100, &[(RANGE, "bytes=100-"), (IF_RANGE, other)]), Range::All, "{other}");
        }
        let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=0-9"))]);
        assert_eq!(asked(&Method::HEAD, &headers, 100, &ETAG), Range::All);
        assert_eq!(of(0, &[(RANGE, "bytes=0-")]), Range::None);
        assert_eq!(of(0, &[(RANGE, "bytes=-5")]), Range::All);
    }

    proptest! {
        #[test]
        fn any_range_is_that_slice(from in 0u64..300, length in 0u64..300, bytes in 0u64..200) {
            let (to, end) = (from + length, bytes.min(from + length + 1));
            let expected = if from < end { Range::Part(from, end) } else { Range::None };
            prop_assert_eq!(of(bytes, &[(RANGE, &format!("bytes={from}-{to}"))]), expected);
            let expected = if from < bytes { Range::Part(from, bytes) } else { Range::None };
            prop_assert_eq!(of(bytes, &[(RANGE, &format!("bytes={from}-"))]), expected);
        }
    }
}
