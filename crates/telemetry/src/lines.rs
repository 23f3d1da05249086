//! The text form of logs: each event is one line. Values that clients send, such as the id of a request, may hold line ends, with which a
//! client could forge lines.

use std::borrow::Cow;
use std::io::{self, Stderr, Write};

use tracing_subscriber::fmt::MakeWriter;

/// Standard error for events.
pub struct Lines;

/// Standard error for one event, which is written at once.
pub struct Line(Stderr);

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line(io::stderr())
    }
}

impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The event with its line ends, but for the last one, as `\n` and `\r`.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = event.strip_suffix(b"\n").map_or((event, ""), |text| (text, "\n"));
    if !text.iter().any(|byte| b"\n\r".contains(byte)) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 8);
    for &byte in text {
        match byte {
            b'\n' => line.extend_from_slice(br"\n"),
            b'\r' => line.extend_from_slice(br"\r"),
            other => line.push(other),
        }
    }
    line.extend_from_slice(end.as_bytes());
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_clients_send() {
        assert_eq!(one_line(b"WARN id=a\n"), &b"WARN id=a\n"[..]);
        assert_eq!(one_line(b"WARN id=a\r\nERROR b\n"), &b"WARN id=a\\r\\nERROR b\n"[..]);
        assert_eq!(one_line(b"\n"), &b"\n"[..]);
        assert_eq!(one_line("\u{e9}\nb".as_bytes()), "\u{e9}\\nb".as_bytes());
    }
}
