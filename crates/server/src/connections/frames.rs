//! A connection of HTTP/2 whose client may not flood it with frames that belong to no request: PING, SETTINGS, PRIORITY and the like, which the
//! HTTP/2 library answers or reads without end.
//!
//! Each such frame takes one of the connection's allowance. Requests, data in both directions, and time give some of it back: more than
//! clients need that ask whether the server is there, measure the connection and open its windows.
//!
//! Only the heads of frames are read, and all bytes go on as they are. Not here: requests that are cancelled at once, which the HTTP/2 library
//! limits itself.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Peer;

/// The bytes that a client sends first.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// The bytes of a frame before its payload: the length of that, the type, flags, and the stream.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// The most that a connection has left: as many frames may come at once.
const MOST: f64 = 1000.0;
/// For the head of a request.
const FOR_HEADERS: f64 = 16.0;
/// For a frame with data.
const FOR_DATA: f64 = 4.0;
/// For a byte that the client is sent: a part of an answer pays for a frame, the answer to a PING, which has 17, does not.
const FOR_BYTE: f64 = 1.0 / 32.0;
/// For a second.
const FOR_SECOND: f64 = 10.0;

/// Ends with an error when the client has sent too many frames that belong to no request.
pub struct FrameLimit<S> {
    stream: S,
    peer: Peer,
    position: Position,
    allowance: Allowance,
}

/// The position within the frames of a client.
#[derive(Debug)]
struct Position {
    head: [u8; HEAD],
    /// How many bytes of a frame's head have come.
    begun: usize,
    /// How many bytes come before the next head.
    rest: usize,
}

#[derive(Debug)]
struct Allowance {
    left: f64,
    at: Instant,
}

// === impl FrameLimit ===

impl<S> FrameLimit<S> {
    /// Wraps a connection from `peer` of which nothing was read.
    pub fn new(stream: S, peer: Peer) -> FrameLimit<S> {
        let position = Position { head: [0; HEAD], begun: 0, rest: PREFACE };
        FrameLimit { stream, peer, position, allowance: Allowance { left: MOST, at: Instant::now() } }
    }

    fn sent(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.allowance.give(bytes as f64 * FOR_BYTE);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameLimit<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        let FrameLimit { position, allowance, .. } = &mut *self;
        allowance.pass_time(Instant::now());
        position.pass(&into.filled()[before..], |head| allowance.take(head));
        if allowance.left >= 0.0 {
            return Poll::Ready(Ok(()));
        }
        let message = "the client floods its connection with frames that belong to no request";
        tracing::info!(client = %self.peer.0, "a connection of HTTP/2 is closed: {message}");
        Poll::Ready(Err(io::Error::other(message)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === impl Position ===

impl Position {
    /// Goes on past `bytes`, and gives the head of each frame that begins in them.
    fn pass(&mut self, mut bytes: &[u8], mut begins: impl FnMut([u8; HEAD])) {
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            let read = (HEAD - self.begun).min(bytes.len());
            self.head[self.begun..][..read].copy_from_slice(&bytes[..read]);
            self.begun += read;
            bytes = &bytes[read..];
            if self.begun == HEAD {
                (self.begun, self.rest) = (0, length(self.head));
                begins(self.head);
            }
        }
    }
}

fn length([one, two, three, ..]: [u8; HEAD]) -> usize {
    u32::from_be_bytes([0, one, two, three]) as usize
}

// === impl Allowance ===

impl Allowance {
    fn give(&mut self, more: f64) {
        self.left = (self.left + more).min(MOST);
    }

    fn pass_time(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        self.give(passed.as_secs_f64() * FOR_SECOND);
    }

    /// A frame with this head comes.
    fn take(&mut self, head: [u8; HEAD]) {
        match head[3] {
            HEADERS => self.give(FOR_HEADERS),
            DATA if length(head) > 0 => self.give(FOR_DATA),
            // The library limits those of one head.
            CONTINUATION => {}
            _ => self.left -= 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], &vec![0; payload]].concat()
    }

    fn connection() -> (DuplexStream, FrameLimit<DuplexStream>) {
        let (client, server) = duplex(1 << 20);
        (client, FrameLimit::new(server, Peer(IpAddr::V4(Ipv4Addr::LOCALHOST))))
    }

    /// Sends a preface and `frames` in pieces of so many bytes until they are refused. Returns how many bytes arrive, and whether all do.
    async fn arrives(frames: &[u8], piece: usize) -> (usize, bool) {
        let (mut client, mut server) = connection();
        let (sent, mut arrived) = ([&[0; PREFACE][..], frames].concat(), 0);
        for piece in sent.chunks(piece) {
            client.write_all(piece).await.unwrap();
            let mut read = vec![0; piece.len()];
            match server.read_exact(&mut read).await {
                Ok(_) => assert_eq!(read, piece),
                Err(_) => return (arrived, false),
            }
            arrived += piece.len();
        }
        (arrived, true)
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_belong_to_no_request_are_counted_however_bytes_are_cut() {
        // PING, SETTINGS, PRIORITY, WINDOW_UPDATE, DATA without data, and one that nobody knows.
        for (kind, payload) in [(PING, 8), (4, 0), (2, 5), (8, 4), (DATA, 0), (77, 3)] {
            let most = frame(kind, payload).repeat(MOST as usize);
            for piece in [7, 4096, most.len() + PREFACE] {
                assert!(arrives(&most, piece).await.1, "type {kind}, {piece} bytes at a time");
                let (arrived, all) = arrives(&[&most[..], &frame(kind, payload)].concat(), piece).await;
                assert!(!all && arrived <= most.len() + PREFACE + HEAD, "type {kind}, {piece} at a time: {arrived}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_data_go_on_for_as_long_as_they_come() {
        let call = [frame(HEADERS, 30), frame(DATA, 20), frame(8, 4).repeat(4), frame(PING, 8).repeat(4)].concat();
        assert!(arrives(&call.repeat(1000), 5000).await.1);
        assert!(arrives(&[frame(DATA, 16_384), frame(PING, 8), frame(4, 0)].concat().repeat(1000), 5000).await.1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_or_asks_now_and_then_is_not_refused() {
        let (mut client, mut server) = connection();
        let mut read = [0; PREFACE];
        client.write_all(&read).await.unwrap();
        server.read_exact(&mut read).await.unwrap();
        let ping = frame(PING, 8);
        let mut read = vec![0; ping.len()];
        for round in 0..5000 {
            match round % 2 {
                0 => tokio::time::advance(Duration::from_millis(200)).await,
                _ => {
                    server.write_all(&[0; 64]).await.unwrap();
                    client.read_exact(&mut [0; 64]).await.unwrap();
                }
            }
            for _ in 0..2 {
                client.write_all(&ping).await.unwrap();
                server.read_exact(&mut read).await.unwrap();
            }
        }
    }
}
