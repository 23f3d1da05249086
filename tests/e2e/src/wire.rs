//! The NATS protocol over a bare socket: it can see messages to others, and send messages that no client library would.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The longest wait for an answer of the broker.
const LIMIT: Duration = Duration::from_secs(60);

/// A message as it is on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireMessage {
    /// The subject it was sent to.
    pub subject: String,
    /// The subject for an answer.
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
    /// How long the broker may take for an answer.
    limit: Duration,
    /// The beginning of a line that is not complete yet.
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

/// The headers in a block; its first line, the version and perhaps a status, is left out.
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
        Wire::try_open(url, LIMIT).expect("the broker listens and answers in time")
    }

    /// The same, but with an error if the broker is not there or does not answer within `limit`. Later calls use the
    /// same limit.
    pub(crate) fn try_open(url: &str, limit: Duration) -> Result<Wire> {
        let mut stream = TcpStream::connect(url.trim_start_matches("nats://"))?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let login = r#"CONNECT {"verbose":false,"headers":true,"protocol":1}"#;
        write!(stream, "{login}\r\n")?;
        let reader = BufReader::new(stream.try_clone()?);
        let mut wire = Wire { stream, reader, limit, begun: Vec::new() };
        wire.try_flush()?;
        Ok(wire)
    }

    /// Subscribes to a subject.
    pub fn subscribe(&mut self, subject: &str) {
        self.try_subscribe(subject).expect("the broker reads, and answers in time");
    }

    fn try_subscribe(&mut self, subject: &str) -> Result<()> {
        write!(self.stream, "SUB {subject} 1\r\n")?;
        self.try_flush()
    }

    /// Sends a message. An error of the broker shows at the next [`Wire::flush`].
    pub fn publish(&mut self, message: &WireMessage) {
        self.try_publish(message).expect("the broker reads");
    }

    fn try_publish(&mut self, message: &WireMessage) -> Result<()> {
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
        self.stream.write_all(&sent)
    }

    /// Sends a question and waits for the answer. Use a connection for questions only: `ask` ends its subscription and
    /// drops other messages.
    pub(crate) fn ask(&mut self, question: WireMessage) -> Result<WireMessage> {
        // A new inbox for each question, so that a late answer to an earlier question is not taken for this one's.
        let inbox = format!("_INBOX.wire.{:016x}", fastrand::u64(..));
        write!(self.stream, "UNSUB 1\r\n")?;
        self.try_subscribe(&inbox)?;
        self.try_publish(&WireMessage { reply: Some(inbox.clone()), ..question })?;
        loop {
            let line = self.line()?.ok_or_else(|| Error::from(ErrorKind::TimedOut))?;
            match self.message(&line)? {
                Some(answer) if answer.subject == inbox => return Ok(answer),
                _ => {}
            }
        }
    }

    /// Waits until the broker has processed everything that was sent. Messages that arrive meanwhile are dropped.
    ///
    /// # Panics
    /// When the broker reports an error.
    pub fn flush(&mut self) {
        self.try_flush().expect("the broker answers in time");
    }

    fn try_flush(&mut self) -> Result<()> {
        self.stream.write_all(b"PING\r\n")?;
        loop {
            let line = self.line()?.ok_or_else(|| Error::from(ErrorKind::TimedOut))?;
            assert!(!line.starts_with("-ERR"), "the broker says {line}");
            if line == "PONG" {
                return Ok(());
            }
            self.message(&line)?;
        }
    }

    /// The next message, if one arrives within `limit`.
    pub fn next(&mut self, limit: Duration) -> Option<WireMessage> {
        loop {
            self.stream.set_read_timeout(Some(limit)).expect("a limit can be set");
            let line = self.line().expect("the broker keeps the connection");
            self.stream.set_read_timeout(Some(self.limit)).expect("a limit can be set");
            if let Some(message) = self.message(&line?).expect("the broker sends what it announces") {
                return Some(message);
            }
        }
    }

    /// The next line; `None` if there is none in time.
    fn line(&mut self) -> Result<Option<String>> {
        match self.reader.read_until(b'\n', &mut self.begun) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(Some(String::from_utf8_lossy(&std::mem::take(&mut self.begun)).trim_end().to_owned())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The message that begins with `line`, if it is `MSG subject sid [reply] total` or `HMSG subject sid [reply] head
    /// total`.
    fn message(&mut self, line: &str) -> Result<Option<WireMessage>> {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = match words[0] {
            "PING" => {
                self.stream.write_all(b"PONG\r\n")?;
                return Ok(None);
            }
            "MSG" => 1,
            "HMSG" => 2,
            _ => return Ok(None),
        };
        let number = |word: &str| word.parse::<usize>().expect("the broker counts in decimal");
        let (names, lengths) = words.split_at(words.len() - numbers);
        let total = number(lengths.last().expect("a message has a length"));
        let head = if numbers == 2 { number(lengths[0]) } else { 0 };
        let mut bytes = vec![0; total + 2];
        self.reader.read_exact(&mut bytes)?;
        Ok(Some(WireMessage {
            subject: names[1].to_owned(),
            reply: names.get(3).filter(|reply| !reply.is_empty()).map(|reply| (*reply).to_owned()),
            headers: read_headers(&bytes[..head]),
            body: bytes[head..total].to_vec(),
        }))
    }
}
