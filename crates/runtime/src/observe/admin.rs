//! The admin listener: liveness and readiness for orchestrators. It has a thread of its own, so it answers however busy
//! the process is.
//!
//! `GET /livez` is 200 while the process works. It is 503 when the async runtime has run none of its tasks for half a
//! minute: such a process is stuck, and only a restart helps. The admin thread counts only the time in which it ran
//! itself, so a process that was suspended as a whole does not count as stuck.
//! `GET /readyz` is 200 while the process takes work and 503 otherwise. `GET /metrics` shows the process's counters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use trireme_telemetry::metrics::{self, Exposition};

use super::statistics::{Statistics, export};

/// Whether the process takes work. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicBool>);

/// Time between two beats of the async runtime.
const BEAT: Duration = Duration::from_secs(1);

/// Number of missed beats after which the process counts as stuck.
const MISSED_BEATS: u32 = 30;

/// Shows whether the async runtime runs its tasks: the runtime resets this counter, the admin thread counts it up.
#[derive(Clone, Debug, Default)]
struct Pulse(Arc<AtomicU32>);

/// A running admin listener; it ends with the process.
#[derive(Debug)]
pub struct Admin {
    /// Where it listens.
    pub address: SocketAddr,
}

// === impl Health ===

impl Health {
    /// Sets whether the process takes work.
    pub fn set_ready(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether the process takes work.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

// === impl Admin ===

impl Admin {
    /// Starts to listen. `/livez` watches the runtime that this is called in; `ready` says whether the process takes
    /// work. Errors when the address cannot be bound.
    pub fn start(
        address: SocketAddr,
        ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
        statistics: Statistics,
    ) -> std::io::Result<Admin> {
        Admin::beating(BEAT, address, ready, statistics)
    }

    fn beating(
        every: Duration,
        address: SocketAddr,
        ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
        statistics: Statistics,
    ) -> std::io::Result<Admin> {
        let pulse = Pulse::default();
        // On the runtime that is watched, until that runtime ends.
        tokio::runtime::Handle::current().spawn(pulse.clone().beat(every));
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            let shown = pulse.clone();
            let routes = Router::new()
                .route("/livez", get(async move || status(shown.is_there())))
                .route("/readyz", get(async move || status(ready())))
                .route("/metrics", get(async move || metrics(&statistics)));
            let served = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::select! {
                    served = axum::serve(listener, routes).into_future() => served,
                    () = pulse.miss(every) => Ok(()),
                }
            });
            if let Err(error) = served {
                tracing::error!(%error, "admin listener ended");
            }
        })?;
        Ok(Admin { address })
    }
}

// === impl Pulse ===

impl Pulse {
    async fn beat(self, every: Duration) {
        loop {
            self.0.store(0, Ordering::Relaxed);
            tokio::time::sleep(every).await;
        }
    }

    /// Counts the beats that are missing; `beat` resets the count.
    async fn miss(self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= MISSED_BEATS
    }
}

fn status(ready: bool) -> StatusCode {
    match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn metrics(statistics: &Statistics) -> impl IntoResponse + use<> {
    let mut out = Exposition::default();
    export::process_metrics(statistics, &mut out);
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], out.into_text())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    fn livez(address: SocketAddr) -> u16 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn until(address: SocketAddr, wanted: u16) {
        let started = Instant::now();
        while livez(address) != wanted {
            assert!(started.elapsed() < Duration::from_secs(60), "/livez is not {wanted}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_stuck_runtime_is_not_alive() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = {
            let _inside = runtime.enter();
            let statistics = Statistics::new("test");
            let every = Duration::from_millis(10);
            Admin::beating(every, "127.0.0.1:0".parse().unwrap(), || true, statistics).unwrap().address
        };
        let (free, stuck) = mpsc::sync_channel::<()>(0);
        let working = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                // Blocks the runtime, as a deadlock would.
                stuck.recv().unwrap();
                std::future::pending::<()>().await;
            });
        });
        until(address, 503);
        free.send(()).unwrap();
        until(address, 200);
        assert!(!working.is_finished());
    }
}
