//! The admin listener: liveness and readiness for orchestrators. It has a thread of its own, so it answers however busy
//! the process is.
//!
//! `GET /livez` is 200 while the process works. It is 503 when the async runtime has run none of its tasks for half a
//! minute: such a process is stuck, and only a restart helps. The admin thread counts only the time in which it ran
//! itself, so a process that was suspended as a whole does not count as stuck.
//! `GET /readyz` is 200 while the process takes work and 503 otherwise; its body says why, in a line. It is about the process
//! and its way to the broker, not about models: a model that is missing must not take gateways away from the others.
//! `GET /metrics` shows the process's counters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;
use trireme_bus::{Bus, BusFault};
use trireme_telemetry::metrics::{self, Exposition};

use super::statistics::{Statistics, export};

/// Whether the process takes work, and why not. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// [`STARTING`], [`READY`] or [`STOPPING`].
    phase: AtomicU8,
    /// The fault of the bus, once there is a bus.
    bus: OnceLock<watch::Receiver<Option<BusFault>>>,
}

const STARTING: u8 = 0;
const READY: u8 = 1;
const STOPPING: u8 = 2;

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
    /// The process has started. It does nothing if the process is stopping.
    pub fn set_ready(&self) {
        let _ = self.0.phase.compare_exchange(STARTING, READY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The process is stopping, and takes no more work.
    pub fn set_stopping(&self) {
        self.0.phase.store(STOPPING, Ordering::Release);
    }

    /// Whether the process is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.phase.load(Ordering::Acquire) == STOPPING
    }

    /// Takes the state of the bus into account from now on.
    pub fn follow(&self, bus: &dyn Bus) {
        let _ = self.0.bus.set(bus.fault());
    }

    /// The present fault of the bus, grave or not.
    pub fn bus_fault(&self) -> Option<BusFault> {
        self.0.bus.get().and_then(|fault| fault.borrow().clone())
    }

    /// Whether the process takes work. The error says why not.
    pub fn check(&self) -> Result<(), String> {
        match self.0.phase.load(Ordering::Acquire) {
            STARTING => return Err("the process is starting".to_owned()),
            STOPPING => return Err("the process is stopping".to_owned()),
            _ => {}
        }
        match self.bus_fault() {
            Some(fault) if fault.is_grave() => Err(fault.to_string()),
            Some(_) | None => Ok(()),
        }
    }

    /// The answer to `/readyz`.
    fn answer(&self) -> (StatusCode, String) {
        match self.check() {
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
            Ok(()) => match self.bus_fault() {
                Some(fault) => (StatusCode::OK, format!("ready, but {fault}\n")),
                None => (StatusCode::OK, "ready\n".to_owned()),
            },
        }
    }
}

// === impl Admin ===

impl Admin {
    /// Starts to listen. `/livez` watches the runtime that this is called in; `health` says whether the process takes
    /// work. Errors when the address cannot be bound.
    pub fn start(address: SocketAddr, health: Health, statistics: Statistics) -> std::io::Result<Admin> {
        Admin::beating(BEAT, address, health, statistics)
    }

    fn beating(every: Duration, address: SocketAddr, health: Health, statistics: Statistics) -> std::io::Result<Admin> {
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
                .route("/readyz", get(async move || health.answer()))
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
            Admin::beating(every, "127.0.0.1:0".parse().unwrap(), Health::default(), statistics).unwrap().address
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
