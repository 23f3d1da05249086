//! The lines of a batch's file: read one after the other, and the request in each.

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::Value;

use crate::call::JobCall;
use crate::error::JobError;

/// Longest line, in bytes. A longer one is an error of its own.
pub const LONGEST_LINE: usize = 32 << 20;

/// The byte order mark in UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Most bytes of a client's text that an error shows.
const SHOWN: usize = 512;

/// Reads lines from the parts of a file.
pub struct Lines<S> {
    parts: S,
    rest: BytesMut,
    /// Bytes of `rest` that have no end of line.
    searched: usize,
    /// The bytes of a line that was too long were dropped.
    overlong: bool,
    ended: bool,
    /// Bytes read, those of `rest` not among them.
    pub offset: u64,
}

/// A line of a file.
#[derive(Debug, PartialEq)]
pub enum Line {
    /// Its bytes without the end of line.
    Whole(Bytes),
    /// It has more than [`LONGEST_LINE`] bytes.
    TooLong,
}

/// The request in a line.
#[derive(Debug, PartialEq)]
pub struct BatchLine {
    /// The client's name for the line, as JSON.
    pub custom_id: Value,
    /// The call, or why there is none.
    pub call: Result<JobCall, String>,
}

// === impl Lines ===

impl<S: Stream<Item = Result<Bytes, JobError>> + Unpin> Lines<S> {
    /// Reads `parts`, which begin `offset` bytes into the file.
    pub fn new(parts: S, offset: u64) -> Lines<S> {
        Lines { parts, rest: BytesMut::new(), searched: 0, overlong: false, ended: false, offset }
    }

    /// Counts a line, and leaves out the mark with which some programs begin a file in UTF-8.
    fn pass_mark(&mut self, line: &mut BytesMut) {
        let is_first = self.offset == 0;
        self.offset += line.len() as u64;
        if is_first && line.starts_with(MARK) {
            line.advance(MARK.len());
        }
    }

    /// The next line, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Line>, JobError> {
        loop {
            let found = self.rest[self.searched..].iter().position(|&byte| byte == b'\n');
            if let Some(at) = found {
                let mut line = self.rest.split_to(self.searched + at + 1);
                self.pass_mark(&mut line);
                self.searched = 0;
                line.truncate(line.len() - 1);
                if line.last() == Some(&b'\r') {
                    line.truncate(line.len() - 1);
                }
                let is_overlong = std::mem::take(&mut self.overlong) || line.len() > LONGEST_LINE;
                return Ok(Some(if is_overlong { Line::TooLong } else { Line::Whole(line.freeze()) }));
            }
            self.searched = self.rest.len();
            if self.rest.len() > LONGEST_LINE {
                self.offset += self.rest.len() as u64;
                self.rest.clear();
                (self.searched, self.overlong) = (0, true);
            }
            if self.ended {
                let mut line = self.rest.split();
                self.pass_mark(&mut line);
                let line = line.freeze();
                self.searched = 0;
                let is_overlong = std::mem::take(&mut self.overlong);
                return Ok(match (is_overlong, line.is_empty()) {
                    (true, _) => Some(Line::TooLong),
                    (false, true) => None,
                    (false, false) => Some(Line::Whole(line)),
                });
            }
            match self.parts.next().await {
                Some(part) => self.rest.extend_from_slice(&part?),
                None => self.ended = true,
            }
        }
    }
}

// === impl Line ===

impl Line {
    /// Whether the line has nothing but white space. Such lines are not counted.
    pub fn is_empty(&self) -> bool {
        matches!(self, Line::Whole(bytes) if bytes.trim_ascii().is_empty())
    }

    /// Its bytes in memory.
    pub fn size(&self) -> usize {
        match self {
            Line::Whole(bytes) => bytes.len(),
            Line::TooLong => 0,
        }
    }

    /// The client's name for the line, if it has one.
    pub fn custom_id(&self) -> Option<Cow<'_, str>> {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            custom_id: Cow<'a, str>,
        }
        let Line::Whole(bytes) = self else { return None };
        serde_json::from_slice(bytes).ok().map(|Named { custom_id }| custom_id)
    }

    /// The request in this line, in a batch whose lines go to `endpoint`.
    pub fn asked(&self, endpoint: &str) -> BatchLine {
        let none = |why: String| BatchLine { custom_id: Value::Null, call: Err(why) };
        let bytes = match self {
            Line::Whole(bytes) => bytes,
            Line::TooLong => return none(format!("the line has more than {LONGEST_LINE} bytes")),
        };
        let mut fields = match serde_json::from_slice::<Value>(bytes) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return none("the line is no JSON object, expected custom_id, method, url and body".to_owned()),
            Err(error) => return none(format!("the line is no JSON: {error}")),
        };
        let custom_id = fields.remove("custom_id").unwrap_or_default();
        let call = match (fields.remove("method"), fields.remove("url"), fields.remove("body")) {
            _ if !custom_id.is_string() => Err("'custom_id' is missing or no string".to_owned()),
            (Some(Value::String(method)), _, _) if !method.eq_ignore_ascii_case("POST") => {
                Err(format!("'method' is '{}', expected POST", shown(&method)))
            }
            (_, Some(Value::String(url)), _) if url != endpoint => {
                Err(format!("'url' is '{}', but the batch has the endpoint '{endpoint}'", shown(&url)))
            }
            (_, Some(Value::String(_)), Some(body @ Value::Object(_))) => Ok(JobCall {
                path: endpoint.to_owned(),
                headers: vec![("content-type".to_owned(), Bytes::from_static(b"application/json"))],
                body: body.to_string().into(),
            }),
            (_, Some(Value::String(_)), _) => Err("'body' is missing or no object".to_owned()),
            _ => Err("'url' is missing or no string".to_owned()),
        };
        BatchLine { custom_id, call }
    }
}

/// The beginning of a client's text, for errors.
pub fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(parts: &[&[u8]]) -> (Vec<Line>, u64) {
        let parts: Vec<Result<Bytes, JobError>> = parts.iter().map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        let mut lines = Lines::new(futures_util::stream::iter(parts), 0);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            all.push(line);
        }
        (all, lines.offset)
    }

    fn whole(text: &str) -> Line {
        Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[tokio::test]
    async fn lines_are_read_across_parts() {
        let (found, offset) = lines(&[b"a\r\nb", b"c", b"\n\nlast"]).await;
        assert_eq!(found, [whole("a"), whole("bc"), whole(""), whole("last")]);
        assert_eq!(offset, 11);
        assert!(found[2].is_empty() && !found[3].is_empty());
    }

    #[tokio::test]
    async fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let (found, offset) = lines(&["\u{feff}a\n\u{feff}b\n".as_bytes()]).await;
        assert_eq!(found, [whole("a"), whole("\u{feff}b")]);
        assert_eq!(offset, 10);
        assert_eq!(lines(&["\u{feff}a".as_bytes()]).await.0, [whole("a")]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over() {
        let long = vec![b'x'; LONGEST_LINE];
        let (found, offset) = lines(&[b"a\n", &long, b"yz", &long, b"\nb\n"]).await;
        assert_eq!(found, [whole("a"), Line::TooLong, whole("b")]);
        assert_eq!(offset, 2 * LONGEST_LINE as u64 + 7);
        assert_eq!(lines(&[&long, b"yz"]).await.0, [Line::TooLong]);
    }

    #[test]
    fn a_line_asks_for_the_route_of_its_batch() {
        let asked = |line: &str| whole(line).asked("/v1/embeddings");
        let line = r#"{"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"input": "é\n"}}"#;
        let found = asked(line);
        assert_eq!(asked(&line.replace("POST", "post")), found);
        assert_eq!(found.custom_id, "1");
        assert_eq!(found.call.unwrap().body, r#"{"input":"é\n"}"#);
        for (line, error) in [
            ("{", "the line is no JSON: "),
            ("[]", "the line is no JSON object"),
            ("\u{feff}{}", "the line is no JSON: "),
            (r#"{"url": "/v1/embeddings", "body": {}}"#, "'custom_id' is missing"),
            (r#"{"custom_id": "1", "method": "GET", "url": "/v1/embeddings", "body": {}}"#, "'method' is 'GET'"),
            (r#"{"custom_id": "1", "url": "/v1/rerank", "body": {}}"#, "'url' is '/v1/rerank'"),
            (r#"{"custom_id": "1", "body": {}}"#, "'url' is missing"),
            (r#"{"custom_id": "1", "url": "/v1/embeddings", "body": []}"#, "'body' is missing or no object"),
        ] {
            let why = asked(line).call.unwrap_err();
            assert!(why.starts_with(error), "{why}");
        }
    }
}
