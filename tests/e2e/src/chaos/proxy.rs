//! A proxy between one process and the broker, which can cut their connection.
//!
//! It passes on whole NATS protocol messages. That costs little and allows more than a plain cable: with
//! [`Proxy::acknowledge_early`] the proxy acknowledges each delivery to the broker as it passes, before the worker has
//! received it. A pipeline that did so would lose work with every worker that dies, and the harness has to notice that.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Time between two checks whether a cut cable has been mended.
const LOOK: Duration = Duration::from_millis(10);

/// A listening proxy. It ends with the process.
#[derive(Clone, Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    broker: String,
    /// How many cuts are in effect.
    cuts: AtomicUsize,
    unplugged: AtomicBool,
    acknowledge_early: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

// === impl Proxy ===

impl Proxy {
    /// A proxy to the broker at `nats://host:port`.
    pub fn start(broker: &str) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            broker: broker.trim_start_matches("nats://").to_owned(),
            cuts: AtomicUsize::new(0),
            unplugged: AtomicBool::new(false),
            acknowledge_early: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let serving = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let serving = serving.clone();
                thread::spawn(move || drop(serving.connect(client)));
            }
        });
        Proxy { address, shared }
    }

    /// The URL that the process connects to.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Stops passing messages, without an error on either side, like a cable that is pulled out.
    pub fn cut(&self) {
        self.shared.cuts.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends one [`Proxy::cut`]. Messages pass again, those that waited first, when all cuts have been ended: two faults
    /// may overlap.
    pub fn mend(&self) {
        self.shared.cuts.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends every connection; both sides get an error.
    pub fn reset(&self) {
        for connection in self.shared.connections().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Like [`Proxy::reset`], and refuses new connections until [`Proxy::plug_in`]. Messages to the process are lost
    /// meanwhile, although the broker runs.
    pub fn unplug(&self) {
        self.shared.unplugged.store(true, Ordering::Relaxed);
        self.reset();
    }

    /// Accepts new connections again.
    pub fn plug_in(&self) {
        self.shared.unplugged.store(false, Ordering::Relaxed);
    }

    /// From now on acknowledges each delivery to the broker before the worker receives it.
    pub fn acknowledge_early(&self) {
        self.shared.acknowledge_early.store(true, Ordering::Relaxed);
    }
}

// === impl Shared ===

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.connections.lock().expect("no holder panics")
    }

    /// Serves one connection until one side ends it.
    fn connect(&self, client: TcpStream) -> Result<()> {
        if self.unplugged.load(Ordering::Relaxed) {
            return Ok(());
        }
        let broker = TcpStream::connect(&self.broker)?;
        for stream in [&client, &broker] {
            stream.set_nodelay(true)?;
        }
        self.connections().extend([client.try_clone()?, broker.try_clone()?]);
        let to_broker = Mutex::new(broker.try_clone()?);
        let to_client = Mutex::new(client.try_clone()?);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = self.pump(&client, &to_broker, None);
                let _ = broker.shutdown(Shutdown::Both);
            });
            let _ = self.pump(&broker, &to_client, Some(&to_broker));
            let _ = client.shutdown(Shutdown::Both);
        });
        self.connections().retain(|stream| stream.peer_addr().is_ok());
        Ok(())
    }

    /// Passes messages on. `acknowledge` is the connection to the broker, to acknowledge deliveries that come from it.
    fn pump(&self, from: &TcpStream, to: &Mutex<TcpStream>, acknowledge: Option<&Mutex<TcpStream>>) -> Result<()> {
        let mut from = BufReader::with_capacity(64 << 10, from);
        loop {
            let Some(message) = read_message(&mut from)? else { return Ok(()) };
            while self.cuts.load(Ordering::Relaxed) > 0 {
                thread::sleep(LOOK);
            }
            if let Some(broker) = acknowledge
                && self.acknowledge_early.load(Ordering::Relaxed)
                && let Some(subject) = acknowledgement(&message)
            {
                let ack = format!("PUB {subject} 4\r\n+ACK\r\n");
                broker.lock().expect("no holder panics").write_all(ack.as_bytes())?;
            }
            to.lock().expect("no holder panics").write_all(&message)?;
        }
    }
}

/// One message of the NATS protocol: a line, and the payload that some lines announce. `None` at the end.
fn read_message(from: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    if from.read_until(b'\n', &mut message)? == 0 {
        return Ok(None);
    }
    let line = String::from_utf8_lossy(&message).into_owned();
    let mut words = line.split_ascii_whitespace();
    if matches!(words.next(), Some("PUB" | "HPUB" | "MSG" | "HMSG")) {
        let payload: u64 = words.next_back().and_then(|size| size.parse().ok()).unwrap_or(0);
        // The payload is followed by a line break.
        from.take(payload + 2).read_to_end(&mut message)?;
    }
    Ok(Some(message))
}

/// The subject of a delivery's acknowledgement; `None` if the message is not a delivery.
fn acknowledgement(message: &[u8]) -> Option<&str> {
    let line = message.split(|&byte| byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok())?;
    let mut words = line.split_ascii_whitespace();
    matches!(words.next(), Some("MSG" | "HMSG")).then(|| words.find(|word| word.starts_with("$JS.ACK.")))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_whole_and_deliveries_known() {
        let stream = b"INFO {}\r\nHMSG trireme.work.m.1.0 7 $JS.ACK.s.c.1.2.3.4.5 4 9\r\nab\r\nc\r\n\r\r\nPING\r\nMSG a 1 2\r\nhi\r\n";
        let mut from = &stream[..];
        let mut messages = Vec::new();
        while let Some(message) = read_message(&mut from).unwrap() {
            messages.push(message);
        }
        assert_eq!(messages.concat(), stream);
        assert_eq!(messages.len(), 4);
        let acknowledgements: Vec<_> = messages.iter().map(|message| acknowledgement(message)).collect();
        assert_eq!(acknowledgements, [None, Some("$JS.ACK.s.c.1.2.3.4.5"), None, None]);
    }
}
