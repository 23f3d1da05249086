//! One attempt to get a question answered over HTTP; for gRPC see `grpc`.
//!
//! Not here: checking the answer (`questions`), and whether to try again (`clients`).

use std::io::{Error, ErrorKind, Read, Result};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::member::Door;
use super::questions::{Data, Input, Question, Said, Way};
use crate::{Request, Response};

/// The outcome of one attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    Said(Said),
    Broken(Break, String),
}

/// How an attempt ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// The connection was refused.
    Refused,
    /// The connection was reset before any answer came back. This happens to a connection that waits to be accepted
    /// when its listener closes. A connection that was accepted and read from is closed in order, however its server
    /// ends.
    Reset,
    /// A kept connection was still open when the request was sent, and ended before any answer came back: the server
    /// closed it while it knew of no request.
    Unused,
    /// Any other end: the connection had been accepted.
    Cut,
}

/// Sends the question over HTTP and reads the answer, for `patience` at most.
pub(super) fn ask(question: &Question, address: SocketAddr, patience: Duration) -> Attempt {
    let mut stream = match Request::connect(address) {
        Ok(stream) => stream,
        Err(error) => return not_connected(&error),
    };
    let sent = request(question).write(&mut stream);
    if question.leaves {
        return Attempt::Said(Said::Outputs(Vec::new()));
    }
    let answer = stream.set_read_timeout(Some(patience)).and_then(|()| Response::read(&mut stream));
    match (answer, sent) {
        (Ok(answer), _) if anything_left(&answer, &mut stream) => Attempt::Said(Said::Twice(answer.text())),
        (Ok(answer), _) => Attempt::Said(read(question, &answer)),
        (Err(error), sent) => broken(error, sent),
    }
}

/// The same on a connection to this door that was kept from another request, or on a new one, which is then kept.
pub(super) fn ask_again(question: &Question, door: &Door, patience: Duration) -> Attempt {
    let kept = std::iter::from_fn(|| door.reuse()).find(is_open);
    let is_kept = kept.is_some();
    let mut stream = match kept.map_or_else(|| Request::connect(door.http), Ok) {
        Ok(stream) => stream,
        Err(error) => return not_connected(&error),
    };
    let sent = request(question).keep_connection().write(&mut stream);
    let ready = stream.set_read_timeout(Some(patience));
    if is_kept && let Some(end) = ended_unused(&stream) {
        return Attempt::Broken(Break::Unused, end);
    }
    match (ready.and_then(|()| Response::read(&mut stream)), sent) {
        (Ok(answer), _) if !answer.rest.is_empty() => Attempt::Said(Said::Twice(answer.text())),
        (Ok(answer), _) => {
            if answer.header("connection") != Some("close") {
                door.keep(stream);
            }
            Attempt::Said(read(question, &answer))
        }
        (Err(error), sent) => broken(error, sent),
    }
}

/// Whether the server has not closed an idle connection. Bytes that it sent unasked are read as the next answer, which
/// is wrong then.
fn is_open(stream: &TcpStream) -> bool {
    let nonblocking = |nonblocking| stream.set_nonblocking(nonblocking).is_ok();
    let is_open = nonblocking(true)
        && match stream.peek(&mut [0]) {
            Ok(length) => length > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
    is_open && nonblocking(false)
}

/// Waits for the first byte of an answer. Returns how the connection ended if it ended before that.
fn ended_unused(stream: &TcpStream) -> Option<String> {
    match stream.peek(&mut [0]) {
        Ok(0) => Some("connection closed".to_owned()),
        Err(error) if error.kind() != ErrorKind::WouldBlock => Some(error.to_string()),
        _ => None,
    }
}

/// The outcome of an attempt whose request could not be sent, or whose answer could not be read.
fn broken(read: Error, sent: Result<()>) -> Attempt {
    // A reset is reported only once, to the first write or read.
    match sent {
        Err(error) if is_reset(&error) => Attempt::Broken(Break::Reset, error.to_string()),
        _ if is_reset(&read) => Attempt::Broken(Break::Reset, read.to_string()),
        _ => Attempt::Broken(Break::Cut, read.to_string()),
    }
}

/// A connection that the kernel has accepted may be reset before `connect` returns.
fn not_connected(error: &Error) -> Attempt {
    let how = if is_reset(error) { Break::Reset } else { Break::Refused };
    Attempt::Broken(how, error.to_string())
}

/// Whether the kernel reported that the other side has reset the connection. The HTTP/2 library uses the same error
/// kind for a connection that was closed in order, but with an inner error.
pub(super) fn is_reset(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::ConnectionReset => true,
        ErrorKind::BrokenPipe => error.get_ref().is_none(),
        _ => false,
    }
}

/// Whether there are more bytes on a connection whose request has been answered. The server closes it, so this does not
/// wait long.
fn anything_left(answer: &Response, stream: &mut TcpStream) -> bool {
    !answer.rest.is_empty() || matches!(stream.read(&mut [0]), Ok(length) if length > 0)
}

/// The question as a request.
pub(super) fn request(question: &Question) -> Request {
    let model = question.model;
    match question.way {
        Way::Binary => {
            let binary: Vec<u8> = question.inputs.iter().flat_map(|input| input.data.bytes()).collect();
            Request::infer_binary(model, &body(question, true), &binary)
        }
        Way::Events => {
            let body: Map<_, _> =
                question.inputs.iter().map(|input| (input.name.to_owned(), input.data.json())).collect();
            Request::post(&format!("/v2/models/{model}/generate_stream"), Value::Object(body).to_string())
        }
        _ => Request::infer(model, &body(question, false)),
    }
}

/// The body of a question, or the header before its binary tensors.
pub(super) fn body(question: &Question, binary: bool) -> Value {
    let tensor = |input: &Input| {
        let Input { name, data } = input;
        let mut tensor = json!({"name": name, "datatype": data.datatype(), "shape": [data.len()]});
        match binary {
            true => tensor["parameters"] = json!({"binary_data_size": data.bytes().len()}),
            false => tensor["data"] = data.json(),
        }
        tensor
    };
    let mut body = json!({"inputs": question.inputs.iter().map(tensor).collect::<Vec<_>>()});
    if let Some(timeout) = question.timeout {
        body["parameters"]["trireme_timeout_ms"] = json!(timeout.as_millis());
    }
    if question.way == Way::KeptAlive {
        // The model has priority levels: some requests go first.
        body["parameters"]["priority"] = json!(1);
    }
    if binary {
        body["parameters"]["binary_data_output"] = json!(true);
    }
    body
}

/// The answer to a question.
pub(super) fn read(question: &Question, answer: &Response) -> Said {
    match (answer.status, question.way) {
        (200, Way::Events) => read_events(&answer.text()),
        (200, _) => read_outputs(answer).unwrap_or_else(|| Said::Error(format!("cannot be read: {}", answer.text()))),
        (status, _) => Said::Error(format!("{status} {}", answer.text())),
    }
}

/// The outputs as numbers, from the JSON or from the binary tensors behind it.
fn read_outputs(answer: &Response) -> Option<Said> {
    let length = answer.header("inference-header-content-length").and_then(|length| length.parse().ok());
    let (header, mut binary) = answer.body.split_at_checked(length.unwrap_or(answer.body.len()))?;
    let header: Value = serde_json::from_slice(header).ok()?;
    let mut outputs = Vec::new();
    for output in header["outputs"].as_array()? {
        let data = match output["data"].as_array() {
            Some(data) => {
                data.iter().map(|number| number.as_f64().map(|number| number as f32)).collect::<Option<_>>()?
            }
            None => {
                let size = usize::try_from(output["parameters"]["binary_data_size"].as_u64()?).ok()?;
                let (data, rest) = binary.split_at_checked(size)?;
                binary = rest;
                floats(data)
            }
        };
        outputs.push((output["name"].as_str()?.to_owned(), data));
    }
    Some(Said::Outputs(outputs))
}

/// Numbers as in binary tensors.
pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn read_events(text: &str) -> Said {
    let mut parts = Vec::new();
    for event in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        match event["OUT"].as_i64().and_then(|number| i32::try_from(number).ok()) {
            Some(number) => parts.push(number),
            None => {
                return Said::Parts(parts, Some(event["error"].as_str().unwrap_or("an event of no kind").to_owned()));
            }
        }
    }
    Said::Parts(parts, None)
}

// === impl Data ===

impl Data {
    pub fn datatype(&self) -> &'static str {
        match self {
            Data::Texts(_) => "BYTES",
            Data::Floats(_) => "FP32",
            Data::Ints(_) => "INT32",
            Data::Milliseconds(_) => "UINT32",
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Data::Texts(data) => data.len(),
            Data::Floats(data) => data.len(),
            Data::Ints(data) => data.len(),
            Data::Milliseconds(data) => data.len(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Data::Texts(data) => json!(data),
            Data::Floats(data) => json!(data),
            Data::Ints(data) => json!(data),
            Data::Milliseconds(data) => json!(data),
        }
    }

    /// The data as in binary tensors.
    pub fn bytes(&self) -> Vec<u8> {
        let text = |text: &String| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        match self {
            Data::Texts(data) => data.iter().flat_map(text).collect(),
            Data::Floats(data) => data.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Data::Ints(data) => data.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Data::Milliseconds(data) => data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Starts a server that runs `serve` with its listener, and returns its address.
    pub fn server(serve: impl FnOnce(TcpListener) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        std::thread::spawn(move || serve(listener));
        address
    }

    /// Closes the listener once a connection waits to be accepted.
    pub fn never_accepts(listener: TcpListener) {
        let mut waits = [PollFd::new(&listener, PollFlags::IN)];
        poll(&mut waits, None).expect("a listener can be waited for");
    }

    /// Accepts, reads the request, and closes the connection in order. A request of HTTP/2 has no end that is simple to find: it has ended
    /// when nothing more comes.
    pub fn accepts_and_leaves(listener: TcpListener) {
        let (mut stream, _) = listener.accept().expect("a client comes");
        stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout above zero");
        while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
        stream.shutdown(Shutdown::Write).expect("the client is there");
        let _ = stream.read_to_end(&mut Vec::new());
    }

    /// Reads a request to its end: a server that closes a connection with bytes in it resets the connection.
    fn read_request(stream: &mut TcpStream) {
        let mut read = Vec::new();
        while !is_whole(&read) {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece).expect("the client sends");
            assert!(length > 0, "the client has gone");
            read.extend_from_slice(&piece[..length]);
        }
    }

    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).expect("requests have a body");
        body.len() >= length.trim().parse().expect("a number")
    }

    fn answer(stream: &mut TcpStream, headers: &str) {
        read_request(stream);
        let answer = format!("HTTP/1.1 200 OK\r\n{headers}content-length: 14\r\n\r\n{{\"outputs\":[]}}");
        stream.write_all(answer.as_bytes()).expect("the client reads");
    }

    fn question() -> Question {
        Question::of(7, &[])
    }

    #[test]
    fn ends_without_an_answer_are_told_apart() {
        let broken = |address| match ask(&question(), address, PATIENCE) {
            Attempt::Broken(how, _) => how,
            other => panic!("{other:?}"),
        };
        assert_eq!(broken(server(never_accepts)), Break::Reset);
        assert_eq!(broken(server(accepts_and_leaves)), Break::Cut);
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        assert_eq!(broken(closed.expect("there is a free port")), Break::Refused);
    }

    #[test]
    fn a_second_answer_is_noticed() {
        let address = server(|listener| {
            let (mut stream, _) = listener.accept().expect("a client comes");
            let _ = stream.read(&mut [0; 4096]);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"outputs\":[]}";
            stream.write_all(format!("{answer}{answer}").as_bytes()).expect("the client reads");
        });
        let said = ask(&question(), address, PATIENCE);
        assert!(matches!(said, Attempt::Said(Said::Twice(_))), "{said:?}");
    }

    #[test]
    fn a_connection_is_kept_until_its_server_closes_it() {
        let (closed, is_closed) = std::sync::mpsc::sync_channel(0);
        let address = server(move |listener| {
            for headers in ["", "connection: close\r\n"] {
                let (mut stream, _) = listener.accept().expect("a client comes");
                answer(&mut stream, "");
                answer(&mut stream, headers);
                drop(stream);
                closed.send(()).expect("the test goes on");
            }
            let (mut stream, _) = listener.accept().expect("a client comes");
            answer(&mut stream, "");
            read_request(&mut stream);
        });
        let door = Door::open(address, address);
        let ask = || ask_again(&question(), &door, PATIENCE);
        for _ in 0..2 {
            let said = [ask(), ask()];
            assert!(matches!(said, [Attempt::Said(_), Attempt::Said(_)]), "{said:?}");
            is_closed.recv().expect("the server goes on");
            // The kernel may still hold back the end of the connection; the next request must not be sent before it is there.
            if let Some(mut kept) = door.reuse() {
                assert_eq!(kept.read(&mut [0]).expect("the connection ends in order"), 0);
                door.keep(kept);
            }
        }
        assert!(door.reuse().is_none(), "its server had said that it would close it");
        assert!(matches!(ask(), Attempt::Said(_)));
        let ended = ask();
        assert!(matches!(ended, Attempt::Broken(Break::Unused, _)), "{ended:?}");
    }
}
