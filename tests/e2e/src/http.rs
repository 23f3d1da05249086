//! A blocking HTTP/1.1 client that does only what tests need: it opens a connection for each request unless the
//! connection is to be kept, has a limit on every wait, and can send malformed requests.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// The longest wait for an answer: longer than any deadline that tests give a request.
const LIMIT: Duration = Duration::from_secs(90);

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    keeps_connection: bool,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Bytes that had already arrived behind the response on the same connection; none, unless a server answers twice.
    pub rest: Vec<u8>,
}

// === impl Request ===

impl Request {
    /// A request without a body.
    pub fn new(method: &str, path: &str) -> Request {
        let (method, path) = (method.to_owned(), path.to_owned());
        Request { method, path, headers: Vec::new(), body: Vec::new(), keeps_connection: false }
    }

    /// `GET path`.
    pub fn get(path: &str) -> Request {
        Request::new("GET", path)
    }

    /// `POST path` with a body.
    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Request {
        Request { body: body.into(), ..Request::new("POST", path) }
    }

    /// An infer request to `model`, with the body as JSON.
    pub fn infer(model: &str, body: &Value) -> Request {
        Request::post(&format!("/v2/models/{model}/infer"), body.to_string())
    }

    /// An infer request to `model`: JSON, then the bytes of its binary tensors.
    pub fn infer_binary(model: &str, header: &Value, binary: &[u8]) -> Request {
        let header = header.to_string();
        let length = header.len().to_string();
        Request::post(&format!("/v2/models/{model}/infer"), [header.as_bytes(), binary].concat())
            .header("Inference-Header-Content-Length", &length)
    }

    /// The same with an additional header.
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same on a connection that stays for further requests.
    pub(crate) fn keep_connection(self) -> Request {
        Request { keeps_connection: true, ..self }
    }

    /// Sends the request and returns the connection, to read the answer from. When the connection is dropped, the
    /// client is gone.
    pub fn start(&self, address: SocketAddr) -> Result<TcpStream> {
        let mut stream = Request::connect(address)?;
        // A server may answer and close the connection before it has read everything.
        let _ = self.write(&mut stream);
        Ok(stream)
    }

    /// Opens a connection for a request.
    pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    }

    /// Sends the request on this connection.
    pub(crate) fn write(&self, stream: &mut TcpStream) -> Result<()> {
        let host = stream.peer_addr()?;
        stream.write_all(&self.encode(host))
    }

    /// The bytes of the request on a connection to `host`.
    pub(crate) fn encode(&self, host: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", self.method, self.path);
        if !self.keeps_connection {
            head += "Connection: close\r\n";
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", self.body.len());
        [head.as_bytes(), &self.body].concat()
    }

    /// Sends the request and waits for the answer. Errors when the server is not there, or does not answer completely.
    pub fn send(&self, address: SocketAddr) -> Result<Response> {
        Response::read(&mut self.start(address)?)
    }
}

// === impl Response ===

impl Response {
    /// Reads the answer to the request that was sent on this connection. The error has kind
    /// [`ErrorKind::UnexpectedEof`] if a part of the answer had arrived, or if the server has closed the connection in
    /// order.
    pub fn read(stream: &mut TcpStream) -> Result<Response> {
        let mut received = Vec::new();
        loop {
            if let Some(response) = Response::parse(&received)? {
                return Ok(response);
            }
            let mut piece = [0; 16 * 1024];
            let incomplete = |how: &str| {
                let text = format!("{how} after {} bytes, before the answer was complete", received.len());
                Error::new(ErrorKind::UnexpectedEof, text)
            };
            match stream.read(&mut piece) {
                Ok(0) => return Err(incomplete("connection closed")),
                Ok(length) => received.extend_from_slice(&piece[..length]),
                Err(error) if received.is_empty() => return Err(error),
                Err(error) => return Err(incomplete(&error.to_string())),
            }
        }
    }

    /// The response in `received`, if it is complete.
    pub(crate) fn parse(received: &[u8]) -> Result<Option<Response>> {
        let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
        let invalid = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
        let head = std::str::from_utf8(&received[..end]).map_err(|_| invalid("the head of the answer is not text"))?;
        let mut lines = head.split("\r\n");
        let status: Option<u16> =
            lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let status = status.ok_or_else(|| invalid("the answer has no status"))?;
        let body = match (header("transfer-encoding"), header("content-length").and_then(|n| n.parse().ok())) {
            (Some("chunked"), _) => join_chunks(&received[end + 4..]),
            (_, Some(length)) => received[end + 4..].split_at_checked(length).map(|(body, rest)| (body.to_vec(), rest)),
            // 204 No Content.
            _ if status == 204 => Some((Vec::new(), &received[end + 4..])),
            _ => return Err(invalid("the answer has no Content-Length")),
        };
        Ok(body.map(|(body, rest)| Response { status, headers, body, rest: rest.to_vec() }))
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When the body is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("status {}, body is no JSON ({error}): {}", self.status, self.text()),
        }
    }

    /// The message of an error, `{"error": message}`.
    ///
    /// # Panics
    /// When the body is anything else.
    #[track_caller]
    pub fn error(&self) -> String {
        let json = self.json();
        match (json.as_object().map(|object| object.len()), json["error"].as_str()) {
            (Some(1), Some(message)) => message.to_owned(),
            _ => panic!("status {}, expected {{\"error\": message}}, found {json}", self.status),
        }
    }

    /// The output called `name` of an answered infer request.
    ///
    /// # Panics
    /// When the request was not answered with 200, or there is no such output.
    #[track_caller]
    pub fn output(&self, name: &str) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        let json = self.json();
        let outputs = json["outputs"].as_array();
        let found = outputs.into_iter().flatten().find(|output| output["name"] == name);
        found.unwrap_or_else(|| panic!("no output '{name}' in {json}")).clone()
    }

    /// The numbers of the output called `name`.
    ///
    /// # Panics
    /// As [`Response::output`], and when it holds anything but numbers.
    #[track_caller]
    pub fn numbers(&self, name: &str) -> Vec<f32> {
        let output = self.output(name);
        let data = output["data"].as_array().unwrap_or_else(|| panic!("output '{name}' has no data: {output}"));
        data.iter().map(|number| number.as_f64().expect("the output holds numbers") as f32).collect()
    }
}

/// Decodes a chunked body if all chunks are there. Each chunk is its length in hexadecimal digits, a line end, that
/// many bytes, and a line end; the last one is empty. Returns the body and the bytes behind it.
fn join_chunks(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
        let chunk = rest.get(line + 2..line + 2 + length)?;
        rest = rest.get(line + 2 + length + 2..)?;
        if chunk.is_empty() {
            return Some((body, rest));
        }
        body.extend_from_slice(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_behind_an_answer_is_kept() {
        let parse = |received: &str| Response::parse(received.as_bytes()).expect("an answer");
        let twice = parse("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK").expect("it is complete");
        assert_eq!((twice.text(), &twice.rest[..]), ("ok".to_owned(), &b"HTTP/1.1 200 OK"[..]));
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunked = parse(&format!("{head}2\r\nok\r\n0\r\n\r\nmore")).expect("it is complete");
        assert_eq!((chunked.text(), &chunked.rest[..]), ("ok".to_owned(), &b"more"[..]));
        assert!(parse(&format!("{head}2\r\nok\r\n")).is_none());
    }
}
