//! One keep-alive connection: sends bytes that were made before, reads the answer. A client library would make every request anew,
//! in CPU time that the server does not get.

use anyhow::{Context, ensure};
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

/// The host and port of a server's URL; 80 without a port.
pub fn address(url: &str) -> anyhow::Result<String> {
    let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    ensure!(!address.contains('/') && !address.is_empty(), "--server {url}: expected http://HOST:PORT");
    let port = address.rsplit_once(':').map(|(_, port)| port);
    let has_port = port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(if has_port { address.to_owned() } else { format!("{address}:80") })
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

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_url_names_host_and_port() {
        for (url, expected) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("localhost:9/", "localhost:9"),
            ("http://host", "host:80"),
            ("http://[::1]", "[::1]:80"),
            ("http://[::1]:8000", "[::1]:8000"),
        ] {
            assert_eq!(address(url).unwrap(), expected);
        }
        for url in ["https://host:8000", "http://host:8000/v2", "http://"] {
            let error = address(url).unwrap_err().to_string();
            assert_eq!(error, format!("--server {url}: expected http://HOST:PORT"));
        }
    }
}
