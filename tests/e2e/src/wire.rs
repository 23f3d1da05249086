//! NATS in its own words, over a bare socket: sees what nobody sent to it, and sends what no client library would.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The longest wait for the broker to take or say something.
const LIMIT: Duration = Duration::from_secs(60);

/// A message as it is on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireMessage {
    /// Where it was sent.
    pub subject: String,
    /// Where an answer shall go.
    pub reply: Option<String>,
    /// Its headers: name and value, in order.
    pub headers: Vec<(String, String)>,
    /// Its payload.
    pub body: Vec<u8>,
}

/// A connection to a broker without users.
pub struct Wire {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    /// A line whose end has not come yet.
    begun: Vec<u8>,
}

// === impl WireMessage ===

impl WireMessage {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn header_block(&self) -> String {
        let lines: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("NATS/1.0\r\n{lines}\r\n")
    }
}

/// What a block of headers says; its first line, the version and perhaps a status, is left out.
fn read_headers(block: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(block);
    let lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

// === impl Wire ===

impl Wire {
    /// Connects to a broker: `nats://HOST:PORT`.
    ///
    /// # Panics
    /// When the broker is not there.
    pub fn open(url: &str) -> Wire {
        let mut stream = TcpStream::connect(url.trim_start_matches("nats://")).expect("the broker listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit can be set");
        stream.set_write_timeout(Some(LIMIT)).expect("a limit can be set");
        let login = r#"CONNECT {"verbose":false,"headers":true,"protocol":1}"#;
        write!(stream, "{login}\r\n").expect("the broker reads");
        let reader = BufReader::new(stream.try_clone().expect("a socket can be shared"));
        let mut wire = Wire { stream, reader, begun: Vec::new() };
        wire.flush();
        wire
    }

    /// Asks for the messages of a subject.
    pub fn subscribe(&mut self, subject: &str) {
        write!(self.stream, "SUB {subject} 1\r\n").expect("the broker reads");
        self.flush();
    }

    /// Sends a message. Whether the broker takes it shows at the next [`Wire::flush`].
    pub fn publish(&mut self, message: &WireMessage) {
        let reply = message.reply.as_deref().map(|reply| format!("{reply} ")).unwrap_or_default();
        let (subject, body) = (&message.subject, &message.body);
        let mut sent = match message.headers.is_empty() {
            true => format!("PUB {subject} {reply}{}\r\n", body.len()).into_bytes(),
            false => {
                let headers = message.header_block();
                let (length, total) = (headers.len(), headers.len() + body.len());
                format!("HPUB {subject} {reply}{length} {total}\r\n{headers}").into_bytes()
            }
        };
        sent.extend_from_slice(body);
        sent.extend_from_slice(b"\r\n");
        self.stream.write_all(&sent).expect("the broker reads");
    }

    /// Waits until the broker has taken all that was sent. What comes meanwhile is thrown away.
    ///
    /// # Panics
    /// When the broker complains about something.
    pub fn flush(&mut self) {
        self.stream.write_all(b"PING\r\n").expect("the broker reads");
        loop {
            let line = self.line().expect("the broker answers in time");
            assert!(!line.starts_with("-ERR"), "the broker says {line}");
            if line == "PONG" {
                return;
            }
            self.message(&line);
        }
    }

    /// The next message, if one comes within `limit`.
    pub fn next(&mut self, limit: Duration) -> Option<WireMessage> {
        loop {
            self.stream.set_read_timeout(Some(limit)).expect("a limit can be set");
            let line = self.line();
            self.stream.set_read_timeout(Some(LIMIT)).expect("a limit can be set");
            if let Some(message) = self.message(&line?) {
                return Some(message);
            }
        }
    }

    /// The next line; `None` when there is none in time.
    fn line(&mut self) -> Option<String> {
        match self.reader.read_until(b'\n', &mut self.begun) {
            Ok(0) => panic!("the broker has closed the connection"),
            Ok(_) => Some(String::from_utf8_lossy(&std::mem::take(&mut self.begun)).trim_end().to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("the broker cannot be read: {error}"),
        }
    }

    /// The message that `line` begins, if it does: `MSG subject sid [reply] total` or `HMSG subject sid [reply] head total`.
    fn message(&mut self, line: &str) -> Option<WireMessage> {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = match words[0] {
            "PING" => {
                self.stream.write_all(b"PONG\r\n").expect("the broker reads");
                return None;
            }
            "MSG" => 1,
            "HMSG" => 2,
            _ => return None,
        };
        let number = |word: &str| word.parse::<usize>().expect("the broker counts in decimal");
        let (names, lengths) = words.split_at(words.len() - numbers);
        let total = number(lengths.last().expect("a message has a length"));
        let head = if numbers == 2 { number(lengths[0]) } else { 0 };
        let mut bytes = vec![0; total + 2];
        self.reader.read_exact(&mut bytes).expect("the broker sends what it announces");
        Some(WireMessage {
            subject: names[1].to_owned(),
            reply: names.get(3).filter(|reply| !reply.is_empty()).map(|reply| (*reply).to_owned()),
            headers: read_headers(&bytes[..head]),
            body: bytes[head..total].to_vec(),
        })
    }
}
