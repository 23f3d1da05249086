//! One keep-alive connection: sends bytes that were made before, reads the answer.

use anyhow::Context;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An open connection.
pub struct Connection {
    server: String,
    stream: TcpStream,
    buffer: BytesMut,
}

/// An answer: its status and body.
pub struct HttpResponse {
    status: u16,
    body: Bytes,
}

// === impl Connection ===

impl Connection {
    pub async fn open(server: &str) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
        stream.set_nodelay(true)?;
        Ok(Connection { server: server.to_owned(), stream, buffer: BytesMut::with_capacity(64 << 10) })
    }

    /// The body of a GET, which has to succeed.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<Bytes> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.server);
        let answer = self.exchange(request.as_bytes()).await?;
        answer.success().map_err(anyhow::Error::msg)?;
        Ok(answer.body)
    }

    /// Sends a whole request and reads its answer.
    pub async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<HttpResponse> {
        self.stream.write_all(request).await?;
        loop {
            if let Some((status, head, length)) = self.head()? {
                while self.buffer.len() < head + length {
                    self.read().await?;
                }
                self.buffer.advance(head);
                return Ok(HttpResponse { status, body: self.buffer.split_to(length).freeze() });
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => anyhow::bail!("{} closed the connection before it had answered", self.server),
            _ => Ok(()),
        }
    }

    /// Status, length of the head and length of the body, once the head is there.
    fn head(&self) -> anyhow::Result<Option<(u16, usize, usize)>> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(&self.buffer)? else { return Ok(None) };
        let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
        Ok(Some((response.code.unwrap_or(0), head, length.context("the answer has no Content-Length")?)))
    }
}

// === impl HttpResponse ===

impl HttpResponse {
    /// `Ok` for status 200; otherwise the error names the status and the body.
    pub fn success(&self) -> Result<(), String> {
        match self.status {
            200 => Ok(()),
            status => Err(format!("status {status}: {}", String::from_utf8_lossy(&self.body))),
        }
    }
}
