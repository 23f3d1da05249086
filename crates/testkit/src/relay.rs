//! A relay for TCP connections to a server on this machine. A test can cut it.
//!
//! It forwards bytes of any protocol. A cut loses nothing: bytes wait, as they do in a kernel that gets no
//! acknowledgement. Either end may still close the connection meanwhile.

use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// How often a cut relay checks whether it is still cut.
const LOOK: Duration = Duration::from_millis(10);

/// A listening relay. After it is dropped, it accepts no connections; existing ones end with their servers.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The port of the server; 0 before the first [`Relay::lead_to`].
    target: AtomicU16,
    is_cut: AtomicBool,
    is_closed: AtomicBool,
}

// === impl Relay ===

impl Relay {
    /// A relay without a server: it ends every connection at once until [`Relay::lead_to`].
    pub fn start() -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if serving.is_closed.load(Ordering::Relaxed) {
                    return;
                }
                let serving = serving.clone();
                thread::spawn(move || drop(serving.connect(&client)));
            }
        });
        Relay { address, shared }
    }

    /// The address for clients: `127.0.0.1:<port>`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Directs new connections to this port.
    pub fn lead_to(&self, port: u16) {
        self.shared.target.store(port, Ordering::Relaxed);
    }

    /// Stops forwarding. The connections stay open.
    pub fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::Relaxed);
    }

    /// Forwards again, beginning with the bytes that waited.
    pub fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.mend();
        self.shared.is_closed.store(true, Ordering::Relaxed);
        // The listening thread checks the flag at the next connection.
        drop(TcpStream::connect(self.address));
    }
}

// === impl Shared ===

impl Shared {
    /// Serves one connection until one side closes it.
    fn connect(&self, client: &TcpStream) -> Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target.load(Ordering::Relaxed)))?;
        for stream in [client, &server] {
            stream.set_nodelay(true)?;
        }
        thread::scope(|scope| {
            scope.spawn(|| self.pump(client, &server));
            self.pump(&server, client);
        });
        Ok(())
    }

    /// Forwards bytes until one side closes the connection, and then closes it for both.
    fn pump(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = [0; 64 << 10];
        while let Ok(length) = from.read(&mut bytes)
            && length > 0
        {
            while self.is_cut.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
            }
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_while_a_relay_is_cut() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Relay::start();
        relay.lead_to(server.local_addr().unwrap().port());
        let mut client = TcpStream::connect(relay.address()).unwrap();
        let (mut served, _) = server.accept().unwrap();
        let mut bytes = [0; 4];
        client.write_all(b"once").unwrap();
        served.read_exact(&mut bytes).unwrap();
        relay.cut();
        client.write_all(b"more").unwrap();
        served.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(served.read(&mut bytes).is_err());
        relay.mend();
        served.set_read_timeout(None).unwrap();
        served.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"more");
    }

    #[test]
    fn a_relay_without_a_server_ends_connections() {
        let relay = Relay::start();
        let mut client = TcpStream::connect(relay.address()).unwrap();
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    }
}
