//! A TCP proxy between a client and its broker that fails at chosen messages.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use trireme_testkit::NatsServer;

/// A proxy that fails at chosen messages, one after the other.
pub struct Cable {
    address: SocketAddr,
    faults: Arc<AtomicUsize>,
}

impl Cable {
    /// A proxy to `server`. When the client sends the first of `texts`, the proxy resets the connection and drops the
    /// chunk with that text. It then does the same for the next text.
    pub async fn cut_at(server: &NatsServer, texts: &'static [&'static str]) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let broker = server.url().trim_start_matches("nats://").to_owned();
        let faults = Arc::new(AtomicUsize::new(0));
        let count = faults.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(broker) = TcpStream::connect(&broker).await else { continue };
                let (from_client, mut to_client) = client.into_split();
                let (mut from_broker, to_broker) = broker.into_split();
                let faults = count.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = pass_until_fault(from_client, to_broker, texts, &faults) => {}
                        _ = copy(&mut from_broker, &mut to_client) => {}
                    }
                });
            }
        });
        Cable { address, faults }
    }

    /// The URL for the client.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// How many times it has failed.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::SeqCst)
    }
}

async fn pass_until_fault(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, texts: &[&str], faults: &AtomicUsize) {
    let mut chunk = vec![0; 64 << 10];
    // The end of the previous chunk, because a text may be split between two.
    let mut seen = Vec::new();
    loop {
        let Ok(read @ 1..) = from.read(&mut chunk).await else { return };
        if let Some(text) = texts.get(faults.load(Ordering::SeqCst)) {
            seen.extend_from_slice(&chunk[..read]);
            if seen.windows(text.len()).any(|window| window == text.as_bytes()) {
                faults.fetch_add(1, Ordering::SeqCst);
                return;
            }
            seen.drain(..seen.len().saturating_sub(text.len()));
        }
        if to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}
