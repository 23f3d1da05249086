//! The admin listener: liveness and readiness for orchestrators, on a thread of its own, so that it answers however
//! busy the process is.
//!
//! `GET /livez` is 200 while the process runs; `GET /readyz` is 200 while it takes work and 503 otherwise; `GET /metrics` is
//! what the process has counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use trireme_telemetry::metrics::{self, Exposition};

use crate::Statistics;
use crate::statistics::export;

/// Whether the process takes work. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicBool>);

/// A running admin listener; it ends with the process.
#[derive(Debug)]
pub struct Admin {
    /// Where it listens.
    pub address: SocketAddr,
}

// === impl Health ===

impl Health {
    /// The process takes work from now on, or no longer.
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
    /// Starts to listen; `ready` says whether the process takes work. Errors when the address cannot be bound.
    pub fn start(
        address: SocketAddr,
        ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
        statistics: Statistics,
    ) -> std::io::Result<Admin> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            let routes = Router::new()
                .route("/livez", get(|| async { StatusCode::OK }))
                .route("/readyz", get(async move || status(ready())))
                .route("/metrics", get(async move || metrics(&statistics)));
            let served = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(listener, routes).await
            });
            if let Err(error) = served {
                tracing::error!(%error, "admin listener ended");
            }
        })?;
        Ok(Admin { address })
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
