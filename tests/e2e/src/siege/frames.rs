//! Frames of HTTP/2 as attackers send them, byte by byte.

/// The beginning of a connection: the preface, and settings that change nothing.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The beginning of a call.
pub fn call(stream: u32, path: &str) -> Vec<u8> {
    // Without compression: a literal that is not indexed, its name, its value.
    let field = |name: &str, value: &str| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let fields = [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", path),
        field(":authority", "siege"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ];
    frame(HEADERS, END_HEADERS, stream, &fields.concat())
}

/// Bytes of a call's messages.
pub fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, bytes)
}

/// The end of a call by its client.
pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

/// A question whether the server is there, which it answers.
pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[0; 8])
}

/// Settings that change nothing, which it acknowledges.
pub fn settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[])
}
