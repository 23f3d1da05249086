//! One keep-alive connection: sends bytes that were made before, reads the answer. A client library would make every request anew,
//! in CPU time that the server does not get.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::client::{ServerArgs, shown};

/// Header in which a gateway tells how many tokens a request's texts have.
const TOKENS: &str = "trireme-tokens";

/// A server, and how to reach it.
pub struct Server {
    /// `HOST:PORT`
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The headers of each request, lines that end.
    pub headers: String,
    timeout: Duration,
}

/// An open connection.
pub struct Connection {
    server: Arc<Server>,
    stream: Box<dyn Stream>,
    buffer: BytesMut,
}

/// An answer: its status and body.
pub struct HttpResponse {
    status: u16,
    tokens: Option<u64>,
    body: Bytes,
    /// Whether the server closes the connection behind this answer.
    pub closes: bool,
}

/// The head of an answer.
struct Head {
    status: u16,
    closes: bool,
    bytes: usize,
    body_bytes: usize,
    tokens: Option<u64>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

// === impl Server ===

impl Server {
    /// The server that the flags name; port 80 without a port, or 443 with TLS.
    pub fn new(args: &ServerArgs) -> anyhow::Result<Server> {
        let url = args.url();
        let (scheme, address) = url.split_once("://").unwrap_or(("http", &url));
        ensure!(
            ["http", "https"].contains(&scheme) && !address.contains('/') && !address.is_empty(),
            "--server {url}: expected http://HOST:PORT or https://HOST:PORT"
        );
        let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let (host, address) = match address.rsplit_once(':').filter(|(_, port)| is_port(port)) {
            Some((host, _)) => (host, address.to_owned()),
            None => (address, format!("{address}:{}", if scheme == "https" { 443 } else { 80 })),
        };
        let tls = match scheme {
            "https" => Some((connector(args)?, server_name(host).with_context(|| format!("--server {url}"))?)),
            _ => None,
        };
        let mut headers = format!("Host: {address}\r\n");
        args.headers()?.iter().for_each(|(name, value)| headers.extend([name, ": ", value, "\r\n"]));
        Ok(Server { address, tls, headers, timeout: args.timeout() })
    }
}

/// Speaks TLS, and believes the authorities of `--ca`, or else the public ones.
fn connector(args: &ServerArgs) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match args.authorities()? {
        Some(authorities) => {
            for authority in authorities {
                roots.add(authority).context("--ca: a certificate cannot vouch for others")?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the server's certificate has to have.
fn server_name(host: &str) -> anyhow::Result<ServerName<'static>> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok(ServerName::try_from(host.to_owned())?)
}

// === impl Connection ===

impl Connection {
    pub async fn open(server: &Arc<Server>) -> anyhow::Result<Connection> {
        let cannot = || {
            format!("no server answers at {}: `trireme serve` starts one, and --server names another", server.address)
        };
        let connecting = async {
            let stream = TcpStream::connect(&server.address).await?;
            stream.set_nodelay(true)?;
            Ok::<Box<dyn Stream>, std::io::Error>(match &server.tls {
                Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
                None => Box::new(stream),
            })
        };
        let stream = tokio::time::timeout(server.timeout, connecting).await;
        let stream = stream.map_err(std::io::Error::from).flatten().with_context(cannot)?;
        Ok(Connection { server: server.clone(), stream, buffer: BytesMut::with_capacity(64 << 10) })
    }

    /// The body of a GET, which has to succeed.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<Bytes> {
        let request = format!("GET {path} HTTP/1.1\r\n{}\r\n", self.server.headers);
        let answer = self.exchange(request.as_bytes()).await?;
        answer.success().map_err(anyhow::Error::msg)?;
        Ok(answer.body)
    }

    /// Sends a whole request and reads its answer.
    pub async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<HttpResponse> {
        let timeout = self.server.timeout;
        let answer = tokio::time::timeout(timeout, self.send_and_read(request)).await;
        answer.with_context(|| format!("no answer in {} s (--timeout-secs)", timeout.as_secs()))?
    }

    async fn send_and_read(&mut self, request: &[u8]) -> anyhow::Result<HttpResponse> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        loop {
            if let Some(Head { status, closes, bytes, body_bytes, tokens }) = self.head()? {
                while self.buffer.len() < bytes + body_bytes {
                    self.read().await?;
                }
                self.buffer.advance(bytes);
                return Ok(HttpResponse { status, tokens, body: self.buffer.split_to(body_bytes).freeze(), closes });
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => anyhow::bail!("{} closed the connection before it had answered", self.server.address),
            _ => Ok(()),
        }
    }

    /// The head, once it is there.
    fn head(&self) -> anyhow::Result<Option<Head>> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(bytes) = response.parse(&self.buffer)? else { return Ok(None) };
        let value = |name: &str| {
            let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
            Some(std::str::from_utf8(header.value).ok()?.trim())
        };
        let number = |name: &str| -> Option<u64> { value(name)?.parse().ok() };
        let closes = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let body_bytes = number("content-length").context("the answer has no Content-Length")?;
        let body_bytes = usize::try_from(body_bytes).context("the answer is too large")?;
        Ok(Some(Head { status: response.code.unwrap_or(0), closes, bytes, body_bytes, tokens: number(TOKENS) }))
    }
}

// === impl HttpResponse ===

impl HttpResponse {
    /// `Ok` for status 200; otherwise the error names the status and the body.
    pub fn success(&self) -> Result<(), String> {
        match self.status {
            200 => Ok(()),
            status => Err(format!("status {status}: {}", shown(&String::from_utf8_lossy(&self.body)))),
        }
    }

    /// How many tokens the request's texts have, where the server tells it: in a header, or in `usage` of its JSON.
    pub fn tokens(&self) -> Option<u64> {
        self.tokens.or_else(|| {
            let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
            let usage = &body["usage"];
            usage["prompt_tokens"].as_u64().or_else(|| usage["total_tokens"].as_u64())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> anyhow::Result<Server> {
        Server::new(&ServerArgs::at(url, vec!["X-API-Key:  k ".to_owned()], 1))
    }

    #[test]
    fn a_url_names_host_and_port() {
        for (url, expected, tls) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", None),
            ("localhost:9/", "localhost:9", None),
            ("http://host", "host:80", None),
            ("http://[::1]", "[::1]:80", None),
            ("http://[::1]:8000", "[::1]:8000", None),
            ("https://host", "host:443", Some("host")),
            ("https://[::1]:8000", "[::1]:8000", Some("::1")),
        ] {
            let server = server(url).unwrap();
            assert_eq!(server.address, expected);
            assert_eq!(server.tls.map(|(_, name)| name.to_str().into_owned()).as_deref(), tls);
            assert_eq!(server.headers, format!("Host: {expected}\r\nX-API-Key: k\r\n"));
        }
        for url in ["ftp://host:8000", "http://host:8000/v2", "http://"] {
            let error = server(url).err().unwrap().to_string();
            assert!(error.contains("expected http://HOST:PORT or https://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn tokens_are_those_of_the_header_or_of_the_usage() {
        let told = |tokens, body: &'static str| {
            HttpResponse { status: 200, tokens, body: body.into(), closes: false }.tokens()
        };
        let usage = r#"{"usage": {"prompt_tokens": 7, "total_tokens": 9}}"#;
        assert_eq!(told(Some(3), usage), Some(3));
        assert_eq!(told(None, usage), Some(7));
        assert_eq!(told(None, r#"{"usage": {"total_tokens": 9}}"#), Some(9));
        assert_eq!((told(None, "{}"), told(None, "\x01")), (None, None));
    }
}
